"""Options and their checks before the lock is asked for, and what a hold tells."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server
from slock_client.testing import MemoryServer

DAY = 86400


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.fixture
def new_server() -> Iterator[Server]:
    """Its calls may be counted: on a shared one a renewal of the test before may arrive late."""
    server = Server(name="new").start()
    yield server
    server.stop()
    server.discard()


@pytest.mark.parametrize("half", [slock_client, slock_client.asyncio])
@pytest.mark.parametrize("keys", [("job",), ("job", "other")])
def test_at_least_above_the_greatest_ttl(new_server: Server, half: Any, keys: tuple[str, ...]) -> None:
    """The server is asked first, and once, by a command that renewals use."""
    kind, client = redis.Redis if half is slock_client else redis.asyncio.Redis, new_server.client()

    def calls() -> list[int]:
        told, many = client.info("commandstats"), "m" * (len(keys) > 1)
        return [told.get(f"cmdstat_slock.{many}{name}", {"calls": 0})["calls"] for name in ("lock", "extend")]

    async def main() -> None:
        locks = half.Locks(kind(port=new_server.port), prefix="p:")
        for request in (locks.write(*keys, at_least=DAY + 1), locks.read(*keys, at_least=1e15, wait=0)):
            with pytest.raises(redis.ResponseError, match=r"at_least: .*slock\.max-ttl-ms"):
                await done(request.try_acquire())
        assert calls() == [0, 2] and client.dbsize() == 0
        hold = await done(locks.write(*keys, at_least=DAY).acquire())
        await done(hold.release())
        assert calls() == [1, 4] and client.execute_command("SLOCK.PTTL", "p:job", hold.token) > (DAY - 60) * 1000
        await done(locks.close())

    asyncio.run(main())


def test_wrong_options() -> None:
    locks = slock_client.Locks(redis.Redis())
    for name, value in [
        *(("ttl", None), ("at_least", None), ("replica_timeout", None), ("metadata", 7), ("metadata", b"x")),
        *(("token", b"x"), ("label", 7), ("min_replicas", None), ("min_replicas", "1"), ("limit", "1")),
        *(("renew", 0), ("renew", None)),
    ]:
        with pytest.raises(TypeError, match=rf"^{name} must be .*, not {value!r}$"):
            locks.read("job", **{name: value})
    for most in (0, -1, 0.0):
        with pytest.raises(ValueError, match=r"^max_hold must be"):
            locks.write("job", max_hold=most)


def test_a_short_wait_and_no_time_for_retries(server: Server) -> None:
    none: Any = {"retry_for": 0, "retry_wait_for": 0}
    for locks in (
        slock_client.Locks(redis.Redis(port=server.port), **none),
        slock_client.Quorum([MemoryServer()], **none),
    ):
        for wait in (1e-6, 0.3):
            request = locks.write("job", wait=wait)
            with request, pytest.raises(slock_client.TimedOutError):
                request.acquire()
        locks.close()
