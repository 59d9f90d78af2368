"""A hub in a process of its own, and the control route by which a test asks it and scripts it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.hub.faults import Fault, FaultPlan
from tests.hub.judge import Finding
from tests.hub.serving import Recorded, answer
from tests.hub.store import BRANCH, HubError
from tests.hub.tokens import Token

if TYPE_CHECKING:
    from tests.hub.server import TestHub

__all__ = ["CONTROL", "RemoteHub", "add_control", "hub_process"]

CONTROL = "/-/control"
KNOBS = ("large_above", "part_size", "page", "quota", "redirect", "tags_follow", "xet_folder")
REPOSITORY = Path(__file__).resolve().parents[2]


def add_control(app: web.Application, hub: TestHub) -> None:
    """POST {"do": name, …} -> {"said": …}, or {"failed": words}."""

    async def control(request: web.Request) -> web.Response:
        asked = await request.json()
        try:
            return answer({"said": await _do(hub, asked.pop("do"), asked)})
        except (HubError, ValueError, KeyError, TypeError, TimeoutError) as failed:
            return answer({"failed": f"{type(failed).__name__}: {failed}"})

    app.router.add_post(CONTROL, control)


async def _do(hub: TestHub, do: str, asked: dict[str, Any]) -> Any:
    match do:
        case "fault":
            hub.fault(*(Fault.of(each) for each in asked["faults"]))
        case "plan":
            hub.faults.plan = None if asked["seed"] is None else FaultPlan(**asked)
        case "clear":
            hub.faults.clear()
        case "waiting":
            return [fault.plain() for fault in hub.faults.waiting]
        case "set":
            for name, value in asked.items():
                if name not in KNOBS:
                    raise KeyError(name)
                setattr(hub, name, Path(value) if name == "xet_folder" else value)
        case "token":
            hub.tokens.add(Token(**{**asked, "orgs": tuple(asked["orgs"])}))
        case "private":
            hub.repo(asked["repo"]).private = asked["private"]
        case "someone_commits":
            return hub.someone_commits(asked["repo"], asked["path"], asked["data"].encode(), asked["branch"])
        case "someone_tags":
            return hub.someone_tags(asked["repo"], asked["tag"], asked["revision"])
        case "requests":
            return [each.plain() for each in hub.requests[asked["since"] :]]
        case "wait_for":
            return [each.plain() for each in await hub.wait_for(asked["route"], asked["count"], asked["deadline"])]
        case "received":
            return hub.received()
        case "resent":
            return hub.resent()
        case "stored_bytes":
            return hub.stored_bytes(asked["repo"])
        case "verify":
            return [[each.tag, each.why] for each in hub.verify(asked["repo"])]
        case "refs":
            repo = hub.repo(asked["repo"])
            return {"branches": repo.branches, "tags": repo.tags}
        case "repos":
            return [repo.id for repo in hub.store.repos.values()]
        case "tree":
            tree = hub.repo(asked["repo"]).resolve(asked["revision"]).tree
            return {path: [entry.size, entry.sha256] for path, entry in tree.items()}
        case _:
            raise KeyError(do)
    return None


class RemoteHub:
    """The same questions as `TestHub` has, to a hub in another process. Everything here blocks for a moment."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = "hf_write"

    def _do(self, do: str, deadline: float = 30.0, /, **asked: Any) -> Any:
        data = json.dumps({"do": do, **asked}).encode()
        request = urllib.request.Request(self.url + CONTROL, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=deadline) as response:
            said = json.load(response)
        if "failed" in said:
            raise AssertionError(said["failed"])
        return said["said"]

    def fault(self, *faults: Fault) -> None:
        self._do("fault", faults=[each.plain() for each in faults])

    def plan(self, seed: int | None, share: float = 0.1, routes: tuple[str, ...] = (), in_a_row: int = 2) -> None:
        self._do("plan", seed=seed, share=share, routes=routes, in_a_row=in_a_row)

    def clear(self) -> None:
        self._do("clear")

    def waiting(self) -> list[Fault]:
        return [Fault.of(each) for each in self._do("waiting")]

    def set(self, **knobs: Any) -> None:
        """Knobs of `TestHub`: quota=…, part_size=…, …"""
        self._do("set", **{name: str(value) if isinstance(value, Path) else value for name, value in knobs.items()})

    def add_token(self, token: Token) -> None:
        self._do(
            "token", value=token.value, user=token.user, role=token.role, expired=token.expired, orgs=list(token.orgs)
        )

    def make_private(self, repo: str, private: bool = True) -> None:
        self._do("private", repo=repo, private=private)

    def someone_commits(self, repo: str, path: str = "theirs.txt", data: str = "theirs\n", branch: str = BRANCH) -> str:
        return str(self._do("someone_commits", repo=repo, path=path, data=data, branch=branch))

    def someone_tags(self, repo: str, tag: str, revision: str = BRANCH) -> str:
        return str(self._do("someone_tags", repo=repo, tag=tag, revision=revision))

    def requests(self, since: int = 0) -> list[Recorded]:
        return [Recorded(**each) for each in self._do("requests", since=since)]

    def asked(self, route: str) -> list[Recorded]:
        return [each for each in self.requests() if each.route == route]

    def wait_for(self, route: str, count: int = 1, deadline: float = 20.0) -> list[Recorded]:
        said = self._do("wait_for", deadline + 10, route=route, count=count, deadline=deadline)
        return [Recorded(**each) for each in said]

    def received(self) -> Counter[str]:
        return Counter(self._do("received"))

    def resent(self) -> Counter[str]:
        return Counter(self._do("resent"))

    def stored_bytes(self, repo: str) -> int:
        return int(self._do("stored_bytes", repo=repo))

    def verify(self, repo: str) -> list[Finding]:
        return [Finding(tag, why) for tag, why in self._do("verify", repo=repo)]

    def tags(self, repo: str) -> dict[str, str]:
        return dict(self._do("refs", repo=repo)["tags"])

    def head(self, repo: str, branch: str = BRANCH) -> str:
        return str(self._do("refs", repo=repo)["branches"][branch])

    def repos(self) -> list[str]:
        return list(self._do("repos"))

    def tree(self, repo: str, revision: str = BRANCH) -> dict[str, tuple[int, str]]:
        """Path -> (size, sha256)."""
        return {path: (size, sha256) for path, (size, sha256) in self._do("tree", repo=repo, revision=revision).items()}


@contextlib.contextmanager
def hub_process(
    folder: Path, port: int = 0, *, idle: bool = False, by: type[subprocess.Popen[bytes]] = subprocess.Popen
) -> Iterator[RemoteHub]:
    """`python -m tests.hub` until the block ends. `idle`: it runs where nothing else wants a processor (SCHED_IDLE).
    `by`: who starts it."""
    command = [sys.executable, "-m", "tests.hub", "--port", str(port), "--folder", str(folder)]
    log = folder.parent / f"{folder.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as errors:
        process = by(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=errors, env=dict(os.environ))
    if idle:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the hub did not start: {log.read_text()[-2000:]}")
        yield RemoteHub(json.loads(line)["url"])
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
