"""How an attempt ends: why it was asked to, what its trainer's end means, and whether it is tried again."""
