"""Slurm: the signal that `--signal` asked for, and the end of the job where Slurm tells it (sbatch(1), scancel(1)).

`#SBATCH --signal=B:USR1@120` and `exec relay-agent` in the script: B: sends it to the batch shell alone, whose place
the agent has taken. Without B: it goes to every process of the steps, the trainer's too, and ends those that do not
know it. A job that ends by its time limit gets it that long before; a preempted one only where its partition says so.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay_agent.preempt.notice import Notice, Surroundings

SIGNALLED_AT_MOST = 3600.0
"""Seconds before its end that a job asks to be signalled, at most: one whose end is further away is preempted."""
LOOK = 15.0


class Slurm:
    """Looks at the clock alone: no question leaves the pod."""

    every = LOOK

    def __init__(self, around: Surroundings) -> None:
        self._around = around

    async def look(self) -> list[Notice]:
        end, now = end_of(self._around.environ), self._around.wall()
        if end is None or not now < end <= now + self._around.lead + LOOK:
            return []
        return [Notice("slurm", "the job comes to its time limit", end)]


def end_of(environ: Mapping[str, str]) -> float | None:
    """When the job reaches its time limit, in seconds since the epoch; None where Slurm did not tell (before 22.05)."""
    text = environ.get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 12 else None


def warned(environ: Mapping[str, str], now: float) -> Notice:
    """SIGUSR1 has come."""
    end = end_of(environ)
    near = end is not None and now < end <= now + SIGNALLED_AT_MOST
    return Notice("slurm", f"Slurm sent SIGUSR1 to job {environ.get('SLURM_JOB_ID', '')[:20]}", end if near else None)
