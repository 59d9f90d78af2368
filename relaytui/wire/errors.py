"""The one class of error that a person is meant to read: what, where, and what to do next."""

from __future__ import annotations

from enum import IntEnum

_ENDS = (".", "?", "!", "…", ":")


class Exit(IntEnum):
    """Exit codes of both programs. A trainer's own code is passed through by the agent."""

    OK = 0
    FAILED = 1  # something went wrong that has no code of its own
    USAGE = 2  # arguments, environment, run.yaml, a volume that is missing or not writable
    UNAVAILABLE = 69  # no commander answers, or its port is taken
    STATE = 74  # the state folder cannot be used: not a database, owned by another commander, disk
    LEASE = 75  # the lease was refused or lost
    AUTH = 77  # wrong or missing token, or a commander that did not prove who it is


class RelayError(Exception):
    """`code` is stable and for programs, `message` says what and where, `hint` what to do next."""

    def __init__(
        self, code: str, message: str, hint: str = "", *, exit_code: int = Exit.FAILED, status: int = 400
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.exit_code = int(exit_code)
        self.status = status
        """HTTP status, where the error is an answer."""

    def __str__(self) -> str:
        return sentences(self.message, self.hint)


def sentences(*parts: str) -> str:
    """What is there of the parts, one after another. A part made elsewhere may end as a sentence already."""
    *before, last = [said for part in parts if (said := part.strip())] or [""]
    return " ".join([*(part if part.endswith(_ENDS) else f"{part}." for part in before), last])
