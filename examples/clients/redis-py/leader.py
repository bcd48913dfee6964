"""A leader whose lease ends with its connection (EPHEMERAL), by commands alone.

A refresh does not move the lease to another connection. A client that reconnects and sends its old token gets
the fencing token of the old lease, and loses it when the server sees the old connection close. So each
connection has a token of its own, redis-py must not reconnect or retry by itself, and a new campaign first
ends the last one.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

REFUSE_MS = 120_000


def connect(timeout: float | None = None, **where: Any) -> redis.Redis:
    """A client with one connection and no retries. Without a timeout it can wait without limit."""
    return redis.Redis(
        single_connection_client=True,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=timeout,
        decode_responses=True,
        **where,
    )


def campaign(election: str, name: str, ttl_ms: int = 10_000, **where: Any) -> tuple[redis.Redis, str, int]:
    """Waits until this process leads. Returns the connection, to be kept open, the token and the fence."""
    token = None
    while True:
        connection = None
        try:
            connection = connect(**where)
            if token is not None:
                connection.execute_command("SLOCK.MUNLOCK", 1, election, token, "REFUSE", REFUSE_MS)
            token = f"{name}:{uuid.uuid4()}"
            command = ["SLOCK.LOCK", election, token, ttl_ms, "WAIT", 0, "META", name, "EPHEMERAL"]
            return connection, token, connection.execute_command(*command)
        except redis.RedisError as problem:
            if connection is not None:
                connection.close()
            if not is_temporary(problem):
                raise
        time.sleep(1)  # the server restarts, or another one is being promoted


def is_temporary(problem: redis.RedisError) -> bool:
    """Whether to retry: no connection, LOADING, READONLY, TRYAGAIN, UNBLOCKED, GRACE."""
    kinds = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.exceptions.TryAgainError)
    if isinstance(problem, redis.AuthenticationError):  # a ConnectionError in redis-py
        return False
    return isinstance(problem, kinds) or str(problem).startswith(("UNBLOCKED", "GRACE"))


def still_leads(client: redis.Redis, election: str, token: str, ttl_ms: int = 10_000) -> bool:
    """Call it at once, and after each third of the ttl. If false: stop, close the connection, begin again.

    The client is another one, such as `connect(timeout=2)`: without a reply a leader stops in time.
    """
    try:
        return client.execute_command("SLOCK.EXTEND", election, token, ttl_ms) == 1
    except redis.RedisError:
        return False
