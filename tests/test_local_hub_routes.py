"""The test hub answers the real, unmodified client as the Hub does: every route, and every answer that is a no."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import programs
import pytest
from aiohttp import ClientSession
from local_hub_kit import REPO, client, hub, sha256

from tests.hub import ROUTES, ClientError, RealClient, TestHub, Token
from tests.hub.server import TABLE

__all__ = ["client", "hub"]

UPLOAD = """
ops = [Add(path, data.encode()) for path, data in args[0].items()]
api.preupload_lfs_files("relay/run-1", ops, free_memory=False)
say(api.create_commit("relay/run-1", ops, commit_message="upload").oid)
"""


async def upload(client: RealClient, hub: TestHub, files: dict[str, str]) -> str:
    said = await client(hub, UPLOAD, files)
    return str(said[0])


# -- repositories --------------------------------------------------------------------------------------------------


async def test_a_repository_is_created_once_looked_up_changed_and_deleted(client: RealClient, hub: TestHub) -> None:
    said = await client(hub, """
say(api.create_repo("relay/new", private=True))
say(api.create_repo("relay/new", private=True, exist_ok=True))
say(api.create_repo("relay-lab/data", repo_type="dataset"))
say(api.create_repo("short"))
info = api.repo_info("relay/new")
say([info.id, info.private, info.sha, [file.rfilename for file in info.siblings], str(info.created_at.year > 2000)])
api.update_repo_settings("relay/new", private=False)
say(api.repo_info("relay/new").private)
say(api.repo_info("relay-lab/data", repo_type="dataset").private)
api.delete_repo("relay/new")
say(api.repo_exists("relay/new"))
api.delete_repo("relay/new", missing_ok=True)
""")  # fmt: skip
    sha = said[4][2]
    assert said == [
        f"{hub.url}/relay/new", f"{hub.url}/relay/new", f"{hub.url}/datasets/relay-lab/data", f"{hub.url}/relay/short",
        ["relay/new", True, sha, [".gitattributes"], "True"], False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "kind", "status", "words"),
    [
        ("api.create_repo('relay/run-1')", "HfHubHTTPError", 409, "already created"),
        ("api.create_repo('strangers/x')", "HfHubHTTPError", 403, 'under the namespace "strangers"'),
        ("api.create_repo('relay/x..y')", "HFValidationError", None, ".."),
        ("api.create_repo('relay/' + 'x' * 97)", "HFValidationError", None, "maximum length is 96"),
        ("api.repo_info('relay/none')", "RepositoryNotFoundError", 404, "Repository Not Found"),
        ("api.repo_info('relay/run-1', revision='none')", "RevisionNotFoundError", 404, "Invalid rev id"),
        ("api.list_repo_refs('stranger/none')", "RepositoryNotFoundError", 404, "Repository Not Found"),
        ("list(api.list_repo_tree('relay/run-1', 'none'))", "EntryNotFoundError", 404, "does not exist"),
        ("api.create_tag('relay/run-1', tag='a tag')", "BadRequestError", 400, "Invalid tag name"),
        ("api.create_tag('relay/run-1', tag='x', revision='none')", "RevisionNotFoundError", 404, "Invalid rev id"),
        ("api.delete_tag('relay/run-1', tag='none')", "RevisionNotFoundError", 404, "Invalid rev id"),
        ("api.delete_branch('relay/run-1', branch='main')", "HfHubHTTPError", 403, "main branch"),
        ("api.super_squash_history('relay/run-1', branch='none')", "RevisionNotFoundError", 404, "Invalid rev id"),
        ("api.create_commit('relay/run-1', [Delete('none')], commit_message='x')", "EntryNotFoundError", 404, "exist"),
        ("api.create_commit('relay/run-1', [Delete('no/')], commit_message='x')", "EntryNotFoundError", 404, "exist"),
        ("api.create_commit('relay/run-1', [Add('a', b'1'), Add('a/b', b'1')], commit_message='x')",
         "BadRequestError", 400, "needs it to be a folder"),
        ("api.create_commit('relay/run-1', [Add('a', b'1')], commit_message='x', parent_commit='0' * 40)",
         "HfHubHTTPError", 412, "A commit has happened since"),
        ("api.create_commit('relay/run-1', [Add('a', b'1')], commit_message='x', revision='none')",
         "RevisionNotFoundError", 404, "Invalid rev id"),
        ("api.create_commit('relay/run-1', [Add('README.md', b'---\\nx: [\\n---\\n')], commit_message='x')",
         "ValueError", None, "Invalid metadata in README.md"),
        ("api.hf_hub_download('relay/run-1', 'none')", "EntryNotFoundError", 404, "does not exist"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_said_as_the_hub_says_it(
    client: RealClient, hub: TestHub, script: str, kind: str, status: int | None, words: str
) -> None:
    with pytest.raises(ClientError) as failed:
        await client(hub, script)
    assert kind in failed.value.kinds
    assert failed.value.status == status
    assert words in failed.value.text


# -- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "script", "status", "words"),
    [
        ("hf_wrong", "api.whoami()", 401, "Invalid"),
        ("hf_wrong", "api.create_repo('relay/x', exist_ok=True)", 401, "Invalid credentials"),
        ("hf_expired", "api.auth_check('relay/run-1')", 401, "is expired"),
        ("hf_read", "api.auth_check('relay/run-1', write=True)", 403, "write access"),
        ("hf_read", "api.create_repo('relay/x')", 403, "rights to create a model"),
        ("hf_read", "api.create_commit('relay/run-1', [Add('a', b'1')], commit_message='x')", 403, "write access"),
        ("hf_read", "api.create_tag('relay/run-1', tag='x')", 403, "write access"),
        ("hf_stranger", "api.auth_check('relay/run-1')", 404, "Repository Not Found"),
        ("hf_stranger", "api.repo_info('relay/run-1')", 404, "Repository Not Found"),
        ("hf_lab", "api.auth_check('relay/run-1')", 404, "Repository Not Found"),
    ],
)
async def test_a_token_does_what_its_role_allows(
    client: RealClient, hub: TestHub, token: str, script: str, status: int, words: str
) -> None:
    hub.tokens.add(Token("hf_lab", user="lab"))
    with pytest.raises(ClientError) as failed:
        await client(hub, script, token=token)
    assert (failed.value.status, words in failed.value.text) == (status, True), failed.value


async def test_a_reader_reads_and_without_a_token_only_what_is_public_is_there(
    client: RealClient, hub: TestHub
) -> None:
    who = "say([api.whoami()['name'], api.whoami()['auth']['accessToken']['role']]); api.auth_check('relay/run-1')"
    assert await client(hub, who, token="hf_read") == [["relay", "read"]]
    nobody = "say(huggingface_hub.HfApi(endpoint=api.endpoint, token=False).repo_info('relay/run-1').id)"
    with pytest.raises(ClientError) as failed:
        await client(hub, nobody)
    assert "RepositoryNotFoundError" in failed.value.kinds
    hub.repo(REPO).private = False
    assert await client(hub, nobody) == [REPO]
    with pytest.raises(ClientError) as failed:
        await client(hub, "api.create_tag('relay/run-1', tag='x')", token="hf_stranger")
    assert failed.value.status == 403


# -- commits and what names them ---------------------------------------------------------------------------------------


async def test_files_are_sent_by_size_kind_and_content_and_committed_at_once(client: RealClient, hub: TestHub) -> None:
    files = {"a/weights.safetensors": "weights", "a/notes.txt": "notes", "big.txt": "x" * 200, "zero.bin": ""}
    hub.large_above = 100
    said = await client(hub, """
