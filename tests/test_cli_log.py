"""`relay-tui log`: attempts are told apart, and one that is not there is said to be not there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cli_kit import relay
from commander_kit import FakeClock, ended, log, running
from dashboard_fleet import RUNS, scripted
from scripted_commander import NOW, ScriptedCommander

from relaytui.cli.log import printed
from relaytui.cli.log import question as asked
from relaytui.client.api import CommanderClient
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.rows import LogLine

RUN = RUNS[0].run_id
NOTHING_CAME = "nothing came of what it may have printed: its volume has that"


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
        "── epoch 1 ──", "a", "KeyError", "── epoch 10007 ──", "step 1/100", "step 2/100",
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
        (None, f"epoch 3 of {RUN}, by pod-a, has printed nothing yet"),
        (1, f"epoch 1 of {RUN}, by pod-x, has printed nothing"),
        (2, f"epoch 2 of {RUN}, by pod-b, is lost, and {NOTHING_CAME}"),
    ],
)
async def test_that_nothing_was_printed_is_said(epoch: int | None, words: str) -> None:
    async with silent() as client:
        assert (await asked(client, RUN, epoch, 200))[1] == [words]


async def test_an_attempt_that_there_is_not_is_an_error() -> None:
    async with silent() as client:
        with pytest.raises(RelayError, match=f"{RUN} has no epoch 99; its epochs are") as caught:
            await asked(client, RUN, 99, 200)
        assert caught.value.exit_code == Exit.FAILED


async def test_the_log_of_runs_as_they_come(tmp_path: Path) -> None:
    """Of a run whose holder was replaced the lines of the old one were printed as if they were the newest."""
    state = tmp_path / "state"

    async def shown(*words: str) -> tuple[int, list[str], str]:
        done = await asyncio.to_thread(relay, "log", *words, "--state", state)
        return done.returncode, done.stdout.splitlines(), done.stderr

    async with running(state, FakeClock()) as kit:
        agent = await kit.agent("pod-a")
        await agent.acquire("run-1")
        await agent.tell(log(1, "one", "two", "three"))
        assert await shown("run-1") == (0, ["one", "two", "three"], "")
        assert await shown("run-1", "--lines", "5000") == (0, ["one", "two", "three"], "")
        assert await shown("run-1", "--lines", "1") == (0, ["three"], "")
        for number in ("0", "-1", "5001", "many"):
            code, lines, said = await shown("run-1", "--lines", number)
            assert (code, lines, said.count("\n")) == (2, [], 1), said
            assert "--lines" in said
        # Its holder is replaced, and the next one has not come to print anything yet.
        assert (await kit.force("run-1", 1, pod_gone=True))[0] == 200
        heir = await kit.agent("pod-b")
        await heir.acquire("run-1")
        said = "epoch 3 of run-1, by pod-b, has printed nothing yet; the lines above are of epoch 1\n"
        assert await shown("run-1") == (0, ["one", "two", "three"], said)
        assert await shown("run-1", "--epoch", "1") == (0, ["one", "two", "three"], "")
        code, lines, said = await shown("run-1", "--epoch", "2")
        assert (code, lines) == (1, [])
        assert said.startswith("relay-tui: run-1 has no epoch 2; its epochs are 1, 3. see `")
        await heir.tell(log(1, "four"))
        marks = ["── epoch 1 ──", "one", "two", "three", "── epoch 3 ──", "four"]
        assert await shown("run-1") == (0, marks, "")
        # One that never ran, and one that was replaced before anything of it came.
        idle = await kit.agent("pod-c")
        await idle.acquire("run-2")
        await idle.state(ended("preempted", ending="not_started"))
        assert await shown("run-2") == (0, [], "epoch 1 of run-2, by pod-c, has printed nothing\n")
        await idle.acquire("run-3")
        assert (await kit.force("run-3", 1, pod_gone=True))[0] == 200
        said = f"epoch 1 of run-3, by pod-c, is superseded, and {NOTHING_CAME}\n"
        assert await shown("run-3") == (0, [], said)


async def test_lines_that_are_there_and_no_answer_takes_did_not_give_way(tmp_path: Path) -> None:
    async with running(tmp_path / "state") as kit:
        agent = await kit.agent()
        await agent.acquire("run-1")
        for n in range(6):
            await agent.tell(log(200 * n + 1, *["x" * 4_000] * 200))
        done = await asyncio.to_thread(relay, "log", "run-1", "--lines", "5000", "--state", tmp_path / "state")
        count = len(done.stdout.splitlines())
        assert 1_000 < count < 1_200
        left_out = f"lines before number {1_201 - count:,} of epoch 1 are left out, as one answer takes no more text"
        assert done.stderr == f"{left_out}; the whole log is on the run's volume\n"
