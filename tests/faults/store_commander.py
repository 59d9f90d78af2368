"""A commander to be killed, which writes down each chunk that comes: `store_commander STATE PORT`.

`<state>/chunks` has a line of JSON for each: of which content, from where, and what was there before; and one for each
content that is stored.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from relaytui.commander.server import Commander
from relaytui.commander.services.artifacts import ArtifactStore
from relaytui.commander.services.uploads import Uploads
from relaytui.commander.settings import CommanderSettings


def watch(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    receive, finish = Uploads.receive, ArtifactStore._finish

    def note(**what: Any) -> None:
        os.write(handle, json.dumps(what).encode() + b"\n")

    async def receiving(self: Uploads, upload_id: str, offset: int, length: int, body: Any) -> int:
        coming = self.get(upload_id)
        path = coming.part.path
        at = path.stat().st_size if path.exists() else 0
        after = await receive(self, upload_id, offset, length, body)
        note(sha256=coming.upload.sha256, offset=offset, at=at, after=after)
        return after

    async def finishing(self: ArtifactStore, *given: Any) -> Any:
        row = await finish(self, *given)
        note(stored=row.sha256, size=row.size)
        return row

    Uploads.receive = receiving  # type: ignore[method-assign]
    ArtifactStore._finish = finishing  # type: ignore[method-assign]


async def serve(state: Path, port: int) -> None:
    watch(state / "chunks")
    commander = Commander(CommanderSettings(state=state, port=port, artifact_reserve=0, lease_seconds=3600))
    await commander.start()
    print(commander.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
