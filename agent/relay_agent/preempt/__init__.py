"""A pod that is about to be taken away: who says so, how long is left, and what is done with it.

`clues` tells where the agent runs, without asking anybody. `places` knows how long that place leaves a pod after
SIGTERM. Each of `aws`, `gcp`, `azure` and `slurm` knows how one place gives notice before that; `sources` is the one
table of them, and `watch` asks those that are here. `plan` decides what the time is enough for, `departure` does it.
"""
