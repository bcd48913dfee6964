"""Errors: what they say, that busy is not down, and that they survive pickling."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import socket
import time
from collections.abc import AsyncIterator

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server
from slock_client import errors
from slock_client.errors import NodeReply
from test_base_libraries import done

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


@pytest.mark.parametrize("kind", ["at once", "while it waits", "NOPERM", "outage"])
@pytest.mark.parametrize("half", ["", ".asyncio"])
@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_no_error_is_its_own_cause(server: Server, name: str, half: str, kind: str) -> None:
    """Programs that show errors would follow the causes and contexts for ever. The error is one of the library."""
    package, ours = pytest.importorskip(name), importlib.import_module(f"slock_client{half}")
    client, library = redis.Redis(port=server.port), importlib.import_module(f"{name}{half}")
    user = {"username": "reader", "password": "secret"} if kind == "NOPERM" else {}

    async def main() -> None:
        program = library.Redis(port=1 if kind == "outage" else server.port, **user)
        if kind == "outage":
            drop_in = {"redis": "drop_in", "valkey": "valkey_drop_in"}[name]
            lock_class = importlib.import_module(f"slock_client{half}.{drop_in}").Lock
            await done(program.lock("job", lock_class=lock_class, timeout=1).acquire)
        elif kind == "while it waits":
            client.execute_command("SLOCK.LOCK", "job", "other", 9000)
            locks = ours.Locks(program)
            waiting = asyncio.create_task(done(locks.write("job").acquire))
            while not client.info("slock")["slock_waiters"]:
                await asyncio.sleep(0.01)
            client.set("job", "text")
            await waiting
        else:
            client.set("job", "text")
            await done(ours.Locks(program).write("job").acquire)

    client.acl_setuser("reader", enabled=True, passwords=["+secret"], keys=["*"], commands=["+get"])
    expected = package.ConnectionError if kind == "outage" else package.ResponseError
    with pytest.raises(expected) as raised:
        asyncio.run(main())
    check_chain(raised.value)
    client.acl_deluser("reader")


def check_chain(error: BaseException, *seen: BaseException) -> None:
    assert error not in seen
    for other in filter(None, (error.__cause__, error.__context__)):
        check_chain(other, error, *seen)
