"""Which of many lines are looked at: those with a word that says something, whatever was printed before."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_agent.reading import worthy
from relay_agent.reading.patterns import Pattern
from relay_agent.reading.reader import Reader
from relay_agent.reading.shapes import WORDS
from relay_agent.reading.worthy import Worthy

PARTS = [*WORDS, "a", "1", "27", " ", "st", "ep", "S", "é", "x" * 30, ""]
LINE = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)


def says(line: str) -> bool:
    return any(word in line for word in WORDS)


@given(st.lists(st.lists(LINE, max_size=80), max_size=6))
def test_every_line_with_a_word_and_no_other(lots: list[list[str]]) -> None:
    found = Worthy()
    for lines in lots:
        assert list(found.flags(lines)) == [says(line) for line in lines]


def printed(kinds: int, seed: int) -> list[str]:
    """A lot of lines of so many kinds, each with numbers that are new."""
    rng = random.Random(seed)
    names = [f"{'step ' if kind % 5 == 0 else ''}{chr(97 + kind % 26) * (1 + kind // 26)}" for kind in range(kinds)]
    return [f"{rng.choice(names)} {rng.random():.4f} {rng.randrange(10**6):06d}" for _ in range(200)]


@pytest.mark.parametrize("kinds", [1, 30, 3_000])
def test_by_forms_and_by_words_it_is_the_same(kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worthy, "MAX_FORMS", 64)
    found = Worthy()
    for seed in range(100):
        lines = printed(kinds, seed)
        assert list(found.flags(lines)) == [says(line) for line in lines]
        assert len(found._forms) <= 64 + worthy.MAX_NEW


def test_lines_that_come_again_are_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Worthy()
    list(found.flags(printed(10, 1)))

    def searched(*given: object) -> None:
        raise AssertionError("it was looked through by words")

    monkeypatch.setattr(worthy, "by_words", searched)
    monkeypatch.setattr(worthy, "_WORDS", None)
    assert sum(found.flags(printed(10, 2))) > 0


def test_what_is_new_all_the_time_is_looked_at_for_its_form_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    found = Worthy()
    by_words = worthy.by_words

    def searched(lines: list[str], text: str) -> object:
        tried.append(found._pause)
        return by_words(lines, text)

    monkeypatch.setattr(worthy, "by_words", searched)
    for seed in range(2 * worthy.PAUSE):
        list(found.flags(printed(3_000, seed)))
    assert tried.count(worthy.PAUSE) == 2, "once for each pause"


def test_who_begins_to_wait_for_any_line_loses_none() -> None:
    """A table's head is found among lines that say nothing: each row after it counts, and then those with words."""
    lines = ["nothing to say", "Step  Training Loss", *[f"{n}  0.{n}" for n in range(10, 40)], "that was it", "none"]
    taken = []
    reader = Reader()
    for text in reader.worthy(lines):
        taken.append(text)
        reader.see(text)
    assert taken[:31] == lines[1:32]


def test_with_patterns_every_line_is_looked_at() -> None:
    lines = [f"nothing {n}" for n in range(100)]
    assert list(Reader(0, [Pattern(r"nothing (?P<step>\d+)")]).worthy(lines)) == lines
