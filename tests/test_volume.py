"""The run's folder and the claims that say which epoch owns its line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from checkpoint_kit import RUN, FaultyDisk, new_run, take

from relay_agent.checkpoints.atomic import renames_in_one_step
from relay_agent.checkpoints.disk import Disk, names
from relay_agent.volume.volume import Claim, claim, claimed_epochs, highest_claim, open_run, probe, read_claim
from relaytui.wire.errors import RelayError


def test_the_folders_of_a_run_are_made_and_made_again(tmp_path: Path) -> None:
    run = open_run(tmp_path, "run-1")
    assert open_run(tmp_path, "run-1") == run
    assert run.root == tmp_path / "runs" / "run-1"
    assert {path.name for path in run.root.iterdir()} == {"ckpt", "claims", "logs", "hf", "out"}
    assert run.staging(3) == run.root / "ckpt" / ".staging" / "e00000003"
    assert run.output(3) == run.root / "out" / "e00000003"
    assert run.log(3) == run.root / "logs" / "e00000003.log"


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", "a/b", "../x", "a\nb", "a\x1b[2J", "a\0b", "-a", " a", "a ", "é", "x" * 129]
)
def test_run_ids_that_are_no_folder_name_are_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(RelayError) as refused:
        open_run(tmp_path, run_id)
    assert refused.value.exit_code == 2
    assert str(refused.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_volume_that_is_not_there_is_said_so_and_never_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    for path in (tmp_path / "missing", tmp_path / "file", tmp_path / "dangling", Path("relative")):
        with pytest.raises(RelayError) as refused:
            open_run(path, "run-1")
        assert refused.value.exit_code == 2
        assert str(path) in refused.value.message
        assert "RELAY_L1_ROOT" in str(refused.value)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("known", [False, True])
def test_a_volume_that_takes_no_writes_is_said_so(tmp_path: Path, known: bool) -> None:
    if known:
        open_run(tmp_path, "run-1")
    calls = FaultyDisk()
    open_run(tmp_path, "run-1", calls)
    writes = [number for number, call in enumerate(calls.calls) if call.split()[0] in ("create", "write", "fsync")]
    for number in writes:
        for code in (errno.EROFS, errno.ENOSPC, errno.EACCES):
            with pytest.raises(RelayError) as refused:
                open_run(tmp_path, "run-1", FaultyDisk(number, lambda code=code: OSError(code, os.strerror(code))))
            assert refused.value.exit_code == 2
            assert os.strerror(code) in refused.value.message


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    volume = tmp_path / "volume"
    (volume / "runs").mkdir(parents=True)
    (volume / "runs" / "run-1").symlink_to(outside)
    with pytest.raises(RelayError):
        open_run(volume, "run-1")
    run = open_run(volume, "run-2")
    run.claims.rmdir()
    run.claims.symlink_to(outside)
    with pytest.raises(RelayError):
        open_run(volume, "run-2")
    assert list(outside.iterdir()) == []


def test_a_claim_is_exclusive_and_says_who_and_from_where(tmp_path: Path) -> None:
    run = new_run(tmp_path, None)
    assert highest_claim(run) == 0
    first = Claim(7, "pod-a", "inc-1", "step_00000500", "abc", 1.5)
    claim(run, first)
    assert highest_claim(run) == 7
    assert read_claim(run, 7) == first
    assert run.staging(7).is_dir()
    assert run.output(7).is_dir()
    for late in (7, 6, 1):
        with pytest.raises(RelayError) as refused:
            claim(run, Claim(late, "pod-b", "inc-2", None, "abc", 1.5))
        assert refused.value.exit_code == 75
    assert read_claim(run, 7) == first
    assert not run.staging(6).exists()
    assert [path.name for path in run.claims.iterdir()] == ["00000007.json"]


def test_of_many_that_claim_an_epoch_at_once_one_gets_it(tmp_path: Path) -> None:
    run = new_run(tmp_path, None)
    script = (
        "import sys; from pathlib import Path; from relay_agent.volume.volume import *\n"
        "sys.stdin.read()\n"
        "try: claim(RunFolder(Path(sys.argv[1])), Claim(1, 'pod', sys.argv[2], None, '', 0.0))\n"
        "except RelayError: print('refused')\n"
        "else: print('mine')\n"
    )
    pods = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(run.root), f"inc-{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(5)
    ]
    for pod in pods:
        assert pod.stdin is not None
        pod.stdin.close()
    said = [pod.stdout.read().strip() for pod in pods if pod.stdout]
    for pod in pods:
        pod.wait(10)
        assert pod.stdout is not None
        pod.stdout.close()
    assert sorted(said) == ["mine"] + ["refused"] * 4
    held = read_claim(run, 1)
    assert held is not None
    assert held.incarnation == f"inc-{said.index('mine')}"


def test_without_hard_links_a_claim_is_exclusive_all_the_same(tmp_path: Path) -> None:
    class NoLinks(Disk):
        def link(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    run = new_run(tmp_path, None)
    take(run, 1, disk=NoLinks())
    with pytest.raises(RelayError):
        take(run, 1, disk=NoLinks())
    assert [path.name for path in run.claims.iterdir()] == ["00000001.json"]


def test_names_that_are_no_claims_never_count(tmp_path: Path) -> None:
    run = new_run(tmp_path, 3)
    for name in (
        "1.json",
        "00000009.json.tmp",
        "0000000x.json",
        "latest",
        "00000000.json",
        "\x1b[2J",
        "9" * 30 + ".json",
    ):
        (run.claims / name).touch()
    (run.claims / "00000004.json\n").touch()
    assert claimed_epochs(run) == [3]


def test_a_claim_whose_content_was_lost_still_burns_its_epoch(tmp_path: Path) -> None:
    run = new_run(tmp_path, None)
    (run.claims / "00000005.json").touch()
    (run.claims / "00000006.json").write_bytes(b'{"epoch": 5}')
    (run.claims / "00000008.json").symlink_to("/etc/passwd")
    assert highest_claim(run) == 8
    assert [read_claim(run, epoch) for epoch in (5, 6, 8)] == [None, None, None]


def test_staging_left_by_somebody_without_a_claim_is_not_this_epochs(tmp_path: Path) -> None:
    run = new_run(tmp_path, None)
    (run.staging(1) / "step_5").mkdir(parents=True)
    run.output(1).mkdir()
    (run.output(1) / "theirs").touch()
    take(run, 1)
    assert list(run.staging(1).iterdir()) == []
    assert list(run.output(1).iterdir()) == []
    assert [path.name for path in run.output(1).parent.glob(".e*/*")] == ["theirs"]


def test_the_probe_says_what_the_volume_can_do_and_leaves_nothing(tmp_path: Path) -> None:
    class Poor(Disk):
        def symlink(self, target: str, name: str | Path, *, dir_fd: int | None = None) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
            if Path(source).is_dir():
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            super().rename(source, target, dir_fd=dir_fd)

    assert all(found.ok and not found.detail for found in probe(tmp_path))
    poor = {found.name: found for found in probe(tmp_path, Poor())}
    assert not poor["rename a folder"].ok
    assert not poor["rename a folder"].needed, "then the manifest alone makes a checkpoint one"
    assert not poor["rename a folder in one step"].ok
    assert not poor["symbolic link"].ok
    assert not poor["symbolic link"].needed
    assert poor["symbolic link"].detail == "Operation not permitted"
    assert poor["replace a file"].ok
    assert list(tmp_path.iterdir()) == []


def test_claims_that_no_commander_can_have_granted_are_not_believed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path, None)
    take(run, 5)
    (run.claims / "00000007.json").touch()
    far = (1_100_000, 2**53 - 1, 2**53, 2**53 + 1, 9_999_999_999_999_999)
    for epoch in far:
        (run.claims / f"{epoch:08d}.json").touch()
    limit = Claim(2**53, "pod-x", "inc-x", None, "abc", 1.5)
    (run.claims / f"{2**53:08d}.json").write_bytes(msgspec.json.encode(limit))
    for _ in range(3):
        assert claimed_epochs(run) == [5, 7]
        assert highest_claim(run) == 7
    assert capsys.readouterr().err.count("not believed") == 1
    take(run, 8)
    assert highest_claim(run) == 8


def test_folders_that_a_trainer_makes_burn_no_epoch(tmp_path: Path) -> None:
    run = new_run(tmp_path, None)
    run.staging(9_999_999_999).mkdir()
    assert highest_claim(run) == 0
    take(run, 1)
    for epoch in (2, 500, 9_999_999_999_999_999):
        run.staging(epoch).mkdir()
        run.output(epoch).mkdir()
    assert highest_claim(run) == 1
    take(run, 2)
    assert highest_claim(run) == 2


def test_a_volume_that_cannot_be_reached_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with pytest.raises(RelayError, match="too long") as refused:
        open_run(Path("/" + "a" * 3000), "run-1")
    assert len(str(refused.value)) < 500
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(RelayError, match="Permission denied") as refused:
        open_run(tmp_path, "run-1")
    assert refused.value.exit_code == 2


class ByObject(Disk):
    """Renames a folder file by file, and is looked at before the last one."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    def look(self, path: Path) -> list[str]:
        found = names(path)
        self.seen.set()
        return found

    def rename(self, source: str | Path, target: str | Path, *, dir_fd: int | None = None) -> None:
        source, target = Path(source), Path(target)
        if dir_fd is not None or not source.is_dir():
            super().rename(source, target, dir_fd=dir_fd)
            return
        target.mkdir()
        first, *rest = sorted(source.iterdir())
        first.rename(target / first.name)
        assert self.seen.wait(10)
        for path in rest:
            path.rename(target / path.name)
        source.rmdir()


def test_a_rename_that_is_no_single_step_is_seen(tmp_path: Path) -> None:
    assert renames_in_one_step(tmp_path)
    disk = ByObject()
    assert not renames_in_one_step(tmp_path, disk, look=disk.look)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "point", "one_step"),
    [
        ("fuse.s3fs", "volume", False),
        ("fuse.gcsfuse", "", False),
        ("fuse.s3fs", "vol", True),
        ("ext4", "volume", True),
        ("fuse.juicefs", "volume", True),
    ],
)
def test_object_stores_are_known_by_their_mount(tmp_path: Path, kind: str, point: str, one_step: bool) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    mounts = tmp_path / "mountinfo"
    below = f"36 22 0:50 / {tmp_path / point} rw,nosuid shared:1 - {kind} bucket rw\n"
    mounts.write_text(f"22 1 0:21 / / rw - overlay overlay rw\n{below}")
    assert renames_in_one_step(volume, mounts=mounts) is one_step


def test_a_run_knows_how_its_volume_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_run(tmp_path, RUN).atomic
    monkeypatch.setattr("relay_agent.volume.volume.renames_in_one_step", lambda place, disk: False)
    assert not open_run(tmp_path, RUN).atomic
