"""`relay-tui log`: attempts are told apart, and one that is not there is said to be not there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from dashboard_fleet import ATTEMPTS, RUNS, scripted
from scripted_commander import NOW, ScriptedCommander

from relaytui.cli.log import printed
from relaytui.cli.log import question as asked
from relaytui.client.api import CommanderClient
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.rows import LogLine

RUN = RUNS[0].run_id


@contextlib.asynccontextmanager
async def silent() -> AsyncIterator[CommanderClient]:
    """To a commander whose runs have printed nothing."""
    commander = await ScriptedCommander().start()
    scripted(commander)
    try:
        async with CommanderClient(commander.endpoint) as client:
            yield client
    finally:
        await commander.stop()


def line(epoch: int, n: int, text: str, t: float = NOW) -> LogLine:
    return LogLine(epoch, n, t, text)


def test_lines_of_several_attempts_stand_under_their_own() -> None:
    """`KeyError: 'learning_rate'` was followed by `step 1/100`, as if it had gone on."""
    lines = [line(1, 1, "a"), line(1, 2, "KeyError"), line(10_007, 1, "step 1/100"), line(10_007, 2, "step 2/100")]
    assert list(printed(lines, times=False)) == [
        "── attempt 1 ──", "a", "KeyError", "── attempt 10007 ──", "step 1/100", "step 2/100",
    ]  # fmt: skip
    assert list(printed(lines[2:], times=False)) == ["step 1/100", "step 2/100"], "of one there is nothing to tell"


def test_times_stand_before_lines_whatever_a_pod_says_of_them() -> None:
    first, *rest = printed([line(1, 1, "a\x1b[2J", NOW), line(1, 2, "b", 1e300), line(1, 3, "c", -1e18)], times=True)
    assert first.endswith(" a")
    assert first.count(":") == 2
    assert rest == ["-" * 19 + " b", "-" * 19 + " c"]


@pytest.mark.parametrize(
    ("epoch", "words"),
    [
        (None, f"{RUN} has printed nothing"),
        (ATTEMPTS[0].epoch, f"attempt {ATTEMPTS[0].epoch} of {RUN} has printed nothing"),
    ],
)
async def test_that_nothing_was_printed_is_said(epoch: int | None, words: str) -> None:
    async with silent() as client:
        assert (await asked(client, RUN, epoch, 200))[1] == words


async def test_an_attempt_that_there_is_not_is_an_error() -> None:
    async with silent() as client:
        with pytest.raises(RelayError, match=f"{RUN} has no attempt 99; its attempts are") as caught:
            await asked(client, RUN, 99, 200)
        assert caught.value.exit_code == Exit.FAILED
