"""A commander that is killed in the middle of an upload, for real: the pod goes on from where the next one says."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import aiohttp
from artifact_kit import content, part_files, sha, some
from test_commander_durability import Process

SIZE = 6 << 20


async def test_killed_in_the_middle_of_a_chunk_and_of_a_finish(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "key").write_bytes(b"k" * 32)
    data, process = some(SIZE), Process(state)
    await process.start()
    async with aiohttp.ClientSession() as session:

        async def ask(method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
            url, kind = f"{process.url}/api/artifacts/uploads{path}", "json" if isinstance(body, dict) else "data"
            given = {kind: io.BytesIO(body) if isinstance(body, bytes) else body}
            async with session.request(method, url, headers=process.headers() | headers, **given) as answer:
                return answer.status, await answer.json()

        agent = await process.agent(session)
        grant = await agent.acquire("run-1")
        lease = {"run_id": "run-1", "epoch": grant["epoch"], "token": grant["token"]}
        what = {"kind": "checkpoint", "name": "step_1", "sha256": sha(data), "size": SIZE}
        upload = (await ask("POST", "", lease | what))[1]["upload"]
        status, body = await ask("PATCH", f"/{upload}", data[: 1 << 20], **{"Upload-Offset": "0"})
        assert (status, body) == (200, {"offset": 1 << 20})

        async def half() -> Any:
            yield data[1 << 20 : 3 << 20]
            while part_files(state)[0].stat().st_size < 2 << 20:
                await asyncio.sleep(0.005)
            process.kill()
            yield data[3 << 20 :]

        sent = {"Upload-Offset": str(1 << 20), "Content-Length": str(SIZE - (1 << 20))}
        try:
            async with asyncio.timeout(20):
                await ask("PATCH", f"/{upload}", half(), **sent)
        except aiohttp.ClientError:
            pass
        await process.start()
        status, body = await ask("GET", f"/{upload}")
        at = body["offset"]
        assert (status, at) == (200, part_files(state)[0].stat().st_size)
        assert 2 << 20 <= at < SIZE
        status, body = await ask("PATCH", f"/{upload}", data[at:], **{"Upload-Offset": str(at)})
        assert (status, body["offset"]) == (200, SIZE)
        finishing = asyncio.create_task(ask("POST", f"/{upload}/finish"))
        await asyncio.sleep(0)
        process.kill()
        await asyncio.gather(finishing, return_exceptions=True)
        await process.start()
        status, body = await ask("POST", f"/{upload}/finish")
        assert (status, body["artifact"]["sha256"]) == (200, sha(data))
        assert content(state, data).read_bytes() == data
    process.kill()
