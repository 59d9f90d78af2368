"""Any bytes, cut anywhere: the same lines and the same steps, never an exception, and no line that takes long."""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay_agent.output.lines import Lines
from relay_agent.output.progress import Progress
from relay_agent.reading.forms import ZEROS, Forms, of_plain
from relay_agent.reading.shapes import MAX_LENGTH, read
from relay_agent.reading.sight import Sight
from relaytui.wire.reports import Step
from relaytui.wire.text import MAX_LINE, clean

CORPUS = [
    json.loads(line)
    for path in sorted((Path(__file__).parent / "data" / "output").glob("*.jsonl"))
    for line in path.read_text().splitlines()
]
TEXTS = [case["line"] for case in CORPUS if "line" in case]
SIGNS = (
    b"\n",
    b"\r",
    b"\r\n",
    b"\x08" * 9,
    b"\x1b[A",
    b"\x1b[2A",
    b"\x1b[K",
    b"\x1b[31m",
    b"\x1b]0;t\x07",
    b"\x1b",
    b"\xe2\x96",
)

LETTERS = [*"0123456789{}[]'\"|:=,. /-+eE%\\nan"]


def whole(chunks: list[bytes]) -> list[str]:
    """What is understood, whatever is shown of it when."""
    lines = Lines()
    lots = [lot for chunk in chunks for lot in lines.feed(chunk, 0.0)] + lines.finish()
    return [line for lot in lots if lot.whole for line in lot.lines]


def sightings(chunks: list[bytes], forms: type[Forms] = Forms) -> list[object]:
    lines, progress = Lines(), Progress()
    progress._reader._forms = forms()
    lots = [lot for chunk in chunks for lot in lines.feed(chunk, 0.0)] + lines.finish()
    told = [
        progress.see(text, 0.0, lot.nested)
        for lot in lots
        if lot.whole
        for text in progress.worthy(lot.lines, lot.form)
    ]
    return [(step.step, step.total, str(step.metrics)) for step in told if step is not None]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


PARTS = st.one_of(
    st.sampled_from(SIGNS),
    st.sampled_from(TEXTS).map(str.encode),
    st.binary(max_size=12),
    st.just(b"12/50"),
    st.just(b" loss 1.5"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=14).map(b"".join), st.lists(st.integers(0, 10_000), max_size=8))
def test_where_a_read_cuts_changes_nothing(data: bytes, places: list[int]) -> None:
    chunks = cut(data, places)
    assert whole(chunks) == whole([data])
    assert sightings(chunks) == sightings([data])


NOISE = b"".join(b"worker %d handled a batch in 0.5 s\n" % n for n in range(45))
TABLE = b"step,loss,lr\n1,0.5,1e-3\n2,0.4,1e-3\n"
AWAITED = b"{'loss': '2.3', 'learning_rate': '1e-05', 'epoch': '0.1'}\n"
BAR = b" 20%%|##        | %d/50 [00:12<00:35,  1.11it/s]\n"


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (NOISE + TABLE + NOISE + b"3,0.3,1e-3\n", 3),
        (NOISE + TABLE + NOISE * 12 + b"3,0.3,1e-3\n" + NOISE + TABLE, 4),
        (BAR % 9 + NOISE + AWAITED + NOISE + BAR % 10, 3),
        (BAR % 9 + NOISE + AWAITED + NOISE[:99] + BAR % 10 + NOISE + AWAITED + BAR % 11, 3),
    ],
)
def test_what_one_line_makes_of_later_ones_does_not_depend_on_what_came_in_one_read(data: bytes, count: int) -> None:
    at_once = sightings([data])
    assert len(at_once) == count
    for size in (1, 40, 700):
        assert sightings([data[at : at + size] for at in range(0, len(data), size)]) == at_once


class NoForms(Forms):
    """Every line through its shape."""

    def known(self, text: str) -> None:
        return None

    def read(self, text: str) -> Sight | None:
        return read(text)


