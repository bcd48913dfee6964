"""A connection for one thread at a time."""

from __future__ import annotations

import time
from typing import Any

import redis.exceptions as base

from slock._answers import is_replica
from slock._commands import Command
from slock._opening import close, connected
from slock._recipe import Recipe

Answer = Any  # what the server answered, or the error

# A thread that waits for an answer looks up this often, in seconds: only then does it see an exception that
# another thread has raised in it.
LOOK_UP_AFTER = 0.1


class Connection:
    """Sends commands and receives their answers. It connects when it is first used.

    After an exception in `send` it is closed. After one in `receive` the answer can still be received.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._connection: Any = None
        self._interruption: Exception | None = None
        self.unanswered = 0
        """How many answers have not been received yet."""

    def ask(self, *commands: Command, end: float | None = None) -> list[Answer]:
        """The answers, errors of the server among them. A lost connection is raised.

        `TimeoutError` of redis-py when an answer takes longer than the recipe says, or does not come until
        `end`, on the monotonic clock. It can still be received then.
        """
        self.send(*commands, end=end)
        answers = []
        while self.unanswered:
            latest = time.monotonic() + self._recipe.timeout
            answers.append(self.receive(latest if end is None else min(latest, end)))
        return answers

    def send(self, *commands: Command, end: float | None = None) -> None:
        """Sends commands. A lost connection is raised. A new one is opened until about `end`."""
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = connected(self._recipe, end)
            if len(commands) == 1:
                packed = connection.pack_command(*commands[0])
            else:
                packed = connection.pack_commands(commands)
            connection.send_packed_command(packed, check_health=False)
        except BaseException:
            self.close()
            raise
        self.unanswered += len(commands)

    def receive(self, end: float | None) -> Answer:
        """The next answer, or an error of the server.

        `TimeoutError` of redis-py when there is none until `end`, in seconds on the monotonic clock.
        """
        while True:
            connection = self._connection
            if connection is None:
                raise base.ConnectionError("the connection has been closed")
            if self._interruption is not None:
                interruption, self._interruption = self._interruption, None
                raise interruption
            try:
                if connection.can_read(self._slice(end)):
                    return self._receive()
            except (base.RedisError, OSError):
                self.close()
                raise
            if end is not None and time.monotonic() >= end:
                raise base.TimeoutError("no answer within the time")

    def interrupt(self, error: Exception) -> None:
        """For another thread: the `receive` that waits, or the next one, raises `error`."""
        self._interruption = error

    def close(self) -> None:
        """Closes the connection. The next command opens a new one."""
        connection, self._connection, self.unanswered = self._connection, None, 0
        if connection is not None:
            close(connection)

    def _receive(self) -> Answer:
        if self._connection is None:
            raise base.ConnectionError("the connection has been closed")
        # Before it is read: when Ctrl-C comes meanwhile, it has been answered all the same.
        self.unanswered -= 1
        try:
            answer = self._connection.read_response(disconnect_on_error=False)
        except base.ResponseError as error:
            answer = error
        except (base.RedisError, OSError):
            self.close()
            raise
        if self._recipe.sentinels and is_replica(answer):
            self.close()  # the Sentinels have to be asked again
        return answer

    def _slice(self, end: float | None) -> float:
        if end is None:
            return LOOK_UP_AFTER
        return max(0.0, min(LOOK_UP_AFTER, end - time.monotonic()))
