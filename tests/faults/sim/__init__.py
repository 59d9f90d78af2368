"""Agents, a commander and a volume in one deterministic simulation: virtual time, one thread, one seed."""