ops = [Add(path, data.encode()) for path, data in args[0].items()] + [Add("mixed", b"\\xff\\x00binary")]
api.preupload_lfs_files("relay/run-1", ops, free_memory=False)
info = api.create_commit("relay/run-1", ops, commit_message="first", commit_description="words")
say(info.oid)
files = [row for row in api.list_repo_tree("relay/run-1", recursive=True) if hasattr(row, "size")]
say([[file.path, file.size, file.lfs and file.lfs.sha256] for file in files])
say([[f.rfilename, f.size] for f in api.repo_info("relay/run-1", files_metadata=True).siblings])
say([[c.title, c.message, c.authors, c.commit_id] for c in api.list_repo_commits("relay/run-1")])
""", files)  # fmt: skip
    oid, tree, siblings, history = said
    attributes = hub.repo(REPO).resolve("main").tree[".gitattributes"].size
    assert tree == [
        [".gitattributes", attributes, None],
        ["a/notes.txt", 5, None],
        ["a/weights.safetensors", 7, sha256(b"weights")],
        ["big.txt", 200, sha256(b"x" * 200)],
        ["mixed", 8, sha256(b"\xff\x00binary")],
        ["zero.bin", 0, None],
    ]
    assert siblings == [[path, size] for path, size, _ in tree]
    assert history[0] == ["first", "words", ["relay"], oid]
    assert len(history) == 2
    assert hub.files(REPO)["a/weights.safetensors"] == b"weights"
    assert set(hub.received().values()) == {7, 200, 8}


async def test_what_is_stored_is_not_sent_again_and_what_did_not_change_is_no_commit(
    client: RealClient, hub: TestHub
) -> None:
    first = await upload(client, hub, {"a.bin": "one", "note": "n"})
    assert await upload(client, hub, {"a.bin": "one", "note": "n"}) == first
    moved = await upload(client, hub, {"b.bin": "one", "c.bin": "one"})
    assert moved != first
    assert len(hub.asked("lfs-put")) == 1
    assert not hub.resent()
    assert hub.stored_bytes(REPO) == sum(entry.size for entry in hub.repo(REPO).resolve(first).tree.values())


async def test_a_commit_takes_away_and_copies(client: RealClient, hub: TestHub) -> None:
    await upload(client, hub, {"old/a.bin": "a", "old/b.txt": "b", "keep.bin": "k", "gone.txt": "g"})
    await client(hub, """
