"""Connections for one thread at a time, by the public parts of redis-py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import redis.exceptions as base

from slock_client._answers import Answer, unsent
from slock_client._clock import now
from slock_client._commands import Command
from slock_client._endpoint import FIRST_LOOK, Endpoint
from slock_client._threads import call_until, wait_in_looks

# A connection that was idle for so long, in seconds, is looked at before it is used again.
IDLE_TOO_LONG = 0.5


def nodes_of(cluster: Any, end: float) -> list[Any]:
    """The nodes that a client of a cluster knows."""
    return list(cluster.get_nodes())


def connections_of(cluster: Any) -> tuple[Any, dict[str, Any]]:
    """The class of the connections to its nodes, and their arguments."""
    pool = cluster.get_redis_connection(cluster.get_nodes()[0]).connection_pool
    return pool.connection_class, pool.connection_kwargs


class Connection:
    """One connection, open until an error or `fail`."""

    def __init__(self, endpoint: Endpoint, end: float) -> None:
        """Connects. What an error is raised before is sent by nobody."""
        self._endpoint = endpoint
        self._idle_since = now()
        self._closed = False
        try:
            # In another thread: neither a name that is looked up nor a handshake has a limit of its own here.
            self._connection: Any = call_until(self._open, _close, min(end, now() + endpoint.connect_timeout))
        except TimeoutError as error:
            problem = base.TimeoutError(f"no connection to {endpoint.address} within the time")
            raise unsent(problem) from error
        except Exception as error:
            raise unsent(error)  # noqa: B904 # the same error

    def ask_and_look(
        self, commands: Sequence[Command], end: float, look: Callable[[], float] | None
    ) -> list[Answer]:
        """The answers, errors of the server among them. After an error that is raised it is to be closed."""
        self._connection.send_packed_command([self._endpoint.packed(commands)], check_health=False)
        if look is None:
            return [self._receive(min(end, now() + self._endpoint.timeout)) for _ in commands]
        pause = FIRST_LOOK
        while not self._has_answer(min(end, now() + pause)) and now() < end:
            pause = look()
        return [self._receive(end) for _ in commands]

    def _receive(self, end: float) -> Answer:
        if not self._has_answer(end):
            raise base.TimeoutError(f"no answer from {self._endpoint.address} within the time")
        answer = self._read()
        self._idle_since = now()
        return answer

    def _has_answer(self, end: float) -> bool:
        """Whether an answer comes until `end`."""
        try:
            return wait_in_looks(self._can_read, end)
        except (AttributeError, ValueError, OSError) as error:  # another thread has closed it
            raise base.ConnectionError(f"the connection has ended: {error}") from error

    def is_usable(self) -> bool:
        """Whether nothing says that the server has closed it while it was idle."""
        if now() - self._idle_since < IDLE_TOO_LONG:
            return True
        with contextlib.suppress(base.RedisError, OSError):
            return not self._connection.can_read(0)
        return False

    def fail(self, error: Exception) -> None:
        """Closes it. A thread that waits for an answer gets an error of a lost connection."""
        self._closed = True
        _close(self._connection)

    def _open(self) -> Any:
        connection = self._endpoint.open(
            socket_timeout=self._endpoint.timeout, socket_connect_timeout=self._endpoint.connect_timeout
        )
        try:
            connection.connect()
        except BaseException:
            _close(connection)
            raise
        return connection

    def _can_read(self, seconds: float) -> bool:
        if self._closed:  # redis-py would connect again
            raise base.ConnectionError("the connection has been closed")
        return bool(self._connection.can_read(seconds))

    def _read(self) -> Answer:
        try:
            return self._connection.read_response(disconnect_on_error=False)
        except base.ResponseError as error:
            return error
        except (AttributeError, ValueError, OSError) as error:
            if isinstance(error, base.RedisError):
                raise
            raise base.ConnectionError(f"the connection has ended: {error}") from error


def _close(connection: Any) -> None:
    with contextlib.suppress(Exception):
        connection.disconnect()


def shared(endpoint: Endpoint) -> Any:
    """Threads do not share a connection."""
    return None


def exclusive(endpoint: Endpoint, end: float) -> Connection:
    """A connection for one thread."""
    return Connection(endpoint, end)
