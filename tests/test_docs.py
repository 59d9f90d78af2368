"""What the pages name is there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "reliability.md").read_text()


def test_every_test_that_the_page_on_reliability_names_is_there() -> None:
    files = {path.name: path.read_text() for path in TESTS.rglob("test_*.py")}
    named = re.findall(r"`(?:faults/)?(test_\w+\.py)`(?: `(test_\w+)`)?", PAGE)
    assert len(named) > 40
    for file, test in named:
        assert file in files, file
        assert not test or re.search(rf"^(async )?def {test}\(", files[file], re.MULTILINE), f"{test} in {file}"
