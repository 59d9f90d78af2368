"""A publisher over a real folder, and what it recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from checkpoint_kit import ManualClock, mine

from relay_agent.checkpoints import publisher as publisher_module
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.publisher import Publisher
from relay_agent.checkpoints.staging import Staged
from relay_agent.checkpoints.tree import Check, never
from relay_agent.volume.volume import RunFolder


@dataclass
class Told:
    """What a publisher recorded."""

    steps: list[int] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)

    def published(self, checkpoint: Published) -> None:
        self.steps.append(checkpoint.step)

    def pruned(self, name: str) -> None:
        self.gone.append(name)

    def event(self, kind: str, message: str, data: Mapping[str, str] | None = None) -> None:
        self.events.append((kind, message))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@dataclass
class Rig:
    run: RunFolder
    clock: ManualClock = field(default_factory=ManualClock)
    told: Told = field(default_factory=Told)

    def publisher(
        self,
        keep: int = 2,
        patient: Callable[[], bool] = mine,
        safe: Callable[[], bool] = mine,
        held: Callable[[], bool] = mine,
        marks: bool | None = None,
        check: Check = never,
    ) -> Publisher:
        return Publisher(
            self.run, 1, "sft", "a trainer", 5.0, keep, self.clock, self.told,
            held=held, safe=safe, on_fenced=lambda: None, patient=patient, marks=marks, check=check,
        )  # fmt: skip


def refuses(monkeypatch: pytest.MonkeyPatch, step: int, error: Callable[[], Exception]) -> None:
    """Publishing that step fails, once."""
    failed: list[int] = []

    def publishes(run: RunFolder, staged: Staged, *rest: object, **options: object) -> Published:
        if staged.step == step and not failed:
            failed.append(step)
            raise error()
        return publish(run, staged, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(publisher_module, "publish", publishes)
