"""A store whose disk fills up for real: uploads end at the reserve, and leases and history go on."""

from __future__ import annotations

from pathlib import Path

from artifact_kit import pod, some, stored_files
from commander_kit import running
from disks import mount, unmount

MB = 1 << 20


async def test_a_disk_that_uploads_would_fill(tmp_path: Path) -> None:
    state = tmp_path / "disk" / "state"
    state.parent.mkdir()
    mount("-t", "tmpfs", "-o", "size=32m", "relay-test", state.parent)
    try:
        state.mkdir(mode=0o700)
        (state / "key").write_bytes(b"k" * 32)
        async with running(state, artifact_reserve=8 * MB) as kit:
            store = await pod(kit)
            assert store.agent is not None
            status, body = await store.begin(some(40 * MB))
            assert (status, body["error"]["code"]) == (507, "store_full")
            data = some(20 * MB, 2)
            upload = (await store.begin(data))[1]["upload"]
            (state.parent / "others").write_bytes(bytes(8 * MB))
            at = 0
            while True:
                status, body = await store.chunk(upload, at, data[at : at + 2 * MB])
                if status != 200:
                    break
                at = body["offset"]
                assert at < 20 * MB
            assert (status, body["error"]["code"]) == (507, "store_full")
            at = body["offset"]
            assert at >= 4 * MB
            for _ in range(20):
                assert (await store.agent.state({"type": "event", "kind": "x.y", "message": "z" * 1_000}))[
                    "type"
                ] == "ack"
                assert (await store.agent.renew())["type"] == "renewed"
            (state.parent / "others").unlink()
            while at < 20 * MB:
                status, body = await store.chunk(upload, at, data[at : at + 2 * MB])
                assert status == 200, body
                at = body["offset"]
            assert (await store.finish(upload))[0] == 200
            assert len(stored_files(state)) == 1
            assert (await store.agent.renew())["type"] == "renewed"
    finally:
        unmount(state.parent)
