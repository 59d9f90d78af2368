"""Routes that only look: refs, trees, commits, what is stored."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiohttp import web

from tests.hub.commits import stored_rows
from tests.hub.repos import REPO, iso
from tests.hub.serving import Route, answer
from tests.hub.store import Commit, Entry, HubError, no_such_entry

if TYPE_CHECKING:
    from tests.hub.server import TestHub


def pages(hub: TestHub, request: web.Request, rows: list[Any], size: int) -> web.Response:
    """One page of `rows`, and where the next one is."""
    start = int(request.query.get("cursor", "0"))
    headers = {}
    if start + size < len(rows):
        query = [(key, value) for key, value in request.query.items() if key != "cursor"]
        query.append(("cursor", str(start + size)))
        headers["Link"] = f'<{hub.url}{request.rel_url.raw_path}?{urlencode(query)}>; rel="next"'
    return answer(rows[start : start + size], headers=headers)


async def refs(hub: TestHub, request: web.Request) -> web.Response:
    repo = hub.readable(request)
    said: dict[str, Any] = {"converts": []}
    for key, prefix, names in (("branches", "heads", repo.branches), ("tags", "tags", repo.tags)):
        rows = [{"name": name, "ref": f"refs/{prefix}/{name}", "targetCommit": oid} for name, oid in names.items()]
        said[key] = rows
    if "include_prs" in request.query:
        said["pullRequests"] = []
    return answer(said)


async def commits(hub: TestHub, request: web.Request) -> web.Response:
    repo = hub.readable(request)
    rows = [
        {
            "id": each.oid,
            "title": each.title,
            "message": each.message,
            "authors": [{"user": each.author}],
            "date": iso(each.at),
        }
        for each in repo.history(repo.resolve(request.match_info["rev"]).oid)
    ]
    return pages(hub, request, rows, min(50, hub.page))


def _file(commit: Commit, path: str, entry: Entry, expand: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    if entry.lfs:
        row["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    if expand:
        row["lastCommit"] = {"id": commit.oid, "title": commit.title, "date": iso(commit.at)}
    return row


def _folder(path: str) -> dict[str, Any]:
    oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "path": path, "size": 0, "oid": oid}


async def tree(hub: TestHub, request: web.Request) -> web.Response:
    repo = hub.readable(request)
    commit = repo.resolve(request.match_info["rev"])
    below = request.match_info.get("path", "").strip("/")
    recursive, expand = (request.query.get(key, "").lower() in ("true", "1") for key in ("recursive", "expand"))
    rows: dict[str, dict[str, Any]] = {}
    prefix = f"{below}/" if below else ""
    for path, entry in commit.tree.items():
        if not path.startswith(prefix):
            continue
        parts = path.removeprefix(prefix).split("/")
        for end in range(1, len(parts)) if recursive else range(1, min(2, len(parts))):
            name = prefix + "/".join(parts[:end])
            rows.setdefault(name, _folder(name))
        if recursive or len(parts) == 1:
            rows[path] = _file(commit, path, entry, expand)
    if below and not rows:
        raise no_such_entry(below)
    return pages(hub, request, [rows[path] for path in sorted(rows)], hub.page)


async def paths_info(hub: TestHub, request: web.Request) -> web.Response:
    repo = hub.readable(request)
    commit = repo.resolve(request.match_info["rev"])
    form = await request.post()
    paths = [str(path).strip("/") for path in form.getall("paths", [])]
    if len(paths) > 1000:
        raise HubError(413, "too many parameters")
    expand = str(form.get("expand", "")).lower() == "true"
    rows = []
    for path in paths:
        if entry := commit.tree.get(path):
            rows.append(_file(commit, path, entry, expand))
        elif any(each.startswith(path + "/") for each in commit.tree):
            rows.append(_folder(path))
    return answer(rows)


async def lfs_files(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    return pages(hub, request, stored_rows(repo), hub.page)


ROUTES = (
    Route("refs", "GET", REPO + "/refs", refs),
    Route("commits", "GET", REPO + "/commits/{rev}", commits),
    Route("tree", "GET", REPO + "/tree/{rev}", tree),
    Route("tree", "GET", REPO + "/tree/{rev}/{path:.*}", tree),
    Route("paths-info", "POST", REPO + "/paths-info/{rev}", paths_info),
    Route("lfs-files", "GET", REPO + "/lfs-files", lfs_files),
)
