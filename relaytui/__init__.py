"""Relay's operator side: the commander, its clients, the dashboard and the command line."""

__version__ = "0.1.0"
