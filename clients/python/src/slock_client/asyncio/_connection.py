"""Connections that tasks share, by the public parts of redis-py."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import redis.exceptions as base

from slock_client._answers import Answer, note_unsent
from slock_client._clock import now
from slock_client._commands import Command
from slock_client._io import FIRST_LOOK, Look
from slock_client._recipe import Recipe

# So often, in seconds, it is looked whether answers are overdue.
TICK = 0.05

# So many connections for waits are kept for the next waits.
SPARE_CONNECTIONS = 8

Future = asyncio.Future  # of an answer


async def connected(recipe: Recipe) -> Any:
    """A new connection of redis-py that is ready for commands. Only for tasks of the library."""
    # Without a time-out of its own: redis-py would use `wait_for`, which may swallow a cancellation.
    connection = recipe.open(socket_timeout=None)
    connecting = asyncio.ensure_future(connection.connect())
    try:
        if not (await asyncio.wait([connecting], timeout=recipe.connect_timeout))[0]:
            raise base.TimeoutError(f"no connection to {recipe.address} within the time")
        connecting.result()
    except BaseException as problem:
        connecting.cancel()
        await disconnected(connection)
        number = re.search(r"Err(?:or|no) (\d+)", str(problem))
        if number is not None and isinstance(problem, base.ConnectionError):
            # asyncio says only that the call failed.
            raise base.ConnectionError(f"{problem} {os.strerror(int(number[1]))}.") from problem
        raise
    return connection


async def disconnected(connection: Any) -> None:
    """Closes a connection without waiting for the other side."""
    with contextlib.suppress(Exception):
        await connection.disconnect(nowait=True)


class Connection:
    """Sends the commands of many tasks over one connection, in the order in which they are asked.

    A command that was asked is sent and gets its answer, also when the task that asked is cancelled. It
    connects when it is first used, and again after an error. Nothing is sent twice.
    """

    def __init__(self, recipe: Recipe, *, limited: bool = True) -> None:
        """`limited`: whether an answer that does not come within the time of the recipe ends the
        connection.
        """
        self._recipe = recipe
        self._limited = limited
        self._connection: Any = None
        self._unsent: list[tuple[bytes, list[Future[Answer]]]] = []
        self._sent: deque[Future[Answer]] = deque()
        self._overdue: deque[float] = deque()  # when the answers to those that were sent are overdue
        self._ends: dict[Future[Answer], float] = {}  # until when a caller waits
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop_ends = False

    async def ask(self, commands: Sequence[Command], end: float) -> list[Answer]:
        """The answers, errors of the server among them.

        A lost connection is raised, and `TimeoutError` at `end`.
        """
        loop, packed = asyncio.get_running_loop(), self._recipe.packed(commands)
        futures: list[Future[Answer]] = [loop.create_future() for _ in commands]
        for future in futures:
            self._ends[future] = end
        if self._timer is None:
            self._timer = loop.call_later(TICK, self._look_at_time)
        if self._task is None:
            self._task = loop.create_task(self._run(), name="slock connection")
        if self._connection is None:
            self._unsent.append((packed, futures))
        else:
            await self._send(packed, futures)
        try:
            answers = [await future for future in futures]
        finally:
            for future in futures:
                self._ends.pop(future, None)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, base.ResponseError):
                raise answer
        return answers

    @property
    def is_open(self) -> bool:
        return self._task is not None

    def fail(self, error: Exception) -> None:
        """Ends the connection. What has no answer gets `error`; the next command connects again."""
        connection, self._connection = self._connection, None
        task, self._task = self._task, None
        sent, self._sent = self._sent, deque()
        unsent, self._unsent = self._unsent, []
        self._overdue.clear()
        for future in sent:
            if not future.done():
                future.set_result(error)
        for future in [future for _, futures in unsent for future in futures]:
            if not future.done():
                future.set_result(_unsent(error))
        if task is not None:
            task.cancel()  # it closes what it has opened
        elif connection is not None:
            asyncio.get_running_loop().create_task(disconnected(connection), name="slock connection")

    async def close(self) -> None:
        """Ends the connection, and returns when it is closed."""
        task = self._task
        self.fail(base.ConnectionError("the connection has been closed"))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])

    async def _send(self, packed: bytes, futures: Sequence[Future[Answer]]) -> None:
        """In the task of the caller: it is suspended only when the other side takes nothing more."""
        self._sent.extend(futures)
        self._overdue.extend([now() + self._recipe.timeout if self._limited else math.inf] * len(futures))
        try:
            await self._connection.send_packed_command([packed], check_health=False)
        except (base.RedisError, OSError, RuntimeError, AssertionError) as error:
            self.fail(base.ConnectionError(f"the connection has ended: {error}"))

    async def _run(self) -> None:
        """Connects, and reads until an error or the end."""
        me = asyncio.current_task()
        connection = None
        try:
            connection = await connected(self._recipe)
            if self._task is not me:
                return
            self._connection = connection
            while self._unsent and self._connection is connection:
                await self._send(*self._unsent.pop(0))
            while self._task is me and not (self._loop_ends and not self._sent):
                await self._read_one(connection)
            if self._task is me:
                self._task, self._connection = None, None
        except asyncio.CancelledError:
            if self._task is me:
                self.fail(base.ConnectionError("the connection was cancelled"))
        except Exception as error:
            if self._task is me:
                self.fail(error if connection is not None else _unsent(error))
        finally:
            if connection is not None:
                await disconnected(connection)

    async def _read_one(self, connection: Any) -> None:
        try:
            answer: Answer = await connection.read_response(disconnect_on_error=False)
        except base.ResponseError as error:
            answer = error
        except asyncio.CancelledError:
            if self._task is not asyncio.current_task() or not self._limited:
                raise
            # Not by this library: the loop ends. Tasks that clean up need their answers.
            self._loop_ends = True
            return
        if self._task is not asyncio.current_task():
            return
        if not self._sent:
            raise base.InvalidResponse("an answer that nobody asked for")
        future = self._sent.popleft()
        self._overdue.popleft()
        if not future.done():
            future.set_result(answer)

    def _look_at_time(self) -> None:
        """Ends what is overdue. It costs a timer only while there is something to wait for."""
        moment = now()
        for future, end in list(self._ends.items()):
            if end <= moment and not future.done():
                late: Exception = base.TimeoutError(f"no answer from {self._recipe.address} within the time")
                self._unsent = [entry for entry in self._unsent if future not in entry[1]]
                future.set_result(late if future in self._sent else _unsent(late))
        if self._overdue and self._overdue[0] <= moment:
            self.fail(base.TimeoutError(f"no answer from {self._recipe.address} within the time"))
        if self._ends or self._sent:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._look_at_time)
        else:
            self._timer = None


def _unsent(error: Exception) -> Exception:
    note_unsent(error)
    return error


class TaskLink:
    """The connections to one server: one that all tasks share, and one for each wait."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._shared = Connection(recipe)
        self._spare: list[Connection] = []
        self._waiting: set[Connection] = set()
        self._interrupted = False
        self._closed = False

    async def ask(self, *commands: Command, end: float) -> list[Answer]:
        try:
            return await self._shared.ask(commands, end)
        finally:
            if self._closed:
                await self._shared.close()

    async def wait(self, *commands: Command, end: float, look: Look) -> list[Answer]:
        if self._interrupted:
            raise _unsent(base.ConnectionError("waiting has ended"))
        connection = self._spare.pop() if self._spare else Connection(self.recipe, limited=False)
        self._waiting.add(connection)
        asked = asyncio.ensure_future(connection.ask(commands, end))
        try:
            pause = FIRST_LOOK
            while not (await asyncio.wait([asked], timeout=pause))[0]:
                pause = await look()
            answers = asked.result()
        except BaseException:
            asked.cancel()
            connection.fail(base.ConnectionError("the wait has ended"))
            raise
        finally:
            self._waiting.discard(connection)
        if len(self._spare) < SPARE_CONNECTIONS and connection.is_open and not self._interrupted:
            self._spare.append(connection)
        else:
            connection.fail(base.ConnectionError("it is not needed any more"))
        return answers

    def interrupt(self) -> None:
        self._interrupted = True
        for connection in self._waiting:
            connection.fail(base.ConnectionError("waiting has ended"))

    def drop(self) -> None:
        spare, self._spare = self._spare, []
        for connection in spare:
            connection.fail(base.ConnectionError("it is not needed any more"))

    async def close(self) -> None:
        self._closed = True
        spare, self._spare = self._spare, []
        for connection in [self._shared, *spare]:
            await connection.close()
