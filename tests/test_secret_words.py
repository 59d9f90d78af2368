"""What is secret is said by its name: everywhere that the agent says, stores or sends anything."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from relay_agent import secret_words
from relay_agent.secret_words import hold, learn, of, scrub, scrub_all, scrub_deep, scrub_lines

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    before = secret_words.known()
    secret_words.know({})
    yield
    secret_words.know(before)


def test_names_say_what_is_secret() -> None:
    environ = {
        "HF_TOKEN": TOKEN, "RELAY_SHARED_SECRET": "s" * 9, "WANDB_API_KEY": "w" * 9, "AWS_SECRET_ACCESS_KEY": "a/b" * 9,
        "MY_PASSWORD_2": "correct horse", "PATH": "/usr/bin:/bin", "HTTPS_PROXY": "http://me:open-sesame@proxy:3128",
        "TOKENIZERS_PARALLELISM": "false", "HOME": "/root", "GIT_URL": "https://github.com/me/x",
    }  # fmt: skip
    found = of(environ)
    assert set(found) == {
        "HF_TOKEN", "RELAY_SHARED_SECRET", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD_2", "HTTPS_PROXY",
    }  # fmt: skip
    assert found["HTTPS_PROXY"] == "open-sesame"


def test_each_stands_by_its_name_and_short_ones_are_left() -> None:
    learn({"HF_TOKEN": TOKEN, "PIN_KEY": "1234567", "LONGER_KEY": TOKEN + "-more", "PEM_KEY": "-----B\nMIIEowIBAAKC\n"})
    assert scrub(f"401 for {TOKEN}, {TOKEN}-more; 1234567") == "401 for [HF_TOKEN], [LONGER_KEY]; 1234567"
    assert scrub("key MIIEowIBAAKC") == "key [PEM_KEY]"
    assert scrub_all(["a", f"b {TOKEN}", "c"]) == ["a", "b [HF_TOKEN]", "c"]
    assert scrub_deep({"x": [TOKEN, 1, None], TOKEN: 2.5}) == {"x": ["[HF_TOKEN]", 1, None], "[HF_TOKEN]": 2.5}


def test_as_it_stands_in_a_url_and_in_json() -> None:
    word = 'pa"ss\\wörd/+'
    learn({"MY_PASSWORD": word})
    assert scrub("https://me:pa%22ss%5Cw%C3%B6rd%2F%2B@host") == "https://me:[MY_PASSWORD]@host"
    line = json.dumps({"message": f"no {word}", "n": 1}, ensure_ascii=False).encode() + b"\n"
    assert hold(line)
    assert json.loads(scrub_lines(b'{"a":1}\n' + line).splitlines()[1]) == {"message": "no [MY_PASSWORD]", "n": 1}


def test_a_number_in_json_stays_a_number_and_what_is_no_json_is_scrubbed_all_the_same() -> None:
    learn({"PIN_KEY": "12345678"})
    data = b'{"step":12345678,"m":"12345678"}\nbroken 12345678'
    assert scrub_lines(data) == b'{"step":12345678,"m":"[PIN_KEY]"}\nbroken [PIN_KEY]'


def test_what_was_as_long_as_it_may_be_grows_no_longer() -> None:
    learn({"A_VARIABLE_WITH_A_LONG_NAME_AND_A_SHORT_KEY": "12345678"})
    text = "12345678 " * 440
    assert len(scrub_deep(text)) == len(text)


def test_names_of_variables_are_harmless() -> None:
    learn({'x"\n\x1b[31m_TOKEN': TOKEN})
    assert scrub(TOKEN) == "[x____31m_TOKEN]"


def test_a_key_of_many_lines_leaves_room_for_every_other() -> None:
    pem = "\n".join(f"{number:02}+/{'k' * 60}" for number in range(2 * secret_words.MOST))
    learn({"HF_TOKEN": TOKEN})
    learn({"SSH_PRIVATE_KEY": pem, "WANDB_API_KEY": "w" * 12})
    assert scrub(f"{TOKEN} {'w' * 12} {pem.splitlines()[0]}") == "[HF_TOKEN] [WANDB_API_KEY] [SSH_PRIVATE_KEY]"
    assert len(secret_words.known()) == secret_words.MOST
