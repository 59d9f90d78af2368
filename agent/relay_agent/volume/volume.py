"""The run's folder on the volume: where everything lies, and the claims that say which epoch owns the run's line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from relay_agent.checkpoints.atomic import renames_in_one_step
from relay_agent.checkpoints.disk import (
    SYSTEM,
    Disk,
    folder,
    make_folder,
    names,
    read_file,
    remove_tree,
    sync_folder,
    write_new,
)
from relay_agent.process import say
from relay_agent.volume.claims import Claim as Claim
from relay_agent.volume.claims import Spoilt, decode, encode
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.ids import is_id

CLAIM_NAME = re.compile(r"([0-9]{8,16})\.json(\.damaged(?:\.[0-9]{1,6})?)?\Z")
"""The second: set aside. It says nothing any more, and its epoch was claimed all the same."""
_EPOCH = re.compile(r"e([0-9]{8,16})\Z")
_MAX_CLAIM = 64 << 10
PROBES = 5
"""How often the volume is tried before it counts as unusable."""
MAX_EPOCH = 2**53 - 2**40
"""Far from where epochs end on the wire, so that there is always a next one."""
MAX_JUMP = 1_000_000
"""How far above the highest claim that reads one may lie that does not."""


@dataclass(frozen=True)
class RunFolder:
    """`<volume>/runs/<run_id>`: paths only; `open_run` makes the folders of a run, `claim` those of an epoch."""

    root: Path
    atomic: bool = True
    """Renaming a folder is one step on this volume; where it is not, the manifest alone makes a checkpoint one."""

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def ckpt(self) -> Path:
        """Published checkpoints, `latest`, and what lies aside in `.staging`, `.bad`, `.orphans` and `.trash`."""
        return self.root / "ckpt"

    @property
    def claims(self) -> Path:
        return self.root / "claims"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def hf(self) -> Path:
        return self.root / "hf"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def bad(self) -> Path:
        return self.ckpt / ".bad"

    @property
    def trash(self) -> Path:
        return self.ckpt / ".trash"

    @property
    def orphans(self) -> Path:
        """Whole checkpoints of attempts that went on beside the line: never resumed from."""
        return self.ckpt / ".orphans"

    @property
    def incoming(self) -> Path:
        """Where what comes from elsewhere waits until it is whole."""
        return self.ckpt / ".incoming"

    def staging(self, epoch: int) -> Path:
        """RELAY_CKPT_STAGING_ROOT of that epoch."""
        return self.ckpt / ".staging" / f"e{epoch:08d}"

    def save_file(self, epoch: int) -> Path:
        """RELAY_SAVE_FILE of that epoch: there while a checkpoint is asked for. Its name is no checkpoint's."""
        return self.staging(epoch) / ".save-now"

    def output(self, epoch: int) -> Path:
        """RELAY_OUTPUT_DIR of that epoch: the trainer's own, read-only to Relay."""
        return self.root / "out" / f"e{epoch:08d}"

    def log(self, epoch: int) -> Path:
        return self.logs / f"e{epoch:08d}.log"


def find_run(l1_root: Path, run_id: str, disk: Disk = SYSTEM) -> RunFolder:
    """Where a run's folder is or will be, on a volume that is there and takes writes; RelayError (exit 2) where it does
    not. Nothing is left on it: whether this agent may train the run is not known yet."""
    if not is_id(run_id):
        raise RelayError(
            "bad_run_id",
            f"RUN_ID {run_id[:140]!a} cannot name a run",
            "use 1 to 128 letters, digits, dots, dashes and underscores, a letter or digit first",
            exit_code=Exit.USAGE,
        )
    if not l1_root.is_absolute():
        raise RelayError(
            "volume_path",
            f"RELAY_L1_ROOT {str(l1_root)!a} is not an absolute path",
            "give the path where the volume is mounted, such as /mnt/relay",
            exit_code=Exit.USAGE,
        )
    try:
        usable = l1_root.is_dir()
    except OSError as error:  # no permission on the way there, a name too long
        raise RelayError(
            "volume_missing",
            f"the volume {str(l1_root)[:200]!a} cannot be reached: {error.strerror}",
            "check the rights of the folders above it, or set RELAY_L1_ROOT to where the volume is mounted",
            exit_code=Exit.USAGE,
        ) from None
    if not usable:
        what = "is not a folder" if os.path.lexists(l1_root) else "does not exist"
        raise RelayError(
            "volume_missing",
            f"the volume {str(l1_root)!a} {what}",
            "mount it there, or set RELAY_L1_ROOT to where it is mounted",
            exit_code=Exit.USAGE,
        )
    run = RunFolder(l1_root / "runs" / run_id)
    try:
        _try_writing(disk, next(path for path in (run.root, run.root.parent, l1_root) if path.is_dir()))
    except OSError as error:
        raise _unusable(l1_root, error) from error
    return run