ops = [Delete("old/"), Delete("gone.txt"), Copy("keep.bin", "copy.bin"), Add("old/b.txt", b"b")]
api.create_commit("relay/run-1", ops, commit_message="second")
""")  # fmt: skip
    files = hub.files(REPO)
    del files[".gitattributes"]
    assert files == {"keep.bin": b"k", "copy.bin": b"k", "old/b.txt": b"b"}


async def test_large_files_go_in_parts(client: RealClient, hub: TestHub) -> None:
    hub.part_size = 1000
    data = bytes(range(256)) * 17  # 4352 bytes: four parts and a piece
    await client(hub, """
api.upload_file(path_or_fileobj=bytes(range(256)) * 17, path_in_repo="a.bin", repo_id="relay/run-1")
api.upload_file(path_or_fileobj=b"x" * 1000, path_in_repo="b.bin", repo_id="relay/run-1")
""")  # fmt: skip
    assert hub.files(REPO)["a.bin"] == data
    assert [part.received for part in hub.asked("lfs-part")] == [1000, 1000, 1000, 1000, 352]
    assert len(hub.asked("lfs-complete")) == 1
    assert len(hub.asked("lfs-put")) == 1
    assert not hub.content.unfinished()


async def test_ignored_files_are_not_committed(client: RealClient, hub: TestHub) -> None:
    await upload(client, hub, {".gitignore": "*.tmp\n# words\ncache/\n", "a.tmp": "x", "cache/b": "y", "c": "z"})
    await upload(client, hub, {"later.tmp": "x", "later": "y"})
    assert sorted(hub.files(REPO)) == [".gitattributes", ".gitignore", "c", "later"]


async def test_tags_and_branches(client: RealClient, hub: TestHub) -> None:
    first = await upload(client, hub, {"a.bin": "one"})
    second = await upload(client, hub, {"a.bin": "two"})
    said = await client(hub, """
