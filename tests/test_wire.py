"""The wire: what goes in comes out, what is not allowed does not get in, and text is harmless."""

from __future__ import annotations

import math
import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relaytui.wire import messages, proof, reports
from relaytui.wire.codec import convert, decode, encode
from relaytui.wire.errors import RelayError
from relaytui.wire.ids import is_id, step_name
from relaytui.wire.numbers import pack, unpack
from relaytui.wire.status import Outcome, Stream
from relaytui.wire.text import MAX_LINE, clean, counted

FRAME = messages.Reports(
    run_id="tiny",
    epoch=3,
    token="t" * 64,
    stream=Stream.TELEMETRY,
    first_seq=7,
    reports=[
        reports.Step(t=1.5, step=3, total=9, metrics={"loss": "nan", "lr": 1e-3}),
        reports.Log(t=2.0, n=1, lines=["step 3/9 loss nan"]),
        reports.Gap(t=2.0, n=2, count=40),
        reports.Ended(t=3.0, outcome=Outcome.PREEMPTED, exit_code=143, step=3),
    ],
)


def test_a_message_survives_the_wire() -> None:
    assert decode(encode(FRAME), messages.AgentMessage) == FRAME


@pytest.mark.parametrize(
    "change",
    [
        {"type": "reprots"},
        {"epoch": -1},
        {"epoch": 1.5},
        {"epoch": True},
        {"epoch": 2**63},
        {"first_seq": 0},
        {"stream": "other"},
        {"run_id": "../etc"},
        {"run_id": "a" * 129},
        {"reports": []},
        {"reports": [{"type": "ended", "t": 1.0, "outcome": "vanished"}]},
        {"reports": [{"type": "step", "t": 1.0, "step": 1, "metrics": {"loss": "NaNa"}}]},
        {"reports": [{"type": "log", "t": 1.0, "n": 1, "lines": "not a list"}]},
        {"token": "short"},
    ],
)
def test_a_message_that_is_off_is_refused_by_name(change: dict[str, object]) -> None:
    plain = {**decode(encode(FRAME), dict), **change}
    with pytest.raises(RelayError) as caught:
        convert(plain, messages.AgentMessage)
    assert caught.value.code == "bad_field"
    assert "$" in caught.value.message  # the path of the field


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b'{"a":Infinity}', b"[" * 100_000, b'"\xff"', b'{"a":1}{'])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(RelayError) as caught:
        decode(body, messages.AgentMessage)
    assert caught.value.code == "bad_json"


@pytest.mark.parametrize("good", ["a", "run-1", "A.b_c-9", "0", "x" * 128])
def test_ids_that_are_names(good: str) -> None:
    assert is_id(good)


@pytest.mark.parametrize(
    "bad",
    ["", ".", "..", "a/b", "a\\b", "-a", ".a", "a b", "a\n", "a\0", "ä", "x" * 129, "%2e%2e", "a\u202eb", "[/x]"],
)
def test_ids_that_are_not(bad: str) -> None:
    assert not is_id(bad)


def test_names_of_steps() -> None:
    assert step_name(500) == "step_00000500"
    assert step_name(500, 3) == "step_00000500.e00000003"


@given(st.floats())
def test_every_number_survives_json(value: float) -> None:
    back = unpack(decode(encode([pack(value)]), list)[0])
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain [/x] stays", "plain [/x] stays"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;aGFja2Vk\x07after", "after"),
        ("\x1b]0;title\x1b\\after", "after"),
        ("\x9b31mred", "red"),
        ("\x1bPqdcs\x1b\\x", "x"),
        ("a\tb", "a       b"),
        ("a\rb\x00c\x7f", "abc"),
        ("\u202eevil\u202c\u200b", "evil"),
        ("損失 2.5 ok", "損失 2.5 ok"),
        ("é" + "\u0301" * 50, "é" + "\u0301" * 4),
        ("a" + "\u20dd" * 50, "a" + "\u20dd" * 4),  # enclosing marks: class 0
        ("a" + "\u0488\u0489" * 50 + "b" + "\u0483" * 9, "a" + "\u0488\u0489" * 2 + "b" + "\u0483" * 4),
        ("x" + "\ufe0f" * 50 + "y", "x" + "\ufe0f" * 4 + "y"),  # variation selectors
        ("x" + "\U000e0100" * 50, "x" + "\U000e0100" * 4),
        ("\u034f" * 50, "\u034f" * 4),
        ("a" + "\u0301\u0301\u200d" * 50, "a" + "\u0301" * 4),  # what is left out between them starts no new run
        ("\u1100" + "\u1161" * 50, "\u1100" + "\u1161" * 4),  # vowels and finals of Hangul join on
        ("\u3164\u115f\uffa0\u1160" * 9, ""),  # fillers: letters that nobody sees
        ("한국어 हिन्दी ไทย", "한국어 हिन्दी ไทย"),
        ("\x1b", ""),
        ("\x1b[", ""),
    ],
)
def test_text_is_cleaned(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_an_error_of_parts_has_one_end_a_sentence() -> None:
    assert str(RelayError("x", "it is full", "make room")) == "it is full. make room"
    assert str(RelayError("x", "did you mean y?", "see z")) == "did you mean y? see z"
    assert str(RelayError("x", "it is full.")) == "it is full."
    assert str(RelayError("x", "Broken pipe. ", "look")) == "Broken pipe. look"
    assert str(RelayError("x", "")) == ""


def test_one_is_one_and_not_many() -> None:
    assert [counted(n, "file") for n in (0, 1, 2, 1_000)] == ["0 files", "1 file", "2 files", "1,000 files"]
    assert counted(1, "process", "processes") == "1 process"
    assert counted(2, "process", "processes") == "2 processes"


@pytest.fixture(scope="module")
def marks() -> str:
    """All that are put onto another character, as a pattern."""
    return "[" + "".join(chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Mn", "Me")) + "]"


@given(st.text(max_size=200) | st.text(st.characters(categories=["Mn", "Me", "Lo"]), max_size=200), st.integers(1, 80))
@example("x" * 100, 10)
@example("\ud800 lone", 20)
def test_clean_text_is_always_harmless(marks: str, raw: str, limit: int) -> None:
    text = clean(raw, limit)
    assert len(text) <= limit
    assert text.isprintable()
    assert not any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in text)
    assert not re.search(marks + "{5}", text)
    assert clean(text, limit) == text


def test_long_lines_end_in_an_ellipsis() -> None:
    text = clean("x" * 1_000_000)
    assert len(text) == MAX_LINE
    assert text.endswith("…")


def test_a_proof_holds_for_its_nonce_host_and_key_only() -> None:
    key, other = proof.proof_key("secret"), proof.proof_key("other")
    answer = proof.prove(key, "ab" * 32, "Localhost:8080")
    assert proof.proven(key, "ab" * 32, "localhost:8080", answer)
    assert not proof.proven(key, "cd" * 32, "localhost:8080", answer)
    assert not proof.proven(key, "ab" * 32, "localhost:8081", answer)
    assert not proof.proven(other, "ab" * 32, "localhost:8080", answer)
    assert not proof.proven(key, "ab" * 32, "localhost:8080", "nönsense")


def test_tokens_compare_as_bytes_whatever_they_hold() -> None:
    stored = proof.token_hash("right")
    assert proof.same_token("right", stored)
    assert not proof.same_token("wrong", stored)
    assert not proof.same_token("\udcff" * 10, stored)
