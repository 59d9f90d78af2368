"""What goes into the one commit of a checkpoint: all that is its own, or no tag; what is beside it holds nothing up."""

from __future__ import annotations

from typing import Any

import pytest
from hub_sync_kit import REPO, RUN, Calls, put, send_job

from relay_agent.hub import layout
from relay_agent.hub.protocol import Check, Checked, Where
from relay_agent.sending.trouble import Trouble
from relay_agent.volume.volume import RunFolder
from tests.hub import TestHub

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own


@pytest.fixture
def hub(hub: TestHub) -> TestHub:
    hub.large_above = 1000  # the kit's weights are larger, its shards are not
    return hub


# -- nothing of it is left out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["*.json", "manifest.json", "run.json", "relay/", "weights.bin"])
@pytest.mark.parametrize("before", [False, True], ids=["empty", "a step before"])
async def test_where_a_gitignore_names_what_is_the_checkpoints_there_is_no_tag(
    hub: TestHub, where: Where, run: RunFolder, call: Calls, pattern: str, before: bool
) -> None:
    put(run, 1, 400)
    await (call(send_job(where, run, "step_00000400")) if before else call(Check(where, RUN), Checked))
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
    await (call(send_job(where, run, "step_00000400")) if before else call(Check(where, RUN), Checked))
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