def again(text: str, times: int, rng: random.Random) -> bytes:
    """A line so often, each time with other digits."""
    digits = "0123456789"
    lines = ("".join(rng.choice(digits) if char in digits else char for char in text) for _ in range(times))
    return b"".join(line.encode() + b"\n" for line in lines)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(1, 9), st.sampled_from((b"", *SIGNS))), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.randoms(use_true_random=False),
)
def test_forms_change_nothing_but_the_time_it_takes(
    parts: list[tuple[str, int, bytes]], places: list[int], rng: random.Random
) -> None:
    data = b"".join(sign + again(text, times, rng) for text, times, sign in parts)
    assert sightings(cut(data, places)) == sightings([data], NoForms)


@settings(max_examples=40, deadline=None)
@given(st.lists(PARTS, max_size=6).map(b"".join))
def test_byte_by_byte_is_the_same(data: bytes) -> None:
    assert whole([data[at : at + 1] for at in range(len(data))]) == whole([data])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_no_text_raises(text: str) -> None:
    sight = read(clean(text))
    assert sight is None or sight.step is None or 0 <= sight.step <= 2**53


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(TEXTS),
    st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(LETTERS)), max_size=6),
)
def test_what_is_told_of_a_spoilt_line_fits_the_wire(text: str, changes: list[tuple[int, str]]) -> None:
    for place, char in changes:
        at = place % (len(text) + 1)
        text = text[:at] + char + text[at + 1 :]
    progress = Progress()
    for line in (text, text[: len(text) // 2], text + text, text):
        told = progress.see(clean(line), 0.0)
        if told is not None:
            assert 0 <= told.step <= 2**53
            assert all(
                0 < len(name) <= 128 and name.isprintable() and isinstance(value, float)
                for name, value in told.metrics.items()
            )
            assert len(told.metrics) <= 256
            Step(0.0, told.step, told.total, {}, None)


def test_a_form_that_is_known_is_read_as_its_shape_would() -> None:
    """Every line of the corpus again and again with other digits: reading off says what understanding says."""
    rng = random.Random(5)
    forms, read_off = Forms(), 0
    for text in map(clean, TEXTS):
        for _ in range(8):
            line = "".join(rng.choice("0123456789") if char.isdigit() and char.isascii() else char for char in text)
            expected = read(line)
            if (known := forms.known(line)) is not None:
                read_off += 1
                assert str(known) == str(expected), line
            assert str(forms.read(line)) == str(expected), line
    assert read_off > 300


def test_a_number_that_is_none_spoils_no_form() -> None:
    """The digits of a form that is believed can also say infinity, a fraction, or more than there are steps."""
    for line in ('{"step": 0e000, "loss": 0}', "step 5 max_steps=1e-0 loss 2", "step 123456789012345678 loss 0"):
        forms = Forms()
        for digit in "0123456789":
            other = line.replace("0", digit)
            assert str(forms.known(other) or forms.read(other)) == str(read(other))


@pytest.mark.parametrize("line", ["step 5 acc(%)=12.5 loss=0.3", "step 5 b(\\)=12.5 loss=0.3 a(%b)=2"])
def test_a_name_is_read_off_as_it_is_written(line: str) -> None:
    forms = Forms()
    for digit in "123456789":
        other = line.replace("5", digit)
        assert str(forms.known(other) or forms.read(other)) == str(read(other))
    assert forms.known(line) is not None


@given(
    st.lists(st.lists(st.sampled_from([*TEXTS, "a line", "x" * 3_999, "12 of 3"]), min_size=1, max_size=30), max_size=4)
)
def test_the_form_of_many_lines_is_theirs_and_they_are_plain(lots: list[list[str]]) -> None:
    lines = Lines()
    for texts in lots:
        for lot in lines.feed("".join(f"{text}\n" for text in texts).encode(), 0.0):
            assert not lot.form or lot.form == "\n".join(lot.lines).encode().translate(ZEROS)
            assert not lot.form or all(line == clean(line) for line in lot.lines)


@pytest.mark.parametrize("odd", [b"\0", b"\t", b"\x1b", b"\x7f", b"\x80", b"\xff", "é".encode()])
def test_what_is_not_plain_has_no_form(odd: bytes) -> None:
    assert of_plain(b"step 12\nloss 3.5") == b"step 00\nloss 0.0"
    assert of_plain(b"step 12\n" + odd) == b""


@pytest.mark.parametrize("size", [MAX_LINE - 1, MAX_LINE, MAX_LINE + 1, MAX_LINE + 1_000, 3 * MAX_LINE])
@pytest.mark.parametrize("before", [0, 1, 1_000, MAX_LINE // 2 - 1, MAX_LINE // 2, MAX_LINE])
def test_a_long_line_among_others_is_cut(size: int, before: int) -> None:
    texts = ["short", "b" * before, "x" * size, "short", "step 5 loss 0.5"]
    assert whole(["".join(f"{text}\n" for text in texts).encode()]) == list(map(clean, texts))


def test_every_line_of_the_corpus_ends_where_it_ends() -> None:
    """All of it as one stream, cut at random, is what its lines are one by one."""
    data = "\n".join(TEXTS).encode() + b"\n"
    rng = random.Random(3)
    chunks, at = [], 0
    while at < len(data):
        size = rng.choice((1, 7, 64, 4096))
        chunks.append(data[at : at + size])
        at += size
    assert whole(chunks) == whole([data])
    assert sightings(chunks) == sightings([data])


HARD = [
    "{" * MAX_LENGTH,
    "{'a':" * 700,
    "{'a': [" + "[" * 3000,
    "{'" + "a" * 3900,
    '{"a": "' + "\\\\" * 1900,
    "step " * 790,
    "step 1 " * 560,
    "step 1/" * 560,
    "step 1 | " + "a b " * 900,
    "step 1 | " + "| a: 1 " * 560,
    "step 1 " + "a.b/c-" * 640,
    "iteration " + "1," * 1900,
    "step 1,000" + ",000" * 900 + " loss 1",
    "1%|" * 1300,
    "1%|x| 1/2 [0<0, 1it/s" * 190,
    " 10%|" + "|" * 3900,
    "epoch " * 660 + "it/s",
    "Epoch 1/2 ━" + " ━" * 1900 + " • it/s",
    "3/7 " + "━ " * 1900 + "1ms/step",
    "3/7 - " + "- a: 1 " * 560 + "1ms/step",
    "1/3 2.3G " + "1.1 " * 900 + "%",
    "[" * 3900 + "step",
    "[a] " * 990 + "step",
    "a-" * 1900 + "1: step",
    "a." * 1900 + " - step 1 loss 1",
    "prompt: " * 490 + "step",
    "第 1/2 步 " * 560,
    "轮次" * 1900,
    "loss " * 790,
    "loss: " * 660,
    "step 1 loss" + " " * 3900,
    "learning rate " * 280 + "step",
    "validation_" * 360 + "loss 1 step 1",
]  # fmt: skip


@pytest.mark.parametrize("line", HARD, ids=lambda line: line[:16])
def test_no_line_takes_long(line: str) -> None:
    progress = Progress()
    begun = time.process_time()
    progress.see(line[:MAX_LINE], 0.0)
    assert time.process_time() - begun < 0.25


def test_a_flood_of_states_in_one_read_is_read_to_its_last() -> None:
    data = b"".join(
        b"\r %3d%%|#   | %d/999 [00:01<00:02, 9.0it/s, loss=%.3f]" % (n // 10, n, n / 7) for n in range(1000)
    )
    seen = sightings([data, b"\n"])
    assert len(seen) == 999
    step, total, _ = seen[-1]  # type: ignore[misc]
    assert (step, total) == (999, 999)
    assert not math.isnan(step)
