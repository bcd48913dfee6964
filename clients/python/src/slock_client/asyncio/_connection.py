"""Connections that tasks share, by the public parts of redis-py."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import math
import os
import re
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

import redis.exceptions as base

from slock_client._answers import Answer, unsent
from slock_client._clock import now
from slock_client._commands import Command
from slock_client._endpoint import FIRST_LOOK, Endpoint

# So often, in seconds, it is looked whether answers are overdue.
TICK = 0.05

# So many bytes without an answer the buffers take for certain: asyncio lets nobody wait below 64 KiB.
MOST_AT_ONCE = 32 * 1024


async def connected(endpoint: Endpoint) -> Any:
    """A new connection of redis-py that is ready for commands. Only for tasks of the library."""
    # Without a time-out of its own: redis-py would use `wait_for`, which may swallow a cancellation.
    connection = endpoint.open(socket_timeout=None)
    try:
        await _within(endpoint.connect_timeout, connection.connect(), endpoint.address)
    except BaseException as problem:
        await disconnected(connection)
        number = re.search(r"Err(?:or|no) (\d+)", str(problem))
        if number is not None and isinstance(problem, base.ConnectionError):
            # asyncio says only that the call failed.
            raise base.ConnectionError(f"{problem} {os.strerror(int(number[1]))}.") from problem
        raise
    return connection


async def _within(seconds: float, connecting: Coroutine[Any, Any, object], address: str) -> None:
    task = asyncio.ensure_future(connecting)
    try:
        if not (await asyncio.wait([task], timeout=seconds))[0]:
            raise base.TimeoutError(f"no connection to {address} within the time")
        task.result()
    finally:
        task.cancel()


async def disconnected(connection: Any) -> None:
    """Closes a connection without waiting for the other side."""
    with contextlib.suppress(Exception):
        await connection.disconnect(nowait=True)


async def nodes_of(cluster: Any, end: float) -> list[Any]:
    """The nodes that a client of a cluster knows. It finds them when it is first used."""
    if not cluster.get_nodes():
        try:
            await _within(end - now(), cluster.initialize(), "the cluster")
        except base.RedisClusterException as error:
            raise base.ConnectionError(str(error)) from error
    return list(cluster.get_nodes())


def connections_of(cluster: Any) -> tuple[Any, dict[str, Any]]:
    """The class of the connections to its nodes, and their arguments."""
    node = cluster.get_nodes()[0]
    return node.connection_class, node.connection_kwargs


class Question:
    """Commands that go together, and what is answered to them."""

    __slots__ = ("answers", "commands", "done", "end", "overdue", "packed")

    def __init__(self, commands: Sequence[Command], packed: bytes, end: float) -> None:
        self.commands, self.packed, self.end = commands, packed, end
        self.overdue = math.inf
        self.answers: list[Answer] = []
        self.done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()


class Connection:
    """Sends the commands of many tasks over one connection, in the order in which they are asked.

    A command that was asked is sent and gets its answer, also when the task that asked is cancelled. It
    connects when it is first used, and again after an error. Nothing is sent twice.
    """

    def __init__(self, endpoint: Endpoint, *, limited: bool = True) -> None:
        """`limited`: whether an answer that is not there within the time of the endpoint ends the
        connection.
        """
        self.listener: Any = None
        """Its `take` is given messages, its `lost` is called when the connection has failed."""
        self._endpoint = endpoint
        self._time = endpoint.timeout if limited else math.inf
        self._connection: Any = None
        self._unsent: list[Question] = []
        self._sent: deque[Question] = deque()
        self._unanswered = 0
        """How many bytes all those have."""
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop_ends = False
        self._turn_taken = False

    async def ask(self, commands: Sequence[Command], end: float) -> list[Answer]:
        """The answers, errors of the server among them.

        A lost connection is raised, and `TimeoutError` at `end`.
        """
        question = Question(commands, self._endpoint.packed(commands), end)
        # A lone command goes at once. So does the first of a turn: the server works while others are asked.
        is_first = not self._unsent and not (self._sent and self._turn_is_taken())
        self._put(question)
        if is_first and self._unanswered <= MOST_AT_ONCE:
            await self._write()
        else:
            self._write_soon()  # more the other side may not take: the writer ends with the connection
        problem = await question.done
        if problem is not None:
            raise problem
        return question.answers

    def tell(self, command: Command) -> None:
        """Sends a command whose answer nobody waits for."""
        question = Question([command], self._endpoint.packed([command]), math.inf)
        question.done.cancel()
        self._put(question)
        self._write_soon()

    async def ask_and_look(self, commands: Sequence[Command], end: float, look: Any) -> list[Answer]:
        """The same. While there is no answer it awaits `look()` now and then."""
        asked = asyncio.ensure_future(self.ask(commands, end))
        try:
            pause = FIRST_LOOK
            while not (await asyncio.wait([asked], timeout=pause))[0]:
                pause = await look()
            return asked.result()
        finally:
            asked.cancel()

    def is_usable(self) -> bool:
        return self._task is not None

    @property
    def _is_busy(self) -> bool:
        return bool(self._sent or self._unsent)

    def fail(self, error: Exception) -> None:
        """Ends the connection. What has no answer gets `error`; the next command connects again."""
        connection, self._connection = self._connection, None
        tasks = [task for task in (self._task, self._writer) if task is not None]
        self._task = self._writer = None
        sent, self._sent, self._unanswered = self._sent, deque(), 0
        waiting, self._unsent = self._unsent, []
        not_sent = unsent(copy.copy(error))  # not the same: those that were sent are in doubt
        for question in sent:
            self._settle(question, error)
        for question in waiting:
            self._settle(question, not_sent)
        for task in tasks:
            task.cancel()  # the reader closes what it has opened
        if connection is not None and not tasks:
            asyncio.get_running_loop().create_task(disconnected(connection), name="slock connection")
        if self.listener is not None:
            self.listener.lost()

    async def close(self) -> None:
        """Ends the connection, and returns when it is closed."""
        task = self._task
        self.fail(base.ConnectionError("the connection has been closed"))
        if task is not None and task is not asyncio.current_task():
            await asyncio.wait([task])

    def _settle(self, question: Question, problem: Exception | None) -> None:
        if not question.done.done():
            question.done.set_result(problem)

    def _turn_is_taken(self) -> bool:
        """Whether this turn of the loop has sent a command already. From now on it has."""
        taken, self._turn_taken = self._turn_taken, True
        if not taken:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return taken

    def _begin_turn(self) -> None:
        self._turn_taken = False

    def _put(self, question: Question) -> None:
        """It goes with the others of this turn of the loop."""
        self._unsent.append(question)
        self._unanswered += len(question.packed)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="slock connection")
        self._look_soon()

    def _write_soon(self) -> None:
        """What nobody has sent goes in the next turn of the loop."""
        if self._unsent and self._connection is not None and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="slock connection")
            self._writer.add_done_callback(self._has_written)

    def _has_written(self, task: asyncio.Task[None]) -> None:
        if self._writer is task:
            self._writer = None
            self._write_soon()  # it was cancelled: the loop ends, and tasks that clean up wait for it

    async def _write(self) -> None:
        while self._unsent and self._connection is not None:
            questions, self._unsent = self._unsent, []
            await self._send(questions)

    async def _send(self, questions: Sequence[Question]) -> None:
        """It suspends only when the other side takes nothing more."""
        overdue = now() + self._time
        for question in questions:
            question.overdue = overdue
        self._sent.extend(questions)
        try:
            await self._connection.send_packed_command(
                [question.packed for question in questions], check_health=False
            )
        except (base.RedisError, OSError, RuntimeError, AssertionError) as error:
            self.fail(base.ConnectionError(f"the connection has ended: {error}"))

    async def _run(self) -> None:
        """Connects, and reads until an error or the end."""
        me = asyncio.current_task()
        connection = None
        try:
            connection = await connected(self._endpoint)
            if self._task is not me:
                return
            self._connection = connection
            await self._write()
            while self._task is me and not (self._loop_ends and not self._is_busy):
                await self._read_one(connection)
            if self._task is me:
                self._task, self._connection = None, None
        except asyncio.CancelledError:
            if self._task is me:
                self.fail(base.ConnectionError("the connection was cancelled"))
        except Exception as error:
            if self._task is me:
                self.fail(error if connection is not None else unsent(error))
        finally:
            if connection is not None:
                await disconnected(connection)

    async def _read_one(self, connection: Any) -> None:
        try:
            answer: Answer = await connection.read_response(disconnect_on_error=False, push_request=True)
        except base.ResponseError as error:
            answer = error
        except asyncio.CancelledError:
            if self._task is not asyncio.current_task() or not self._is_busy or self._time == math.inf:
                raise
            # Not by this library: the loop ends. Tasks that clean up need their answers.
            self._loop_ends = True
            return
        if self._connection is not connection:
            return
        if self._is_message(answer):
            if self.listener is not None:
                self.listener.take(answer)
            return
        if not self._sent:
            raise answer if isinstance(answer, Exception) else base.InvalidResponse("nobody asked for it")
        question = self._sent[0]
        question.answers.append(answer)
        if len(question.answers) < len(question.commands):
            return
        self._sent.popleft()
        self._unanswered -= len(question.packed)
        self._settle(question, None)

    def _is_message(self, answer: Answer) -> bool:
        """Whether it answers nothing. What is pushed begins with its kind. Of answers only two begin with a
        text: the confirmation of a command about a channel, and the address that a Sentinel tells.
        """
        if not isinstance(answer, list) or not answer or not isinstance(answer[0], bytes):
            return False
        question = self._sent[0] if self._sent else None
        name, *words = question.commands[len(question.answers)] if question is not None else ("",)
        return name != "SENTINEL" and [str(name).lower().encode(), *words] != answer[:2]

    def _look_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._look_at_time)

    def _look_at_time(self) -> None:
        """Ends what is overdue. It costs a timer only while there is something to wait for."""
        moment = now()
        late = base.TimeoutError(f"no answer from {self._endpoint.address} within the time")
        if self._sent and self._sent[0].overdue <= moment:
            self.fail(late)
        for question in self._sent:
            if question.end <= moment:
                self._settle(question, late)
        over = [question for question in self._unsent if question.end <= moment]
        self._unsent = [question for question in self._unsent if question.end > moment]
        for question in over:
            self._unanswered -= len(question.packed)
            self._settle(question, unsent(base.TimeoutError(str(late))))
        self._timer = None
        if self._is_busy:
            self._look_soon()


shared = Connection
"""The connection for all commands that do not wait."""

exclusive = functools.partial(Connection, limited=False)
"""A connection for commands that may block it."""