api.create_tag("relay/run-1", tag="step-1", revision=args[0])
api.create_tag("relay/run-1", tag="step-1", revision=args[1], exist_ok=True)  # stays where it is
api.create_branch("relay/run-1", branch="side/way", revision="step-1")
api.create_branch("relay/run-1", branch="side/way", exist_ok=True)
api.create_commit("relay/run-1", [Add("b.txt", b"b")], commit_message="x", revision="side/way")
refs = api.list_repo_refs("relay/run-1", include_pull_requests=True)
say({tag.name: tag.target_commit for tag in refs.tags})
say({branch.name: branch.target_commit for branch in refs.branches})
say([refs.converts, refs.pull_requests])
say(sorted(file.path for file in api.list_repo_tree("relay/run-1", revision="refs/heads/side/way")))
try:
    api.create_tag("relay/run-1", tag="step-1")
except huggingface_hub.errors.HfHubHTTPError as error:
    say([error.response.status_code, "Tag reference exists" in str(error)])
api.delete_tag("relay/run-1", tag="step-1")
api.delete_branch("relay/run-1", branch="side/way")
say([len(api.list_repo_refs("relay/run-1").tags), len(api.list_repo_refs("relay/run-1").branches)])
""", first, second)  # fmt: skip
    side = said[1]["side/way"]
    assert said == [
        {"step-1": first}, {"main": second, "side/way": side}, [[], []], [".gitattributes", "a.bin", "b.txt"],
        [409, True], [0, 1],
    ]  # fmt: skip


# -- looking ---------------------------------------------------------------------------------------------------------


async def test_lists_come_in_pages(client: RealClient, hub: TestHub) -> None:
    hub.page = 3
    repo = hub.repo(REPO)
    for number in range(7):
        hub.someone_commits(REPO, f"folder/{number} ü.txt")
        repo.objects[hub.content.put(b"%d" % number)] = 1
    said = await client(hub, """
say([row.path for row in api.list_repo_tree("relay/run-1", "folder")])
say([row.path for row in api.list_repo_tree("relay/run-1", recursive=True, expand=True)][:3])
say(len(api.list_repo_commits("relay/run-1")))
say(len(list(api.list_lfs_files("relay/run-1"))))
""")  # fmt: skip
    folder = [f"folder/{number} ü.txt" for number in range(7)]
    assert said == [folder, [".gitattributes", "folder", folder[0]], 8, 7]
    assert [len(hub.asked(route)) for route in ("tree", "commits", "lfs-files")] == [6, 3, 3]


async def test_paths_are_looked_up_together(client: RealClient, hub: TestHub) -> None:
    await upload(client, hub, {"a/b.bin": "12345", "c.txt": "c"})
    script = """
rows = api.get_paths_info("relay/run-1", ["a", "a/b.bin", "c.txt", "none"], expand=True)
say([[type(row).__name__, row.path, getattr(row, "size", None)] for row in rows])
say(rows[1].last_commit.title)
say(api.file_exists("relay/run-1", "c.txt"))
"""
    rows = [["RepoFolder", "a", None], ["RepoFile", "a/b.bin", 5], ["RepoFile", "c.txt", 1]]
    assert await client(hub, script) == [rows, "upload", True]


async def test_a_snapshot_is_what_was_committed(client: RealClient, hub: TestHub, tmp_path: Path) -> None:
    files = {"checkpoint/weights.bin": "w" * 5000, "checkpoint/config.json": "{}", "é ü.txt": "words", "empty": ""}
    tagged = await upload(client, hub, files)
    await upload(client, hub, {"checkpoint/weights.bin": "later"})
    hub.someone_tags(REPO, "step-1", tagged)
    script = "say(huggingface_hub.snapshot_download('relay/run-1', revision='step-1', local_dir=args[0], "
    script += "endpoint=api.endpoint, token=api.token, allow_patterns=['checkpoint/*', '*.txt', 'empty']))"
    assert await client(hub, script, str(tmp_path / "down")) == [str(tmp_path / "down")]
    assert {path: (tmp_path / "down" / path).read_text() for path in files} == files


async def test_a_file_comes_in_ranges_with_the_headers_that_the_client_goes_by(
    client: RealClient, hub: TestHub
) -> None:
    oid = await upload(client, hub, {"a.bin": "0123456789", "b.txt": "words"})
    said = await client(hub, """
