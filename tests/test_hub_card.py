"""The model card: whatever people do to Relay's markers, their words stay, and there is one section of Relay's."""

from __future__ import annotations

import pytest

from relay_agent.hub import card
from relay_agent.hub.card import BEGIN, END, HEADING, table, updated

HUB = "relay/run-1"


def section(step: int) -> str:
    return f"{HEADING}\n\n{table({'Run': 'run-1', 'Step': str(step)})}\n"


def card_of(step: int) -> str:
    return updated(None, section(step), {"tags": ["relay"]})


def synced_often(text: str) -> str:
    """After four more checkpoints."""
    for step in (2, 3, 4, 5):
        text = updated(text, section(step), {"tags": ["relay"]})
    return text


WORDS = "\n## How to use (by Anna)\nPRECIOUS WORDS\n\n| mine | too |\n|---|---|\n| a | b |\n"
EDITS = {
    "END removed, words below": lambda text: text.replace(END, "") + WORDS,
    "END's line removed, words right below the table": lambda text: text.replace(END + "\n", "") + "PRECIOUS WORDS\n",
    "BEGIN removed, words above": lambda text: WORDS + text.replace(BEGIN, ""),
    "BEGIN removed, words in its place": lambda text: text.replace(BEGIN, "PRECIOUS WORDS"),
    "both removed": lambda text: text.replace(BEGIN, "PRECIOUS WORDS").replace(END, ""),
    "BEGIN in a block of code above": lambda text: f"```html\n{BEGIN}\n```\nPRECIOUS WORDS\n\n" + text,
    "both in a block of code above": lambda text: f"~~~\n{BEGIN}\nPRECIOUS WORDS\n{END}\n~~~\n" + text,
    "both in a block of code below": lambda text: text + f"````\n```\n{BEGIN}\nPRECIOUS WORDS\n{END}\n````\n",
    "both in a block of code by its indent": lambda text: text + f"\n    {BEGIN}\n    PRECIOUS WORDS\n    {END}\n",
    "BEGIN within a line": lambda text: f"Relay writes `{BEGIN}` PRECIOUS WORDS\n\n" + text,
    "END within a line above": lambda text: f"Below `{END}` PRECIOUS WORDS\n\n" + text,
    "END above as a line": lambda text: f"{END}\nPRECIOUS WORDS\n\n" + text,
    "END twice": lambda text: text + f"PRECIOUS WORDS\n{END}\n",
    "BEGIN twice": lambda text: f"{BEGIN}\nPRECIOUS WORDS\n" + text,
    "both the wrong way round": lambda text: f"{END}\nPRECIOUS WORDS\n{BEGIN}\n",
    "a block of code that nobody closed": lambda text: "```\nPRECIOUS WORDS\n\n" + text,
    "another pair round words": lambda text: f"{BEGIN}\nPRECIOUS WORDS\n{END}\n\n" + text,
    "another pair round words below": lambda text: text + f"\n{BEGIN}\nPRECIOUS WORDS\n{END}\n",
    "nothing but END": lambda text: f"PRECIOUS WORDS\n{END}\n",
    "ends of lines of Windows": lambda text: (text + "PRECIOUS WORDS\n").replace("\n", "\r\n"),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_words_stay_and_sections_do_not_gather(edit: object) -> None:
    edited = edit(card_of(1))  # type: ignore[operator]
    once = updated(edited, section(2), {"tags": ["relay"]})
    often = synced_often(edited)
    for text in (once, often):
        for line in edited.splitlines():
            if line.strip() and not line.startswith(("|", HEADING, BEGIN, END, "---", "tags", "- relay")):
                assert line in text.splitlines()
        assert "PRECIOUS WORDS" in text
        if "| mine | too |" in edited:
            assert "| mine | too |\n|---|---|\n| a | b |" in text
    assert often.count("| Step | 5 |") == 1
    assert not any(f"| Step | {step} |" in often for step in (2, 3, 4))
    assert often.replace("| Step | 5 |", "| Step | 2 |") == once
    stale = "both removed"  # of which nobody can tell any more whose it is
    assert often.count("| Step | 1 |") == (1 if edited == EDITS[stale](card_of(1)) else 0)


def test_ends_of_lines_stay_as_they_are() -> None:
    edited = ("Mine.\n" + card_of(1) + "After.\n").replace("\n", "\r\n")
    assert updated(edited, section(1), {}).replace("\r\n", "\n") == edited.replace("\r\n", "\n")


def test_the_section_cannot_hold_a_marker() -> None:
    text = updated(None, f"a\n{END}\nb\n{BEGIN}\nc", {})
    assert (text.count(BEGIN), text.count(END)) == (1, 1)
    assert card.TAG == "relay"


@pytest.mark.parametrize("line", ["~~~a\n", "```\n~~~\n", "````x\n```y\n"])
def test_a_card_of_nothing_but_fences_is_read_at_once(line: str) -> None:
    text = line * (200_000 // len(line)) + "~~~~~~~~\n" + "".join("`" * (n + 3) + "z\n" for n in range(300, 0, -1))
    once = updated(text, section(1), {})
    assert updated(once, section(2), {}).count(BEGIN) == 1
