"""Routes that change a repository's history: what is to be sent, commits, tags, branches, squash, deletion for good."""

from __future__ import annotations

import base64
import binascii
import codecs
import fnmatch
import re
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from tests.hub.repos import REPO, iso
from tests.hub.serving import Route, answer, body, json_body
from tests.hub.store import BRANCH, LARGE, Entry, HubError, Repo, Tree, large, no_such_entry, no_such_revision

if TYPE_CHECKING:
    from tests.hub.server import TestHub

MAX_SMALL = 10 << 20
"""Bytes of a file that a commit may carry in itself."""
REF = re.compile(r"(?!.*(\.\.|//|@\{|\.lock(/|\Z)))(?![./-])[^\x00-\x20\x7f~^:?*\[\\]+(?<![./])\Z")
SHA256 = re.compile(r"[0-9a-f]{64}\Z")


async def preupload(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    tree = repo.resolve(request.match_info["rev"]).tree
    asked = await json_body(request)
    files = asked.get("files")
    if not isinstance(files, list) or len(files) > 256:
        raise HubError(400, "At most 256 files per request")
    ignored = asked.get("gitIgnore")
    if ignored is None and ".gitignore" in tree:
        ignored = hub.content.read(tree[".gitignore"].sha256).decode(errors="replace")
    patterns = [line.strip() for line in str(ignored or "").splitlines() if line.strip() and not line.startswith("#")]
    return answer({"files": [_mode(hub, tree, file, patterns) for file in files]})


def _mode(hub: TestHub, tree: Tree, file: dict[str, Any], ignored: list[str]) -> dict[str, Any]:
    path, size = str(file["path"]), int(file["size"])
    sample = base64.b64decode(file.get("sample", ""))
    is_large = size > 0 and (size > hub.large_above or path.endswith(LARGE) or not _is_text(sample))
    row = {"path": path, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": _is_ignored(path, ignored)}
    if entry := tree.get(path):
        row["oid"] = entry.sha256 if entry.lfs else entry.oid
    return row


def _is_text(sample: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return b"\0" not in sample


def _is_ignored(path: str, patterns: list[str]) -> bool:
    parts = path.split("/")
    for pattern in patterns:
        bare = pattern.strip("/")
        if fnmatch.fnmatch(path, bare) or ("/" not in bare and any(fnmatch.fnmatch(part, bare) for part in parts)):
            return True
    return False


async def commit(hub: TestHub, request: web.Request) -> web.Response:
    repo, token = hub.writable(request)
    branch = request.match_info["rev"]
    data = await body(request)
    lines = _lines(data)
    # From here to the end nothing is awaited: nobody sees half of a commit, and two of them come one after the other.
    head = repo.branches.get(branch)
    if head is None:
        raise no_such_revision(branch)
    if lines[0].get("key") != "header":
        raise HubError(400, "The first line must be the header")
    header = lines[0]["value"]
    if not header.get("summary"):
        raise HubError(400, "A commit needs a summary")
    if (parent := header.get("parentCommit")) is not None and parent != head:
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    tree = dict(repo.commits[head].tree)
    for line in lines[1:]:
        _apply(hub, repo, tree, str(line.get("key")), line["value"])
    _check_no_file_is_a_folder(tree)
    for entry in tree.values():
        if entry.lfs and hub.xet_folder is not None:
            repo.objects.setdefault(entry.sha256, entry.size)
    made = hub.store.add(repo, branch, tree, header["summary"], header.get("description") or "", token.user)
    prefix = "" if repo.kind == "model" else f"{repo.kind}s/"
    return answer(
        {
            "success": True,
            "commitOid": made.oid,
            "commitUrl": f"{hub.url}/{prefix}{repo.id}/commit/{made.oid}",
            "hookOutput": "",
        }
    )


def _lines(data: bytes) -> list[dict[str, Any]]:
    try:
        lines = [orjson.loads(line) for line in data.splitlines() if line.strip()]
    except orjson.JSONDecodeError as wrong:
        raise HubError(400, f"a line of the commit is no JSON: {wrong}") from None
    if not lines or not all(isinstance(line, dict) and isinstance(line.get("value"), dict) for line in lines):
        raise HubError(400, "The commit has no lines of {key, value}")
    return lines


def _apply(hub: TestHub, repo: Repo, tree: Tree, key: str, value: dict[str, Any]) -> None:
    path = value["path"]
    if not isinstance(path, str):
        raise HubError(400, f"Invalid path {path!r}")
    folder = path.strip("/") + "/"
    if any(part in ("", ".", "..", ".git") for part in path.rstrip("/").split("/")) or "\0" in path or len(path) > 4096:
        raise HubError(400, f"Invalid path {path[:200]!r}")
    if key == "file":
        tree[path] = _small(hub, path, value)
    elif key == "lfsFile":
        tree[path] = _large(hub, repo, path, value)
    elif key == "deletedFile":
        if tree.pop(path, None) is None:
            raise HubError(404, f'A file with this name doesn\'t exist: "{path}"', "EntryNotFound")
    elif key == "deletedFolder":
        below = [each for each in tree if each.startswith(folder)]
        if not below:
            raise HubError(404, f'A folder with this name doesn\'t exist: "{path}"', "EntryNotFound")
        for each in below:
            del tree[each]
    else:
        raise HubError(400, f"Unknown operation {key!r}")


def _small(hub: TestHub, path: str, value: dict[str, Any]) -> Entry:
    try:
        text = str(value["content"])
        data = base64.b64decode(text, validate=True) if value.get("encoding") == "base64" else text.encode()
    except (KeyError, binascii.Error):
        raise HubError(400, f"The content of {path} does not read") from None
    if len(data) > MAX_SMALL or (data and path.endswith(LARGE)):
        raise HubError(400, f"Your push was rejected because {path} must be stored as a large object")
    return hub.store.small(data)


def _large(hub: TestHub, repo: Repo, path: str, value: dict[str, Any]) -> Entry:
    oid = str(value.get("oid"))
    if value.get("algo") != "sha256" or not SHA256.match(oid):
        raise HubError(400, f"{path} has no sha256")
    stored = repo.objects.get(oid)
    size = int(value.get("size", stored or 0))
    if stored is None and hub.xet_folder is None:
        raise HubError(
            400, f"Your push was rejected because an LFS pointer pointed to a file that does not exist: {path}"
        )
    if stored is not None and stored != size:
        raise HubError(400, f"{path} has {stored} bytes, not {size}")
    return large(oid, size)


def _check_no_file_is_a_folder(tree: Tree) -> None:
    for path in tree:
        parts = path.split("/")
        for end in range(1, len(parts)):
            if "/".join(parts[:end]) in tree:
                raise HubError(400, f"{'/'.join(parts[:end])} is a file, and {path} needs it to be a folder")


# -- names of commits ------------------------------------------------------------------------------------------------


async def tag(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    name = (await json_body(request)).get("tag")
    at = repo.resolve(request.match_info["rev"])
    if not isinstance(name, str) or not REF.match(name):
        raise HubError(400, f"Invalid tag name {name!r}")
    if name in repo.tags:
        raise HubError(409, "Tag reference exists already")
    repo.tags[name] = at.oid
    return answer({"name": name, "ref": f"refs/tags/{name}", "targetCommit": at.oid})


async def untag(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    name = request.match_info["rev"]
    if repo.tags.pop(name, None) is None:
        raise no_such_revision(name)
    hub.store.collect(repo)
    return answer({})


async def branch(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    name = request.match_info["branch"]
    asked = await json_body(request)
    at = repo.resolve(asked.get("startingPoint") or BRANCH)
    if not REF.match(name):
        raise HubError(400, f"Invalid branch name {name!r}")
    if name in repo.branches:
        raise HubError(409, "Reference already exists")
    repo.branches[name] = at.oid
    return answer({"name": name, "ref": f"refs/heads/{name}", "targetCommit": at.oid})


async def unbranch(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    name = request.match_info["branch"]
    if name == BRANCH:
        raise HubError(403, "The main branch cannot be deleted")
    if repo.branches.pop(name, None) is None:
        raise no_such_revision(name)
    hub.store.collect(repo)
    return answer({})


async def squash(hub: TestHub, request: web.Request) -> web.Response:
    repo, token = hub.writable(request)
    message = str((await json_body(request)).get("message") or "Super-squash")
    made = hub.store.squash(repo, request.match_info["branch"], message, token.user)
    return answer({"commitOid": made.oid})


# -- large objects, for good -----------------------------------------------------------------------------------------


def stored_rows(repo: Repo) -> list[dict[str, Any]]:
    named: dict[str, tuple[str, str]] = {}
    for name, head in repo.branches.items():
        for each in repo.history(head):
            for path, entry in each.tree.items():
                if entry.lfs:
                    named.setdefault(entry.sha256, (path, f"refs/heads/{name}"))
    for each in repo.commits.values():
        for path, entry in each.tree.items():
            if entry.lfs:
                named.setdefault(entry.sha256, (path, each.oid))
    rows = []
    for sha256, size in sorted(repo.objects.items()):
        path, ref = named.get(sha256, ("", None))
        row = {"fileOid": sha256, "filename": path, "oid": large(sha256, size).oid, "size": size, "ref": ref}
        rows.append(row | {"pushedAt": iso(repo.pushed.get(sha256, repo.created))})
    return rows


async def purge(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    deletions = (await json_body(request)).get("deletions") or {}
    oids = deletions.get("sha")
    if not isinstance(oids, list) or len(oids) > 1000:
        raise HubError(400, "deletions.sha must name at most 1000 objects")
    if missing := [oid for oid in oids if oid not in repo.objects]:
        raise no_such_entry(str(missing[0]))
    hub.store.purge(repo, set(oids), deletions.get("rewriteHistory") is True, hub.tags_follow)
    return answer({})


ROUTES = (
    Route("preupload", "POST", REPO + "/preupload/{rev}", preupload),
    Route("commit", "POST", REPO + "/commit/{rev}", commit),
    Route("tag", "POST", REPO + "/tag/{rev}", tag),
    Route("untag", "DELETE", REPO + "/tag/{rev}", untag),
    Route("branch", "POST", REPO + "/branch/{branch}", branch),
    Route("unbranch", "DELETE", REPO + "/branch/{branch}", unbranch),
    Route("squash", "POST", REPO + "/super-squash/{branch}", squash),
    Route("lfs-delete", "POST", REPO + "/lfs-files/batch", purge),
)
