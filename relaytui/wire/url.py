"""A commander's address, as an operator, a pod's configuration and a printed recipe may name it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}\Z")
_PORTS = {"http": 80, "https": 443}


class BadUrl(ValueError):  # noqa: N818 - it is what it should be that is said
    """What the text should be."""


def holds_more(text: str) -> bool:
    """Whether there may be a user and password, a query or a path in an address that has none: what is in them may be
    a secret, and is not said again."""
    return any(sign in text for sign in "@?#") or "/" in text.rpartition("://")[2].rstrip("/")


def plain_url(text: str) -> str:
    """`http(s)://host[:port]` in lower case, without the scheme's own port; BadUrl where it is something else."""
    if any(char <= " " or char == "\x7f" for char in text):  # urlsplit drops some of these without a word
        raise BadUrl("should be http(s)://host[:port] without spaces or control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadUrl("is not a URL, or its port is not one of 1 to 65535") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadUrl("should be http(s)://host[:port]")
    if "@" in parts.netloc:
        raise BadUrl("should hold no user and password: a secret never goes into an address")
    if parts.path not in ("", "/") or parts.query or parts.fragment or port == 0:
        raise BadUrl("should be http(s)://host[:port] and nothing after it")
    suffix = "" if port in (None, _PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{_host(parts.hostname, bracketed='[' in parts.netloc)}{suffix}"


def _host(name: str, *, bracketed: bool) -> str:
    if bracketed:
        try:
            return f"[{ipaddress.IPv6Address(name)}]"
        except ValueError:
            raise BadUrl("should name a host: what is in brackets is no IPv6 address") from None
    if not _HOST.match(name):
        raise BadUrl("should name a host in plain letters, digits, dots and dashes")
    if any(not 0 < len(label) < 64 for label in name.removesuffix(".").split(".")):
        raise BadUrl("should name a host: that one has a part that is empty or over 63 letters")
    return name
