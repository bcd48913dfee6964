"""The ends of acquisitions that nobody waits for. Each is one command that may be repeated, and is sent until the
server answers it, with growing pauses, for the time in which the server would refuse the token."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable

from slock_client._clock import now
from slock_client._protocol import REFUSE_FOR, passes
from slock_client._transport import Call, NoReply, Runtime, ServerError
from slock_client.polling import Exponential

MOST = 8  # ends that are on their way at once. During an outage the others cost their memory.
AFTER_ERRORS = Exponential(0.01, 1)


class _End:
    def __init__(self, call: Call, until: float) -> None:
        self.call, self.until, self.due, self.failures = call, until, 0.0, 0


class Ends:
    def __init__(self, io: Runtime, send: Callable[[Call, float], Awaitable[object]], limit: float) -> None:
        self._io, self._send, self._limit = io, send, limit  # the limit is of one try, in seconds
        self._queue: deque[_End] = deque()
        self._permits = deque(range(MOST))
        self.is_closed = False

    def add(self, call: Call, duration: float = REFUSE_FOR) -> None:
        """Sends a command in the background until it is answered, for a time."""
        self._queue.appendleft(_End(call, now() + duration))
        self._io.spawn(self._deliver)

    def is_idle(self) -> bool:
        return not self._queue and len(self._permits) == MOST

    async def _deliver(self) -> None:
        try:
            permit = self._permits.pop()
        except IndexError:
            return
        try:
            with contextlib.suppress(IndexError):
                while True:
                    await self._try(self._queue.popleft())
        finally:
            self._permits.append(permit)
        if self._queue:  # it came after the last look
            self._io.spawn(self._deliver)

    async def _try(self, end: _End) -> None:
        if not self.is_closed:
            await self._io.pause(end.due - now())
        try:
            await self._send(end.call, min(end.until, now() + self._limit))
        except (NoReply, ServerError) as error:
            end.due = now() + (AFTER_ERRORS.pause(end.failures) or 0)
            end.failures += 1
            if passes(error) and end.due < end.until and not self.is_closed:
                self._queue.append(end)
