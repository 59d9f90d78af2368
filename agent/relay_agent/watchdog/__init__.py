"""Whether a trainer gets on: the phase it is in, how long that may be quiet, and whether its loss is going bad.

`phases`, `pace`, `stalls` and `diverging` are pure; `watch` looks, tells and has the trainer stopped where that is the
policy.
"""
