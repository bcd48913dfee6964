"""The connections to one server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.exceptions as base

from slock_client._answers import Answer, is_unsent, unsent
from slock_client._commands import Command
from slock_client._endpoint import SPARE_CONNECTIONS, Endpoint
from slock_client._fork import track
from slock_client.asyncio import _tasks as io
from slock_client.asyncio._connection import Connection, exclusive, shared

Look = Callable[[], Awaitable[float]]

NOT_NEEDED = base.ConnectionError("the connection is not needed any more")


class Node:
    """In asyncio one connection that all tasks share, and one for each wait. In threads one for each that
    asks. Some that are idle are kept.

    An error of the server is an answer. A lost connection is raised; `unsent` marks an error before which
    nothing was sent. `TimeoutError` of redis-py is raised when the answers do not come until `end`, or when
    one takes longer than the endpoint says.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.shared: Any = shared(endpoint)
        self._interrupted = False
        self._closed = False
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        """The connections are the parent's."""
        self._spare: list[Connection] = []
        self._waiting: set[Connection] = set()
        self._changing = io.Mutex()

    async def ask(self, commands: Sequence[Command], end: float, look: Look | None = None) -> list[Answer]:
        """The answers to the commands, which go in one pipeline.

        With `look` they may block a connection until `end`. While there is no answer it awaits `look()` now
        and then, whose errors end the wait, and which says after how many seconds to look again.
        """
        if look is None and self.shared is not None:
            try:
                return await self.shared.ask(commands, end)  # type: ignore[no-any-return]
            finally:
                if self._closed:
                    await self.shared.close()
        connection = self._take()
        with self._changing:
            if look is not None and self._interrupted:
                connection.fail(NOT_NEEDED)
                raise unsent(base.ConnectionError("waiting has ended"))
            if look is not None:
                self._waiting.add(connection)
        try:
            answers = await connection.ask_and_look(commands, end, look)
        except BaseException as error:
            if is_unsent(error) and connection.is_usable():  # it opens soon, for the next one that asks
                self._keep(connection, 0)  # those that are open already are taken first
                raise
            connection.fail(base.ConnectionError("the wait has ended"))
            raise
        finally:
            with self._changing:
                self._waiting.discard(connection)
        self._keep(connection, len(self._spare))
        return answers

    def interrupt(self) -> None:
        """What waits ends with an error of a lost connection, also what begins to wait later."""
        with self._changing:
            self._interrupted = True
            waiting = list(self._waiting)
        for connection in waiting:
            connection.fail(base.ConnectionError("waiting has ended"))

    def drop(self) -> None:
        """Closes the connections that are idle: perhaps they are lost too, or lead to the wrong server."""
        with self._changing:
            spare, self._spare = self._spare, []
        for connection in spare:
            connection.fail(NOT_NEEDED)

    async def close(self) -> None:
        """Closes what is idle for good. A release that comes later opens a connection for itself."""
        self._closed = True
        self.drop()
        if self.shared is not None:
            await self.shared.close()

    def _keep(self, connection: Connection, index: int) -> None:
        with self._changing:
            if len(self._spare) < SPARE_CONNECTIONS and not self._closed:
                self._spare.insert(index, connection)
                return
        connection.fail(NOT_NEEDED)

    def _take(self) -> Connection:
        while True:
            try:
                connection = self._spare.pop()
            except IndexError:
                return exclusive(self.endpoint)
            if connection.is_usable():
                return connection
            connection.fail(NOT_NEEDED)
