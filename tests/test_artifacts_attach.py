"""Which small files of a trainer's folder are attached, and what is said of those that were not looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay_agent.artifacts.far import attach
from relay_agent.artifacts.far.attach import matching


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "MAX_SEEN", 20)


def made(root: Path, *paths: str) -> Path:
    for path in paths:
        at = root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.touch()
    return root


def crowd(folder: str, count: int = 30) -> list[str]:
    return [f"{folder}/{number:03}.txt" for number in range(count)]


def test_a_folder_of_many_is_said_and_hides_no_file_beside_it(tmp_path: Path) -> None:
    made(tmp_path, "summary.json", "z/late.json", *crowd("rollouts"))
    found, missed = matching(tmp_path, ["*.json"], 200)
    assert found == ["summary.json"]
    (words,) = missed
    assert "20 entries" in words
    assert "rollouts/" in words
    assert "ARTIFACTS_FILES" in words


def test_a_file_that_lies_deep_is_said(tmp_path: Path) -> None:
    deep = "a/b/c/d/e/f/g/h/i/j"
    made(tmp_path, "top.json", f"{deep}/deep.json", f"{deep}/k/deeper.json")
    found, missed = matching(tmp_path, ["*.json"], 200)
    assert found == ["top.json"]
    (words,) = missed
    assert "8 folders" in words
    assert "a/b/c/d/e/f/g/h/i/" in words
    assert matching(tmp_path, [f"{deep}/*.json"], 200) == ([f"{deep}/deep.json", f"{deep}/k/deeper.json"], [])


def test_a_pattern_with_a_beginning_is_looked_for_there_alone(tmp_path: Path) -> None:
    made(tmp_path, "z/late.json", "z/y/later.json", "other/z/no.json", *crowd("rollouts"))
    assert matching(tmp_path, ["z/*.json"], 200) == (["z/late.json", "z/y/later.json"], [])
    assert matching(tmp_path, ["z/late.json"], 200) == (["z/late.json"], [])
    assert matching(tmp_path, ["none/*.json"], 200) == ([], [])
    found, missed = matching(tmp_path, ["z/*.json", "*.txt"], 200)
    assert found[-2:] == ["z/late.json", "z/y/later.json"], "it is there whatever the other one runs into"
    assert len(missed) == 1


@pytest.mark.parametrize("pattern", ["../*", "up/*.json", "in/../../*", "/*", "./*.json", "in//*"])
def test_a_beginning_leads_nowhere_else(tmp_path: Path, pattern: str) -> None:
    root = tmp_path / "out"
    made(tmp_path, "secret.json", "out/in/x.txt")
    (root / "up").symlink_to(tmp_path)
    found, missed = matching(root, [pattern], 200)
    assert found == []
    assert not any("secret" in words for words in missed)


def test_more_than_go_are_said(tmp_path: Path) -> None:
    made(tmp_path, "a.json", "b.json", "c.json")
    found, missed = matching(tmp_path, ["*.json"], 2)
    assert found == ["a.json", "b.json"]
    assert ["more than 2" in words for words in missed] == [True]


def test_a_folder_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert matching(tmp_path / "none", ["*"], 200) == ([], [])
