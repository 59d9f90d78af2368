"""Trainers that save in their real formats and in their real order, without the trainers.

A writer is a generator: it yields after everything that it did to the disk, so that who drives it can look, copy or end
the world there. What it yields is in words. `run(writer)` drives one to its end.
"""
