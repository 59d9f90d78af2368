"""What happened and how long something takes, in words: the same in the dashboard and in the shell."""

from __future__ import annotations

import math
import re

from relaytui.wire.rows import AttemptRow, EventRow, RunRow, WorkerRow
from relaytui.wire.status import Outcome, RunStatus
from relaytui.wire.text import clean, resume_ignored

SENTENCES = {
    "worker.connected": "connected from {message}",
    "worker.disconnected": "no longer connected from {message}",
    "checkpoint.pruned": "{message} is deleted, newer ones are kept",
    "commander.started": "{message} has started",
    "signal.received": "the pod got {message}",
}
"""Of kinds whose message is a bare name. Others say a sentence by themselves."""
NAMES = {("lease.forced", "holder"): "last holder"}  # it may have let go of the run before
"""Of data whose name says less, or more, than it means: by kind and name."""
SAID_OTHERWISE = frozenset({"bytes", "worker"})
_HASH = re.compile(r"(?<![0-9A-Za-z])([0-9a-f]{12})(?:[0-9a-f]{52}|[0-9a-f]{28})(?![0-9A-Za-z])")
NOTHING = frozenset({"", "0", "no", "false"})


def sentence(event: EventRow) -> str:
    """What happened, for people; of its data what belongs there."""
    message = short_hashes(clean(event.message, 1_000))
    said = SENTENCES.get(event.kind)
    if said is not None and message not in ("connected", "disconnected"):
        message = said.format(message=message)
    written = event.data.get("bytes", "")
    if event.kind == "checkpoint.published" and written.isascii() and written.isdigit():
        message += f", {size(int(written[:18]))}"
    return message


def details(event: EventRow) -> list[str]:
    """`name value` of the data that the sentence does not say already."""
    said = f"{sentence(event)} {event.kind}"
    return [
        short_hashes(clean(f"{NAMES.get((event.kind, name), name.replace('_', ' '))} {value}", 200))
        for name, value in event.data.items()
        if name not in SAID_OTHERWISE and value not in NOTHING and not _holds(said, value)
    ]


def _holds(text: str, value: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(short_hashes(value))}(?!\w)", text) is not None


def short_hashes(text: str) -> str:
    """Of hashes, and of revisions, the first twelve digits: as much as a person compares."""
    return _HASH.sub(r"\1", text)


def stalled(run: RunRow, now: float) -> str:
    """`stalled 12 min in saving`; empty where its trainer gets on, or nobody says that it does not."""
    if run.stalled_at is None:
        return ""
    seconds = max(0, int(now - run.stalled_at))
    minutes = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
    return f"stalled {minutes if seconds < 3_600 else duration(seconds)} in {clean(run.stalled_in, 32)}"


def volume_lost(run: RunRow, now: float) -> str:
    """`volume lost 1:45`; empty where its agent has it."""
    return "" if run.volume_lost_at is None else f"volume lost {duration(now - run.volume_lost_at)}"


def silent(run: RunRow, now: float) -> str:
    """`silent 1:45`; empty where its holder is connected, or nobody holds it."""
    return "" if run.silent_since is None else f"silent {duration(now - run.silent_since)}"


def reason(run: RunRow) -> str:
    """Why it is as it is; of one whose holder is silent, its last word may not be so any more."""
    if run.silent_since is None:
        return clean(run.message, 2_000)
    return f"{clean(run.holder or 'its holder', 128)} is not connected: cut off, or dead"


def age(seconds: float) -> str:
    """`now`, `12s`, `3m`, `2h`, `5d`: whole, so that it changes seldom."""
    whole = int(seconds)
    if whole < 1:
        return "now"
    for span, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if whole >= span:
            return f"{whole // span}{unit}"
    return f"{whole}s"


def ago(seconds: float) -> str:
    said = age(seconds)
    return said if said == "now" else f"{said} ago"


def count(value: int) -> str:
    """`950`, `12,400`, `1.24M`: exact while it is short."""
    if abs(value) < 100_000:
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    for power, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if abs(value) >= power:
            scaled = value / power
            return f"{scaled:.0f}{unit}" if abs(scaled) >= 100 else f"{scaled:.3g}{unit}"
    return str(value)


