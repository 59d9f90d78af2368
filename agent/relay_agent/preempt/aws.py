"""EC2 Spot: two minutes' notice in the instance metadata, best effort (EC2 user guide, spot interruption notices).

`spot/instance-action` is 404 until there is one, then `{"action": "terminate", "time": "2026-03-01T10:02:00Z"}`. The
rebalance recommendation may come earlier, and means only that the risk has grown. IMDSv2: each question carries a token
that a PUT hands out; from inside a container that PUT needs a hop limit of 2 or more.
"""

from __future__ import annotations

import re

from relay_agent.preempt.metadata import Answer, Metadata, Unanswered
from relay_agent.preempt.notice import Notice, Surroundings, moment
from relaytui.wire.codec import decode
from relaytui.wire.errors import RelayError

TOKEN = "/latest/api/token"  # noqa: S105 - where one is got
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
TOKEN_SECONDS = "21600"  # noqa: S105
TOKENS = re.compile(r"[!-~]{1,1024}")
ACTIONS = ("terminate", "stop", "hibernate")


class Aws:
    every = 5.0  # as its documentation advises

    def __init__(self, around: Surroundings) -> None:
        self._metadata: Metadata = around.metadata
        self._token = ""

    async def look(self) -> list[Notice]:
        notices = []
        action = await self._ask(ACTION)
        if action.status == 200:
            said = _fields(action)
            if said.get("action") in ACTIONS:
                notices.append(Notice("aws", f"EC2 will {said['action']} this spot instance", moment(said.get("time"))))
        rebalance = await self._ask(REBALANCE)
        if rebalance.status == 200 and "noticeTime" in _fields(rebalance):
            words = "EC2 recommends to rebalance: this spot instance is likelier to be taken away"
            notices.append(Notice("aws", words, advice=True))
        return notices

    async def _ask(self, path: str) -> Answer:
        for fresh in (False, True):
            if fresh or not self._token:
                self._token = await self._new_token()
            answer = await self._metadata.ask(path, {"X-aws-ec2-metadata-token": self._token})
            if answer.status != 401:  # the token ran out
                break
        if answer.status not in (200, 404):
            raise Unanswered(f"HTTP {answer.status}")
        return answer

    async def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": TOKEN_SECONDS}
        answer = await self._metadata.ask(TOKEN, headers, put=True)
        if answer.status != 200 or not TOKENS.fullmatch(answer.text):
            raise Unanswered(f"HTTP {answer.status} instead of a token")
        return answer.text


def _fields(answer: Answer) -> dict[str, object]:
    try:
        return decode(answer.text.encode(), dict[str, object])
    except RelayError:
        raise Unanswered("something that is no JSON object") from None
