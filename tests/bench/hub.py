"""A checkpoint of 2 GB goes to a Hub on this machine: beside the client's own upload of it, and beside a trainer."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
from huggingface_hub import HfApi

from relay_agent.checkpoints.manifest import read
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.staging import Staged
from relay_agent.hub import calls, layout
from relay_agent.hub.protocol import Beside, Send, Sent, Where
from relay_agent.volume.volume import RunFolder
from tests.bench.children import BenchError, environment, giving_way
from tests.bench.publish import PIECE, claimed
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured
from tests.hub import RemoteHub, hub_process

FILES, SIZE = 8, 256 << 20
ROUNDS = 3
OFTEN = 3
"""Times as many rounds for the trainer beside a sync: what a machine gives a process swings by a tenth in seconds."""
REPO, TOKEN = "relay/bench", "hf_write"
STEP = 100_000
"""Additions in a step of the trainer beside it: some milliseconds."""
ALONE = 5.0
"""Seconds that the trainer steps alone before a sync, and as many after it: a machine's own rate may drift."""
PATIENCE = 300.0
MB = 1e6
BARE = Path(__file__).with_name("bare")
ROWS = ("hub.sync", "hub.memory", "hub.steps")


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    source = saved(setting.folder)
    numbers = itertools.count(1)

    @contextmanager
    def hub(*, idle: bool = False) -> Iterator[RemoteHub]:
        """An empty one."""
        folder = setting.folder / f"hub-{next(numbers)}"
        try:
            with hub_process(folder, idle=idle) as serving:
                yield serving
        finally:
            shutil.rmtree(folder)
            os.sync()

    def bare() -> Figures:
        with hub() as serving:
            HfApi(endpoint=serving.url, token=TOKEN).create_repo(REPO, private=True)
            argv = [sys.executable, str(BARE / "hub_upload.py"), serving.url, REPO, str(source)]
            env = environment(HF_TOKEN=TOKEN, HF_HOME=str(setting.folder / "cache"))
            said = subprocess.run(
                giving_way(argv), env=env, stdout=subprocess.PIPE, check=True, timeout=PATIENCE, start_new_session=True
            ).stdout
            return {"mb_per_s": FILES * SIZE / MB / json.loads(said)["process_seconds"]}

    def relay() -> Figures:
        with hub() as serving, peak_of_children() as peak:
            seconds = synced(serving, source, setting.folder)
            whole(serving)
            return {"mb_per_s": FILES * SIZE / MB / seconds, "peak_mb": peak() / MB}

    def beside() -> Figures:
        """What a pod's own part of a sync takes from its trainer. The Hub is no part of a pod: the one here gets a
        processor only where nobody else wants it (SCHED_IDLE), and memory and disk are all that it shares."""
        with hub(idle=True) as serving, trainer() as rate:
            before = rate(lambda: time.sleep(ALONE))
            beside = rate(lambda: synced(serving, source, setting.folder))
            after = rate(lambda: time.sleep(ALONE))
            whole(serving)
            return {"per_second": beside, "alone": (before + after) / 2}

    rows: list[Row] = []
    if setting.wants(*ROWS[:2]):
        samples = interleave({"huggingface_hub": bare, "relay": relay}, setting)
        own = Yardstick("huggingface_hub's own commit", samples.of("huggingface_hub", "mb_per_s"))
        rows.append(measured(ROWS[0], "MB/s", samples.of("relay", "mb_per_s"), own, Goal(ratio_at_least=0.9)))
        rows.append(measured(ROWS[1], "MB", samples.of("relay", "peak_mb"), None, Goal(at_most=100)))
    if setting.wants(ROWS[2]):
        often = replace(setting, rounds=OFTEN * setting.rounds)
        samples = interleave({"beside a sync": beside}, often)
        without = Yardstick("steps/s before and after", samples.of("beside a sync", "alone"))
        rows.append(
            measured(ROWS[2], "steps/s", samples.of("beside a sync", "per_second"), without, Goal(ratio_at_least=0.97))
        )
    return rows


def saved(folder: Path) -> Path:
    """A published checkpoint."""
    volume = folder / "volume"
    volume.mkdir()
    made: RunFolder = claimed(volume)
    path = made.staging(1) / "step_1"
    path.mkdir()
    for number in range(FILES):
        with (path / f"shard-{number}.dat").open("wb") as file:
            for _ in range(SIZE // PIECE):
                file.write(os.urandom(PIECE))
    done = publish(made, Staged(1, path, marks=True), 1, lambda: True)
    os.sync()
    return done.path


def synced(serving: RemoteHub, source: Path, folder: Path) -> float:
    """As an agent does it, in its child process. Seconds."""
    manifest = read(source).manifest
    told = layout.RunFile(
        layout.VERSION, manifest.run_id, manifest.mode, manifest.name, manifest.step, manifest.epoch, manifest.seq, 1,
        True, [],
    )  # fmt: skip
    job = Send(
        Where(REPO, TOKEN, serving.url), manifest.run_id, 1, str(source), [entry.path for entry in manifest.files],
        [Beside(layout.RUN, text=told.encode().decode())], "A bench.", {}, manifest.name,
    )  # fmt: skip
    began = time.perf_counter()
    sent: Sent = asyncio.run(calls.call(job, Sent, cache=str(folder / "cache"), may=lambda what: PATIENCE))
    took = time.perf_counter() - began
    if sent.stored:
        raise BenchError(f"nothing was sent: {sent}")
    return took


def whole(serving: RemoteHub) -> None:
    if found := serving.verify(REPO):
        raise BenchError(f"the Hub has what is not whole: {found}")


@contextmanager
def peak_of_children() -> Iterator[Callable[[], int]]:
    """Bytes resident in what this process started in the meantime, at most, as far as looks every 50 ms tell; who there
    is besides is looked up now and then, which takes a while where much else runs."""
    before, ended = {child.pid for child in psutil.Process().children()}, threading.Event()
    most = [0]

    def look() -> None:
        known: list[psutil.Process] = []
        for looks in itertools.count():
            if ended.wait(0.05):
                return
            if looks % 5 == 0:
                known = [each for each in psutil.Process().children(recursive=True) if each.pid not in before]
            for child in known:
                try:
                    most[0] = max(most[0], child.memory_info().rss)
                except psutil.Error:
                    continue  # it has just ended

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        watching.join()


@contextmanager
def trainer() -> Iterator[Callable[[Callable[[], object]], float]]:
    """How many steps a second it makes while something is done."""
    argv = [sys.executable, "-I", str(BARE / "spin.py"), str(STEP)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        told, asked = process.stdout, process.stdin
        assert told is not None
        assert asked is not None
        told.readline()

        def now() -> tuple[int, float]:
            asked.write(b"\n")
            asked.flush()
            said = json.loads(told.readline())
            return said["steps"], said["at"]

        def rate(work: Callable[[], object]) -> float:
            (first, began), _, (last, ended) = now(), work(), now()
            return (last - first) / (ended - began)

        try:
            yield rate
        finally:
            process.kill()


BENCH = Bench("hub", f"a checkpoint of {FILES * SIZE >> 30} GB goes to a Hub on this machine", ROWS, run)
