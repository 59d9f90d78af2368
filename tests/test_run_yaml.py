"""What is wrong with a run.yaml is said in words that tell what to do, and of the line to look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from relay_agent.run_yaml import read
from relay_agent.yaml_words import _ELSE
from relaytui.wire.errors import RelayError

KEYS = {key: key for key in ("RUN_ID", "MODE", "TRAIN_CMD", "HF_TOKEN")}
QUOTES = "put the value in quotes"


def refused(tmp_path: Path, text: str) -> str:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(RelayError) as told:
        read(file, True, KEYS, [])
    return told.value.message.removeprefix(f"{file} ")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("RUN_ID: [x\n", 1, QUOTES),
        ("TRAIN_CMD: [x\nRUN_ID: y\n", 1, QUOTES),
        ("RUN_ID: {a: b", 1, QUOTES),
        ("RUN_ID: hh\nMODE sft", 2, "no colon with a space after it"),
        ("RUN_ID: hh\nMODE sft\nTRAIN_CMD: x\n", 2, "no colon with a space after it"),
        ("RUN_ID: hh\nMODE:sft\n", 2, "no colon with a space after it"),
        ("TRAIN_CMD: python3 x: y", 1, QUOTES),
        ("RUN_ID: a\n MODE: b", 2, "not at the start of its line"),
        (" RUN_ID: a\nMODE: b", 2, "not at the start of its line"),
        ("RUN_ID: 'abc\nMODE: x\n", 1, "a quote is opened and never closed"),
        ("RUN_ID: x\nTRAIN_CMD: 'it's'", 2, "in quotes as a whole"),
        ('RUN_ID: "a" b', 1, "in quotes as a whole"),
        ("RUN_ID:\n\tx: 1", 2, "a tab"),
        ("RUN_ID: @foo", 1, QUOTES),
        ("RUN_ID: ]", 1, QUOTES),
        ("RUN_ID: - a", 1, QUOTES),
        ('RUN_ID: "a\\qb"', 1, "use single quotes"),
        ("TRAIN_CMD: | x\nRUN_ID: y", 1, QUOTES),
        ("RUN_ID: a\n---\nMODE: c", 2, "a second list of keys"),
        ("RUN_ID: *x", 1, QUOTES),
        ("RUN_ID: a\nMODE: &x", 2, QUOTES),
    ],
)
def test_an_error_says_which_line_and_what_to_do(tmp_path: Path, text: str, line: int, words: str) -> None:
    told = refused(tmp_path, text)
    assert f" in line {line}: " in told, told
    assert words in told, told
    assert "…" not in told
    assert _ELSE not in told, "it has words of its own"


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN: [hf_secret", "HF_TOKEN: 'hf_secret", 'HF_TOKEN: "hf_secret\\q"', "HF_TOKEN: x: hf_secret",
        "HF_TOKEN: *hf_secret", "HF_TOKEN: !hf_secret x", "HF_TOKEN: | hf_secret", "hf_secret\nRUN_ID: x",
        "HF_TOKEN: @hf_secret",
        "%hf_secret a\nRUN_ID: b", "HF_TOKEN: !hf_secret!x y", "HF_TOKEN: 'a' hf_secret", "RUN_ID: x\n'hf_secret' y",
    ],
)  # fmt: skip
def test_no_error_repeats_what_stands_there(tmp_path: Path, text: str) -> None:
    assert "hf_secret" not in refused(tmp_path, text)


def test_an_error_without_words_of_its_own_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise yaml.MarkedYAMLError(None, None, "'hf_secret' is new", None)

    monkeypatch.setattr(yaml, "scan", fail)
    assert refused(tmp_path, "RUN_ID: x") == f"is not YAML: {_ELSE}"
