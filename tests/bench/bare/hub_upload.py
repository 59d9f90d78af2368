"""Yardstick of the Hub sync: huggingface_hub's own upload of a folder in one commit, with nothing of Relay in it.

    HF_TOKEN=… python -I tests/bench/bare/hub_upload.py URL REPO FOLDER [--threads N]

All files of FOLDER go to `checkpoint/` of REPO, which must be there, over the LFS path: pre-upload, then one commit.
Prints one JSON object: bytes of the files, seconds of the two together and of each, seconds since this process began,
and the commit. It hashes what it sends, as anybody has to who does not know the hashes.
"""

from __future__ import annotations

import argparse
import json
import os
import time

BEGAN = time.monotonic()
os.environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

from pathlib import Path  # noqa: E402

from huggingface_hub import CommitOperationAdd, HfApi  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("repo")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=5, help="files at a time; 5 is the client's own default")
    options = parser.parse_args()
    api = HfApi(endpoint=options.url, token=os.environ["HF_TOKEN"])
    files = sorted(path for path in options.folder.rglob("*") if path.is_file())

    start = time.monotonic()
    operations = [CommitOperationAdd(f"checkpoint/{path.relative_to(options.folder)}", path) for path in files]
    api.preupload_lfs_files(options.repo, operations, num_threads=options.threads, free_memory=False)
    sent = time.monotonic()
    commit = api.create_commit(options.repo, operations, commit_message="checkpoint", num_threads=options.threads)
    end = time.monotonic()
    said = {
        "bytes": sum(path.stat().st_size for path in files),
        "seconds": end - start,
        "preupload_seconds": sent - start,
        "commit_seconds": end - sent,
        "process_seconds": end - BEGAN,
        "commit": commit.oid,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
