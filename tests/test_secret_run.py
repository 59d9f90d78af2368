"""A trainer's last words hold its token: a whole agent, its volume, the commander and the Hub never say it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import programs
import pytest
from agent_rig import Rig, commander, rig

from tests.hub import RemoteHub, hub_process
from tests.hub.tokens import Token

__all__ = ["commander", "rig"]
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
SAVE = 'd="$RELAY_CKPT_STAGING_ROOT/step_{0}"; mkdir -p "$d"; echo {0} > "$d/w"; touch "$d/COMPLETE"; '
TRAINER = (
    'if [ -z "$RELAY_RESUME_FROM" ]; then echo "step 1/2 loss 1"; ' + SAVE.format(1) + "sleep 1; "
    'echo "RuntimeError: 401 for https://me:$HF_TOKEN@huggingface.co with $HF_TOKEN" >&2; exit 7; '
    'else echo "step 2/2 loss 1"; ' + SAVE.format(2) + "exit 0; fi"
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RemoteHub]:
    with hub_process(tmp_path / "hub", by=programs.Popen) as hub:
        hub.add_token(Token(TOKEN))
        yield hub


def test_a_token_in_the_last_words_of_a_trainer_goes_nowhere(rig: Rig, hub: RemoteHub) -> None:
    repo = f"relay/{rig.run_id}"
    agent = rig.agent(
        TRAINER, RETRIES="1", RETRY_BACKOFF="0.1", HF_REPO=repo, HF_ENDPOINT=hub.url, HF_TOKEN=TOKEN,
        HF_DRY_RUN="false", HF_PRIVATE="false", HF_END_WAIT="30",
    )  # fmt: skip
    assert agent.wait(60) == 0, agent.says()
    assert "with [HF_TOKEN]" in agent.says()
    assert TOKEN in b"".join(path.read_bytes() for path in rig.folder.glob("logs/*")).decode(), "it is the trainer's"
    with urllib.request.urlopen(f"{hub.url}/{repo}/resolve/main/relay/events.jsonl", timeout=5) as answer:
        assert b"with [HF_TOKEN]" in answer.read()
    lines = rig.lines()
    assert any("with [HF_TOKEN]" in line for line in lines)
    told = [path for path in rig.root.rglob("*") if path.is_file() and path.parent.name != "logs"]
    told += [path for path in Path(rig.folder).rglob("*") if path.is_file() and path.parent.name != "logs"]
    assert [path for path in told if TOKEN.encode() in path.read_bytes()] == []
