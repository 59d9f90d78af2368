"""A run's folder on a real disk, trainers that stage into it, and a disk that fails or ends the world on demand."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from relay_agent.checkpoints.disk import Disk
from relay_agent.checkpoints.manifest import MANIFEST, verify
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.staging import Staged
from relay_agent.checkpoints.unfinished import is_unfinished
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run

RUN = "run-1"


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def wall(self) -> float:
        return 1.7e9 + self.now

    def boot(self) -> float:
        return self.now

    def boot_id(self) -> str:
        return "boot"

    def watch(self, seconds: float, every: float = 0.5) -> Iterator[None]:
        """Time passes, and somebody looks again and again, as an agent does twice in each second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + every)
            yield


def mine() -> bool:
    return True


def not_mine() -> bool:
    return False


@lru_cache(1)
def opened() -> tuple[tuple[str, ...], bool]:
    """The folders of a run that was opened, each after the one that it is in, and how the volume renames them: to find
    that out takes longer than to make them."""
    with tempfile.TemporaryDirectory() as place:
        run = open_run(Path(place), RUN)
        return tuple(str(path.relative_to(place)) for path in sorted(Path(place).rglob("*"))), run.atomic


def new_run(tmp_path: Path, epoch: int | None = 1) -> RunFolder:
    if os.path.ismount(tmp_path):  # of a kind of its own
        run = open_run(tmp_path, RUN)
    else:
        folders, atomic = opened()
        for folder in folders:
            (tmp_path / folder).mkdir(exist_ok=True)
        run = RunFolder(tmp_path / "runs" / RUN, atomic)
    if epoch is not None:
        take(run, epoch)
    return run


def take(run: RunFolder, epoch: int, base: str | None = None, disk: Disk | None = None) -> None:
    """Claim an epoch, as the holder of its lease does."""
    made = Claim(epoch, f"pod-{epoch}", f"incarnation-{epoch}", base, "config", 1.7e9)
    claim(run, made, disk) if disk else claim(run, made)


def stage(run: RunFolder, epoch: int, step: int, content: str = "", *, marker: bool = True) -> Staged:
    """What a trainer saves: two files, one in a folder below, and the marker."""
    path = run.staging(epoch) / f"step_{step}"
    (path / "shard").mkdir(parents=True)
    (path / "weights.bin").write_bytes(f"weights {step} {content}".encode() * 100)
    (path / "shard" / "0.bin").write_bytes(f"shard {step}".encode())
    if marker:
        (path / "COMPLETE").touch()
    return Staged(step, path)


def put(run: RunFolder, epoch: int, step: int, content: str = "", **options: Any) -> Published:
    """Stage and publish."""
    return publish(run, stage(run, epoch, step, content), epoch, mine, **options)


def names(run: RunFolder) -> list[str]:
    """What looks published, whole or not."""
    found = sorted(path.name for path in run.ckpt.glob("step_*"))
    return [name for name in found if not is_unfinished(run.ckpt / name, MANIFEST, empty=not run.atomic)]


def whole_names(run: RunFolder) -> list[str]:
    return [name for name in names(run) if verify(run.ckpt / name, run.run_id)]


class Crash(BaseException):
    """The world ends: no handler of the code under test may run any further call."""


