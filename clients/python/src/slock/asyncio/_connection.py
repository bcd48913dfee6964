"""One connection that all tasks share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeAlias

import redis.exceptions as base

from slock._answers import is_replica
from slock._commands import Command
from slock._recipe import Recipe
from slock.asyncio._opening import abort, connected
from slock.asyncio._tasks import start

Answer = Any  # what the server answered, or the error
Entry: TypeAlias = "tuple[Command, asyncio.Future[Answer]]"


class Connection:
    """Sends the commands of many tasks over one connection, in the order in which they are asked.

    A command that has been handed over is sent and gets its answer, also when the task that asked is
    cancelled. It connects when it is first used, and again after an error. Nothing is sent twice.
    """

    def __init__(self, recipe: Recipe, *, limited: bool = True) -> None:
        """`limited`: whether an answer that does not come in time ends the connection."""
        self._recipe = recipe
        self._timeout = recipe.timeout if limited else None
        self._connection: Any = None
        self._unsent: list[Entry] = []
        self._sent: deque[tuple[asyncio.Future[Answer], float]] = deque()
        self._server: asyncio.Task[None] | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def hand_over(self, *commands: Command) -> list[asyncio.Future[Answer]]:
        """The answers to come. An error is a result, not an exception, of its future."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Answer]] = [loop.create_future() for _ in commands]
        entries = zip(commands, futures, strict=True)
        if self._connection is None:
            self._unsent.extend(entries)
        else:
            self._write(entries)
        if self._server is None:
            self._server = start(self._serve(), "slock connection")
        return futures

    async def ask(self, *commands: Command) -> list[Answer]:
        """The answers, errors of the server among them. A lost connection is raised."""
        answers = [await future for future in self.hand_over(*commands)]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, base.ResponseError):
                raise answer
        return answers

    def fail(self, error: Exception) -> None:
        """Ends the connection. What has no answer gets `error`; the next command connects again."""
        connection, self._connection = self._connection, None
        sent, self._sent = self._sent, deque()
        unsent, self._unsent = self._unsent, []
        for future in [entry[0] for entry in sent] + [entry[1] for entry in unsent]:
            if not future.done():
                future.set_result(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        server, self._server = self._server, None
        if server is not None and server is not asyncio.current_task():
            server.cancel()
        if connection is not None:
            abort(connection)

    async def close(self) -> None:
        """Ends the connection for good. What has no answer gets an error."""
        self._closed = True
        server = self._server
        self.fail(base.ConnectionError("the connection has been closed"))
        if server is not None and server is not asyncio.current_task():
            await asyncio.wait([server])

    async def _serve(self) -> None:
        me = asyncio.current_task()
        try:
            if self._closed:
                raise base.ConnectionError("the connection has been closed")
            if self._connection is None:
                connection = await connected(self._recipe)
                if self._server is not me:
                    abort(connection)
                    return
                self._connection = connection
                unsent, self._unsent = self._unsent, []
                self._write(unsent)
            while self._sent:
                await self._read_one()
                if self._server is not me:
                    return
            self._server = None
        except asyncio.CancelledError:
            if self._server is me:
                # The loop ends. Tasks that clean up ask again.
                self.fail(base.ConnectionError("the connection was cancelled"))
        except Exception as error:
            if self._server is me:
                self.fail(error)

    async def _read_one(self) -> None:
        connection, me = self._connection, asyncio.current_task()
        while True:
            try:
                answer: Answer = await connection.read_response(disconnect_on_error=False)
            except base.ResponseError as error:
                answer = error
            except asyncio.CancelledError:
                if self._server is me and not self._closed:
                    continue  # not by this library: the loop ends, and tasks that clean up need their answers
                raise
            break
        if self._server is not me:
            return
        future, _ = self._sent.popleft()
        if not future.done():
            future.set_result(answer)
        if self._recipe.sentinels and is_replica(answer):
            # The Sentinels have to be asked again.
            self.fail(base.ConnectionError("the server is no longer the primary"))

    def _write(self, entries: Iterable[Entry]) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + self._timeout if self._timeout is not None else float("inf")
        packed: list[bytes] = []
        for command, future in entries:
            try:
                packed += self._connection.pack_command(*command)
            except Exception as error:  # text that cannot be encoded
                future.set_result(error)
            else:
                self._sent.append((future, latest))
        if self._timer is None and self._timeout is not None:
            self._timer = loop.call_at(latest, self._look_at_time)
        try:
            # Without draining: what is not answered yet is bounded by the number of tasks that ask.
            writer = self._connection._writer
            if writer.is_closing():  # asyncio would warn of each write
                raise OSError("the connection is closing")
            writer.writelines(packed)
        except (AttributeError, OSError, RuntimeError) as error:  # it has been closed meanwhile
            self.fail(base.ConnectionError(f"the connection has ended: {error}"))

    def _look_at_time(self) -> None:
        self._timer = None
        if not self._sent:
            return
        loop = asyncio.get_running_loop()
        if self._sent[0][1] <= loop.time():
            self.fail(base.TimeoutError("no answer within the time"))
        else:
            self._timer = loop.call_at(self._sent[0][1], self._look_at_time)
