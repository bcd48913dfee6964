"""Options and their checks before the lock is asked for, and what a hold tells."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server
from slock_client._acquisition import Request
from slock_client.testing import MemoryServer

DAY = 86400


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def counting(kind: Any, seen: list[str], port: int, **options: Any) -> Any:
    class Counting(kind):  # type: ignore[misc]
        def execute_command(self, *words: Any, **named: Any) -> Any:
            seen.append(words[0])
            return super().execute_command(*words, **named)

    return Counting(port=port, **options)


@pytest.mark.parametrize("half", [slock_client, slock_client.asyncio])
@pytest.mark.parametrize("keys", [("job",), ("job", "other")])
def test_at_least_above_the_greatest_ttl(server: Server, client: redis.Redis, half: Any, keys: tuple[str, ...]) -> None:
    """The server is asked first, and once, by a command that renewals use."""
    kind = redis.Redis if half is slock_client else redis.asyncio.Redis
    seen: list[str] = []

    async def main() -> None:
        locks = half.Locks(counting(kind, seen, server.port), prefix="p:")
        for request in (locks.write(*keys, at_least=DAY + 1), locks.read(*keys, at_least=DAY + 1, wait=0)):
            for name in ("acquire", "try_acquire"):
                with pytest.raises(redis.ResponseError, match=r"at_least: .*slock\.max-ttl-ms"):
                    await done(getattr(request, name)())
        with pytest.raises(redis.ResponseError, match=r"at_least: .*slock\.max-ttl-ms"):
            await done(locks.write(*keys, at_least=1e15).acquire())
        extend, lock = ("SLOCK.EXTEND", "SLOCK.LOCK") if len(keys) == 1 else ("SLOCK.MEXTEND", "SLOCK.MLOCK")
        assert seen == [extend] * 5 and client.dbsize() == 0
        seen.clear()
        hold = await done(locks.write(*keys, at_least=DAY).acquire())
        await done(hold.release())
        left = client.execute_command("SLOCK.PTTL", "p:job", hold.token)
        assert seen == [extend, lock, extend] and (DAY - 60) * 1000 < left <= DAY * 1000
        await done(locks.close())

    asyncio.run(main())


def test_at_least_up_to_the_ttl_asks_nothing(server: Server) -> None:
    seen: list[str] = []
    with slock_client.Locks(counting(redis.Redis, seen, server.port), ttl=5) as locks:
        locks.write("job", at_least=5).acquire().detach()
    assert seen == ["SLOCK.LOCK"]


@pytest.mark.parametrize("half", [slock_client, slock_client.asyncio])
def test_at_least_of_a_quorum(half: Any) -> None:
    servers = [MemoryServer() for _ in range(3)]

    async def main() -> None:
        quorum = half.Quorum(servers, retry_for=0.5)
        with pytest.raises(slock_client.QuorumMissedError, match="at_least: "):
            await done(quorum.write("job", at_least=DAY + 1).acquire())
        assert not any(server.holders("job") for server in servers)
        servers[0].fail(ConnectionError("no route"))
        hold = await done(quorum.write("job", at_least=DAY).acquire())
        await done(hold.release())
        assert all(server.holders("job") for server in servers[1:])
        servers[1].fail(ConnectionError("no route"))
        with pytest.raises(slock_client.QuorumMissedError, match=r"no route.*the lock was not asked for"):
            await done(quorum.write("second", at_least=DAY).acquire())
        await done(quorum.close())

    asyncio.run(main())


def test_at_least_within_the_limits_of_time() -> None:
    server = MemoryServer()
    with slock_client.Locks(server, retry_for=0.2) as locks:
        server.fail(ConnectionError("no route"))
        with pytest.raises(slock_client.NoAnswerError, match="no route"):
            locks.write("job", at_least=60).acquire()
        server.fail(None)
        server.hold("job")
        with pytest.raises(slock_client.TimedOutError):
            locks.write("job", at_least=60, wait=0.05).acquire()
        with pytest.raises(slock_client.TimedOutError):
            locks.write("job", at_least=60, wait=0).acquire()


def test_wrong_options() -> None:
    locks = slock_client.Locks(redis.Redis())
    for name, value in [
        *(("ttl", None), ("at_least", None), ("replica_timeout", None), ("metadata", 7), ("metadata", b"x")),
        *(("token", b"x"), ("label", 7), ("min_replicas", None), ("min_replicas", "1"), ("limit", "1")),
    ]:
        with pytest.raises(TypeError, match=rf"^{name} must be .*, not {value!r}$"):
            locks.read("job", **{name: value})
    with pytest.raises(TypeError, match=r"^prefix must be"):
        slock_client.Locks(redis.Redis(), prefix=b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^token must be"):
        locks.release("job", b"x")  # type: ignore[arg-type]
    for most in (0, -1, 0.0):
        with pytest.raises(ValueError, match=r"^max_hold must be"):
            locks.write("job", max_hold=most)
    locks.write("job", wait=None, max_hold=None, metadata=None, token=None, label=None)


@pytest.mark.parametrize("wait", [1e-9, 1e-6, 0.0009])
def test_a_wait_below_a_millisecond(server: Server, wait: float) -> None:
    quorum = slock_client.Quorum([MemoryServer()])
    for locks in (slock_client.Locks(redis.Redis(port=server.port)), quorum):
        request = locks.write("job", wait=wait)
        with request as hold:
            with pytest.raises(slock_client.TimedOutError):
                request.acquire()
            assert locks.queues() == []
        with pytest.raises(slock_client.NotHeldError):
            hold.check()
        locks.close()


def test_a_late_process_sends_its_request_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = Request.acquire

    def late(self: Request) -> Any:
        time.sleep(0.01)
        return acquire(self)

    monkeypatch.setattr(Request, "acquire", late)
    with slock_client.Locks(MemoryServer()) as locks:
        locks.write("job", wait=0.005).acquire().release()


@pytest.mark.parametrize("end", [slock_client.Hold.release, slock_client.Hold.detach, None])
def test_nothing_remains_of_a_hold_that_is_over(end: Callable[[slock_client.Hold], None] | None) -> None:
    server = MemoryServer()
    with slock_client.Locks(server) as locks:
        hold = locks.write("job").acquire()
        assert hold.remaining > 9
        if end is not None:
            end(hold)
        else:
            server.lose("job")
            with pytest.raises(slock_client.LostError):
                hold.release()
        assert hold.remaining == 0 and hold.lost == (end is None)
