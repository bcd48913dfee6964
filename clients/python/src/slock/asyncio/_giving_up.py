"""What is sent when an acquisition ends without a hold, so that nothing is left of it on the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from slock import _commands
from slock._answers import is_temporary
from slock._commands import Key
from slock._pauses import retry_pauses
from slock.asyncio._connection import Answer, Connection
from slock.asyncio._route import Route
from slock.asyncio._tasks import start

_log = logging.getLogger("slock")

# How long a caller that was cancelled waits for this, in seconds. It goes on without the caller.
CALLER_WAITS = 0.5

# A request that waits on a connection of its own gets its answer within this time after SLOCK.CANCEL.
ANSWER_TIME = 2.0
CANCEL_AGAIN_AFTER = 0.1


class GivingUp:
    """Withdraws requests and releases what they may have been given, in tasks of its own."""

    def __init__(self, route: Route, retry_for: float) -> None:
        self._route = route
        self._retry_for = retry_for
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self,
        keys: Sequence[Key],
        token: str,
        pending: tuple[Connection, asyncio.Future[Answer]] | None = None,
        *,
        release: bool = True,
    ) -> asyncio.Task[None]:
        """`pending`: the connection on which the request waits, and its answer to come."""
        task = start(self._give_up(keys, token, pending, release), "slock giving up")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Returns when all has been sent, or could not be."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _give_up(
        self,
        keys: Sequence[Key],
        token: str,
        pending: tuple[Connection, asyncio.Future[Answer]] | None,
        release: bool,
    ) -> None:
        cancel = _commands.cancel(keys[0], token)
        if pending is not None:
            await self._until_answered(keys[0], cancel, *pending)
        commands = [cancel]
        if release:
            commands.append(_commands.release(keys, token))
        end = time.monotonic() + self._retry_for
        for pause in retry_pauses():
            try:
                answers = await _in_spite_of_cancellation(lambda: self._route.ask(keys[0], *commands))
            except Exception as error:
                problem: BaseException | None = error
                self._route.suspect()
            else:
                problem = next((one for one in answers if isinstance(one, BaseException)), None)
            if problem is None:
                return
            if not is_temporary(problem) or time.monotonic() + pause > end:
                _log.warning("a request for %r could not be withdrawn: %s", keys[0], problem)
                return
            await _in_spite_of_cancellation(lambda pause=pause: asyncio.sleep(pause))  # type: ignore[misc]

    async def _until_answered(
        self, key: Key, cancel: _commands.Command, connection: Connection, answer: asyncio.Future[Answer]
    ) -> None:
        # A request that is still on its way is not withdrawn. So its answer is waited for.
        end = time.monotonic() + ANSWER_TIME
        while not answer.done() and time.monotonic() < end:
            with contextlib.suppress(Exception):
                await _in_spite_of_cancellation(lambda: self._route.ask(key, cancel))
            await _in_spite_of_cancellation(lambda: asyncio.wait([answer], timeout=CANCEL_AGAIN_AFTER))
        await _in_spite_of_cancellation(connection.close)


async def _in_spite_of_cancellation(work: Callable[[], Awaitable[Any]]) -> Any:
    """Does the work again when the task is cancelled, as `asyncio.run` does with all tasks at its end.

    The work must be one that may be done twice.
    """
    while True:
        try:
            return await work()
        except asyncio.CancelledError:
            continue