def open_run(l1_root: Path, run_id: str, disk: Disk = SYSTEM) -> RunFolder:
    """The folder of a run as `find_run` finds it, made, with how the volume renames folders."""
    run = find_run(l1_root, run_id, disk)
    try:
        for path in (
            run.root.parent,
            run.root,
            run.ckpt,
            *_epoch_roots(run),
            run.bad,
            run.trash,
            run.claims,
            run.logs,
            run.hf,
        ):
            make_folder(disk, path)
        _try_writing(disk, run.root)
        for path in (run.ckpt, run.root, run.root.parent, l1_root):
            sync_folder(disk, path)
        run = RunFolder(run.root, _renames_in_one_step(run, disk))
    except OSError as error:
        raise _unusable(l1_root, error) from error
    if not run.atomic:
        say(f"{l1_root} renames folders file by file: checkpoints are copied, and made by their manifest alone")
    return run


def _unusable(l1_root: Path, error: OSError) -> RelayError:
    where = error.filename if isinstance(error.filename, str | Path) else l1_root
    return RelayError(
        "volume_unusable",
        f"the volume {str(l1_root)!a} cannot be written: {error.strerror or error} ({str(where)!a})",
        "mount it read-write for the user the agent runs as, with space left on it",
        exit_code=Exit.USAGE,
    )


def _renames_in_one_step(run: RunFolder, disk: Disk) -> bool:
    """Tried where what is left of it gets cleared; whoever prunes beside us may do so in the middle."""
    for _ in range(PROBES):
        with suppress(FileNotFoundError):
            return renames_in_one_step(run.trash, disk)
    return renames_in_one_step(run.trash, disk)


def open_again(root: Path) -> RunFolder:
    """The folder of a run that was open before. It may be gone: the attempt that goes on there says so."""
    try:
        return open_run(root.parents[1], root.name)
    except (RelayError, IndexError):
        return RunFolder(root)


def _try_writing(disk: Disk, path: Path) -> None:
    """Folders may all be there from an earlier attempt: only a write shows that the volume takes one."""
    probe = path / f".probe.{os.getpid()}"
    with suppress(FileNotFoundError):
        disk.unlink(probe)
    write_new(disk, probe, b"relay\n")
    disk.unlink(probe)


def claimed_epochs(run: RunFolder) -> list[int]:
    """Epochs that were ever claimed, ascending. A claim counts by its name even where its content was lost; but what no
    commander can have granted does not: everybody on the volume can make a file with a name."""
    epochs = sorted({int(match[1]) for name in names(run.claims) if (match := CLAIM_NAME.match(name))} - {0})
    possible = [epoch for epoch in epochs if epoch <= MAX_EPOCH]
    known = next((epoch for epoch in reversed(possible) if read_claim(run, epoch) is not None), 0)
    believed = [epoch for epoch in possible if epoch <= known + MAX_JUMP]
    if len(believed) < len(epochs) and run.root not in _warned:
        _warned.add(run.root)
        say(f"{run.claims / _claim_name(epochs[-1])} is not believed: the highest claim that reads is of epoch {known}")
    return believed


def highest_claim(run: RunFolder) -> int:
    """The highest epoch claimed on the volume, 0 if none. Where all claims were lost, the folders of epochs still tell;
    beside claims they do not, for a trainer can make them."""
    if claimed := claimed_epochs(run):
        return claimed[-1]
    made = (int(match[1]) for path in _epoch_roots(run) for name in names(path) if (match := _EPOCH.match(name)))
    return max((epoch for epoch in made if epoch <= MAX_JUMP), default=0)


_warned: set[Path] = set()


def staged_epochs(run: RunFolder) -> list[int]:
    """Epochs that have a staging folder, ascending."""
    return sorted(int(match[1]) for name in names(run.staging(0).parent) if (match := _EPOCH.match(name)))


def _epoch_roots(run: RunFolder) -> tuple[Path, Path]:
    return run.staging(0).parent, run.output(0).parent


def read_claim(run: RunFolder, epoch: int) -> Claim | None:
    """What that epoch's claim says; None where there is none that reads."""
    try:
        return check_claim(run, epoch)
    except (OSError, Spoilt):
        return None


def check_claim(run: RunFolder, epoch: int) -> Claim:
    """As `read_claim`; OSError, Spoilt where there is none."""
    with folder(run.claims) as fd:
        return decode(read_file(fd, _claim_name(epoch), _MAX_CLAIM), run.run_id, epoch)


def claimed_at(run: RunFolder, epoch: int) -> int:
    """When that epoch was claimed, by the volume's clock, in nanoseconds; 0 where nothing tells."""
    try:
        return os.lstat(run.claims / _claim_name(epoch)).st_mtime_ns
    except OSError:
        return 0


