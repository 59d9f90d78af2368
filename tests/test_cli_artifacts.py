"""`relay-tui artifacts …` against a commander of its own process."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from artifact_kit import content, flip, sha, some, stored_files
from cli_kit import Served
from msgspec.structs import replace

from relaytui.archive.pack import Pack
from relaytui.cli import artifact_files
from relaytui.cli import artifacts as artifact_lists
from relaytui.cli.group import cli
from relaytui.cli.options import Target
from relaytui.cli.session import ask
from relaytui.shell.program import run
from relaytui.wire.artifacts import ArtifactKind, ArtifactRow, BeginUpload
from relaytui.wire.artifacts import Artifacts as Stored
from relaytui.wire.errors import RelayError

Artifacts = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    commander = Served(tmp_path_factory.mktemp("commander") / "state", RELAY_ARTIFACT_RUN_QUOTA="1M")
    commander.call("/api/lease/acquire", {"worker_id": "pod-1", "run_id": "tiny"})
    yield commander
    commander.stop()


@pytest.fixture
def artifacts(served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Artifacts:
    def call(*words: str | Path, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = run("relay-tui", cli, ["--state", str(served.state), "artifacts", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_a_file_goes_there_and_comes_back(served: Served, artifacts: Artifacts, tmp_path: Path) -> None:
    source = tmp_path / "report.json"
    source.write_bytes(some(300_000))
    code, out, err = artifacts("attach", "tiny", source)
    assert (code, out) == (0, "")
    assert "report.json is artifact" in err
    code, out, _ = artifacts("attach", "tiny", source, "--json")
    row = json.loads(out)["artifact"]
    assert (row["run_id"], row["kind"], row["sha256"], row["by"]) == ("tiny", "file", sha(some(300_000)), row["by"])
    code, out, err = artifacts("list", "tiny")
    assert "report.json" in out
    assert "300 kB" in out
    assert err.startswith("1 artifact; the store has 300 kB of 100 GB")
    goal = tmp_path / "back.json"
    (tmp_path / f".back.json.{row['sha256'][:12]}.part").write_bytes(some(300_000)[:1_000])  # of one that was cut short
    assert artifacts("fetch", str(row["id"]), "--to", goal) == (0, f"{goal}\n", "")
    assert goal.read_bytes() == source.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    code, _, err = artifacts("fetch", str(row["id"]), "--to", goal)
    assert (code, "is there already. name another one (--to)" in err) == (2, True)
    (tmp_path / f".other.{row['sha256'][:12]}.part").write_bytes(b"not of it")
    code, _, err = artifacts("fetch", str(row["id"]), "--to", tmp_path / "other")
    assert (code, "is not what was stored" in err) == (1, True)
    assert artifacts("fetch", str(row["id"]), "--to", tmp_path / "other")[0] == 0
    part = tmp_path / f".linked.{row['sha256'][:12]}.part"
    for lies in (lambda: part.symlink_to(source), lambda: part.mkdir(), lambda: os.mkfifo(part)):
        lies()
        code, _, err = artifacts("fetch", str(row["id"]), "--to", tmp_path / "linked")
        assert (code, f"{part} is no plain file. move it away" in err) == (2, True), err
        part.rmdir() if part.is_dir() else part.unlink()

    flip(content(served.state, some(300_000)))
    code, out, err = artifacts("verify", str(row["id"]))
    assert (code, "its bytes are not what they were" in out) == (1, True)
    assert err.startswith(f"relay-tui: damaged: {row['id']}.")
    code, _, err = artifacts("fetch", str(row["id"]), "--to", tmp_path / "third")
    assert (code, "is damaged" in err) == (1, True)
    assert "damaged" in artifacts("list")[1]
    assert artifacts("attach", "tiny", source)[0] == 0
    code, out, _ = artifacts("verify", str(row["id"]), "--json")
    assert (code, json.loads(out)["artifacts"][0].get("damaged", "")) == (0, "")

    code, _, err = artifacts("delete", str(row["id"]), stdin="no\n")
    assert (code, "300 kB, stored" in err, "nothing was done" in err) == (130, True, True)
    code, _, err = artifacts("delete", str(row["id"]), "--why", "test", stdin="y\n")
    assert (code, "is deleted" in err) == (0, True)
    assert stored_files(served.state) == []
    assert artifacts("list", "tiny", "--json")[1].count("report.json") == 0
    assert artifacts("delete", str(row["id"]), "--yes")[0] == 1


def test_bits_that_turned_there_are_found_by_who_fetches_and_mended_by_who_attaches(
    served: Served, artifacts: Artifacts, tmp_path: Path
) -> None:
    source = tmp_path / "rotten.bin"
    source.write_bytes(some(50_000, 7))
    number = str(json.loads(artifacts("attach", "tiny", source, "--json")[1])["artifact"]["id"])
    flip(content(served.state, some(50_000, 7)))
    code, _, err = artifacts("fetch", number, "--to", tmp_path / "back")
    assert (code, err.count("\n"), f"artifact {number} is damaged where it is stored" in err) == (1, 1, True)
    assert not (tmp_path / "back").exists()
    assert "damaged" in artifacts("list", "tiny")[1]
    again = json.loads(artifacts("attach", "tiny", source, "--name", "again", "--json")[1])["artifact"]
    for each in (number, str(again["id"])):
        assert artifacts("fetch", each, "--to", tmp_path / each)[0] == 0
        assert (tmp_path / each).read_bytes() == some(50_000, 7)
    assert "damaged" not in artifacts("list", "tiny")[1]
    for each in (number, str(again["id"])):
        assert artifacts("delete", each, "--yes")[0] == 0


def test_a_checkpoints_archive_is_unpacked(artifacts: Artifacts, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    (folder / "deep").mkdir(parents=True)
    (folder / "model.bin").write_bytes(some(10_000))
    (folder / "deep" / "state.json").write_text("{}")
    archive = tmp_path / "step_00000007.tar.zst"
    archive.write_bytes(b"".join(Pack(folder).chunks()))
    assert json.loads(artifacts("extract", archive, "--json")[1]) == {
        "path": str(tmp_path / "step_00000007"), "files": 2, "bytes": 10_002, "sha256": sha(archive.read_bytes()),
    }  # fmt: skip
    assert (tmp_path / "step_00000007" / "deep" / "state.json").read_text() == "{}"
    (tmp_path / "bad.tar.zst").write_bytes(archive.read_bytes()[:-5])
    code, _, err = artifacts("extract", tmp_path / "bad.tar.zst")
    assert (code, err.count("\n")) == (1, 1)
    assert not (tmp_path / "bad").exists()


def stored(state: Path, name: str, checkpoint: Path, listed: int | None) -> str:
    """The number of that folder's archive there, with a manifest beside it that lists so many bytes; None: without."""
    manifest = json.dumps({"files": [{"path": "w.bin", "size": listed, "sha256": "0" * 64}]}).encode()
    data = b"".join(Pack(checkpoint).chunks())
    beside, archive = (
        BeginUpload("tiny", ArtifactKind.FILE, "checkpoint.manifest.json", sha(manifest), len(manifest)),
        BeginUpload("tiny", ArtifactKind.CHECKPOINT, name, sha(data), len(data), manifest_sha256=sha(manifest)),
    )
    target = Target(state, None)
    if listed is not None:
        ask(target, lambda client: artifact_files._send(client, beside, io.BytesIO(manifest)))
    return str(ask(target, lambda client: artifact_files._send(client, archive, io.BytesIO(data))).id)


