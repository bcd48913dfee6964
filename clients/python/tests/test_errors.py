"""Errors: what they say, that busy is not down, and that they survive pickling."""

from __future__ import annotations

import asyncio
import pickle
import socket
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server
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


def _lose(port: int) -> None:
    with slock_client.Locks(redis.Redis(port=port)) as locks, locks.write("job", renew=False, ttl=0.1):
        time.sleep(0.2)


def test_a_lost_lock_in_a_pool_of_processes(server: Server) -> None:
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises(slock_client.LostError, match=r"expired .lock job") as caught:
            pool.submit(_lose, server.port).result(20)
        assert caught.value.reason == "expired"
        assert pool.submit(abs, -1).result(20) == 1


def test_busy_is_not_down(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "t", 60_000, "META", "web-1")
    told = r"timed out after 1..ms .lock job., held by web-1 t"
    with slock_client.Locks(redis.Redis(port=server.port)) as locks, pytest.raises(TimeoutError, match=told) as busy:
        locks.write("job", wait=timedelta(milliseconds=100)).acquire()
    assert isinstance(busy.value, slock_client.TimedOutError)
    told = r"no reply from the server within .*onnection refused"
    locks = slock_client.Locks(redis.Redis(port=1), retry_for=0.2)
    with locks, pytest.raises(ConnectionError, match=told) as down:
        locks.write("job").acquire()
    assert isinstance(down.value, slock_client.NoAnswerError)
    assert isinstance(down.value.__cause__, redis.ConnectionError)


@pytest.mark.parametrize("timeout", [None, 0.01, 60])
def test_a_black_hole_makes_no_call_outlast_its_limit(timeout: float | None) -> None:
    """A port that accepts connections, and never replies."""

    async def main() -> None:
        async with slock_client.asyncio.Locks(redis.asyncio.Redis(**options), retry_for=0.5) as locks:
            with pytest.raises(slock_client.NoAnswerError):
                await locks.write("job").acquire()

    with socket.create_server(("127.0.0.1", 0)) as hole:
        options: Any = {"port": hole.getsockname()[1], "socket_timeout": timeout}
        began = time.monotonic()
        with slock_client.Locks(redis.Redis(**options), retry_for=0.5) as locks:
            with pytest.raises(slock_client.NoAnswerError):
                locks.write("job").acquire()
            assert time.monotonic() - began < 0.5 + 1
        began = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began < 0.5 + 1


def test_a_wrong_client() -> None:
    takes = "Locks takes a client of redis, not of redis.asyncio: use slock_client.asyncio.Locks"
    with pytest.raises(TypeError, match=takes):
        slock_client.Locks(redis.asyncio.Redis())
    with pytest.raises(TypeError, match=r"of redis.asyncio, not of redis: use slock_client.Locks"):
        slock_client.asyncio.Locks(redis.Redis())
    with pytest.raises(TypeError, match=r"redis-py or valkey-py, not builtins.str"):
        slock_client.Locks("redis://localhost")
    replicas = redis.sentinel.Sentinel([("localhost", 1)]).slave_for("main")
    with pytest.raises(TypeError, match=r"master_for"):
        slock_client.Locks(replicas)


def test_a_wrong_key_or_function() -> None:
    locks = slock_client.Locks(redis.Redis())
    for keys in ((), ("",), ("a", "")):
        with pytest.raises(ValueError):
            locks.write(*keys)
    with pytest.raises(TypeError):
        locks.write(b"job")  # type: ignore[arg-type]

    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match=r"after its call has returned"):
        locks.write("job")(coroutine)