http, headers = httpx2.Client(verify=False), {"Authorization": f"Bearer {api.token}"}
for path in ("a.bin", "b.txt"):
    url = f"{api.endpoint}/relay/run-1/resolve/main/{path}"
    for range in ("bytes=2-4", "bytes=7-", "bytes=-2", "bytes=0-99", "bytes=50-", None):
        answer = http.get(url, headers=headers | ({"Range": range} if range else {}))
        say([answer.status_code, answer.text if answer.status_code < 300 else "", answer.headers.get("Content-Range")])
    answer = http.head(url, headers=headers)
    said = answer.headers
    say([answer.status_code, said["ETag"], said["X-Repo-Commit"], said["Content-Length"], said.get("X-Linked-Etag"),
         said.get("X-Linked-Size"), said["Accept-Ranges"]])
    say(huggingface_hub.get_hf_file_metadata(url, token=api.token, endpoint=api.endpoint).size)
""")  # fmt: skip
    etag = f'"{sha256(b"0123456789")}"'
    assert said[:8] == [
        [206, "234", "bytes 2-4/10"], [206, "789", "bytes 7-9/10"], [206, "89", "bytes 8-9/10"],
        [206, "0123456789", "bytes 0-9/10"], [416, "", "bytes */10"], [200, "0123456789", None],
        [200, etag, oid, "10", etag, "10", "bytes"], 10,
    ]  # fmt: skip
    assert said[14] == [200, f'"{hub.repo(REPO).resolve("main").tree["b.txt"].oid}"', oid, "5", None, None, "bytes"]
    assert hub.asked("resolve")[0].sent == 3


async def test_large_files_may_come_from_elsewhere_where_no_token_goes(
    client: RealClient, hub: TestHub, tmp_path: Path
) -> None:
    await upload(client, hub, {"é/a.bin": "0123456789", "b.txt": "words"})
    hub.redirect = True
    script = "api.snapshot_download('relay/run-1', local_dir=args[0])"
    await client(hub, script, str(tmp_path / "down"))
    assert (tmp_path / "down" / "é" / "a.bin").read_text() == "0123456789"
    assert [each.path.endswith("/%C3%A9/a.bin") for each in hub.asked("cdn")] == [True]
    said = await client(hub, """
url = f"{api.endpoint}/relay/run-1/resolve/main/%C3%A9/a.bin"
http, headers = httpx2.Client(verify=False), {"Authorization": f"Bearer {api.token}"}
answer = http.head(url, headers=headers)
say([answer.status_code, answer.headers["X-Linked-Size"], answer.headers["X-Linked-Etag"]])
where = answer.headers["Location"]
say([http.get(where, headers={"Range": "bytes=3-5"}).text, http.get(where, headers=headers).status_code])
say(http.get(url, headers=headers, follow_redirects=True).text)
say(where)
""")  # fmt: skip
    assert said[:3] == [[302, "10", f'"{sha256(b"0123456789")}"'], ["345", 400], "0123456789"]
    hub.links.expire()
    assert await client(hub, "say(httpx2.get(args[0], verify=False).status_code)", said[3]) == [403]


# -- space -----------------------------------------------------------------------------------------------------------


async def test_deleting_a_file_frees_nothing_and_a_squash_what_no_tag_keeps(client: RealClient, hub: TestHub) -> None:
    base = hub.stored_bytes(REPO)
    first = await upload(client, hub, {"a.bin": "x" * 1000})
    hub.someone_tags(REPO, "step-1", first)
    await client(
        hub, "api.create_commit('relay/run-1', [Delete('a.bin'), Add('b.bin', b'y' * 500)], commit_message='x')"
    )
    assert hub.stored_bytes(REPO) == base + 1500
    await client(hub, "api.super_squash_history('relay/run-1')")
    assert hub.stored_bytes(REPO) == base + 1500  # the tag keeps it
    await client(hub, "api.delete_tag('relay/run-1', tag='step-1')")
    assert hub.stored_bytes(REPO) == base + 500
    assert hub.content.on_disk() == base + 500
    assert len(hub.repo(REPO).commits) == 1
    assert await client(hub, "say(api.repo_info('relay/run-1').used_storage)") == [base + 500]


@pytest.mark.parametrize("rewrite", [True, False])
async def test_large_files_are_deleted_for_good(client: RealClient, hub: TestHub, rewrite: bool) -> None:
    first = await upload(client, hub, {"a.bin": "x" * 1000, "a.txt": "a"})
    hub.someone_tags(REPO, "step-1", first)
    second = await upload(client, hub, {"a.bin": "y" * 500})
    hub.someone_tags(REPO, "step-2", second)
    before = hub.stored_bytes(REPO)
    script = """