def test_what_is_unpacked_is_as_large_as_its_manifest_says_however_small_it_came(
    served: Served, artifacts: Artifacts, tmp_path: Path
) -> None:
    folder, here = tmp_path / "zeros", tmp_path / "here"
    for path in (folder, here):
        path.mkdir()
    size = 70 << 20
    with (folder / "w.bin").open("wb") as file:
        file.truncate(size)
    number = stored(served.state, "step_00000001", folder, size)
    assert artifacts("fetch", number, "--extract", here / "out") == (0, f"{here / 'out'}\n", "")
    assert (here / "out" / "w.bin").stat().st_size == size
    os.truncate(folder / "w.bin", size + 1)
    bomb = stored(served.state, "step_00000002", folder, 10_000)
    code, _, err = artifacts("fetch", bomb, "--extract", here / "bomb")
    assert (code, err.count("\n"), "it says that it holds" in err) == (1, 1, True), err
    os.truncate(folder / "w.bin", size + 2)
    unknown = stored(served.state, "step_00000003", folder, None)
    code, _, err = artifacts("fetch", unknown, "--extract", here / "unknown")
    assert (code, err.count("\n"), "grows more than 2,000 times" in err) == (1, 1, True), err
    assert sorted(path.name for path in here.iterdir()) == ["out"], "what can never be unpacked is not kept"
    for each in (number, bomb, unknown):
        assert artifacts("delete", each, "--yes")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("list", "nobody"), 1, "no run nobody"),
        (("list", "nobody", "--json"), 1, "no run nobody"),
        (("attach", "nobody", "FILE"), 1, "no run nobody"),
        (("attach", "tiny", "LARGE"), 1, "no room for 2 MB more"),
        (("attach", "tiny", "FIFO"), 2, "is no plain file"),
        (("attach", "tiny", "LARGE"), 1, "artifacts delete`), or raise RELAY_ARTIFACT_RUN_QUOTA at the"),
        (("attach", "tiny", "/nowhere/x"), 2, "/nowhere/x is not there. name the file to store"),
        (("attach", "tiny", "FILE/x"), 2, "FILE/x is not there. name the file to store"),
        (("extract", "/nowhere/x"), 2, "/nowhere/x is not there. name an archive"),
        (("extract", "FILE"), 1, "FILE is no archive of Relay's"),
        (("extract", "FILE", "--to", "new"), 1, "FILE is no archive of Relay's"),
        (("attach", "tiny", "FILE", "--name", "../x"), 2, "should be"),
        (("attach", "tiny", "an odd näme"), 2, "say --name"),
        (("fetch", "999"), 1, "no artifact 999"),
        (("fetch", "999", "--to", "a", "--extract", "b"), 2, "say one of them"),
        (("verify", "999"), 1, "no artifact 999"),
        (("verify",), 2, "Missing argument"),
        ((), 2, "say which: list, fetch"),
        (("lst",), 2, "No such command"),
    ],
)
def test_what_goes_wrong_is_one_line(
    artifacts: Artifacts, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "FILE").write_bytes(b"x")
    (tmp_path / "LARGE").write_bytes(some(2_000_000))
    os.mkfifo(tmp_path / "FIFO")
    (tmp_path / "an odd näme").write_bytes(b"x")
    placed = [str(tmp_path / word) if (tmp_path / word).exists() else word for word in words]
    got, _, err = artifacts(*placed)
    assert (got, said in err, err.count("\n")) == (code, True, 1), err


