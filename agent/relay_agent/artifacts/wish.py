"""What a run wants of the artifact store. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relay_agent.checkpoints.retention import Best
from relay_agent.config import Settings

Which = Literal["none", "final", "every", "best"]
MAX_FILE = 64 << 20
"""Bytes of a small file that is attached, at most."""
MAX_FILES = 200


@dataclass(frozen=True)
class Wish:
    which: Which
    best: Best | None  # what `best` goes by
    files: tuple[str, ...]  # patterns below the trainer's output folder
    end_wait: float  # seconds that the end of a run waits for the last upload
    cache: str

    @property
    def words(self) -> str:
        best = f"the best by {self.best.name} and the last" if self.best else "the last"
        what = {"none": "", "final": "the last", "every": "every", "best": best}[self.which]
        parts = [f"{what} checkpoint" if what else "", f"files {' '.join(self.files)}" if self.files else ""]
        return " and ".join(part for part in parts if part)


def wish_of(settings: Settings) -> Wish:
    return Wish(
        settings.artifacts, settings.ckpt_best_metric, settings.artifacts_files, settings.artifacts_end_wait,
        str(settings.agent_state / "artifacts"),
    )  # fmt: skip
