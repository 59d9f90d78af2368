"""`relay-tui token worker` prints what lets a worker in, however often it is asked and whatever is exported already."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from relaytui.cli import token as module
from relaytui.cli.token import token
from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.proof import derived_token

KEY = b"k" * 32
OWN = derived_token(KEY, "worker")
STATE = "/somewhere/state"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_key", lambda state: KEY if state == Path(STATE) else None)


def printed(role: str, secret: str | None, state: str = STATE) -> tuple[str, str]:
    done = CliRunner().invoke(token, [role, "--state", state], env={"RELAY_SHARED_SECRET": secret})
    if done.exception is not None:
        raise done.exception
    return done.stdout, done.stderr


def test_asked_again_where_it_was_exported_it_is_the_same() -> None:
    """The recipe of the documentation, twice in one shell, emptied the variable."""
    first, said = printed("worker", None)
    assert (first, said) == (f"{OWN}\n", "")
    assert printed("worker", first.strip()) == (first, "")


def test_a_secret_of_ones_own_is_what_workers_use_and_that_it_is_another_is_said() -> None:
    out, said = printed("worker", " my-own-secret-of-some-length\n")
    assert out == "my-own-secret-of-some-length\n"
    assert said.count("\n") == 1
    assert "RELAY_SHARED_SECRET" in said
    assert "my-own" not in said
    assert printed("worker", "another", state="/no/key/here")[0] == "another\n", "no folder has to know it"


@pytest.mark.parametrize("secret", ["", "  \n"])
def test_one_that_is_empty_is_none(secret: str) -> None:
    assert printed("worker", secret) == (f"{OWN}\n", "")


def test_one_that_no_header_carries_is_refused() -> None:
    with pytest.raises(RelayError, match="RELAY_SHARED_SECRET") as caught:
        printed("worker", "two words")
    assert caught.value.exit_code == Exit.USAGE
    assert "two words" not in str(caught.value)


def test_an_operators_token_has_nothing_to_do_with_it() -> None:
    assert printed("operator", "another") == (f"{derived_token(KEY, 'operator')}\n", "")
