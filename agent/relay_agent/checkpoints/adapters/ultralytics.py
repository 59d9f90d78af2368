"""Ultralytics: `<run>/weights/last.pt`, written in place after every epoch, then `best.pt`.

The step is the number of epochs done, as it prints them. At the end last.pt is written once more, without optimizer:
no run goes on from that. It goes on in the folder that its checkpoint names, an earlier attempt's, unless it is given
another one, which only newer releases take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from relay_agent.checkpoints.adapters.base import DEPTHS, WHOLE, Adapter, Candidate, Memory, Part, Plan, Saved
from relay_agent.checkpoints.adapters.kept import folder_with, join, name_of, parent
from relay_agent.checkpoints.adapters.single_file import counted, counters
from relay_agent.checkpoints.adapters.view import View

WEIGHTS = "weights"
LAST = "last.pt"


@dataclass(frozen=True)
class Ultralytics(Adapter):
    def find(self, view: View, memory: Memory) -> Iterator[Candidate]:
        for place in view.places(self.places):
            if name_of(place) == WEIGHTS and LAST in view.entries(place) and view.has(join(parent(place), "args.yaml")):
                path = join(place, LAST)
                yield Candidate(path, None, (Part(path, path),), path)

    def missing(self, view: View, candidate: Candidate, memory: Memory) -> str:
        epoch = counted(view, candidate.path, "epoch", memory)
        if epoch == -2:
            return "it is not written to its end yet"
        return "it holds weights alone, as at the end" if epoch < 0 else WHOLE

    def step(self, view: View, candidate: Candidate) -> int | None:
        epoch = counters(view, candidate.path).get("epoch", -1)
        return epoch + 1 if epoch >= 0 else None

    def plan(self, saved: Saved) -> Plan:
        weights = folder_with(saved, LAST)
        path = f"{{ckpt}}/{join(weights, LAST)}"
        folder = f"{{output}}/{parent(weights)}".rstrip("/")
        return Plan(path=path, args=("resume=True", f"model={path}", f"save_dir={folder}"))


ADAPTER = Ultralytics(
    "ultralytics",
    r"last\.pt",
    places=(f"runs/*/*/{WEIGHTS}", *DEPTHS),
    is_file=True,
    in_place=True,
)
