"""A real commander, `relay-tui serve`, on a state folder of its own."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from relaytui.client.endpoint import Endpoint
from relaytui.wire.proof import derived_token
from relaytui.wire.state import KEY_FILE
from tests.bench.children import Child, child, environment, program
from tests.bench.load.agents import TOKEN_VARIABLE

START = 30.0
"""Seconds it may take to listen."""


@dataclass(frozen=True)
class Commander:
    process: Child
    state: Path
    url: str
    operator_token: str
    worker_token: str

    @property
    def port(self) -> int:
        port = urllib.parse.urlsplit(self.url).port
        assert port is not None
        return port

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.url, self.operator_token)

    def load_environment(self) -> dict[str, str]:
        return environment(**{TOKEN_VARIABLE: self.worker_token})


@contextlib.contextmanager
def commander(folder: Path, port: int = 0, **variables: str) -> Iterator[Commander]:
    """Runs while the block does; state, volume and its stderr are in `folder`, where an earlier one may have been."""
    state, volume = folder / "state", folder / "volume"
    volume.mkdir(exist_ok=True)
    argv = [program("relay-tui"), "serve", "--json", "--host", "127.0.0.1", "--port", str(port), "--state", str(state)]
    with child("commander", argv, folder, environment(RELAY_L1_ROOT=str(volume), **variables), folder) as process:
        url = str(process.answer(START)["url"])
        key = (state / KEY_FILE).read_bytes()
        yield Commander(process, state, url, derived_token(key, "operator"), derived_token(key, "worker"))


@contextlib.contextmanager
def agent(
    of: Commander, folder: Path, run_id: str, trainer: list[str], pod: str = "", **variables: str
) -> Iterator[Child]:
    """A real `relay-agent` that trains `run_id` with the command `trainer`, on the commander's volume.

    Agents of one `pod` share its disk; without a name every run has a pod of its own.
    """
    pod = pod or run_id
    env = environment(
        COMMANDER_URL=of.url,
        RUN_ID=run_id,
        WORKER_ID=f"w-{pod}",
        MODE="sft",
        HF_DRY_RUN="true",
        RELAY_SHARED_SECRET=of.worker_token,
        RELAY_L1_ROOT=str(of.state.parent / "volume"),
        RELAY_AGENT_STATE=str(folder / f"agent-{pod}"),
        SLIME_SFT_CMD="exec " + " ".join(trainer),
        **variables,
    )
    with child(f"agent {pod}", [program("relay-agent")], folder, env, cwd=folder) as process:
        yield process