files = list(api.list_lfs_files("relay/run-1"))
say(sorted([file.size, file.filename, file.ref] for file in files))
api.permanently_delete_lfs_files("relay/run-1", [file for file in files if file.size == 1000], rewrite_history=args[0])
say([file.size for file in api.list_lfs_files("relay/run-1")])
"""
    ref = "refs/heads/main"
    assert await client(hub, script, rewrite) == [[[500, "a.bin", ref], [1000, "a.bin", ref]], [500]]
    assert before - hub.stored_bytes(REPO) == 1000
    assert sha256(b"y" * 500) in {path.name for path in hub.content.paths()}
    assert sha256(b"x" * 1000) not in {path.name for path in hub.content.paths()}
    assert hub.files(REPO, "step-2")["a.bin"] == b"y" * 500
    assert ("a.bin" in hub.repo(REPO).resolve("step-1").tree) is not rewrite
    assert (hub.repo(REPO).tags["step-1"] == first) is not rewrite
    with pytest.raises(ClientError) as failed:
        await client(hub, "api.hf_hub_download('relay/run-1', 'a.bin', revision='step-1')")
    assert "EntryNotFoundError" in failed.value.kinds
    await upload(client, hub, {"again.bin": "x" * 1000})  # what is gone is sent again
    assert hub.received()[sha256(b"x" * 1000)] == 2000
    assert not hub.resent()


async def test_tags_may_stay_behind_where_history_is_rewritten(client: RealClient, hub: TestHub) -> None:
    first = await upload(client, hub, {"a.bin": "x"})
    hub.someone_tags(REPO, "step-1", first)
    hub.tags_follow = False
    script = "api.permanently_delete_lfs_files('relay/run-1', list(api.list_lfs_files('relay/run-1')))"
    await client(hub, script)
    assert hub.repo(REPO).tags["step-1"] == first != hub.repo(REPO).branches["main"]


async def test_a_quota_is_of_what_is_stored(client: RealClient, hub: TestHub) -> None:
    await upload(client, hub, {"a.bin": "x" * 1000})
    hub.quota = hub.stored_bytes(REPO) + 600
    with pytest.raises(ClientError) as failed:
        await upload(client, hub, {"a.bin": "y" * 700})
    assert failed.value.status == 403
    assert "Private repository storage limit reached" in failed.value.text
    await upload(client, hub, {"b.bin": "x" * 1000})  # stored already
    await client(hub, "api.create_commit('relay/run-1', [Delete('a.bin'), Delete('b.bin')], commit_message='x')")
    await client(hub, "api.super_squash_history('relay/run-1')")
    await upload(client, hub, {"a.bin": "y" * 700})


async def test_a_deleted_repository_knows_nothing_of_its_objects(client: RealClient, hub: TestHub) -> None:
    await upload(client, hub, {"a.bin": "x"})
    with pytest.raises(ClientError) as failed:
        await client(hub, """
