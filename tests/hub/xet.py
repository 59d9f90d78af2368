"""Xet's tokens: enough for a smoke test in which hf_xet keeps its blocks in a folder and only the commit comes here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from tests.hub.repos import REPO
from tests.hub.serving import Route, answer
from tests.hub.store import HubError

if TYPE_CHECKING:
    from tests.hub.server import TestHub

LIFE = 3600


async def token(hub: TestHub, request: web.Request) -> web.Response:
    if request.match_info["kind"] == "write":
        hub.writable(request)
    else:
        hub.readable(request)
    if hub.xet_folder is None:
        raise HubError(404, "This hub knows no xet")
    url, value, until = f"local://{hub.xet_folder}", "xet-token", int(time.time()) + LIFE
    headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": value, "X-Xet-Token-Expiration": str(until)}
    return answer({"casUrl": url, "accessToken": value, "exp": until}, headers=headers)


ROUTES = (Route("xet-token", "GET", REPO + "/xet-{kind:read|write}-token/{rev}", token),)
