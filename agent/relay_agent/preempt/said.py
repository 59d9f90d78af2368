"""What `relay-agent doctor` says of the pod's end: who will give notice of it, and how long it leaves."""

from __future__ import annotations

from relay_agent.config import Settings
from relay_agent.preempt.clues import Clues
from relay_agent.preempt.departure import grace_of
from relay_agent.preempt.places import place_of
from relay_agent.preempt.plan import kill_margin
from relay_agent.preempt.sources import Source, sources_of


def describe(settings: Settings, clues: Clues) -> tuple[str, str]:
    """In words, and what to do about it; "": nothing."""
    sources = sources_of(settings.preempt, clues)
    words = (
        ["watches " + " and ".join(_watched(settings, source) for source in sources)]
        if sources
        else [_nobody(settings)]
    )
    todo = ""
    place = None if settings.preempt == "none" else place_of(clues)
    grace = grace_of(settings, place)
    if grace is not None:
        whose = "PREEMPT_GRACE" if settings.preempt_grace is not None else f"{place.name}: {place.why}" if place else ""
        killed = min(settings.stop_grace, grace - kill_margin(grace))
        words.append(f"SIGTERM leaves the pod {grace:g} s ({whose}), so the trainer is killed {killed:g} s after it")
    else:
        words.append(f"SIGTERM leaves the trainer {settings.stop_grace:g} s (RELAY_STOP_GRACE)")
        if place is not None and settings.stop_grace >= place.grace:
            words[-1] += f", and {place.name} leaves a pod {place.grace:g} s ({place.why})"
            todo = "see to it that this pod has longer, and set PREEMPT_GRACE to what it has"
    if settings.preempt == "slurm" and not clues.slurm:
        todo = "start the agent in a Slurm job (there is no SLURM_JOB_ID), or set PREEMPT to auto"
    elif any(source.name == "slurm" for source in sources) and not todo:
        words.append("#SBATCH --signal=B:USR1@120 and `exec relay-agent` have Slurm warn it")
    return "; ".join(words), todo


def _watched(settings: Settings, source: Source) -> str:
    grace = source.grace if settings.preempt_grace is None else settings.preempt_grace
    return f"{source.watches} ({grace:g} s where no time is told)"


def _nobody(settings: Settings) -> str:
    if settings.preempt == "none":
        return "PREEMPT is none: nobody is asked for a notice"
    return "nothing here says that this is AWS, GCP, Azure or Slurm: nobody is asked for a notice"
