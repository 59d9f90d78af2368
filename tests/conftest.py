"""Fixtures that several files of tests share; a file that needs another of that name has its own."""

from __future__ import annotations

from agent_rig import commander, rig
from cli_kit import served

__all__ = ["commander", "rig", "served"]
