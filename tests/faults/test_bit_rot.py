"""Bits that turn on the volume's own disk, below its file system, between two attempts."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from agent_rig import Rig, eventually, mock
from disks import ext4


def turn_a_bit(image: Path, content: bytes) -> None:
    """Where that content lies."""
    disk = bytearray(image.read_bytes())
    disk[disk.index(content) + len(content) // 2] ^= 0x04
    image.write_bytes(disk)


@pytest.mark.parametrize("file", ["data.bin", "manifest.json"])
def test_one_bit_of_the_newest_checkpoint(tmp_path: Path, file: str) -> None:
    """Size, times and names are as they were. It is found, kept aside and said, and the one before it is used."""
    with ext4(tmp_path / "volume", 8) as disk:
        rig = Rig(tmp_path)
        try:
            rig.start_commander()
            first = rig.agent(mock("--steps", 400, "--step-seconds", 0.02, "--save-every", 5, "--size", 8192))
            eventually(lambda: rig.run()["newest_step"] >= 15, "step 15")
            first.process.send_signal(signal.SIGTERM)
            first.wait()
            newest = rig.run()["newest_checkpoint"]
            before = rig.checkpoints()
            damaged = rig.folder / "ckpt" / newest / file
            content = damaged.read_bytes()
            disk.stop()
            turn_a_bit(disk.image, content[:1024])  # a block of the disk
            disk.start()
            assert damaged.read_bytes() != content
            assert damaged.stat().st_size == len(content)
            second = rig.agent(mock("--steps", 60, "--step-seconds", 0.01, "--save-every", 5), worker="pod-b")
            assert second.wait() == 0, second.says()
            attempt = rig.run()["attempts"][-1]
            assert attempt["started_from"] == before[-2]
            assert newest in [path.name for path in (rig.folder / "ckpt/.bad").iterdir()]
            assert newest in second.says()
            assert {"checkpoint.bad"} <= set(rig.kinds())
            assert rig.run()["status"] == "completed"
            rig.checkpoints()
        finally:
            rig.close()
