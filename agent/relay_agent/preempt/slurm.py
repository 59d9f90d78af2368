"""Slurm: the signal that `--signal` asked for, and the end of the job where Slurm tells it (sbatch(1), scancel(1)).

`#SBATCH --signal=B:USR1@120` and `exec relay-agent` in the script: B: sends it to the batch shell alone, whose place
the agent has taken. Without B: it goes to every process of the steps, the trainer's too, and ends those that do not
know it. A job that ends by its time limit gets it that long before; a preempted one only where its partition says so.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Mapping

from relay_agent.preempt.notice import Notice, Surroundings

SIGNALLED_AT_MOST = 3600.0
"""Seconds before its end that a job asks to be signalled, at most: one whose end is further away is preempted."""
LOOK = 15.0
PATIENCE = 10.0
"""Seconds that Slurm has for an answer: its controller may be busy."""


class Slurm:
    """Looks at the clock; and near the end asks Slurm whether the job was prolonged since it began."""

    every = LOOK

    def __init__(self, around: Surroundings, ask: Callable[[Mapping[str, str]], float | None] | None = None) -> None:
        self._around = around
        self._ask = ask or end_by_squeue
        self._end = end_of(around.environ)

    async def look(self) -> list[Notice]:
        if not self._is_near():
            return []
        self._end = await asyncio.to_thread(self._ask, self._around.environ) or self._end
        return [Notice("slurm", "the job comes to its time limit", self._end)] if self._is_near() else []

    def _is_near(self) -> bool:
        now = self._around.wall()
        return self._end is not None and now < self._end <= now + self._around.lead + LOOK


def end_by_squeue(environ: Mapping[str, str]) -> float | None:
    """As Slurm has it now, in seconds since the epoch; None where it does not say. Blocking, some seconds at most."""
    job = environ.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdigit()):
        return None
    argv = ["squeue", "--noheader", "--jobs", job, "--format", "%e"]
    try:
        done = subprocess.run(
            argv, env={**environ, "SLURM_TIME_FORMAT": "%s"}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return _seconds(done.stdout[:64].decode(errors="replace").strip())


def end_of(environ: Mapping[str, str]) -> float | None:
    """When the job reaches its time limit, in seconds since the epoch; None where Slurm did not tell (before 22.05)."""
    return _seconds(environ.get("SLURM_JOB_END_TIME", ""))


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def warned(environ: Mapping[str, str], now: float) -> Notice:
    """SIGUSR1 has come."""
    end = end_of(environ)
    near = end is not None and now < end <= now + SIGNALLED_AT_MOST
    job = environ.get("SLURM_JOB_ID", "")[:20]
    return Notice("slurm", f"Slurm sent SIGUSR1{f' to job {job}' if job else ''}", end if near else None)
