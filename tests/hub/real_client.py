"""The child of `client.RealClient`: runs the scripts that come in as lines of JSON, with the real huggingface_hub.

Run by its path, it imports nothing of Relay. The waits between the client's own retries are noted, not waited out.
"""

import json
import os
import sys
import time
import traceback
import warnings

import httpx2
import huggingface_hub
from huggingface_hub import file_download
from huggingface_hub.utils import _http

warnings.simplefilter("ignore")
PLAIN = (str, int, float, bool, list, dict, type(None))
timeout = None
waits = []


class Clock:
    """The module `time`, whose sleep is only noted."""

    def __getattr__(self, name):
        return getattr(time, name)

    def sleep(self, seconds):
        waits.append(seconds)


def bounded():
    client = _http.default_client_factory()
    client.timeout = timeout
    return client


def describe(error):
    response = getattr(error, "response", None)
    kinds = [kind.__name__ for kind in type(error).__mro__]
    cause = error.__cause__
    return {
        "kinds": kinds,
        "text": str(error),
        "status": None if response is None else response.status_code,
        "cause": None if cause is None else describe(cause),
        "trace": traceback.format_exc()[-3000:],
    }


def run(asked):
    global timeout
    said = []
    waits.clear()
    if timeout != asked["timeout"]:
        timeout = asked["timeout"]
        _http.close_session()
    api = huggingface_hub.HfApi(endpoint=asked["url"], token=asked["token"])
    names = {
        "Add": huggingface_hub.CommitOperationAdd,
        "Delete": huggingface_hub.CommitOperationDelete,
        "Copy": huggingface_hub.CommitOperationCopy,
        "httpx2": httpx2,
        "huggingface_hub": huggingface_hub,
        "api": api,
        "args": asked["args"],
        "os": os,
        "say": lambda value: said.append(value if isinstance(value, PLAIN) else str(value)),
    }
    try:
        exec(compile(asked["script"], "<script>", "exec"), names)
    except Exception as error:  # noqa: BLE001  whatever it is, it is told
        return {"said": said, "waits": list(waits), "failed": describe(error)}
    return {"said": said, "waits": list(waits)}


def main():
    if os.environ.get("CLIENT_WAITS") != "1":
        _http.time = file_download.time = Clock()
    huggingface_hub.set_client_factory(bounded)
    answers = os.dup(1)
    os.dup2(2, 1)  # what else is printed is no answer
    for line in sys.stdin:
        os.write(answers, json.dumps(run(json.loads(line)), default=str).encode() + b"\n")


main()
