"""Errors: what they say, that busy is not down, and that they survive pickling."""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from slock_client import errors
from slock_client.errors import NodeReply

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.SlockError)]


@pytest.mark.parametrize("kind", ALL)
def test_an_error_survives_pickling(kind: type[errors.SlockError]) -> None:
    error = kind("what failed", ["job"], ["host=web-1"], [NodeReply("n1:6379", False, "refused")])
    error.__cause__ = redis.ConnectionError("no route")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.keys) == (kind, str(error), ("job",))
    assert "no route" in str(copy)


@pytest.mark.parametrize("timeout", [None, 0.01, 60])
def test_a_black_hole_makes_no_call_outlast_its_limit(timeout: float | None) -> None:
    """A port that accepts connections, and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as hole:
        client = redis.Redis(port=hole.getsockname()[1], socket_timeout=timeout)
        with slock_client.Locks(client, retry_for=0.5) as locks, pytest.raises(slock_client.NoAnswerError):
            began = time.monotonic()
            locks.write("job").acquire()
        assert time.monotonic() - began < 2  # it also waits for its end, for as long


def test_a_wrong_client() -> None:
    replicas = redis.sentinel.Sentinel([("localhost", 1)]).slave_for("main")
    for half, client, told in [
        (slock_client, redis.asyncio.Redis(), r"of redis or valkey, not redis.asyncio.client.Redis"),
        (slock_client.asyncio, redis.Redis(), r"of redis.asyncio or valkey.asyncio, not redis.client.Redis"),
        (slock_client, "redis://localhost", r"not builtins.str"),
        (slock_client, replicas, r"master_for"),
    ]:
        with pytest.raises(TypeError, match=told):
            half.Locks(client)


def test_a_wrong_key_or_function() -> None:
    async def coroutine() -> None: ...

    async def rows() -> AsyncIterator[int]:
        yield 1

    locks = slock_client.Locks(redis.Redis())
    with pytest.raises(TypeError, match=r"must be a str"):
        locks.write(b"job")  # type: ignore[arg-type]
    for function in (coroutine, rows):
        with pytest.raises(TypeError, match=r"after its call has returned"):
            locks.write("job")(function)
