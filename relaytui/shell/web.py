"""aiohttp, without the certificates of all authorities: it loads them when it is imported, twice, which is a good part
of a short command's time and 3 MB of an agent. Whoever speaks TLS asks for `connector`, which has them; a session
without it trusts nobody.
"""

from __future__ import annotations

import functools
import ssl


def _nobody(context: ssl.SSLContext) -> None:
    """Is trusted."""


ssl.SSLContext.set_default_verify_paths = _nobody  # type: ignore[assignment, method-assign]
try:
    import aiohttp
finally:
    del ssl.SSLContext.set_default_verify_paths

__all__ = ["aiohttp", "connector", "tls"]


@functools.cache
def tls() -> ssl.SSLContext:
    """Trusts whom this system trusts. Blocking: it reads their certificates."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def connector(url: str) -> aiohttp.TCPConnector:
    """For a session with who listens there. Blocking, as `tls` is, the first time that it is https."""
    return aiohttp.TCPConnector(ssl=tls() if url.startswith("https:") else True)
