"""Real disks for a test: small ones that fill up, and ext4 whose power can be cut. Each skips, with the system's words,
where it cannot be had: most need root."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from agent_rig import eventually

_SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125
_NOT_EVEN_THE_JOURNAL = 2


def mount(*words: str | Path) -> None:
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.partition(chr(10))[0]}")


def unmount(place: Path) -> None:
    """Whoever is still busy there is waited for."""
    try:
        eventually(lambda: subprocess.run(["umount", place], capture_output=True).returncode == 0, f"{place} unmounted")
    except AssertionError:
        subprocess.run(["umount", "-l", place])
        raise


@contextmanager
def small(place: Path, size: str) -> Iterator[Path]:
    """In memory, of that size."""
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "relay-test", place)
    try:
        yield place
    finally:
        unmount(place)


class Ext4:
    """A file that is a disk with ext4 on it, and the folder where that is mounted.

    Nothing is on the disk before somebody flushes it: the journal is not written by itself, nor are files that replace
    others, which ext4 would otherwise do for programs that forget to."""

    OPTIONS = "loop,commit=3600,noauto_da_alloc"

    def __init__(self, place: Path, megabytes: int = 8) -> None:
        self.place = place
        self.image = place.with_name(f"{place.name}.img")
        if (make := shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")) is None:
            pytest.skip("no mkfs.ext4 here")
        with self.image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run([make, "-q", "-F", "-b", "1024", "-m", "0", self.image], check=True, capture_output=True)
        place.mkdir()
        self.mounted = False
        self.start()

    def start(self) -> None:
        """The machine is on again: what the journal holds is applied."""
        mount("-o", self.OPTIONS, self.image, self.place)
        self.mounted = True

    def cut(self) -> None:
        """The power fails: from here on nothing more reaches the disk, and every call of anybody's there fails."""
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NOT_EVEN_THE_JOURNAL))
        finally:
            os.close(fd)

    def stop(self) -> None:
        if self.mounted:
            unmount(self.place)
            self.mounted = False

    def settle(self) -> None:
        """All of it is on the disk."""
        subprocess.run(["sync", "-f", self.place], check=True)

    def again(self) -> None:
        """After `cut`."""
        self.stop()
        self.start()


@contextmanager
def ext4(place: Path, megabytes: int = 8) -> Iterator[Ext4]:
    disk = Ext4(place, megabytes)
    try:
        yield disk
    finally:
        disk.stop()


def fill(place: Path, but: int = 0) -> Path:
    """Takes all the space there is, but for about so many bytes. The file that took it."""
    path = place / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
        os.truncate(path, max(0, path.stat().st_size - but))
    return path
