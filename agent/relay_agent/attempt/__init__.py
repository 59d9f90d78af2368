"""One attempt at a run, from the claim to its last word."""
