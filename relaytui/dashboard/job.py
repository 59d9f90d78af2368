"""The shell's job that the dashboard is part of. Loaded when it is asked about: psutil takes longer than a frame."""

from __future__ import annotations

import os

import psutil


def can_come_back() -> bool:
    """Whether a shell with job control waits for this job: without one, nobody would ever wake it again."""
    ours, session = os.getpgrp(), os.getsid(0)
    try:
        for parent in psutil.Process().parents():
            if os.getsid(parent.pid) != session:
                return False
            if os.getpgid(parent.pid) != ours:
                return True
    except (psutil.Error, OSError):
        pass
    return False
