"""What is wrong with a run.yaml is said in words that tell what to do, and of the line to look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from relay_agent.config import load
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
        *(
            (text, line, "a colon and a space are missing after the key")
            for text, line in (
                ("RUN_ID: hh\nMODE sft", 2),
                ("RUN_ID: hh\nMODE sft\nTRAIN_CMD: x\n", 2),
                ("RUN_ID: hh\nMODE:sft\n", 2),
                ("RUN_ID hh\nMODE: sft\n", 1),
                ("RUN_ID:hh\nMODE: sft\n", 1),
                ("RUN_ID=hh\nMODE: sft\n", 1),
                ("# of a run\n\nRUN_ID hh\nMODE: sft\n", 3),
                ("\ufeffRUN_ID hh\nMODE: sft\n", 1),
                ("RUN_ID hh\nMODE sft\nTRAIN_CMD: x: y\n", 1),
                ("RUN_ID hh # who: me\nMODE: sft\n", 1),
                ("---\nRUN_ID hh\nMODE: sft\n", 2),
                ("RUN_ID hh\n", 1),
                ("\nRUN_ID hh\nMODE sft\n", 2),
            )
        ),
        ("TRAIN_CMD: python3 x: y", 1, QUOTES),
        ("RUN_ID: a\n MODE: b", 2, "or spaces before the key"),
        (" RUN_ID: a\nMODE: b", 2, "has other spaces before it than the keys above"),
        ("RUN_ID: 'abc\nMODE: x\n", 1, "a quote is opened and never closed"),
        ("RUN_ID: x\nTRAIN_CMD: 'it's'", 2, "put quotes around all of it"),
        ('RUN_ID: "a" b', 1, "put quotes around all of it"),
        ("RUN_ID:\n\tx: 1", 2, "a tab"),
        ("RUN_ID: @foo", 1, QUOTES),
        ("RUN_ID: ]", 1, QUOTES),
        ("RUN_ID: - a", 1, QUOTES),
        ('RUN_ID: "a\\qb"', 1, "put the value in single quotes"),
        ("TRAIN_CMD: | x\nRUN_ID: y", 1, QUOTES),
        ("RUN_ID: a\n---\nMODE: c", 2, "begins a second document"),
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


GUESSES = (
    "0777", "0100", "08", "1:30", "0x10", "0b11", "1_000", "+0777", "1_0.5", "1:30.5", "00.5", "٣", "1\u0663", "１",
    ".inf", ".nan", "1e400", "1__0", "-0777",
)  # fmt: skip
"""What one reader takes for this and another for that."""


@pytest.mark.parametrize("written", GUESSES)
def test_a_number_is_read_in_one_way_or_refused(tmp_path: Path, written: str) -> None:
    file = tmp_path / "run.yaml"
    for key in ("TARGET_STEPS", "CKPT_KEEP_EVERY", "RETRIES", "RETRY_BACKOFF"):
        for text in (f"{key}: {written}\n", f"{key}: '{written}'\n"):
            file.write_text(text)
            with pytest.raises(RelayError) as told:
                load({}, file, needs_url=False)
            assert f"{file}: {key} should be " in told.value.message
            assert ascii(written) in told.value.message, "what was read"
            assert "plain digits" in told.value.message or not written[0].isdigit()
        with pytest.raises(RelayError) as told:
            load({key: written}, needs_url=False)
        assert f"{key} should be " in told.value.message


@pytest.mark.parametrize(
    ("written", "means"), [("0", 0), ("10", 10), ("+10", 10), ("1e2", 100), ("1.0e+2", 100), ("7.0", 7), ("7.", 7)]
)
def test_a_plain_number_is_what_it_looks_like(tmp_path: Path, written: str, means: int) -> None:
    file = tmp_path / "run.yaml"
    for text in (written, f"'{written}'", f"{written}  # as ever"):
        file.write_text(f"RETRIES: {text}\nRETRY_BACKOFF: {text}\n")
        settings = load({}, file, needs_url=False)
        assert (settings.retries, settings.retry_backoff) == (means, means)


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


@pytest.mark.parametrize(
    ("key", "said", "hint"),
    [
        ("RELAY_CKPT_KEEP_LAST_N", "RELAY_CKPT_KEEP_LAST_N is the commander's", "where `relay-tui serve` runs"),
        ("ckpt_interval", "RELAY_CKPT_INTERVAL is the commander's", "where `relay-tui serve` runs"),
        ("RELAY_LEASE_SECONDS", "RELAY_LEASE_SECONDS is the commander's", "where `relay-tui serve` runs"),
        ("RELAY_OUTPUT_DIR", "RELAY_OUTPUT_DIR is what Relay tells the trainer", "leave it out"),
        ("RELAY_RUN_ID", "there is no key 'RELAY_RUN_ID'", "did you mean RUN_ID?"),
        ("TRAIN_COMMAND", "there is no key 'TRAIN_COMMAND'", "did you mean TRAIN_CMD?"),
        ("settle_secs", "there is no key 'settle_secs'", "did you mean RELAY_SETTLE_SECONDS?"),
        ("LOG_LEVEL", "there is no key 'LOG_LEVEL'", "`relay-agent example` prints every key"),
        ("LEARNING_RATE", "there is no key 'LEARNING_RATE'", "`relay-agent example` prints every key"),
        ("RELAY_TOKEN", "there is no key 'RELAY_TOKEN'", "`relay-agent example` prints every key"),
    ],
)
def test_an_unknown_key_is_hinted_at_only_where_it_is_similar(tmp_path: Path, key: str, said: str, hint: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"{key}: 5\n")
    with pytest.raises(RelayError) as told:
        load({}, file, needs_url=False)
    assert told.value.message.startswith(f"{file}: {said}")
    assert told.value.hint.endswith(hint)
