"""What is sent when an acquisition ends without a hold, so that nothing is left of it on the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis.exceptions as base

from slock import _commands
from slock._answers import is_temporary
from slock._commands import Key
from slock._giving_up import ANSWER_TIME, CALLER_WAITS, CANCEL_AGAIN_AFTER, CLOSE_WAITS, GOES_ON_FOR
from slock._pauses import retry_pauses
from slock.asyncio._connection import Answer, Connection
from slock.asyncio._route import Route
from slock.asyncio._tasks import start
from slock.asyncio._until import until

__all__ = ["CALLER_WAITS", "GivingUp"]

_log = logging.getLogger("slock")

# How long a task goes on, in seconds, after the event loop has cancelled it at its end.
LOOP_WAITS = 2.0


class GivingUp:
    """Withdraws requests and releases what they may have been given, in tasks of its own."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._withdrawals: dict[asyncio.Task[None], Withdrawal] = {}
        self._releases: dict[asyncio.Future[None], str] = {}

    def start(
        self,
        keys: Sequence[Key],
        token: str,
        pending: tuple[Connection, asyncio.Future[Answer]] | None = None,
        *,
        release: bool = True,
    ) -> asyncio.Task[None]:
        """`pending`: the connection on which the request waits, and its answer to come."""
        one = Withdrawal(self._route, keys, token, pending, release, time.monotonic() + GOES_ON_FOR)
        task = start(one.run(), "slock giving up")
        self._withdrawals[task] = one
        task.add_done_callback(self._withdrawals.pop)
        return task

    @contextlib.contextmanager
    def releasing(self, token: str) -> Iterator[None]:
        """A release with the token runs in the block."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._releases[ended] = token
        try:
            yield
        finally:
            del self._releases[ended]
            ended.set_result(None)

    async def wait_ended(self, token: str, seconds: float) -> bool:
        """Waits until no release and no withdrawal with the token runs. False: one does after so long."""
        running: list[asyncio.Future[None]] = [
            *(task for task, one in self._withdrawals.items() if one.token == token),
            *(release for release, released in self._releases.items() if released == token),
        ]
        if running:
            _, running_still = await asyncio.wait(running, timeout=seconds)
            return not running_still
        return True

    async def close(self) -> None:
        """Waits some time for the tasks. What they have not done then is left to the ttl."""
        if not self._withdrawals:
            return
        _, late = await asyncio.wait(self._withdrawals, timeout=CLOSE_WAITS)
        for task in late:
            self._withdrawals[task].end = 0.0
            task.cancel()
        if late:
            await asyncio.wait(late)


@dataclass(eq=False)
class Withdrawal:
    """A request to withdraw, with the hold that it may have been given."""

    route: Route
    keys: Sequence[Key]
    token: str
    pending: tuple[Connection, asyncio.Future[Answer]] | None
    release: bool
    end: float
    """When it is given up."""

    async def run(self) -> None:
        """Goes on until the server has answered, or the time is over. Errors are logged."""
        cancel = _commands.cancel(self.keys[0], self.token)
        if self.pending is not None:
            await self._until_answered(cancel, *self.pending)
        commands = [cancel]
        if self.release:
            commands.append(_commands.release(self.keys, self.token))
        for pause in retry_pauses():
            problem = await self._try(*commands)
            if problem is None:
                return
            if not is_temporary(problem) or time.monotonic() + pause > self.end:
                _log.warning("a request for %r could not be withdrawn: %s", self.keys[0], problem)
                return
            await self._pause(pause)

    async def _try(self, *commands: _commands.Command) -> BaseException | None:
        try:
            answers = await self._in_time(lambda: self.route.ask(self.keys[0], *commands))
        except Exception as error:
            self.route.suspect()
            return error
        return next((one for one in answers if isinstance(one, BaseException)), None)

    async def _until_answered(
        self, cancel: _commands.Command, connection: Connection, answer: asyncio.Future[Answer]
    ) -> None:
        # A request that is still on its way is not withdrawn. So its answer is waited for.
        answer_end = math.inf
        while not answer.done() and time.monotonic() < min(self.end, answer_end):
            if await self._try(cancel) is None:
                answer_end = min(answer_end, time.monotonic() + ANSWER_TIME)
            with contextlib.suppress(base.TimeoutError):
                await self._in_time(lambda: _wait(answer, CANCEL_AGAIN_AFTER))
        await connection.close()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(base.TimeoutError):
            await self._in_time(lambda: asyncio.sleep(seconds))

    async def _in_time(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Does the work again when the task is cancelled, as `asyncio.run` does with all tasks at its end.

        The work must be one that may be done twice.
        """
        while True:
            try:
                return await until(self.end, work())
            except asyncio.CancelledError:
                self.end = min(self.end, time.monotonic() + LOOP_WAITS)


async def _wait(answer: asyncio.Future[Answer], seconds: float) -> None:
    await asyncio.wait([answer], timeout=seconds)
