"""Fixtures that several files of tests share; a file that needs another of that name has its own."""

from __future__ import annotations

from agent_rig import commander, rig

__all__ = ["commander", "rig"]
