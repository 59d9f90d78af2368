"""Requests of one link that wait for their answers: numbered, bounded, each with a time of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relaytui.wire.messages import Denied, Granted, Refused, Renewed

MAX_AWAITED = 64
"""Requests that may be without an answer; of more than that the oldest is waited for no longer."""

Answer = Granted | Denied | Renewed | Refused


class LinkLost(Exception):  # noqa: N818 - it says what happened
    """No session, or it ended before the answer came: ask again in the next one."""


class Asked:
    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._number = 0

    def new(self) -> tuple[int, asyncio.Future[Answer]]:
        """A number for a request, and what becomes its answer."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if len(self._answers) >= MAX_AWAITED:
            self._answers.pop(next(iter(self._answers))).cancel()
        self._answers[number] = answer
        answer.add_done_callback(lambda done: self._answers.pop(number, None))
        return number, answer

    async def wait(
        self, answer: asyncio.Future[Answer], timeout: float, late: Callable[[Answer], object] | None
    ) -> Answer:
        """For so many seconds; LinkLost then. `late` hears of one that comes after that, in the same session."""
        try:
            async with asyncio.timeout(timeout):  # wait_for of Python 3.11 forgets a cancel beside an answer
                return await asyncio.shield(answer)
        except TimeoutError:
            if late is not None:
                answer.add_done_callback(lambda done: done.cancelled() or done.exception() or late(done.result()))
            else:
                answer.cancel()
            raise LinkLost("the commander does not answer") from None
        except asyncio.CancelledError:
            answer.cancel()
            raise

    def answered(self, message: Answer) -> None:
        answer = self._answers.get(message.request)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def lose(self, trouble: str) -> None:
        """The session is over: none of them is answered any more."""
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(LinkLost(trouble))
