"""What goes into the one commit of a checkpoint: all that is its own, or no tag; what is beside it holds nothing up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoint_kit import ManualClock, mine
from hub_pull_kit import shelve
from hub_sync_kit import REPO, RUN, Calls, put, saying, send_job
from msgspec.structs import replace

from relay_agent import secret_words
from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.staging import Staged
from relay_agent.hub import layout
from relay_agent.hub.far import send, upload
from relay_agent.hub.protocol import Beside, Check, Checked, Sent, Where
from relay_agent.hub.shown import HubShown
from relay_agent.sending.backoff import Backoff
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.bench.hub import peak_of_children
from tests.hub import Fault, TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


@pytest.fixture
def hub(hub: TestHub) -> TestHub:
    hub.large_above = 1000  # the kit's weights are larger, its shards are not
    return hub


def put_files(run: RunFolder, step: int, files: dict[str, bytes]) -> Path:
    """A checkpoint of those; where it lies."""
    path = run.staging(1) / f"step_{step}"
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return publish(run, Staged(step, path, marks=True), 1, mine).path


# -- nothing of it is left out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["*.json", "manifest.json", "run.json", "relay/", "weights.bin"])
@pytest.mark.parametrize("before", [False, True], ids=["empty", "a step before"])
async def test_where_a_gitignore_names_what_is_the_checkpoints_there_is_no_tag(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, pattern: str, before: bool
) -> None:
    put(run, 1, 400)
    if before:
        shelve(hub, run, "step_00000400")
    else:
        await call(Check(where, RUN), Checked)
    tags = dict(hub.repo(REPO).tags) if before else {}
    hub.someone_commits(REPO, ".gitignore", pattern.encode() + b"\n")
    put(run, 1, 500)
    with pytest.raises(Trouble, match="gitignore names it") as ignored:
        await call(send_job(where, run, "step_00000500"))
    assert (ignored.value.code, ignored.value.kind) == ("ignored", "permanent")
    assert hub.repo(REPO).tags == tags
    assert hub.verify(REPO) == []


@pytest.mark.parametrize("path", [layout.MANIFEST_PATH, layout.RUN])
@pytest.mark.parametrize("before", [False, True], ids=["lost", "that of the step before"])
async def test_a_commit_without_its_manifest_or_its_run_file_gets_no_tag(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, path: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(run, 1, 400)
    if before:
        shelve(hub, run, "step_00000400")
    else:
        await call(Check(where, RUN), Checked)
    old = hub.store.repos["model", REPO].resolve("main").tree.get(path)
    add = hub.store.add

    def spoils(repo: Any, branch: str, tree: dict[str, Any], *more: Any) -> Any:
        tree = {each: entry for each, entry in tree.items() if each != path}
        return add(repo, branch, tree | ({path: old} if old else {}), *more)

    monkeypatch.setattr(hub.store, "add", spoils)
    put(run, 1, 500)
    with pytest.raises(Trouble) as spoilt:
        await call(send_job(where, run, "step_00000500"))
    assert (spoilt.value.code, spoilt.value.kind) == ("not_whole", "transient")
    assert "step-500" not in hub.repo(REPO).tags


# -- asked at the last moment ------------------------------------------------------------------------------------------


def texts(run: RunFolder) -> None:
    """A checkpoint whose commit goes in many pieces."""
    put_files(run, 500, {f"{number}.txt": b"%d" % number * 1000 for number in range(100)})


@pytest.mark.parametrize("over", [False, True], ids=["in time", "the sending takes longer"])
async def test_between_the_permission_and_the_commit_nothing_is_asked_of_the_hub(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, over: bool
) -> None:
    texts(run)
    hub.large_above = 10 << 20
    began: list[tuple[str, int]] = []

    def allowed(what: str) -> float:
        began.append((what, len(hub.requests)))
        return 10.0

    call.allowed = allowed
    call.over = [False, over]
    await call(send_job(where, run, "step_00000500"))
    (commit,) = [number for number, request in enumerate(hub.requests) if request.route == "commit"]
    asked = [number for what, number in began if what == "commit"]
    assert asked[0] == commit
    assert len(asked) == 1 + over
    assert asked[-1] <= commit + 1, "and the request for the commit itself"
    assert hub.verify(REPO) == []


async def test_what_the_fence_refuses_with_all_of_it_but_the_last_bytes_sent_is_no_commit(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    texts(run)
    hub.large_above = 10 << 20
    answers = [10.0, 0.0]
    call.allowed = lambda what: answers.pop(0)
    call.over = [False, True]
    with pytest.raises(Trouble) as refused:
        await call(send_job(where, run, "step_00000500"))
    assert (refused.value.code, refused.value.kind) == ("refused", "transient")
    assert call.asked == ["commit", "commit"]
    assert len(hub.repo(REPO).commits) == 1
    call.allowed = lambda what: 10.0
    await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []


# -- the card is an extra ----------------------------------------------------------------------------------------------

README = {
    "a head that is no YAML": b"---\nlicense: mit\ntags: [a, b\n---\n# Mine\n",
    "a list for a head": b"---\n- a\n---\n# Mine\n",
    "too long": b"# Mine\n" + b"x" * (2 << 20),
    "no text": b"\xff\xfe# Mine\n",
}


@pytest.mark.parametrize("readme", README.values(), ids=README)
async def test_a_card_that_cannot_be_written_holds_no_checkpoint_up(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, readme: bytes
) -> None:
    put(run, 1, 400)
    assert (await call(send_job(where, run, "step_00000400"))).remark == ""
    hub.someone_commits(REPO, "README.md", readme)
    put(run, 1, 500)
    sent = await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []
    assert hub.files(REPO, sent.tag)["README.md"] == readme
    assert "README.md" in sent.remark


@pytest.mark.parametrize(
    "fault",
    [
        Fault.says("validate-yaml", 503),
        Fault.cuts("validate-yaml"),
        Fault.says("commit", 400, "Invalid metadata in README.md"),
    ],
    ids=lambda fault: f"{fault.route}-{fault.status}",
)
async def test_a_card_that_the_hub_does_not_take_is_left_out(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, fault: Fault
) -> None:
    put(run, 1, 500)
    hub.fault(fault)
    sent = await call(send_job(where, run, "step_00000500"))
    assert not hub.faults.waiting
    assert hub.verify(REPO) == []
    assert "README.md" not in hub.files(REPO, sent.tag)
    assert "README.md" in sent.remark


@pytest.mark.parametrize("ahead", [0, 280, 15 << 20])
async def test_what_the_hub_says_of_a_card_is_cut_and_holds_no_secret(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, ahead: int
) -> None:
    put(run, 1, 500)
    words = f"{'x' * ahead} Bearer {where.token} pa55word-of-mine \x1b[31mred"
    before = secret_words.known()
    try:
        async with saying(hub, {"/api/validate-yaml": {"errors": [{"message": words}]}}) as url:
            there = replace(where, endpoint=url, secrets={"pa55word-of-mine": "[MINE]"})
            sent = await call(send_job(there, run, "step_00000500"))
    finally:
        secret_words.know(before)
    assert sent.remark.startswith("README.md left out: ")
    assert len(sent.remark) < 400
    assert ("Bearer … [MINE] red" in sent.remark) == (ahead == 0)
    assert not any(part in sent.remark for part in (where.token[:6], "pa55", "\x1b"))


async def test_who_the_hub_says_that_somebody_is_is_cut(hub: TestHub, where: Where, call: Calls) -> None:
    who = {"name": "x" * (1 << 20), "auth": {"accessToken": {"role": "write"}}}
    async with saying(hub, {"/api/whoami-v2": who}) as url:
        checked = await call(Check(replace(where, endpoint=url), RUN), Checked)
    assert len(checked.user) <= 100


@pytest.mark.parametrize("oid", ["c" * (1 << 20), "\ud800", 7, None], ids=["long", "no text", "number", "none"])
async def test_a_commit_of_no_known_kind_is_looked_up(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch, oid: object
) -> None:
    monkeypatch.setattr(send, "BACKOFF", Backoff(tries=2, first=0.01))
    put(run, 1, 500)
    async with saying(hub, {"/api/models/relay/run-1/commit/main": {"commitOid": oid}}) as url:
        with pytest.raises(Trouble, match="is not the Hub") as odd:
            await call(send_job(replace(where, endpoint=url), run, "step_00000500"))
    assert odd.value.kind != "permanent"
    assert (await call(send_job(where, run, "step_00000500"))).tag == "step-500"


async def test_a_gitignore_that_names_the_card_keeps_the_card_as_it_is(
    hub: TestHub, where: Where, run: RunFolder, call: Calls
) -> None:
    put(run, 1, 500)
    await call(Check(where, RUN), Checked)
    hub.someone_commits(REPO, ".gitignore", b"*.md\n")
    sent = await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []
    assert "README.md" not in hub.files(REPO, sent.tag)
    assert "gitignore" in sent.remark


def test_what_stays_behind_is_said_once(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    class Tell:
        def event(self, kind: str, message: str, data: Any = None, *, send: bool = True) -> None:
            said.append(message)

        def transfer(self, report: Any) -> None:
            pass

    said: list[str] = []
    shown = HubShown(REPO, Tell(), ManualClock())
    sealed = read(put(run, 1, 500).path)
    for remark in ("README.md stays", "README.md stays", "", "README.md stays", "r.jsonl stays"):
        shown.synced(sealed, Sent("c" * 40, "step-500", 1, False, remark=remark), 1, 1.0)
    assert [words.partition("; ")[2] for words in said] == ["README.md stays", "", "", "", "r.jsonl stays"]
    assert capsys.readouterr().err.count("README.md") == 1


# -- files that change, and many of them -------------------------------------------------------------------------------


class Meanwhile(Calls):
    """Does something once the first bytes of files are on their way."""

    def __init__(self, cache: Path, change: Callable[[], None]) -> None:
        self._change: Callable[[], None] | None = change
        super().__init__(cache)

    @property  # type: ignore[override]
    def progress(self) -> tuple[int, int]:
        return self._progress

    @progress.setter
    def progress(self, now: tuple[int, int]) -> None:
        self._progress = now
        if now[0] and self._change:
            change, self._change = self._change, None
            change()


def shorter(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 1000)


def longer(path: Path) -> None:
    path.chmod(0o644)
    with path.open("ab") as file:
        file.write(b"more" * 1000)


def other(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"other")
    os.utime(path, ns=(0, 0))


BIG = os.urandom(3_000_000)
CHANGES = (shorter, longer, other)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in the commit"])
async def test_a_file_of_the_checkpoint_that_changes_while_it_is_sent_is_damaged(
    hub: TestHub, where: Where, run: RunFolder, tmp_path: Path, change: Callable[[Path], None], apart: bool
) -> None:
    path = put_files(run, 500, {"w.bin": BIG, "t.txt": b"text " * 100_000})
    hub.large_above = 10 << 20
    victim = path / ("w.bin" if apart else "t.txt")
    call = Meanwhile(tmp_path / "cache", lambda: change(victim))
    with pytest.raises(Trouble) as damaged:
        await call(send_job(where, run, "step_00000500"))
    if damaged.value.code != "damaged":  # it may have been seen when it was too late for this try
        assert damaged.value.kind != "permanent"
        with pytest.raises(Trouble) as damaged:
            await call(send_job(where, run, "step_00000500"))
    assert damaged.value.code == "damaged"
    assert hub.repo(REPO).tags == {}


@pytest.mark.parametrize("change", [*CHANGES, Path.unlink])
@pytest.mark.parametrize("apart", [True, False], ids=["apart", "in the commit"])
async def test_a_rollout_that_changes_while_it_is_sent_stays_behind(
    hub: TestHub, where: Where, run: RunFolder, tmp_path: Path, change: Callable[[Path], None], apart: bool
) -> None:
    put(run, 1, 500)
    hub.large_above = 10 << 20
    rollouts = {name: tmp_path / name for name in ("a.bin", "b.bin", "c.jsonl", "d.jsonl")}
    for path in rollouts.values():
        path.write_bytes(BIG if path.suffix == ".bin" else b"{}\n" * 100_000)
    victim = rollouts["b.bin" if apart else "d.jsonl"]
    beside = [Beside(f"rollouts/{name}", file=str(path)) for name, path in rollouts.items()]
    job = send_job(where, run, "step_00000500")
    job = msgspec.structs.replace(job, beside=[*job.beside, *beside], threads=1)
    call = Meanwhile(tmp_path / "cache", lambda: change(victim))
    sent = await call(job)
    assert hub.verify(REPO) == []
    there = {path for path in hub.files(REPO, sent.tag) if path.startswith("rollouts/")}
    assert there == {f"rollouts/{name}" for name, path in rollouts.items() if path != victim}
    assert victim.name in sent.remark


async def test_what_the_storage_takes_nothing_of_beside_a_checkpoint_stays_behind(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, tmp_path: Path
) -> None:
    put(run, 1, 500)
    (tmp_path / "a.bin").write_bytes(BIG)
    job = send_job(where, run, "step_00000500")
    job = msgspec.structs.replace(job, beside=[*job.beside, Beside("rollouts/a.bin", file=str(tmp_path / "a.bin"))])
    hub.fault(Fault.quota(skip=1))
    sent = await call(job)
    assert hub.verify(REPO) == []
    assert "rollouts/a.bin" not in hub.files(REPO, sent.tag)
    assert "rollouts/a.bin" in sent.remark


async def test_a_journal_that_is_left_out_stays_as_it_was_there(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, tmp_path: Path
) -> None:
    (tmp_path / "m.jsonl").write_bytes(b"{}\n")
    journal = Beside(layout.METRICS, file=str(tmp_path / "m.jsonl"), tail=1000)
    for step in (400, 500):
        put(run, 1, step)
        job = send_job(where, run, f"step_{step:08d}")
        sent = await call(msgspec.structs.replace(job, beside=[*job.beside, journal]))
        assert hub.files(REPO, sent.tag)[layout.METRICS] == b"{}\n"
        hub.someone_commits(REPO, ".gitignore", b"metrics.jsonl\n")
        (tmp_path / "m.jsonl").write_bytes(b"{}\n{}\n")
    assert layout.METRICS in sent.remark
    assert hub.verify(REPO) == []


async def test_much_text_goes_apart_and_more_of_it_beside_waits_for_the_next(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "IN_COMMIT", 100_000)
    hub.large_above = 10 << 20
    put_files(run, 500, {f"{number}.txt": b"%d" % number * 30_000 for number in range(6)})
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_bytes(b"%d\n" % number * 20_000)
    beside = [Beside(f"rollouts/{number}.jsonl", file=str(tmp_path / f"{number}.jsonl")) for number in range(5)]
    job = send_job(where, run, "step_00000500")
    sent = await call(msgspec.structs.replace(job, beside=[*job.beside, *beside]))
    assert hub.verify(REPO) == []
    (commit,) = hub.asked("commit")
    assert commit.received < 150_000
    tree = hub.repo(REPO).resolve(sent.tag).tree
    assert any(entry.lfs for path, entry in tree.items() if path.endswith(".txt"))
    assert not any(path.startswith("rollouts/") for path in tree)
    assert "5 files" in sent.remark
    put(run, 1, 600)
    job = send_job(where, run, "step_00000600")
    sent = await call(msgspec.structs.replace(job, beside=[*job.beside, *beside]))
    some = {path for path in hub.files(REPO, sent.tag) if path.startswith("rollouts/")}
    assert some == {"rollouts/0.jsonl", "rollouts/1.jsonl"}
    put(run, 1, 700)
    job = send_job(where, run, "step_00000700")
    sent = await call(msgspec.structs.replace(job, beside=[*job.beside, *beside]))
    assert len([path for path in hub.files(REPO, sent.tag) if path.startswith("rollouts/")]) == 4


async def test_much_text_takes_no_memory(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, tmp_path: Path
) -> None:
    hub.large_above = 10 << 20
    put_files(run, 500, {f"{number}.txt": b"%d" % (number % 10) * 4_000_000 for number in range(12)})
    for number in range(60):
        (tmp_path / f"{number}.jsonl").write_bytes(b"%d\n" % number * 100_000)
    beside = [Beside(f"rollouts/{number}.jsonl", file=str(tmp_path / f"{number}.jsonl")) for number in range(60)]
    job = send_job(where, run, "step_00000500")
    job = msgspec.structs.replace(job, beside=[*job.beside, *beside])
    call.real = True
    with peak_of_children() as most:
        await call(job)
    assert hub.verify(REPO) == []
    assert most() < 100e6, "of which 45e6 are Python with what it imports"


async def test_the_same_content_goes_once_however_many_files_have_it(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library asks what is there of so many files at a time, of all of them before it sends the first."""
    hub.large_above = 10 << 20
    monkeypatch.setattr("huggingface_hub._commit_api.UPLOAD_BATCH_MAX_NUM_FILES", 4)
    put_files(run, 500, {f"{number}.bin": b"\0same" * 200 for number in range(20)} | {"z.bin": BIG})
    await call(send_job(where, run, "step_00000500"))
    assert hub.verify(REPO) == []
    assert len(hub.asked("lfs-put")) == 2
    assert not hub.resent()
