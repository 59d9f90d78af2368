"""Where a commander is and with which token it is spoken to. No network here."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.text import clean
from relaytui.wire.url import BadUrl, holds_more, plain_url


@dataclass(frozen=True)
class Endpoint:
    """`url` is `http(s)://host:port` without a path; `token` never shows in a repr."""

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise RelayError(
                "bad_token",
                f"the token for {self.url} holds characters that a header cannot carry",
                "set RELAY_TOKEN to what `relay-tui token operator` prints where the commander runs",
                exit_code=Exit.USAGE,
            )

    @property
    def host(self) -> str:
        """The Host header this endpoint is asked with, and what a proof of identity covers."""
        return urlsplit(self.url).netloc

    @property
    def feed_url(self) -> str:
        scheme, rest = self.url.split("://", 1)
        return f"{'wss' if scheme == 'https' else 'ws'}://{rest}/ws/feed"


def clean_url(text: str) -> str:
    """An operator's URL as `http(s)://host[:port]`; RelayError `bad_url` where it is none."""
    try:
        return plain_url(text if "://" in text else f"http://{text}")
    except BadUrl as error:
        raise RelayError(
            "bad_url",
            f"{'what is named' if holds_more(text) else repr(clean(text, 120))} is no commander's address: it {error}",
            "write it as http://HOST:PORT; a token goes into RELAY_TOKEN",
            exit_code=Exit.USAGE,
        ) from None
