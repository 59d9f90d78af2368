"""Whether a trainer went on from the checkpoint that it was handed, by the word of its agent: an alarm for as long as
that attempt is its run's newest, and part of how the attempt ended."""

from __future__ import annotations

from msgspec.structs import replace

from relaytui.commander.model.records import Attempt
from relaytui.commander.store import attempts
from relaytui.commander.store.writer import Tx
from relaytui.wire.reports import Event
from relaytui.wire.text import resume_ignored

IGNORED = "resume.ignored"


def heed(tx: Tx, attempt: Attempt, report: Event) -> None:
    said = report.data.get("step", "")
    step = int(said) if said.isascii() and said.isdigit() and len(said) < 16 else 0
    if attempt.began_step is None and step < attempt.started_step:
        attempts.save(tx, replace(attempt, began_step=step))


def with_alarm(attempt: Attempt, message: str) -> str:
    """How it ended, with what its agent did not say of its beginning by itself."""
    alarm = resume_ignored(attempt.began_step, attempt.started_step)
    if not alarm or "the resume did not take" in message:
        return message
    return f"{message}; {alarm}" if message else alarm
