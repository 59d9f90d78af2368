"""A checkpoint goes to the artifact store, beside what anybody would write for it; and once more, when it is there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from relay_agent.artifacts import calls
from relay_agent.artifacts.jobs import Kept, Put, Store
from relay_agent.checkpoints.publish import Published, publish
from relay_agent.checkpoints.staging import Staged
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run
from tests.bench.children import BenchError, child, giving_way, module
from tests.bench.commander_process import Commander, commander
from tests.bench.load.agents import acquire
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

FILES, SIZE = 4, 256 << 20
PIECE = 4 << 20
ROUNDS = 3
RUN = "artifact"
ROWS = ("artifact.upload", "artifact.dedupe")
EXPONENTS = bytes(0x3C | byte & 3 for byte in range(256))
"""Of 32-bit floats about as large as weights are: one byte in four is nearly always the same."""


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    volume, source = setting.folder / "volume-of-the-pod", setting.folder / "source"
    volume.mkdir()
    weights(source)
    folder = open_run(volume, RUN)
    claim(folder, Claim(1, "bench", "bench", None, "bench", time.time()))
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(
            commander(
                setting.folder, RELAY_ARTIFACT_KEEP_LAST_N="1", RELAY_ARTIFACT_RESERVE="0", RELAY_LEASE_SECONDS="3600"
            )
        )
        port = stack.enter_context(plain(setting.folder))
        by_hand, name = yardstick(setting, source, port)
        pod = Pod(asyncio.run(held(serving)), folder, source, setting.folder)
        samples = interleave({name: by_hand, "relay": lambda: asyncio.run(pod.sent())}, setting)
    beside = Yardstick(name, samples.of(name, "MB/s"))
    return [
        measured(ROWS[0], "MB/s", samples.of("relay", "MB/s"), beside, Goal(ratio_at_least=0.7)),
        measured(ROWS[1], "s", samples.of("relay", "again"), None, Goal(at_most=1.0)),
    ]


def weights(folder: Path) -> None:
    folder.mkdir()
    for number in range(FILES):
        with (folder / f"shard-{number}.dat").open("wb") as file:
            for _ in range(SIZE // PIECE):
                piece = bytearray(os.urandom(PIECE))
                piece[3::4] = piece[3::4].translate(EXPONENTS)
                file.write(piece)
    os.sync()


@contextlib.contextmanager
def plain(folder: Path) -> Iterator[int]:
    with child("plain server", module("bare.upload", str(folder / "plain")), folder) as server:
        yield int(server.answer(30)["port"])


def yardstick(setting: Setting, source: Path, port: int) -> tuple[Callable[[], Figures], str]:
    missing = [tool for tool in ("tar", "zstd", "curl") if shutil.which(tool) is None]
    if missing:
        setting.say(f"there is no {', '.join(missing)} here: beside tarfile, zstandard and http.client instead")
        pack = [sys.executable, str(Path(__file__).with_name("bare") / "pack.py"), str(source), str(port)]
        return lambda: timed(pack), "tarfile, zstandard, http.client"
    line = f"tar -cf - -C '{source}' . | zstd -q -c | curl -sS -T - http://127.0.0.1:{port}/"
    return lambda: timed(["sh", "-c", line]), "tar | zstd | curl"


def timed(command: list[str]) -> Figures:
    began = time.perf_counter()
    done = subprocess.run(giving_way(command), capture_output=True, text=True, check=False, start_new_session=True)
    seconds = time.perf_counter() - began
    if done.returncode or '"bytes"' not in done.stdout:
        raise BenchError(f"{command[-1]}: {done.stderr.strip() or done.stdout.strip()}")
    return {"MB/s": FILES * SIZE / seconds / 1e6}


async def held(serving: Commander) -> Store:
    """As the holder of a lease that outlives the bench."""
    holder = await acquire(serving.port, serving.worker_token, RUN)
    holder.socket.close()
    return Store(serving.url, serving.worker_token, RUN, holder.epoch, holder.token)


class Pod:
    """Publishes a checkpoint that is new each time, and sends it as an agent does, by a child of its own."""

    def __init__(self, store: Store, folder: RunFolder, source: Path, scratch: Path) -> None:
        self._store = store
        self._folder = folder
        self._source = source
        self._cache = str(scratch / "cache")
        self._numbers = itertools.count(1)
        Path(self._cache).mkdir()

    async def sent(self) -> Figures:
        done = await asyncio.to_thread(self._published, next(self._numbers))
        began = time.perf_counter()
        put = Put(self._store, str(done.path), done.manifest_sha256, False)
        kept = await self._put(put)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        again = await self._put(put)
        if kept.stored or not again.stored:
            raise BenchError("it was sent twice, or not at all")
        return {"MB/s": FILES * SIZE / seconds / 1e6, "again": time.perf_counter() - began}

    async def _put(self, put: Put) -> Kept:
        return await calls.call(put, Kept, cache=self._cache, may=lambda what: 20.0)

    def _published(self, step: int) -> Published:
        staged = self._folder.staging(1) / f"step_{step}"
        staged.mkdir(parents=True)
        for file in self._source.iterdir():
            os.link(file, staged / file.name)
        (staged / "mark").write_text(str(step))
        (staged / "COMPLETE").touch()
        return publish(self._folder, Staged(step, staged), 1, lambda: True)


BENCH = Bench(
    "artifact",
    f"a checkpoint of {FILES * SIZE >> 20} MB to the artifact store; again once it is there",
    ROWS,
    run,
)
