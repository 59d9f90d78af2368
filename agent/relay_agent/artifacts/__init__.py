"""The commander's artifact store, for runs without a Hub: checkpoints and small files go there, and come back.

`jobs` is what the agent asks of a child process, `far` what runs in there; `upkeep` decides what is sent and when.
"""