def test_a_manifest_that_a_checkpoint_needs_is_not_deleted_unsaid(
    artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = sha(b"m")
    manifest = ArtifactRow(27, "tiny", ArtifactKind.FILE, "checkpoint.manifest.json", sealed, 616, 0.0, "pod", 1, 25)
    checkpoint = ArtifactRow(28, "tiny", ArtifactKind.CHECKPOINT, "step_25", "0" * 64, 9, 0.0, "pod", 1, 25, sealed)

    class Client:
        async def artifact(self, number: int) -> ArtifactRow:
            return manifest

        async def artifacts(self, run_id: str) -> Stored:
            return Stored(0.0, [checkpoint], 0, 0)

        async def delete_artifact(self, number: int, why: str) -> ArtifactRow:
            return manifest

    monkeypatch.setattr(artifact_lists, "ask", lambda target, question: asyncio.run(question(Client())))
    code, _, err = artifacts("delete", "27", stdin="n\n")
    assert (code, "No agent can restore checkpoint step_25 (artifact 28) without it" in err) == (130, True)
    code, _, err = artifacts("delete", "27", "--yes")
    assert (code, "No agent can restore checkpoint step_25 (artifact 28) without it" in err) == (0, True)


@pytest.mark.parametrize("option", ["--to", "--extract"])
def test_a_place_that_is_taken_names_the_option_that_named_it(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ArtifactRow(2, "r", ArtifactKind.CHECKPOINT, "step_00000030", "0" * 64, 9, "pod-a", 0.0)
    monkeypatch.setattr(artifact_files, "ask", lambda target, question: row)
    with pytest.raises(RelayError) as told:
        artifact_files.fetch.main(["2", option, str(tmp_path), "--state", "/nowhere"], standalone_mode=False)
    assert told.value.hint == f"name another one ({option})"


@pytest.mark.parametrize("change", [{"name": "../elsewhere"}, {"run_id": "a/b"}, {"sha256": "../x"}])
def test_a_row_whose_names_lead_elsewhere_is_none(
    artifacts: Artifacts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, str]
) -> None:
    """They make the names of what is written here."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    row = replace(ArtifactRow(1, "tiny", ArtifactKind.CHECKPOINT, "step_1", sha(b""), 0, 0.0, "pod"), **change)
    monkeypatch.setattr(artifact_files, "ask", lambda target, question: row)
    code, out, err = artifacts("fetch", "1")
    assert (code, out) == (1, "")
    assert "is not understood" in err
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_an_archive_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        def fileno(self) -> int:
            return 0

    monkeypatch.setattr(artifact_files, "_plain", lambda path, todo: Failing())
    archive = tmp_path / "step_00000100.tar.zst"
    assert run("relay-tui", cli, ["artifacts", "extract", str(archive)]) == 74
    assert f"{archive} cannot be read: Input/output error" in capsys.readouterr().err
