"""Frozen data and pure transitions: what a run and a lease are, and what may happen to them. No I/O."""
