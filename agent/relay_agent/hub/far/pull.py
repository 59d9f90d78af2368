"""The files of one checkpoint, from a commit on the Hub into a folder on the volume.

Each is asked for from where an earlier try of it ended. Nothing that comes is believed: `receiving` takes what the
manifest lists, and the manifest is the one whose hash the agent named.
"""

from __future__ import annotations

import errno
import hashlib
import re
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils._http import get_session, hf_raise_for_status

from relay_agent.checkpoints.manifest import MAX_BYTES, FileEntry, Torn
from relay_agent.checkpoints.receiving import Coming, Receiving, TooMuch
from relay_agent.checkpoints.tree import Cancelled
from relay_agent.hub import layout
from relay_agent.hub.far.answers import ITS_FILE
from relay_agent.hub.far.check import read, see_run
from relay_agent.hub.far.client import connect
from relay_agent.hub.protocol import Pull, Pulled
from relay_agent.sending.trouble import Trouble

RESUMES = 50
"""How often a file goes on at once after its connection broke, where some of it came each time."""
_RANGE = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18})\Z")
_FULL = (errno.ENOSPC, errno.EDQUOT)


def work(job: Pull, tell: Any) -> Pulled:
    api, _ = connect(job.where)
    tell.phase("downloading")
    try:
        return _Puller(api, job, tell).work()
    except TooMuch as torn:
        raise Trouble("no_room", torn.reason) from None
    except Torn as torn:
        raise Trouble("not_whole", torn.reason) from None
    except OSError as error:
        if isinstance(error, httpx2.HTTPError) or hasattr(error, "response") or error.errno is None:
            raise
        words = error.strerror or str(error)
        if error.errno in _FULL:
            raise Trouble("no_room", f"the volume is full: {words}") from None
        raise Trouble("volume_failed", f"the volume refused it: {words}") from None


class _Puller:
    def __init__(self, api: Any, job: Pull, tell: Any) -> None:
        self._api = api
        self._job = job
        self._tell = tell
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._done = self._moved = self._total = 0

    def work(self) -> Pulled:
        self._refuse_part()
        receiving = Receiving(Path(self._job.place), self._manifest())
        missing = receiving.open()
        self._total = receiving.total
        self._done = receiving.came(missing)
        self._tell.progress(self._done, self._total)
        pool = ThreadPoolExecutor(self._job.threads, thread_name_prefix="pull")
        try:
            # Largest first, so that no thread is left alone with the biggest file at the end.
            work = [pool.submit(self._bring, receiving, file) for file in sorted(missing, key=lambda file: -file.size)]
            over, _ = wait(work, return_when=FIRST_EXCEPTION)
            self._over.set()
            for each in over:
                each.result()
        finally:
            self._over.set()
            pool.shutdown(wait=False, cancel_futures=True)  # what waits for the Hub ends with this process
        self._tell.at("pulled")
        return Pulled(str(receiving.seal()), self._moved)

    def _refuse_part(self) -> None:
        data = self._read(layout.RUN, layout.MAX_RUN)
        run = see_run(data, self._job.run_id)
        if run is not None and not run.complete:
            chosen = " ".join(run.chosen) or "some of its files"
            raise Torn(f"only a part of it was pushed ({chosen})")

    def _manifest(self) -> bytes:
        data = self._read(layout.MANIFEST_PATH, MAX_BYTES)
        if data is None:
            raise Torn("it has no manifest")
        if hashlib.sha256(data).hexdigest() != self._job.manifest:
            raise Torn("its manifest is not the one that was listed")
        return data

    def _read(self, path: str, limit: int) -> bytes | None:
        return read(self._api, self._job.where.repo, path, self._job.revision, limit)

    def _bring(self, receiving: Receiving, file: FileEntry) -> None:
        with receiving.file(file, self._unless_over) as coming:
            for again in range(RESUMES + 1):
                before = coming.size
                if before == file.size:
                    break
                try:
                    self._stream(file, coming)
                except httpx2.TransportError:
                    if coming.size <= before or again == RESUMES:
                        raise
            coming.finish()
        receiving.settle(file)

    def _stream(self, file: FileEntry, coming: Coming) -> None:
        repo, path = self._job.where.repo, quote(layout.path_of(file.path))
        url = f"{self._api.endpoint}/{repo}/resolve/{self._job.revision}/{path}"
        headers = {**self._api._build_hf_headers(), "accept-encoding": "identity"}
        if coming.size:
            headers["range"] = f"bytes={coming.size}-"
        with get_session().stream("GET", url, headers=headers, extensions=ITS_FILE) as response:
            self._see(response, file, coming)
            for chunk in response.iter_bytes():  # as they come: what breaks off has to be kept
                self._unless_over()
                coming.take(chunk)
                self._count(len(chunk))

    def _see(self, response: Any, file: FileEntry, coming: Coming) -> None:
        """Whether it is what was asked for; Torn where it cannot be."""
        if response.status_code == 416:
            raise Torn(f"{file.path[:200]!a} is shorter on the Hub than its manifest says")
        if response.status_code >= 400:
            response.read()
        try:
            hf_raise_for_status(response)
        except EntryNotFoundError:
            raise Torn(f"{file.path[:200]!a} is missing on the Hub") from None
        begins, size = 0, response.headers.get("content-length", "")
        if response.status_code == 206:
            match = _RANGE.match(response.headers.get("content-range", ""))
            if match is None or int(match[1]) != coming.size:
                raise Torn(f"{file.path[:200]!a}: the Hub sends another part than was asked for")
            begins, size = int(match[1]), match[2]
        if begins != coming.size:  # it does not go on in the middle
            self._count(-coming.size, moved=False)
            coming.again()
        if size.isascii() and size.isdigit() and int(size) != file.size:
            raise Torn(f"{file.path[:200]!a} has {int(size):,} bytes on the Hub, not {file.size:,}")

    def _count(self, bytes_: int, *, moved: bool = True) -> None:
        with self._lock:
            self._done += bytes_
            self._moved += bytes_ if moved else 0
            done = self._done
        self._tell.progress(done, self._total)

    def _unless_over(self) -> None:
        if self._over.is_set():
            raise Cancelled
