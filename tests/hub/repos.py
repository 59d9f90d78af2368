"""Routes of repositories as a whole: created, looked up, changed, deleted; and who is asking."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import yaml
from aiohttp import web

from tests.hub.serving import Route, answer, json_body
from tests.hub.store import BRANCH, Entry, HubError
from tests.hub.tokens import may_create, may_write, signed_in

if TYPE_CHECKING:
    from tests.hub.server import TestHub

NAME = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][A-Za-z0-9._-]{0,95}(?<![.-])\Z")
REPO = "/api/{kinds:models|datasets}/{owner}/{name}"


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def _asked(hub: TestHub, request: web.Request) -> tuple[dict[str, Any], str, str]:
    """The body of a request that names a repository, its kind and its id."""
    asked = await json_body(request)
    name, kind = asked.get("name"), asked.get("type") or "model"
    if not isinstance(name, str) or not NAME.match(name):
        raise HubError(400, f'Invalid repository name "{name}"')
    if kind not in ("model", "dataset"):
        raise HubError(400, f"Invalid repository type {kind!r}")
    namespace = asked.get("organization") or signed_in(hub.who(request)).user
    return asked, kind, f"{namespace}/{name}"


async def create(hub: TestHub, request: web.Request) -> web.Response:
    asked, kind, repo_id = await _asked(hub, request)
    token = may_create(hub.who(request), repo_id.split("/")[0], kind)
    url = f"{hub.url}/{'datasets/' if kind == 'dataset' else ''}{repo_id}"
    if (kind, repo_id) in hub.store.repos:
        return answer({"error": f"You already created this {kind} repo", "url": url}, 409)
    private = asked.get("visibility") == "private" or asked.get("private") is True
    hub.store.create(repo_id, kind, private, token.user)
    return answer({"url": url, "name": repo_id})


async def delete(hub: TestHub, request: web.Request) -> web.Response:
    _, kind, repo_id = await _asked(hub, request)
    repo = hub.store.repo(repo_id, kind)
    may_write(hub.who(request), repo)
    hub.store.delete(repo)
    return answer({})


async def info(hub: TestHub, request: web.Request) -> web.Response:
    repo = hub.readable(request)
    commit = repo.resolve(request.match_info.get("rev", BRANCH))
    blobs = request.query.get("blobs", "").lower() in ("true", "1")
    head = repo.commits[repo.branches[BRANCH]] if BRANCH in repo.branches else commit
    return answer(
        {
            "_id": f"{abs(hash(repo.id)):024x}"[:24],
            "id": repo.id,
            "modelId": repo.id,
            "author": repo.owner,
            "sha": commit.oid,
            "private": repo.private,
            "gated": False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "createdAt": iso(repo.created),
            "lastModified": iso(head.at),
            "usedStorage": repo.stored_bytes(),
            "siblings": [_sibling(path, entry, blobs) for path, entry in sorted(commit.tree.items())],
        }
    )


def _sibling(path: str, entry: Entry, blobs: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"rfilename": path}
    if blobs:
        row |= {"size": entry.size, "blobId": entry.oid}
        if entry.lfs:
            row["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return row


async def settings(hub: TestHub, request: web.Request) -> web.Response:
    repo, _ = hub.writable(request)
    asked = await json_body(request)
    if "visibility" in asked or "private" in asked:
        repo.private = asked.get("visibility") == "private" or asked.get("private") is True
    return answer({"private": repo.private})


async def auth_check(hub: TestHub, request: web.Request) -> web.Response:
    hub.readable(request)
    return answer({})


async def auth_check_write(hub: TestHub, request: web.Request) -> web.Response:
    hub.writable(request)
    return answer({})


async def whoami(hub: TestHub, request: web.Request) -> web.Response:
    token = signed_in(hub.who(request))
    return answer(
        {
            "type": "user",
            "id": "000000000000000000000001",
            "name": token.user,
            "fullname": token.user,
            "isPro": False,
            "orgs": [{"type": "org", "name": org, "roleInOrg": "write"} for org in token.orgs],
            "auth": {"type": "access_token", "accessToken": {"displayName": "test", "role": token.role}},
        }
    )


async def validate_yaml(hub: TestHub, request: web.Request) -> web.Response:
    """The block between `---` at the top of a README.md."""
    content = str((await json_body(request)).get("content", ""))
    found = re.match(r"---[ \t]*\r?\n(.*?)(\r?\n)?---[ \t]*(\r?\n|\Z)", content, re.DOTALL)
    if found is None:
        return answer({"errors": [], "warnings": [{"message": "empty or missing yaml metadata in repo card"}]})
    try:
        card = yaml.safe_load(found[1])
    except yaml.YAMLError as wrong:
        return answer({"errors": [{"message": str(wrong)}], "warnings": []}, 400)
    if card is not None and not isinstance(card, dict):
        return answer({"errors": [{"message": "the metadata must be a mapping"}], "warnings": []}, 400)
    return answer({"errors": [], "warnings": []})


ROUTES = (
    Route("create", "POST", "/api/repos/create", create),
    Route("delete", "DELETE", "/api/repos/delete", delete),
    Route("whoami", "GET", "/api/whoami-v2", whoami),
    Route("validate-yaml", "POST", "/api/validate-yaml", validate_yaml),
    Route("info", "GET", REPO, info),
    Route("info", "GET", REPO + "/revision/{rev}", info),
    Route("settings", "PUT", REPO + "/settings", settings),
    Route("auth-check", "GET", REPO + "/auth-check", auth_check),
    Route("auth-check", "GET", REPO + "/auth-check/write", auth_check_write),
)
