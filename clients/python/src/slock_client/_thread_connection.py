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
from slock_client._threads import begun, ends, wait_in_looks

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
    """One connection, open until an error or `fail`.

    When who asked has no more time, the attempt to connect goes on: the next one that asks waits for the rest
    of it.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Begins to connect."""
        self._endpoint = endpoint
        self._connection = endpoint.open(
            socket_timeout=endpoint.timeout, socket_connect_timeout=endpoint.connect_timeout
        )
        self._idle_since = now()
        self._opened = self._closed = False
        self._connect_end = now() + endpoint.connect_timeout
        # In another thread: neither a name that is looked up nor a handshake has a limit of its own here.
        self._opening = begun(self._open)

    def ask_and_look(
        self, commands: Sequence[Command], end: float, look: Callable[[], float] | None
    ) -> list[Answer]:
        """The answers, errors of the server among them. After an error that is raised it is to be closed,
        unless nothing was sent.
        """
        if not self._opened:
            self._until_open(end)
        self._connection.send_packed_command([self._endpoint.packed(commands)], check_health=False)
        if look is None:
            return [self._receive(min(end, now() + self._endpoint.timeout)) for _ in commands]
        pause = FIRST_LOOK
        while not self._has_answer(min(end, now() + pause)) and now() < end:
            pause = look()
        return [self._receive(end) for _ in commands]

    def _until_open(self, end: float) -> None:
        """Returns when it is open. What an error is raised before is sent by nobody."""
        try:
            if not ends(self._opening, min(end, self._connect_end)):
                raise base.TimeoutError(f"no connection to {self._endpoint.address} within the time")
            self._opening.result()
            self._check_open()
        except Exception as error:
            raise unsent(error)  # noqa: B904 # the same error

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
        """Whether it may still open, or nothing says that the server has closed it while it was idle."""
        if self._closed:
            return False
        if not self._opened:
            return not self._opening.done() and now() < self._connect_end
        with contextlib.suppress(base.RedisError, OSError):
            return now() - self._idle_since < IDLE_TOO_LONG or not self._connection.can_read(0)
        return False

    def fail(self, error: Exception) -> None:
        """Closes it. A thread that waits for an answer gets an error of a lost connection."""
        self._closed = True
        self._opening.add_done_callback(lambda _: self._close())

    def _open(self) -> None:
        try:
            self._connection.connect()
            self._idle_since, self._opened = now(), True
        except BaseException:
            self._close()
            raise

    def _can_read(self, seconds: float) -> bool:
        self._check_open()
        return bool(self._connection.can_read(seconds))

    def _check_open(self) -> None:
        if self._closed:  # redis-py would connect again
            raise base.ConnectionError("the connection has been closed")

    def _read(self) -> Answer:
        try:
            return self._connection.read_response(disconnect_on_error=False)
        except base.ResponseError as error:
            return error
        except (AttributeError, ValueError, OSError) as error:
            if isinstance(error, base.RedisError):
                raise
            raise base.ConnectionError(f"the connection has ended: {error}") from error

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._connection.disconnect()


def shared(endpoint: Endpoint) -> Any:
    """Threads do not share a connection."""
    return None


exclusive = Connection
"""A connection for one thread."""
