"""A Hugging Face Hub for tests, on loopback: the real, unmodified huggingface_hub talks to it.

In a test, in its own loop::

    from tests.hub import Fault, TestHub

    async with TestHub(tmp_path / "hub") as hub:
        hub.fault(Fault.says("commit", 503, times=2))  # faults.py has them all; ROUTES are the names of routes
        await run_client(hub, "api.create_repo('relay/run-1')")  # the client in a process of its own
        ...
        assert hub.verify("relay/run-1") == []  # every step-… tag is whole, by its manifest
        assert not hub.resent()  # nothing was sent that was stored
        hub.stored_bytes("relay/run-1"), hub.files("relay/run-1", "step-5"), hub.requests, hub.asked("commit")

The client takes the LFS path, in which bytes come here, only with HF_HUB_DISABLE_XET=1 set before huggingface_hub is
imported: `client_env(hub.url)` is the environment of a process that has it, `run_client(…)` starts such a one, and
`RealClient` one for many scripts. In the test's own process `HfApi(endpoint=hub.url, token=hub.token)` does for all but
uploads (it blocks: in a thread).

As a process of its own, with real agents and in the bench: `with hub_process(folder) as hub` (which is
`python -m tests.hub --port 0 --folder F`; it prints its URL as a line of JSON), and then the same words, `hub.url`,
`hub.fault(…)`, `hub.verify(…)`, `hub.stored_bytes(…)`, … over a control route that only this process has (remote.py).

Tokens there from the start: hf_write (user `relay`, organisation `relay-lab`), hf_read, hf_expired, hf_stranger; others
by `hub.tokens.add(Token(…))`. Chance instead of a script: `TestHub(folder, plan=FaultPlan(seed=7))`, the same faults
for the same seed.

What is where: `server.py` the hub, its knobs and questions; `serving.py` how one request goes; `repos.py`, `lfs.py`,
`commits.py`, `reading.py`, `files.py`, `xet.py` the routes; `store.py` what is remembered, `content.py` the bytes;
`faults.py`, `tokens.py`; `judge.py` whether every tag is whole; `client.py`, `remote.py` the other process, from both
sides.
"""

from tests.hub.client import ClientError, RealClient, client_env, run_client
from tests.hub.faults import QUOTA, STORAGE_PATTERN, Fault, FaultPlan
from tests.hub.judge import Finding
from tests.hub.remote import RemoteHub, hub_process
from tests.hub.server import ROUTES, TestHub
from tests.hub.serving import Recorded
from tests.hub.tokens import Token

__all__ = [
    "QUOTA",
    "ROUTES",
    "STORAGE_PATTERN",
    "ClientError",
    "Fault",
    "FaultPlan",
    "Finding",
    "RealClient",
    "Recorded",
    "RemoteHub",
    "TestHub",
    "Token",
    "client_env",
    "hub_process",
    "run_client",
]