def claim(run: RunFolder, claim: Claim, disk: Disk = SYSTEM) -> None:
    """Make `claim` the one claim of its epoch, with its base recorded, and make the folders of that epoch.

    RelayError (exit 75) where that epoch or a later one is claimed already: another agent trains, or trained, it.
    """
    if claim.epoch < 1:
        raise ValueError("epochs start at 1")
    highest = highest_claim(run)
    if highest > claim.epoch:
        raise _taken(f"epoch {claim.epoch} of run {run.run_id} is over: the volume has a claim of epoch {highest}")
    if claim.epoch in claimed_epochs(run):  # one that was set aside leaves its name free
        raise _taken(f"epoch {claim.epoch} of run {run.run_id} is claimed already")
    name = _claim_name(claim.epoch)
    temporary = f".{name}.{claim.incarnation[:64]}.{os.getpid()}.tmp"
    data = encode(claim, run.run_id)
    with folder(run.claims) as fd:
        with suppress(FileNotFoundError):
            disk.unlink(temporary, dir_fd=fd)
        write_new(disk, temporary, data, dir_fd=fd)
        try:
            # A link never replaces anything, and shows the claim only with its content.
            disk.link(temporary, name, dir_fd=fd)
        except FileExistsError:
            raise _taken(f"epoch {claim.epoch} of run {run.run_id} is claimed already") from None
        except OSError:
            # No hard links here (object-store mounts): exclusive creation decides, content follows.
            try:
                write_new(disk, name, data, dir_fd=fd)
            except FileExistsError:
                raise _taken(f"epoch {claim.epoch} of run {run.run_id} is claimed already") from None
        finally:
            disk.unlink(temporary, dir_fd=fd)
        disk.fsync(fd)
    if read_claim(run, claim.epoch) != claim:
        raise _taken(f"the claim of epoch {claim.epoch} of run {run.run_id} reads back as another's")
    _make_epoch(disk, run, claim.epoch)


def _make_epoch(disk: Disk, run: RunFolder, epoch: int) -> None:
    """Fresh folders: what lies under this epoch's name without a claim (claims were lost) is not this epoch's."""
    for path in (run.staging(epoch), run.output(epoch)):
        if os.path.lexists(path):
            aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
            disk.rename(path, aside)
        make_folder(disk, path)
        sync_folder(disk, path.parent)


def _claim_name(epoch: int) -> str:
    return f"{epoch:08d}.json"


def _taken(message: str) -> RelayError:
    return RelayError(
        "epoch_claimed",
        message,
        "another agent holds this run on this volume; see relay-tui runs",
        exit_code=Exit.LEASE,
        status=409,
    )


class Probe(msgspec.Struct, frozen=True):
    """One thing the volume can or cannot do. `needed`: Relay is not safe on a volume that cannot."""

    name: str
    ok: bool
    needed: bool
    detail: str = ""


def probe(l1_root: Path, disk: Disk = SYSTEM) -> list[Probe]:
    """Try on the volume what publishing relies on, in a folder that is gone afterwards. OSError if none can be made."""
    place = l1_root / f".relay-probe.{os.getpid()}.{os.urandom(4).hex()}"
    disk.mkdir(place)
    try:
        return [_try(name, needed, check, disk, place) for name, needed, check in _CHECKS]
    finally:
        remove_tree(disk, place)


def _try(name: str, needed: bool, check: _Check, disk: Disk, place: Path) -> Probe:
    try:
        detail = check(disk, place)
    except OSError as error:
        detail = error.strerror or str(error)
    return Probe(name, not detail, needed, detail)


def _exclusive(disk: Disk, place: Path) -> str:
    write_new(disk, place / "once", b"1")
    try:
        write_new(disk, place / "once", b"2")
    except FileExistsError:
        return ""
    return "creating a file that exists did not fail"


def _replace(disk: Disk, place: Path) -> str:
    write_new(disk, place / "old", b"old")
    write_new(disk, place / "new", b"new")
    disk.rename(place / "new", place / "old")
    return "" if (place / "old").read_bytes() == b"new" else "a replaced file kept its old bytes"


def _rename_folder(disk: Disk, place: Path) -> str:
    disk.mkdir(place / "folder")
    write_new(disk, place / "folder" / "file", b"1")
    disk.rename(place / "folder", place / "moved")
    sync_folder(disk, place)
    return "" if names(place / "moved") == ["file"] and not (place / "folder").exists() else "it left parts behind"


def _rename_at_once(disk: Disk, place: Path) -> str:
    return "" if renames_in_one_step(place, disk) else "it is done file by file: checkpoints are copied to their place"


def _hard_link(disk: Disk, place: Path) -> str:
    write_new(disk, place / "one", b"1")
    disk.link(place / "one", place / "two")
    return ""


def _symlink(disk: Disk, place: Path) -> str:
    disk.symlink("nowhere", place / "link")
    return "" if (place / "link").readlink() == Path("nowhere") else "it points elsewhere"


_Check = Callable[[Disk, Path], str]
"""What is wrong, or nothing; OSError where the call itself is refused."""

_CHECKS: tuple[tuple[str, bool, _Check], ...] = (
    ("exclusive create, fsync", True, _exclusive),
    ("replace a file", True, _replace),
    ("rename a folder", False, _rename_folder),
    ("rename a folder in one step", False, _rename_at_once),
    ("hard link", False, _hard_link),
    ("symbolic link", False, _symlink),
)
