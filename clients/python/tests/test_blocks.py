"""Blocks, decorators, and what is told of a loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server, wait_until
from slock_client._server import Answer
from slock_client._transport import ServerError
from slock_client._watchdog import Watchdog
from slock_client.testing import MemoryServer
from test_base_libraries import done


@pytest.fixture
def locks(server: Server) -> slock_client.Locks:
    return slock_client.Locks(redis.Redis(port=server.port), ttl=5)


@pytest.fixture
def alocks(server: Server) -> slock_client.asyncio.Locks:
    return slock_client.asyncio.Locks(redis.asyncio.Redis(port=server.port), ttl=5)


def test_one_request_in_many_threads_and_stacks(locks: slock_client.Locks, client: redis.Redis) -> None:
    request = locks.read("job", limit=3)

    def work(number: int) -> int:
        if number % 2:
            with contextlib.ExitStack() as stack:
                stack.enter_context(request)
                return locks.info("job").readers
        with request:
            return locks.info("job").readers

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(work, range(12), timeout=20)) <= {1, 2, 3}
    assert client.exists("job") == 0


def test_one_request_in_many_tasks(alocks: slock_client.asyncio.Locks, client: redis.Redis) -> None:
    request = alocks.write("job")

    async def work(number: int) -> int:
        async with contextlib.AsyncExitStack() as stack:
            if number % 2:
                await stack.enter_async_context(request)
                return number
            async with request:
                return number

    async def main() -> list[int]:
        return await asyncio.gather(*(work(number) for number in range(20)))

    assert asyncio.run(main()) == list(range(20)) and client.exists("job") == 0


def test_a_loss_ends_a_block(locks: slock_client.Locks, client: redis.Redis, caplog: Any) -> None:
    with pytest.raises(slock_client.LostError, match=r"gone .lock job"), locks.write("job", label="import"):
        client.delete("job")
    texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([text for text in texts if "lock job" in text and "label import" in text]) == 1
    with pytest.raises(KeyError), locks.write("job"):  # an error of the work is not replaced
        client.delete("job")
        raise KeyError


@pytest.mark.parametrize("half", [slock_client, slock_client.asyncio])
def test_releases_that_fail(half: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error of the server: it does not replace that of the work, and keeps no other hold from its release."""
    server, hook = MemoryServer(), Mock()
    end = server._state._end

    def fails(asked: Any, mode: str) -> int:
        if asked.keys[0].startswith("denied"):
            raise ServerError("NOPERM this user has no permissions")
        return end(asked, mode)

    async def main() -> None:
        locks = half.Locks(server, hooks=slock_client.Hooks(release_failed=hook))
        with pytest.raises(ValueError, match="of the work"):
            if half is slock_client:
                with locks.write("denied"):
                    raise ValueError("of the work")
            async with locks.write("denied"):
                raise ValueError("of the work")
        assert hook.call_count == 1
        holds = [await done(locks.write(key).acquire) for key in ("lost", "other", "denied too", "last")]
        server.execute("DEL", "lost")
        with pytest.raises(slock_client.LostError):
            await done(locks.close, True)
        assert not server.holders("other") and not server.holders("last") and holds[0].lost

    monkeypatch.setattr(server._state, "_end", fails)
    asyncio.run(main())


def test_a_hook_that_raises(caplog: Any) -> None:
    server, hooks = MemoryServer(), slock_client.Hooks(*[Mock(side_effect=KeyError)] * 5)

    async def main() -> None:
        async with slock_client.asyncio.Locks(server, hooks=hooks).write("job"):
            server.lose("job")
            await asyncio.sleep(30)

    with pytest.raises(slock_client.LostError):
        asyncio.run(main())
    with slock_client.Locks(server, hooks=hooks).write("job"):
        pass
    assert not server.holders("job")
    assert all(f"slock: the hook {name} failed" in caplog.messages for name in ("waited", "held", "lost"))


def test_a_decorator(locks: slock_client.Locks, alocks: slock_client.asyncio.Locks, client: redis.Redis) -> None:
    @locks.write("job")
    def function(number: int) -> int:
        return number + int(client.exists("job"))

    @alocks.write("job")
    async def coroutine(number: int) -> int:
        return number + int(client.exists("job"))

    assert (function(1), asyncio.run(coroutine(2)), client.exists("job")) == (2, 3, 0)


def test_a_loss_within_a_timeout(alocks: slock_client.asyncio.Locks, client: redis.Redis) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                async with alocks.write("job"):
                    await asyncio.sleep(30)
        # It may have been on its way still.
        await asyncio.to_thread(wait_until, lambda: client.exists("job") == 0)

    if hasattr(asyncio, "timeout"):
        asyncio.run(main())


def test_other_blocks(locks: slock_client.Locks, client: redis.Redis) -> None:
    request = locks.write("job")
    request.__enter__()
    assert client.exists("job") == 1
    request.__exit__(None, None, None)
    with request.acquire() as hold:
        assert client.exists("job") == 1
    with pytest.raises(slock_client.NotHeldError):
        hold.release()
    with request as hold:
        hold.release()  # within


def test_metadata_is_made_at_the_acquisition(locks: slock_client.Locks) -> None:
    request = locks.write("job")
    with ThreadPoolExecutor(1, "nightly") as pool:
        hold = pool.submit(request.acquire).result(10)
    assert hold.metadata.endswith("task=nightly_0") and "pid=" in hold.metadata
    hold.release()


def test_the_validity_is_counted_and_a_reply_for_another_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = slock_client.Locks(MemoryServer()).read("job", ttl=10).acquire()
    assert 9.5 < hold.remaining <= 10 - 10 / 1000 - 0.001

    async def extend(*_: Any) -> Answer:
        hold._claim.fence += 1  # an upgrade comes in between
        return Answer(0, 0.0)

    monkeypatch.setattr(hold._claim.keeper, "extend", extend)
    hold.extend(5)
    assert not hold.lost


def test_threads_that_notice_a_loss_together() -> None:
    locks, interval = slock_client.Locks(MemoryServer()), sys.getswitchinterval()

    def look(hold: slock_client.Hold) -> str:
        with contextlib.suppress(slock_client.LostError):
            while True:
                hold.check()
        return hold.reason or "none"

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            for _ in range(100):
                hold = locks.write("job", ttl=0.02, renew=False).acquire()
                assert list(pool.map(look, [hold] * 3)) == ["expired"] * 3
    finally:
        sys.setswitchinterval(interval)
    locks.close()


def test_a_hold_that_comes_while_the_watchdog_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    look, found = Watchdog._look, list[slock_client.Hold | None]()

    def looks_and_acquires(self: Watchdog, claim: Any, at: float) -> float:
        due = look(self, claim, at)
        if not found:
            found.append(None)
            found[0] = locks.write("second", ttl=3).acquire()
        return due

    monkeypatch.setattr(Watchdog, "_look", looks_and_acquires)
    locks = slock_client.Locks(MemoryServer())
    first = locks.write("first").acquire()
    second = wait_until(lambda: found and found[0])
    wait_until(lambda: second.remaining < 2.5)
    wait_until(lambda: second.remaining > 2.5, what="the second hold to be renewed")
    first.check()
    locks.close()
