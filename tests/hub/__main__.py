"""The hub as a process of its own: prints {"url": …} when it serves; ends on SIGTERM, Ctrl-C, and with its parent."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import signal
import sys
from pathlib import Path

from tests.hub.remote import add_control
from tests.hub.server import TestHub


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: one that is free")
    parser.add_argument("--folder", type=Path, required=True, help="where the content lies")
    options = parser.parse_args()
    hub = TestHub(options.folder, port=options.port)
    app = hub.application()
    add_control(app, hub)
    stopped = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stopped.set)
    await hub.start(app)
    print(json.dumps({"url": hub.url, "token": hub.token}), flush=True)
    await stopped.wait()
    await hub.stop()


if __name__ == "__main__":
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a killed test leaves no hub behind
    asyncio.run(main())