class FaultyDisk(Disk):
    """Counts calls; at call number `at` (from 0) does what `fault` says, before or after the real call.

    With a `Crash` every later call crashes too, and a write may get half of its bytes through.
    """

    def __init__(
        self, at: int = -1, fault: Callable[[], BaseException] = Crash, *, after: bool = False, half: bool = False
    ) -> None:
        self.at = at
        self.fault = fault
        self.after = after
        self.half = half
        self.calls: list[str] = []
        self.dead = False
        self._lock = threading.Lock()  # files are hashed and flushed by several threads

    def _do(self, name: str, call: Callable[[], Any], half: Callable[[], Any] | None = None) -> Any:
        with self._lock:
            if self.dead:
                raise Crash
            self.calls.append(name)
            hit = len(self.calls) - 1 == self.at
            if not hit:
                return call()
            error = self.fault()
            self.dead = isinstance(error, Crash)
            if self.after:
                call()
            elif self.half and half:
                half()
            raise error

    def create(self, name: str | Path, *, dir_fd: int | None = None, mode: int = 0o644) -> int:
        real = super().create
        return int(self._do(f"create {name}", lambda: real(name, dir_fd=dir_fd, mode=mode)))

    def write(self, fd: int, data: bytes) -> None:
        real = super().write
        self._do("write", lambda: real(fd, data), lambda: real(fd, data[: len(data) // 2]))

    def fsync(self, fd: int) -> None:
        # Where it points now: a folder may have been renamed since it was opened.
        path = Path(f"/proc/self/fd/{fd}").readlink()
        self._do(f"fsync {path}", lambda: super(FaultyDisk, self).fsync(fd))

    def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        self._do(f"rename {source} {target}", lambda: super(FaultyDisk, self).rename(source, target, dir_fd=dir_fd))

    def link(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        self._do(f"link {source} {target}", lambda: super(FaultyDisk, self).link(source, target, dir_fd=dir_fd))

    def link_at(self, source: str, source_fd: int, target: str, target_fd: int) -> None:
        real = super().link_at
        self._do(f"link {target}", lambda: real(source, source_fd, target, target_fd))

    def clone(self, source: int, target: int) -> None:
        self._do("clone", lambda: super(FaultyDisk, self).clone(source, target))

    def copy(self, source: int, target: int, count: int) -> int:
        real = super().copy
        return int(self._do("copy", lambda: real(source, target, count), lambda: real(source, target, 100)))

    def set_time(self, fd: int, mtime_ns: int) -> None:
        self._do("set_time", lambda: super(FaultyDisk, self).set_time(fd, mtime_ns))

    def symlink(self, target: str, name: str | Path, *, dir_fd: int | None = None) -> None:
        self._do(f"symlink {name}", lambda: super(FaultyDisk, self).symlink(target, name, dir_fd=dir_fd))

    def mkdir(self, name: str | Path, mode: int = 0o755) -> None:
        self._do(f"mkdir {name}", lambda: super(FaultyDisk, self).mkdir(name, mode))

    def unlink(self, name: str | Path, *, dir_fd: int | None = None) -> None:
        self._do(f"unlink {name}", lambda: super(FaultyDisk, self).unlink(name, dir_fd=dir_fd))

    def rmdir(self, name: str | Path, *, dir_fd: int | None = None) -> None:
        self._do(f"rmdir {name}", lambda: super(FaultyDisk, self).rmdir(name, dir_fd=dir_fd))


class ObjectDisk(FaultyDisk):
    """As an object store mounted as a folder: every file of a renamed folder goes by itself, a file is copied before
    its old name goes, and there are no hard links."""

    def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None or not Path(source).is_dir():
            self._do(f"copy {source} {target}", lambda: self._copy(str(source), str(target), dir_fd))
            self._do(f"unlink {source}", lambda: os.unlink(source, dir_fd=dir_fd))
            return
        source, target = Path(source), Path(target)
        self._do(f"mkdir {target}", target.mkdir)
        for path in sorted(source.iterdir()):
            self.rename(path, target / path.name)
        self._do(f"rmdir {source}", source.rmdir)

    def _copy(self, source: str, target: str, dir_fd: int | None) -> None:
        """Whole when it is seen, as an object is."""
        between = f"{target}.between"
        if stat.S_ISLNK(os.stat(source, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            os.symlink(os.readlink(source, dir_fd=dir_fd), between, dir_fd=dir_fd)
        else:
            os.link(source, between, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        os.rename(between, target, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def link(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    def link_at(self, source: str, source_fd: int, target: str, target_fd: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")
