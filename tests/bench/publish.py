"""A checkpoint of 2 GB comes onto the line, each way that its bytes can come, beside the least that reads them once;
and which of 1,000 checkpoints a run resumes from."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from relay_agent.checkpoints.adapters.base import Adapter, Candidate, Part
from relay_agent.checkpoints.disk import folder
from relay_agent.checkpoints.publish import publish
from relay_agent.checkpoints.resume import choose
from relay_agent.checkpoints.staging import Staged
from relay_agent.checkpoints.take import take
from relay_agent.checkpoints.tree import hash_files, walk
from relay_agent.volume.volume import Claim, RunFolder, claim, open_run
from tests.bench.rounds import Bench, Figures, Setting, interleave
from tests.bench.rows import Goal, Row, Yardstick, measured

FILES, SIZE = 8, 256 << 20
PIECE = 4 << 20
ROUNDS = 3
MANY = 1_000
WAYS = ("rename", "link", "copy")
ROWS = ("publish.hash", *(f"publish.{way}" for way in WAYS), "publish.copy.flushed", "publish.resume")


def run(setting: Setting) -> list[Row]:
    setting = replace(setting, rounds=min(setting.rounds, ROUNDS))
    rows = []
    if setting.wants(*ROWS[:-1]):
        rows += published(setting)
    if setting.wants(ROWS[-1]):
        rows.append(resumed(setting))
    return rows


def published(setting: Setting) -> list[Row]:
    source = setting.folder / "source"
    source.mkdir()
    for number in range(FILES):
        with (source / f"shard-{number}.dat").open("wb") as file:
            for _ in range(SIZE // PIECE):
                file.write(os.urandom(PIECE))
    os.sync()  # the trainer's save was a while ago
    samples = interleave(
        {
            "hashlib": timed(lambda: hashed(source)),
            "relay's hashes": timed(lambda: relay_hashed(source)),
            "cp, then hashlib": lambda: copied(setting.folder, source),
            "cp, flushed, then hashlib": lambda: copied(setting.folder, source, flush=True),
            **{f"relay, {way}": way_of(setting.folder, source, way) for way in WAYS},
        },
        setting,
    )
    hashing = Yardstick("hashlib.sha256 on all cores", samples.of("hashlib", "seconds"))
    flushed = Yardstick("cp, flushed, then hashlib.sha256", samples.of("cp, flushed, then hashlib", "seconds"))
    unflushed = Yardstick("cp, then hashlib.sha256", samples.of("cp, then hashlib", "seconds"))
    speed, wall = Goal(ratio_at_most=1 / 0.9), Goal(ratio_at_most=1.1)
    ours = {way: samples.of(f"relay, {way}", "seconds") for way in WAYS}
    return [
        measured("publish.hash", "s", samples.of("relay's hashes", "seconds"), hashing, speed),
        measured("publish.rename", "s", ours["rename"], hashing, wall),
        measured("publish.link", "s", ours["link"], hashing, wall),
        measured("publish.copy", "s", ours["copy"], unflushed, wall),
        measured("publish.copy.flushed", "s", ours["copy"], flushed, wall),
    ]


def timed(work: Callable[[], object]) -> Callable[[], Figures]:
    def measure() -> Figures:
        began = time.perf_counter()
        work()
        return {"seconds": time.perf_counter() - began}

    return measure


def hashed(place: Path) -> list[str]:
    def one(path: Path) -> str:
        with path.open("rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(one, sorted(place.iterdir())))


def relay_hashed(place: Path) -> dict[str, str]:
    with folder(place) as root:
        return hash_files(root, walk(root).files)


def copied(place: Path, source: Path, *, flush: bool = False) -> Figures:
    target = place / "copied"
    began = time.perf_counter()
    subprocess.run(["cp", "-r", "--reflink=never", str(source), str(target)], check=True)
    if flush:
        subprocess.run(["sync", *map(str, target.iterdir())], check=True)
    hashed(target)
    took = time.perf_counter() - began
    shutil.rmtree(target)
    os.sync()
    return {"seconds": took}


def way_of(place: Path, source: Path, way: str) -> Callable[[], Figures]:
    """Published anew in each round, in a run of its own that is gone afterwards."""

    def measure() -> Figures:
        volume = place / "volume"
        volume.mkdir()
        made = claimed(volume)
        with folder(place) as root:
            if way == "rename":  # it was saved into the staging folder
                source.rename(made.staging(1) / "step_1")
                staged = Staged(1, made.staging(1) / "step_1", marks=True)
                began = time.perf_counter()
            else:
                adapter = Adapter("bench", "source", in_place=way == "copy")
                began = time.perf_counter()
                taken = take(root, adapter, Candidate("source", 1, (Part("source"),)), 1, made.staging(1))
                staged = Staged(1, taken.path, marks=True, linked=way == "link")
            done = publish(made, staged, 1, lambda: True)
            took = time.perf_counter() - began
        if way == "rename":
            done.path.rename(source)
            (source / "manifest.json").unlink()
        shutil.rmtree(volume)
        os.sync()
        return {"seconds": took}

    return measure


def claimed(volume: Path) -> RunFolder:
    made = open_run(volume, "bench")
    claim(made, Claim(1, "pod", "incarnation", None, "config", 0.0))
    return made


def resumed(setting: Setting) -> Row:
    volume = setting.folder / "many"
    volume.mkdir()
    made = claimed(volume)
    for step in range(1, MANY + 1):
        path = made.staging(1) / f"step_{step}"
        path.mkdir()
        (path / "weights.dat").write_bytes(b"x" * 100)
        publish(made, Staged(step, path, marks=True), 1, lambda: True, point=lambda: False)
    samples = interleave({"relay": timed(lambda: choose(made))}, setting)
    return measured(ROWS[-1], "s", samples.of("relay", "seconds"), None, Goal(at_most=1))


BENCH = Bench(
    "publish", f"a checkpoint of {FILES * SIZE >> 30} GB published each way; the choice among {MANY} of them", ROWS, run
)
