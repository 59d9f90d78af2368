"""Claims that were altered, copied or cut say nothing, are said, and burn their epoch all the same."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from checkpoint_kit import Crash, FaultyDisk, new_run, put, take

from relay_agent.checkpoints.line import survey
from relay_agent.volume.claims import Claim, Spoilt, decode, encode
from relay_agent.volume.spoilt_claims import set_aside
from relay_agent.volume.volume import RunFolder, claimed_epochs, highest_claim, open_run, read_claim
from relaytui.wire.errors import RelayError

CLAIM = Claim(2, "pod-a", "0123456789abcdef", "step_00000030", "config", 1.7e9)


def file_of(run: RunFolder, epoch: int) -> Path:
    return run.claims / f"{epoch:08d}.json"


def test_a_claim_says_which_run_it_is_of_and_what_it_was_written_as() -> None:
    data = encode(CLAIM, "run-1")
    assert decode(data, "run-1", 2) == CLAIM
    assert msgspec.json.decode(data)["run_id"] == "run-1"
    with pytest.raises(Spoilt, match="of the run run-1"):
        decode(data, "run-2", 2)
    with pytest.raises(Spoilt, match="of epoch 2"):
        decode(data, "run-1", 3)


def test_every_single_bit_of_a_claim_counts() -> None:
    data = encode(CLAIM, "run-1").rstrip(b"\n")
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(Spoilt):
                decode(bytes(flipped), "run-1", 2)
    for length in range(len(data)):
        with pytest.raises(Spoilt):
            decode(data[:length], "run-1", 2)


def test_claims_from_before_there_were_sums_read_as_they_are(tmp_path: Path) -> None:
    assert decode(msgspec.json.encode(CLAIM) + b"\n", "run-1", 2) == CLAIM
    run = new_run(tmp_path, 1)
    file_of(run, 2).write_bytes(msgspec.json.encode(CLAIM) + b"\n")
    assert set_aside(run, 3) == []
    assert read_claim(run, 2) == CLAIM


def test_a_flipped_bit_leads_nobody_to_another_checkpoint(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    for step in (10, 20, 30):
        put(run, 1, step)
    take(run, 2, "step_00000030")
    claim = file_of(run, 2)
    claim.write_bytes(claim.read_bytes().replace(b'"step_00000030"', b'"step_00000010"'))
    (said,) = set_aside(run, 3)
    altered = "it is not as it was written: its sum differs"
    assert said == f"the claim of epoch 2 is not heeded: {altered}; it is kept in {claim}.damaged"
    assert (survey(run).line + survey(run).orphans)[0].name == "step_00000030"
    assert highest_claim(run) == 2
    assert set_aside(run, 3) == [], "said once"


def test_a_claim_copied_from_another_run_is_none(tmp_path: Path) -> None:
    run, donor = new_run(tmp_path, 1), open_run(tmp_path, "donor")
    take(donor, 2, "step_00000010")
    file_of(run, 2).write_bytes(file_of(donor, 2).read_bytes())
    assert read_claim(run, 2) is None
    (said,) = set_aside(run, 3)
    assert "it is of the run donor" in said
    assert claimed_epochs(run) == [1, 2]


@pytest.mark.parametrize("plant", ["cut", "empty", "fifo", "folder", "link", "huge"])
def test_what_is_no_claim_is_said_and_set_aside_and_its_epoch_stays_claimed(tmp_path: Path, plant: str) -> None:
    run = new_run(tmp_path, 1)
    take(run, 2)
    claim = file_of(run, 2)
    data = claim.read_bytes()
    claim.unlink()
    match plant:
        case "cut" | "empty":
            claim.write_bytes(data[: 20 if plant == "cut" else 0])
        case "fifo":
            os.mkfifo(claim)
        case "folder":
            (claim / "x").mkdir(parents=True)
        case "link":
            claim.symlink_to("/etc/passwd")
        case "huge":
            with claim.open("wb") as file:
                file.truncate(1 << 40)
    (said,) = set_aside(run, 3)
    assert said.startswith("the claim of epoch 2 is not heeded: it ")
    assert not os.path.lexists(claim)
    assert os.path.lexists(f"{claim}.damaged")
    assert claimed_epochs(run) == [1, 2]
    with pytest.raises(RelayError, match="claimed already"):
        take(run, 2)
    claim.write_bytes(b"again")
    assert "damaged.2" in set_aside(run, 3)[0]
    assert claimed_epochs(run) == [1, 2]


def test_a_claim_that_is_on_its_way_is_nobodys_to_judge(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    file_of(run, 2).touch()
    file_of(run, 3).touch()
    assert set_aside(run, 2) == []
    assert file_of(run, 2).exists()


def test_a_volume_in_trouble_loses_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(tmp_path, 1)

    def fail(*args: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("relay_agent.volume.volume.read_file", fail)
    assert set_aside(run, 2) == ["the claim of epoch 1 is not heeded: it cannot be read: Input/output error"]
    assert file_of(run, 1).exists()


def test_setting_aside_may_end_anywhere_and_loses_no_epoch(tmp_path: Path) -> None:
    run = new_run(tmp_path, 1)
    file_of(run, 1).write_bytes(b"cut")
    calls = FaultyDisk()
    set_aside(run, 2, calls)
    for at in range(len(calls.calls)):
        for fault in (Crash, lambda: OSError(errno.EROFS, os.strerror(errno.EROFS))):
            for path in run.claims.iterdir():
                path.unlink()
            file_of(run, 1).write_bytes(b"cut")
            with suppress(Crash):
                set_aside(run, 2, FaultyDisk(at, fault))
            assert claimed_epochs(run) == [1], "under one name or the other"
