"""A volume that goes and comes back, as what other device it may be: it is known by the claim of the epoch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from checkpoint_kit import new_run, stage, take
from publisher_kit import Rig

from relay_agent.checkpoints.line import survey
from relay_agent.volume.mounted import Mounted
from relay_agent.volume.volume import RunFolder

MOUNT, HERE = "vol", 1
"""Where the volume is mounted, and the device below it."""


class Devices:
    """As `os.lstat`, with the numbers that a kernel would give."""

    def __init__(self, root: Path) -> None:
        self.of = {root / MOUNT: 7}
        self._root = root

    def __call__(self, path: Path) -> os.stat_result:
        found = os.lstat(path)
        below = [each for each in self.of if path.is_relative_to(each)]
        device = self.of[max(below, key=lambda each: len(each.parts))] if below else HERE
        return os.stat_result((*found[:2], device, *found[3:10]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / MOUNT).mkdir()
    return tmp_path


@pytest.fixture
def run(place: Path) -> RunFolder:
    return new_run(place / MOUNT)


@pytest.fixture
def devices(place: Path) -> Devices:
    return Devices(place)


@pytest.fixture
def mounted(run: RunFolder, devices: Devices) -> Mounted:
    mounted = Mounted(run, 1, devices)
    mounted.begin()
    assert mounted.missing() == ""
    return mounted


def test_under_another_number_it_is_the_same_volume(place: Path, devices: Devices, mounted: Mounted) -> None:
    for number in (8, 9, 7):
        del devices.of[place / MOUNT]
        assert "not mounted any more" in mounted.missing()
        devices.of[place / MOUNT] = number
        assert mounted.missing() == ""
        assert mounted.missing() == ""


def test_a_copy_where_it_was_mounted_is_none(place: Path, devices: Devices, mounted: Mounted) -> None:
    """Its trainer may have made one, claims and all: on the disk below it would be gone with the pod."""
    del devices.of[place / MOUNT]
    assert all("not mounted any more" in mounted.missing() for _ in range(3))
    devices.of = {place: 5}  # nor is it where all of that moved
    assert "not mounted any more" in mounted.missing()


def _anothers(run: RunFolder) -> None:
    for path in run.claims.iterdir():
        path.unlink()
    take(run, 3)


def _anothers_of_this_epoch(run: RunFolder) -> None:
    """Another volume, where the run has come as far."""
    for path in run.claims.iterdir():
        path.unlink()
    shutil.rmtree(run.staging(1))
    take(run, 1, "step_00000005")


def _no_staging_folder(run: RunFolder) -> None:
    run.staging(1).rmdir()


@pytest.mark.parametrize("deed", [_anothers, _anothers_of_this_epoch, _no_staging_folder])
def test_a_volume_of_others_is_none(
    run: RunFolder, place: Path, devices: Devices, mounted: Mounted, deed: Callable[[RunFolder], None]
) -> None:
    deed(run)
    devices.of[place / MOUNT] = 8
    assert "is on another device than at the start" in mounted.missing()


def test_a_part_of_it_on_another_device_is_none(run: RunFolder, devices: Devices, mounted: Mounted) -> None:
    devices.of[run.staging(1)] = 8
    assert mounted.missing().startswith(str(run.staging(1)))


def test_an_agent_that_begins_without_it_knows_it_when_it_is_back(run: RunFolder, devices: Devices) -> None:
    away = run.root.with_name("away")
    run.root.rename(away)
    run.staging(1).mkdir(parents=True)  # by the trainer
    (mount,) = devices.of
    del devices.of[mount]
    mounted = Mounted(run, 1, devices)
    mounted.begin()
    assert mounted.missing() == f"{run.claims} is gone"
    shutil.rmtree(run.root)
    away.rename(run.root)
    devices.of[mount] = 7
    assert mounted.missing() == ""


def test_a_staging_folder_that_the_trainer_removed_is_no_lost_volume(run: RunFolder, mounted: Mounted) -> None:
    """Whoever clears the folder that it saves into makes it anew when it does."""
    run.staging(1).rmdir()
    assert mounted.missing() == ""
    run.staging(1).mkdir()
    assert mounted.missing() == ""
    run.staging(1).rmdir()
    run.staging(1).parent.rmdir()
    assert mounted.missing() == f"{run.staging(1).parent} is gone"


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "relay"
    place.mkdir()
    if refused := _mount(place):
        pytest.skip(f"needs the right to mount: {refused}")
    try:
        yield place
    finally:
        while _umount(place) == 0:
            pass


def _mount(place: Path) -> str:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "relay", place], capture_output=True, text=True)
    return done.stderr.strip()


def _umount(place: Path) -> int:
    return subprocess.run(["umount", "--lazy", place], capture_output=True).returncode


async def test_what_was_saved_meanwhile_is_published_once_it_is_mounted_again(volume: Path, tmp_path: Path) -> None:
    rig = Rig(new_run(volume))
    publisher = rig.publisher()
    stage(rig.run, 1, 5)
    await publisher.look()
    shutil.copytree(volume, tmp_path / "copy", symlinks=True)
    assert _umount(volume) == 0
    await publisher.look()
    shutil.copytree(tmp_path / "copy", volume, symlinks=True, dirs_exist_ok=True)  # by its trainer
    stage(rig.run, 1, 7)
    await publisher.look()
    assert rig.told.kinds() == ["volume.lost"]
    with suppress(FileNotFoundError):
        shutil.rmtree(volume / "runs")
    assert _mount(volume) == ""
    shutil.copytree(tmp_path / "copy", volume, symlinks=True, dirs_exist_ok=True)
    stage(rig.run, 1, 10)
    await publisher.look()
    assert rig.told.kinds() == ["volume.lost", "volume.back"]
    assert rig.told.steps == [5, 10]
    assert [sealed.manifest.step for sealed in survey(rig.run, 1).line] == [10, 5]
