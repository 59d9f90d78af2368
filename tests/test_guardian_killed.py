"""What dies shortly before its trainer exits with 0 may have been saving: an exit that proves no save then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from guardian_kit import start

from relay_agent.guardian import cgroup
from relay_agent.guardian import trainer as trainer_module
from relay_agent.guardian.trainer import RECENT, Trainer

DETACHED = "(setsid bash -c '{}' &) ; while ! test -e {}/end; do sleep 0.02; done; sleep 0.2; exit {}"


@pytest.mark.parametrize(
    ("dies", "code", "counted"),
    [
        ("kill -KILL $$", 0, 1),
        ("ulimit -c 0; kill -SEGV $$", 0, 1),
        ('bash -c "kill -KILL \\$\\$"; exit $?', 0, 1),  # whoever began it tells of it in its own code
        ("exit 1", 0, 0),
        ("exit 0", 0, 0),
        ("kill -TERM $$", 0, 0),
        ("kill -KILL $$", 3, 0),
    ],
)
async def test_of_what_nobody_waits_for_who_was_killed_counts(
    tmp_path: Path, dies: str, code: int, counted: int
) -> None:
    script = DETACHED.format(f"touch {tmp_path}/end; {dies}", tmp_path, code)
    trainer, _ = await start(tmp_path, script)
    assert (await trainer.exited, await trainer.gone, trainer.cut) == (code, counted, 0)
    assert (tmp_path / "log.exit").read_text() == f"{code}{' leftovers' * counted}\n"


class Told:
    """A trainer in this process; the system tells of ends when it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.kills = 1_000.0, 7
        self.ends: list[tuple[int, int]] = []
        monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(cgroup, "oom_kills", lambda: self.kills)
        monkeypatch.setattr(os, "waitpid", lambda pid, options: self.ends.pop(0) if self.ends else (0, 0))
        self.trainer = Trainer(["true"], "guard-x", pty=False)
        self.trainer.pid = 4_000_000

    def ends_after(self, seconds: float) -> int:
        """How many it lost shortly before."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.trainer.look()
        self.ends.append((self.trainer.pid, 0))
        self.trainer.reap()
        return self.trainer.lost


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    with monkeypatch.context() as patched:
        yield Told(patched)


@pytest.mark.parametrize(("seconds", "lost"), [(0.0, 1), (RECENT - 1, 1), (RECENT + 1, 0)])
def test_who_was_killed_long_before_saved_nothing_that_is_in_doubt(told: Told, seconds: float, lost: int) -> None:
    told.ends.append((4_000_001, signal.SIGKILL))
    told.trainer.reap()
    assert told.ends_after(seconds) == lost


@pytest.mark.parametrize("seconds", [0.0, 30.0, 90.0, 1000.0])
def test_a_kill_for_want_of_memory_that_the_kernel_counted_shortly_before_counts(told: Told, seconds: float) -> None:
    """Whoever it was: `train.py | tee log` exits with what tee does."""
    assert told.trainer.look() is None
    for _ in range(int(seconds)):
        told.now += 1.0
        told.trainer.look()
    told.kills += 1
    assert told.ends_after(RECENT - 1) == 1
    assert told.trainer.oom


def test_one_of_long_before_does_not(told: Told) -> None:
    told.kills += 1
    assert told.ends_after(2 * RECENT + 1) == 0
    assert told.trainer.oom, "for how it ended, where it failed"
