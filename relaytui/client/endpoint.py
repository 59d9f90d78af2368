"""Where a commander is and with which token it is spoken to. No network here."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from relaytui.wire.errors import Exit, RelayError
from relaytui.wire.text import clean


@dataclass(frozen=True)
class Endpoint:
    """`url` is `http(s)://host:port` without a path; `token` never shows in a repr."""

    url: str
    token: str = field(repr=False)

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

    def bad(why: str) -> RelayError:
        return RelayError(
            "bad_url",
            f"{clean(text, 120)!r} is no commander's address: {why}",
            "write it as http://HOST:PORT",
            exit_code=Exit.USAGE,
        )

    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise bad(str(error)) from None
    if parts.scheme not in ("http", "https"):
        raise bad("only http and https are spoken")
    if "@" in parts.netloc:
        raise bad("a token never goes into an address (set RELAY_TOKEN)")
    if not parts.hostname or not parts.netloc.isascii() or any(c.isspace() for c in parts.netloc):
        raise bad("it names no host")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise bad("it has a path")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    default = {"http": 80, "https": 443}[parts.scheme]
    suffix = "" if port in (None, default) else f":{port}"
    return f"{parts.scheme}://{host}{suffix}"
