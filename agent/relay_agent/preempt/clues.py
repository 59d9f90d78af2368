"""What tells where an agent runs without a question to anybody: variables, and what the firmware calls the machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

DMI = Path("/sys/class/dmi/id")
NAMES = ("sys_vendor", "product_name", "bios_vendor", "chassis_asset_tag")
MAX_NAME = 256
INITS = ("tini", "dumb-init", "docker-init", "catatonit", "s6-svscan")
"""Programs that a container starts first, and that hand its signals on to the one that they start."""
AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of every Azure machine: its vendor alone would mean any Hyper-V."""


@dataclass(frozen=True)
class Clues:
    """`firmware`: what DMI says. `first`: whether the agent is what the container started, so that its stop reaches it
    as SIGTERM."""

    environ: Mapping[str, str]
    firmware: Mapping[str, str] = field(default_factory=dict)
    container: bool = False
    first: bool = False

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None, dmi: Path = DMI) -> Clues:
        """Small files of the kernel's own: never slow, and no network."""
        pid, parent = os.getpid(), os.getppid()
        return cls(
            os.environ if environ is None else environ,
            {name: _read(dmi / name) for name in NAMES},
            Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
            pid == 1 or (parent == 1 and _read(Path("/proc/1/comm")) in INITS),
        )

    def firmware_says(self, name: str, *words: str) -> bool:
        return self.firmware.get(name, "") in words

    def has(self, *variables: str) -> bool:
        """One of them is set."""
        return any(self.environ.get(name, "").strip() for name in variables)

    @property
    def aws(self) -> bool:
        """AWS_REGION and its like say nothing: whoever uses a bucket there sets them."""
        return self.firmware_says("sys_vendor", "Amazon EC2") or self.firmware_says("bios_vendor", "Amazon EC2")

    @property
    def gcp(self) -> bool:
        return self.firmware_says("product_name", "Google Compute Engine")

    @property
    def azure(self) -> bool:
        return self.firmware_says("chassis_asset_tag", AZURE_TAG)

    @property
    def slurm(self) -> bool:
        return self.has("SLURM_JOB_ID")


def _read(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(MAX_NAME).decode(errors="replace").strip()
    return ""
