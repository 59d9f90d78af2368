"""Patterns of one's own: what they say of a line, which are refused, and that none holds up an agent."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest

from relay_agent import config
from relay_agent.output.progress import Progress, Told
from relay_agent.reading import patterns as module
from relay_agent.reading.patterns import BadPattern, Pattern, check, patterns
from relaytui.wire.errors import RelayError

COST = r"update (?P<step>[\d,]+) of (?P<total>\d+): cost (?P<loss>\S+)(?: at (?P<speed>\S+) tok)?"


@pytest.mark.parametrize(
    ("pattern", "line", "step", "total", "metrics"),
    [
        (COST, "[10:00] update 12 of 90: cost 2.5 at 18 tok", 12, 90, {"loss": 2.5, "speed": 18.0}),
        (COST, "update 1,200 of 9000: cost nan", 1200, 9000, {"loss": math.nan}),
        (COST, "update 12 of 90: cost much", 12, 90, {}),
        (r"cost=(?P<loss>\S+)", "cost=-Infinity", None, None, {"loss": -math.inf}),
        (r"acc (?P<accuracy>\S+)%", "acc 91.5%", None, None, {"accuracy": 91.5}),
        (r"at (?P<step>\S+)", "at 5.5", None, None, None),
        (r"at (?P<step>\S+)", "at 99999999999999999999", None, None, None),
        (r"at (?P<step>-?\d+)", "at -3", None, None, None),
        (COST, "step 5/9 loss 2", None, None, None),
    ],
)
def test_what_one_says(
    pattern: str, line: str, step: int | None, total: int | None, metrics: dict[str, float] | None
) -> None:
    sight = Pattern(pattern).read(line)
    if metrics is None:
        assert sight is None
        return
    assert sight is not None
    assert (sight.step, sight.total) == (step, total)
    assert sight.metrics == pytest.approx(metrics, nan_ok=True)


def test_one_comes_before_what_is_known() -> None:
    own = patterns([r"loss2 (?P<loss>\S+)", r"gradient steps: (?P<step>\d+)/(?P<total>\d+)"])
    progress = Progress(patterns=own)
    assert progress.see("loss2 1.5", 0.0) is None, "nobody knows yet of which step"
    assert progress.see("gradient steps: 3/90", 0.0) == Told(3, 90, {})
    assert progress.see("loss2 1.25", 1.0) == Told(3, 90, {"loss": 1.25})
    assert progress.see("step 5/7 loss 2", 1.0) is not None, "what is known is still read"
    assert progress.total == 90, "what one's own pattern says is no guess"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "is no regular expression: missing ), unterminated subpattern, at character 1"),
        ("[", "is no regular expression"),
        ("loss", "has no named group"),
        (r"(\d+)", "has no named group"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("(?P<loss>a)" + "b" * 1000, "is longer than 1000 characters"),
        (r"(?P<loss>(?:a+)+)b", "repeats something that repeats"),
        (r"(?P<loss>\d)(a|b*)*c", "repeats something that repeats"),
        (r"(?P<loss>(x{1,50}){1,50})", "repeats something that repeats"),
        (r"(?=(?P<loss>(a*)*))", "repeats something that repeats"),
        (r"(?(1)(?P<loss>(a+)+)|b)", "repeats something that repeats"),
        (r"(?P<lösung>\d+)", "has a group whose name is no plain word"),
        ("(?P<loss>" * 90 + "a" + ")" * 90, "is no regular expression"),
    ],
)
def test_which_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(BadPattern, match=module.re.escape(why)):
        check(pattern)


@pytest.mark.parametrize(
    "pattern", [r"(?P<loss>(?:\d{1,3},)*\d+)", r"(?P<a>.*?)x(?P<b>.*)", r"(?P<s>\d+)(?:/(?P<total>\d+))?"]
)
def test_which_are_taken(pattern: str) -> None:
    assert check(pattern) == pattern


def test_one_that_takes_too_long_is_stopped_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 0.02)
    said: list[str] = []
    slow = Pattern(r"(?P<loss>.*).*.*.*.*.*.*Q", said.append)
    begun = time.process_time()
    assert slow.read("x" * 4000) is None
    assert slow.read("x" * 4000) is None
    assert time.process_time() - begun < 1
    (words,) = said
    assert "took too long for a line and is not asked again" in words


def test_elsewhere_than_in_the_main_thread_one_is_asked_without_a_bound() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(Pattern(COST).read("update 1 of 2: cost 3")))
    thread.start()
    thread.join()
    assert found != [None]
    assert len(found) == 1


def settings(tmp_path: Path, text: str, **environ: str) -> config.Settings:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return config.load({"COMMANDER_URL": "http://127.0.0.1:1", **environ}, path)


def test_they_come_from_run_yaml_or_one_a_line_from_the_environment(tmp_path: Path) -> None:
    both = (r"a (?P<step>\d+)", r"b (?P<loss>\S+)")
    assert settings(tmp_path, "").patterns == ()
    assert settings(tmp_path, f"PATTERNS: ['{both[0]}', '{both[1]}']").patterns == both
    assert settings(tmp_path, f"patterns: '{both[0]}'").patterns == both[:1]
    assert settings(tmp_path, "", PATTERNS=f"{both[0]}\n\n{both[1]}\n").patterns == both
    assert settings(tmp_path, "PTY: true").pty
    assert not settings(tmp_path, "").pty


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("PATTERNS: ['(']", "PATTERNS holds a pattern, number 1, that is no regular expression"),
        ("PATTERNS: ['(?P<a>b)', 'loss']", "PATTERNS holds a pattern, number 2, that has no named group"),
        ("PATTERNS: ['(?P<a>(b+)+)']", "number 1, that repeats something that repeats"),
        ("PATTERNS: [5]", "PATTERNS should be a list of regular expressions, each in single quotes"),
        ("PATTERNS: 5", "PATTERNS should be text"),
        ("PATTERNS: {a: b}", "PATTERNS should be text"),
        ("PATTERNS: [" + "'(?P<a>b)', " * 17 + "]", "holds more than 16 patterns"),
        ("PTY: maybe", "PTY should be true or false"),
    ],
)
def test_a_bad_one_is_one_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(RelayError) as caught:
        settings(tmp_path, text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