op = Add("b.bin", b"new")
api.preupload_lfs_files("relay/run-1", [op], free_memory=False)
api.delete_repo("relay/run-1")
api.create_repo("relay/run-1")
api.create_commit("relay/run-1", [op], commit_message="x")
""")  # fmt: skip
    assert "pointed to a file that does not exist" in failed.value.text
    assert len(hub.content.paths()) == 1


async def test_xet_keeps_its_blocks_in_a_folder_and_the_commit_comes_here(hub: TestHub, tmp_path: Path) -> None:
    hub.xet_folder = tmp_path / "xet"
    data = b"weights" * 10_000
    script = """
info = api.create_commit("relay/run-1", [Add("a.bin", b"weights" * 10000), Add("b.txt", b"b")], commit_message="x")
say(info.oid)
"""
    with RealClient(xet=True, home=tmp_path / "home", by=programs.Popen) as client:
        said = await client(hub, script)
    entry = hub.repo(REPO).resolve(said[0]).tree["a.bin"]
    assert (entry.sha256, entry.size) == (sha256(data), len(data))
    assert hub.asked("xet-token")
    assert not hub.asked("lfs-batch")
    assert any(path.is_file() for path in hub.xet_folder.rglob("*"))


NONSENSE = (
    b"", b"{}", b"[]", b"null", b"\xff\xfe", b'{"files":[{}]}', b'{"files":[{"path":1,"size":"x"}]}',
    b'{"operation":"upload","objects":[{}]}', b'{"deletions":{"sha":[1,{}]}}', b'{"deletions":[]}', b'{"parts":[1]}',
    b'{"tag":{}}', b'{"name":"a/b"}', b'{"name":"x","type":[]}', b'{"key":"header","value":{}}',
    b'{"key":"header","value":{"summary":"x"}}\n{"key":"file","value":{"path":"../x"}}',
    b'{"key":"header","value":{"summary":"x"}}\n{"key":"lfsFile","value":{"path":"a","oid":"' + b"0" * 64 + b'"}}',
)  # fmt: skip


async def test_nonsense_is_refused_and_changes_nothing(hub: TestHub, caplog: pytest.LogCaptureFixture) -> None:
    tree, headers = hub.repo(REPO).resolve("main").tree, {"Authorization": f"Bearer {hub.token}"}
    queries = itertools.cycle(["", "?cursor=x", "?cursor=-5&recursive=true", "?blobs=x"])
    filled = {"owner": "relay", "name": "run-1", "kinds": "models", "rev": "main", "branch": "main", "number": "1"}
    filled |= {"kind": "read", "path": "none", "oid": "0" * 64, "ticket": "none"}
    async with ClientSession() as session:
        for route in TABLE:
            path = re.sub(r"{([a-z]+)(:[^{}]+)?}", lambda found: filled[found[1]], route.path)
            for data in NONSENSE:
                url = hub.url + path + next(queries)
                async with session.request(route.method, url, data=data, headers=headers) as answer:
                    await answer.read()
                    assert answer.status < 500, (route.name, data)
    assert hub.repo(REPO).resolve("main").tree == tree
    assert not hub.repo(REPO).tags
    assert list(hub.store.repos) == [("model", REPO)]
    assert not hub.content.unfinished()
    assert caplog.records == []


def test_every_route_has_a_name() -> None:
    assert ROUTES == (
        "create", "delete", "whoami", "validate-yaml", "info", "settings", "auth-check", "lfs-batch", "lfs-put",
        "lfs-part", "lfs-complete", "lfs-verify", "preupload", "commit", "tag", "untag", "branch", "unbranch", "squash",
        "lfs-delete", "xet-token", "refs", "commits", "tree", "paths-info", "lfs-files", "resolve-head", "resolve",
        "cdn-head", "cdn",
    )  # fmt: skip