def duration(seconds: float) -> str:
    """`0:07`, `4:12`, `2h05m`, `3d04h`; at most six cells."""
    whole = max(0, int(seconds))
    if whole < 3_600:
        return f"{whole // 60}:{whole % 60:02d}"
    if whole < 86_400:
        return f"{whole // 3_600}h{whole % 3_600 // 60:02d}m"
    if whole < 100 * 86_400:
        return f"{whole // 86_400}d{whole % 86_400 // 3_600:02d}h"
    return f"{min(whole // 86_400, 99_999)}d"


def remaining(step: int, total: int | None, per_second: float | None) -> float | None:
    """Seconds to the last step at this rate; None where nobody can tell."""
    if total is None or not per_second or not math.isfinite(per_second) or per_second < 0:
        return None
    left = (total - step) / per_second
    return None if left < 0 or left > 10**9 else left


def rate_now(run: RunRow) -> float | None:
    """Steps per second; None where it makes none, or nobody knows: not trained, its holder silent, stalled, or at its
    last step already."""
    at_work = run.status in (RunStatus.RUNNING, RunStatus.DRAINING) and run.stalled_at is None
    return run.rate if at_work and run.silent_since is None and not last_step_made(run) else None


def time_left(run: RunRow) -> float | None:
    """Seconds to its last step, of a run that is on its way there: one that drains stops before."""
    return None if run.status is RunStatus.DRAINING else remaining(run.step, run.total, rate_now(run))


def last_step_made(run: RunRow) -> bool:
    """Whether an agent still has a run that has made all its steps: it saves, sends or ends."""
    return run.status.active and bool(run.total) and run.step >= (run.total or 0)


def kept(run: RunRow) -> str:
    """`7 published, 2 pruned`: that the others are on the volume of now is nobody's word, as a run may move."""
    pruned = run.published - run.checkpoints
    return f"{count(run.published)} published" + (f", {count(pruned)} pruned" if pruned > 0 else "")


def size(value: int) -> str:
    if value < 1_000:
        return f"{value} B"
    scaled = float(value)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        scaled /= 1_000
        if scaled < 1_000:
            return f"{scaled:.3g} {unit}" if scaled < 100 else f"{scaled:.0f} {unit}"
    return f"{scaled:.0f} PB"


def held_off(until: float | None, now: float) -> str:
    """Why agents wait after a restore; empty where they do not."""
    if until is None or until <= now:
        return ""
    return f"restored: no new grants for another {math.ceil(until - now)} s, so that holders can come back"


def behind(run: RunRow | None, now: float) -> str:
    """Of what is listed of a run since the commander was restored; empty where it lists all there is."""
    if run is None or run.restored_at is None:
        return ""
    since = ago(max(0.0, now - run.restored_at))
    until = "until an agent tells what is there"
    return f"restored {since} from a backup: what is listed may be older than the volume {until}"


def how_it_ended(outcome: Outcome | None, ending: str) -> str:
    """In a word. What never had a trainer gave the run back as a pod does that is taken away, and was not."""
    if outcome is Outcome.PREEMPTED and ending == "not_started":
        return "never ran"
    if outcome is Outcome.COMPLETED and ending == "no_step":
        return NO_STEPS
    return outcome.value if outcome is not None else "going on"


NO_STEPS = "completed, no steps"


def without_a_step(run: RunRow) -> bool:
    """Whether it is completed and nothing was ever seen of it: a command that did nothing, or an unknown trainer's."""
    return run.status is RunStatus.COMPLETED and not run.step and not run.published


def alarm(run: RunRow) -> str:
    """What is wrong with the attempt that goes on; of one that is over its message says so."""
    return resume_ignored(run.began_step, run.handed_step) if run.status.active else ""


def steps_made(attempt: AttemptRow) -> tuple[str, str]:
    """From which step to which; `1, not 30` of one that did not go on from where it was to."""
    began, handed = attempt.began_step, count(attempt.started_step)
    return handed if began is None else f"{count(began)}, not {handed}", count(attempt.last_step)


def standing(worker: WorkerRow) -> str:
    """Its status, in a word; of one that is offline and that nobody misses, why."""
    return (worker.gone or worker.status).value


def state(run: RunRow) -> str:
    """Its status, in a word; of a success that may be none, that it may be none."""
    return NO_STEPS if without_a_step(run) else run.status.value
