"""Commands that the server carries out late, and changes of one hold at the same time.

A hold must never count as valid for longer than the server keeps it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError

import slock
import slock.asyncio
from harness import Server, stays, wait_until
from late_proxy import LateProxy
from slock.asyncio._watchdog import Watchdog

MS = timedelta(milliseconds=1)
SHORT = timedelta(seconds=20)
LONG = timedelta(minutes=5)

# A command that is kept back gets no answer for so long, in seconds; then it is sent again.
NO_ANSWER = 0.3


@pytest.fixture
def proxy(server: Server) -> Iterator[LateProxy]:
    proxy = LateProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def locks(proxy: LateProxy) -> Iterator[slock.Locks]:
    with (
        redis.Redis(port=proxy.port, socket_timeout=NO_ANSWER) as client,
        slock.Locks(client, ttl=timedelta(minutes=1)) as locks,
    ):
        yield locks


class Work(threading.Thread):
    """Calls a function in a thread. `result` gives what it returned or raises what it raised."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        super().__init__(daemon=True)
        self._function, self._arguments = function, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(20)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def on_asyncio(port: int, work: Callable[[slock.asyncio.Locks], Any], **options: Any) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=port, socket_timeout=NO_ANSWER)
        async with slock.asyncio.Locks(client, ttl=timedelta(minutes=1), **options) as locks:
            await work(locks)
        await client.aclose()

    asyncio.run(main())


def server_ms(client: redis.Redis, hold: Any) -> int:
    return client.execute_command("SLOCK.PTTL", "job", hold.token)


def waiters(client: redis.Redis) -> int:
    info = client.execute_command("SLOCK.INFO", "job")
    return dict(zip(info[::2], info[1::2], strict=True))[b"waiters"]


def assert_certain(client: redis.Redis, hold: Any) -> None:
    """The hold counts for no longer than the server keeps it."""
    left = server_ms(client, hold)
    assert hold.time_left / MS <= left


def assert_late(client: redis.Redis, proxy: LateProxy, hold: Any) -> None:
    """A command with the short ttl is still under way, and the hold counts on that."""
    assert timedelta(0) < hold.time_left <= SHORT
    assert hold.renew_at <= time.monotonic() + SHORT.total_seconds() / 3
    assert server_ms(client, hold) > SHORT / MS
    proxy.deliver()
    wait_until(lambda: server_ms(client, hold) <= SHORT / MS)
    assert_certain(client, hold)


# --- commands that come late


def test_a_late_extend(client: redis.Redis, proxy: LateProxy, locks: slock.Locks) -> None:
    hold = locks.write("job").acquire()
    proxy.keep("EXTEND")
    hold.extend(SHORT)
    hold.extend(LONG)
    assert hold.ttl == LONG
    assert_late(client, proxy, hold)


def test_a_late_extend_asyncio(client: redis.Redis, proxy: LateProxy) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        proxy.keep("EXTEND")
        await hold.extend(SHORT)
        await hold.extend(LONG)
        assert hold.ttl == LONG
        assert_late(client, proxy, hold)

    on_asyncio(proxy.port, work)


def test_an_extend_that_is_cancelled_may_come_late(proxy: LateProxy) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        proxy.keep("EXTEND")
        extension = asyncio.create_task(hold.extend(SHORT))
        await asyncio.to_thread(wait_until, proxy.has_kept)
        extension.cancel()
        with pytest.raises(asyncio.CancelledError):
            await extension
        assert hold.time_left <= SHORT
        await hold.extend(LONG)
        assert timedelta(0) < hold.time_left <= SHORT

    on_asyncio(proxy.port, work)


def test_a_late_lock(client: redis.Redis, proxy: LateProxy, locks: slock.Locks) -> None:
    proxy.keep("SLOCK.LOCK")
    hold = locks.write("job", ttl=SHORT).try_acquire()
    assert hold is not None
    hold.extend(LONG)
    assert_late(client, proxy, hold)


def test_a_late_lock_asyncio(client: redis.Redis, proxy: LateProxy) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        proxy.keep("SLOCK.LOCK")
        hold = await locks.write("job", ttl=SHORT).try_acquire()
        assert hold is not None
        await hold.extend(LONG)
        assert_late(client, proxy, hold)

    on_asyncio(proxy.port, work)


def test_a_late_extend_of_an_adoption(client: redis.Redis, proxy: LateProxy, locks: slock.Locks) -> None:
    client.execute_command("SLOCK.LOCK", "job", "mine", 60_000)
    proxy.keep("EXTEND")
    hold = locks.adopt("job", "mine", "write", ttl=SHORT)
    hold.extend(LONG)
    assert_late(client, proxy, hold)


def test_a_late_downgrade(proxy: LateProxy, locks: slock.Locks) -> None:
    hold = locks.write("job").acquire()
    proxy.keep("DOWNGRADE")
    hold.downgrade()
    with pytest.raises(slock.WrongMode, match="may still be carried out"):
        hold.upgrade()
    assert hold.mode == "read"
    assert hold.release()


def test_a_late_downgrade_asyncio(proxy: LateProxy) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        proxy.keep("DOWNGRADE")
        await hold.downgrade()
        with pytest.raises(slock.WrongMode, match="may still be carried out"):
            await hold.upgrade()
        assert hold.mode == "read"
        assert await hold.release()

    on_asyncio(proxy.port, work)


def test_a_downgrade_that_is_cancelled_may_come_late(proxy: LateProxy) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        proxy.keep("DOWNGRADE")
        downgrade = asyncio.create_task(hold.downgrade())
        await asyncio.to_thread(wait_until, proxy.has_kept)
        downgrade.cancel()
        with pytest.raises(asyncio.CancelledError):
            await downgrade
        assert hold.mode == "read"

    on_asyncio(proxy.port, work)


# --- a quorum


def test_a_late_extend_of_a_quorum(client: redis.Redis, proxy: LateProxy) -> None:
    with slock.Quorum([redis.Redis(port=proxy.port)], ttl=3 * SHORT, node_timeout=300 * MS) as quorum:
        hold = quorum.write("job").acquire()
        proxy.keep("EXTEND")
        with pytest.raises(slock.QuorumMissed):
            hold.extend(SHORT)
        assert hold.ttl == 3 * SHORT
        proxy.deliver()
        hold.extend(LONG)
        assert timedelta(0) < hold.time_left <= SHORT
        assert_certain(client, hold)


def test_a_late_extend_of_a_quorum_asyncio(client: redis.Redis, proxy: LateProxy) -> None:
    async def main() -> None:
        node = redis.asyncio.Redis(port=proxy.port)
        async with slock.asyncio.Quorum([node], ttl=3 * SHORT, node_timeout=300 * MS) as quorum:
            hold = await quorum.write("job").acquire()
            proxy.keep("EXTEND")
            with pytest.raises(slock.QuorumMissed):
                await hold.extend(SHORT)
            assert hold.ttl == 3 * SHORT
            proxy.deliver()
            await hold.extend(LONG)
            assert timedelta(0) < hold.time_left <= SHORT
            assert_certain(client, hold)
        await node.aclose()

    asyncio.run(main())


TTL = timedelta(seconds=3)


def test_a_renewal_of_a_quorum_counts_with_its_own_ttl(client: redis.Redis, proxy: LateProxy) -> None:
    with slock.Quorum([redis.Redis(port=proxy.port)], ttl=TTL, node_timeout=TTL / 3) as quorum:
        hold = quorum.write("job").acquire()
        proxy.keep("EXTEND")
        wait_until(proxy.has_kept)  # the renewal
        extension = Work(hold.extend, LONG)
        stays(extension.is_alive, 0.1)
        proxy.deliver(then_drop=True)
        with pytest.raises(slock.QuorumMissed):
            extension.result()
        assert_certain(client, hold)


def test_a_renewal_of_a_quorum_counts_with_its_own_ttl_asyncio(client: redis.Redis, proxy: LateProxy) -> None:
    async def main() -> None:
        node = redis.asyncio.Redis(port=proxy.port)
        async with slock.asyncio.Quorum([node], ttl=TTL, node_timeout=TTL / 3) as quorum:
            hold = await quorum.write("job").acquire()
            proxy.keep("EXTEND")
            await asyncio.to_thread(wait_until, proxy.has_kept)
            extension = asyncio.create_task(hold.extend(LONG))
            await asyncio.sleep(0)
            proxy.deliver(then_drop=True)
            with pytest.raises(slock.QuorumMissed):
                await extension
            assert_certain(client, hold)
        await node.aclose()

    asyncio.run(main())


# --- changes at the same time


def test_an_extension_waits_for_an_upgrade(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.RLOCK", "job", "other", 60_000)
    with redis.Redis(port=server.port) as base, slock.Locks(base, ttl=SHORT) as locks:
        hold = locks.read("job").acquire()
        upgrade = Work(hold.upgrade)
        wait_until(lambda: waiters(client) == 1)
        extension = Work(hold.extend, LONG)
        stays(extension.is_alive, 0.2)
        with pytest.raises(slock.TimedOut, match="another change"):
            hold.upgrade(50 * MS)
        client.execute_command("SLOCK.RUNLOCK", "job", "other")
        upgrade.result()
        extension.result()
        assert server_ms(client, hold) > SHORT / MS
        assert_certain(client, hold)


def test_an_extension_waits_for_an_upgrade_asyncio(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        client.execute_command("SLOCK.RLOCK", "job", "other", 60_000)
        hold = await locks.read("job", ttl=SHORT).acquire()
        upgrade = asyncio.create_task(hold.upgrade())
        await asyncio.to_thread(wait_until, lambda: waiters(client) == 1)
        extension = asyncio.create_task(hold.extend(LONG))
        _, late = await asyncio.wait([extension], timeout=0.2)
        assert late
        with pytest.raises(slock.TimedOut, match="another change"):
            await hold.upgrade(50 * MS)
        client.execute_command("SLOCK.RUNLOCK", "job", "other")
        await upgrade
        await extension
        assert server_ms(client, hold) > SHORT / MS
        assert_certain(client, hold)

    on_asyncio(server.port, work)


def test_a_release_does_not_wait_for_an_upgrade(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.RLOCK", "job", "other", 60_000)
    with redis.Redis(port=server.port) as base, slock.Locks(base, ttl=SHORT) as locks:
        hold = locks.read("job").acquire()
        upgrade = Work(hold.upgrade)
        wait_until(lambda: waiters(client) == 1)
        extension = Work(hold.extend)
        assert hold.release()
        for change in (upgrade, extension):
            with pytest.raises(slock.NotHeld):
                change.result()


def test_a_release_does_not_wait_for_an_upgrade_asyncio(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        client.execute_command("SLOCK.RLOCK", "job", "other", 60_000)
        hold = await locks.read("job", ttl=SHORT).acquire()
        upgrade = asyncio.create_task(hold.upgrade())
        await asyncio.to_thread(wait_until, lambda: waiters(client) == 1)
        extension = asyncio.create_task(hold.extend())
        assert await hold.release()
        for change in (upgrade, extension):
            with pytest.raises(slock.NotHeld):
                await change

    on_asyncio(server.port, work)


def test_extensions_come_one_after_another(client: redis.Redis, proxy: LateProxy) -> None:
    with redis.Redis(port=proxy.port) as base, slock.Locks(base, renew=False) as locks:
        hold = locks.write("job", ttl=SHORT).acquire()
        proxy.keep("EXTEND")
        first = Work(hold.extend, SHORT)
        wait_until(proxy.has_kept)
        second = Work(hold.extend, LONG)
        stays(second.is_alive, 0.2)
        proxy.deliver()
        first.result()
        second.result()
        assert server_ms(client, hold) > SHORT / MS
        assert_certain(client, hold)


def test_an_extension_of_asyncio_waits_for_a_renewal() -> None:
    """Otherwise a renewal that is redirected could be sent again after the extension."""

    class Renewed:
        ttl_seconds, renew_at, valid_until, ended = 60.0, 0.0, time.monotonic() + 60, False

        def expire(self) -> None:
            raise AssertionError

    async def main() -> None:
        sent, answered = asyncio.Event(), asyncio.Event()

        async def renew(holds: Sequence[Renewed], end: float) -> None:
            sent.set()
            await answered.wait()
            for hold in holds:
                hold.renew_at = hold.valid_until

        watchdog: Watchdog[Renewed] = Watchdog(renew)
        hold = Renewed()
        watchdog.add(hold)
        await sent.wait()
        waiting = asyncio.create_task(watchdog.wait_answered(hold))
        await asyncio.sleep(0)
        assert not waiting.done()
        answered.set()
        await waiting
        await watchdog.close()

    asyncio.run(main())


# --- a ttl that the server refuses


def test_an_extension_that_is_refused_changes_nothing(server: Server) -> None:
    with redis.Redis(port=server.port) as base, slock.Locks(base, ttl=900 * MS) as locks:
        hold = locks.write("job").acquire()
        before = hold.valid_until
        with pytest.raises(ResponseError, match="ttl must be"):
            hold.extend(timedelta(days=2))
        assert hold.ttl == 900 * MS
        wait_until(lambda: hold.valid_until > before and time.monotonic() > before)
        hold.check()


def test_an_extension_that_is_refused_changes_nothing_asyncio(server: Server) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job", ttl=900 * MS).acquire()
        before = hold.valid_until
        with pytest.raises(ResponseError, match="ttl must be"):
            await hold.extend(timedelta(days=2))
        assert hold.ttl == 900 * MS
        await asyncio.to_thread(wait_until, lambda: hold.valid_until > before and time.monotonic() > before)
        hold.check()

    on_asyncio(server.port, work)


def test_an_extension_that_a_quorum_refuses_changes_nothing(server: Server) -> None:
    with slock.Quorum([redis.Redis(port=server.port)], ttl=900 * MS) as quorum:
        hold = quorum.write("job").acquire()
        before = hold.valid_until
        with pytest.raises(slock.QuorumMissed, match="ttl must be"):
            hold.extend(timedelta(days=2))
        assert hold.ttl == 900 * MS
        wait_until(lambda: hold.valid_until > before and time.monotonic() > before)
        hold.check()


# --- a shorter ttl without renewals


def test_who_waits_for_the_loss_learns_of_a_shorter_ttl(server: Server) -> None:
    with redis.Redis(port=server.port) as base, slock.Locks(base, ttl=LONG, renew=False) as locks:
        hold = locks.write("job").acquire()
        waiting = Work(hold.wait_lost)
        stays(waiting.is_alive, 0.1)  # until it waits
        hold.extend(300 * MS)
        assert waiting.result()


def test_work_ends_with_a_shorter_ttl_asyncio(server: Server) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job", renew=False).acquire()
        waiting = asyncio.create_task(hold.wait_lost())
        await asyncio.sleep(0)  # until it waits
        with pytest.raises(slock.Lost):
            async with hold:
                await hold.extend(300 * MS)
                await asyncio.sleep(20)
                raise AssertionError("the work went on")
        assert await asyncio.wait_for(waiting, 10) == "expired"

    on_asyncio(server.port, work)


# --- hooks


@pytest.mark.parametrize("end", [lambda hold: hold.release(), lambda hold: hold.lost])
def test_hooks_are_called_while_others_can_use_the_hold(server: Server, end: Callable[[Any], Any]) -> None:
    can_use: list[bool] = []

    def on_lost(hold: Any) -> None:
        can_use.append(Work(hold._changing.acquire, True, 5).result())

    with redis.Redis(port=server.port) as base, slock.Locks(base, renew=False) as locks:
        hold = locks.write("job", ttl=100 * MS, on_lost=on_lost).acquire()
        wait_until(lambda: time.monotonic() > hold.valid_until)
        end(hold)
    assert can_use == [True]


def test_a_hook_that_releases(client: redis.Redis, proxy: LateProxy) -> None:
    """While a renewal is under way."""
    with redis.Redis(port=proxy.port) as base:
        locks = slock.Locks(base, ttl=600 * MS)
        for _ in range(3):
            hold = locks.write("job", on_lost=lambda hold: hold.release()).acquire()
            proxy.keep("EXTEND")
            wait_until(proxy.has_kept)
            proxy.deliver(then_drop=True)
            wait_until(lambda hold=hold: time.monotonic() > hold.valid_until)
            assert not Work(hold.release).result()
            proxy.deliver()
        locks.close()  # not after a failure: it would wait for ever


# --- a forked process


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` was true in a forked process."""
    child = os.fork()
    if child == 0:
        done = False
        try:
            done = work()
        finally:
            os._exit(0 if done else 1)
    return os.waitpid(child, 0)[1] == 0


def leaves_block(hold: Any) -> bool:
    with hold:
        return True


def is_not_extended(hold: Any) -> bool:
    try:
        hold.extend()
    except slock.NotHeld:
        return True
    return False


@pytest.mark.parametrize("work", [lambda hold: hold.release() is False, leaves_block, is_not_extended])
def test_a_forked_process_does_not_end_the_hold(
    server: Server, client: redis.Redis, work: Callable[[Any], bool]
) -> None:
    with redis.Redis(port=server.port) as base, slock.Locks(base) as locks:
        hold = locks.write("job").acquire()
        assert in_child(lambda: work(hold))
        assert server_ms(client, hold) > 0
        assert hold.release()
    with slock.Quorum([redis.Redis(port=server.port)]) as quorum:
        held = quorum.write("job").acquire()
        assert in_child(lambda: work(held))
        assert server_ms(client, held) > 0
        assert held.release()


def test_a_forked_process_does_not_end_a_hold_of_asyncio(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        child = os.fork()
        if child == 0:
            release = hold.release()
            try:
                release.send(None)
            except StopIteration as stopped:
                os._exit(0 if stopped.value is False else 1)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert server_ms(client, hold) > 0

    on_asyncio(server.port, work)


# --- a token that the program chose


def test_a_lost_hold_with_a_given_token_is_not_released(server: Server, client: redis.Redis) -> None:
    with redis.Redis(port=server.port) as base, slock.Locks(base) as locks:
        lost = locks.write("job", token="mine", ttl=100 * MS, renew=False).acquire()
        wait_until(lambda: lost.lost)
        hold = locks.write("job", token="mine").acquire()
        assert not lost.release()
        assert server_ms(client, hold) > 0
    with slock.Quorum([redis.Redis(port=server.port)]) as quorum:
        gone = quorum.write("other", token="mine", ttl=100 * MS, renew=False).acquire()
        wait_until(lambda: gone.lost)
        held = quorum.write("other", token="mine").acquire()
        assert not gone.release()
        assert client.execute_command("SLOCK.PTTL", "other", held.token) > 0


def test_a_lost_hold_with_a_given_token_is_not_released_asyncio(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock.asyncio.Locks) -> None:
        lost = await locks.write("job", token="mine", ttl=100 * MS, renew=False).acquire()
        await lost.wait_lost()
        hold = await locks.write("job", token="mine").acquire()
        assert not await lost.release()
        assert server_ms(client, hold) > 0

    on_asyncio(server.port, work)


def test_a_given_token_waits_for_its_last_release(client: redis.Redis, proxy: LateProxy) -> None:
    with redis.Redis(port=proxy.port) as base, slock.Locks(base, ttl=SHORT) as locks:
        last = locks.write("job", token="mine").acquire()
        proxy.keep("MUNLOCK")
        release = Work(last.release)
        wait_until(proxy.has_kept)
        with pytest.raises(slock.TimedOut, match="last use of its token"):
            locks.write("job", token="mine", wait=200 * MS).acquire()
        next_one = Work(locks.write("job", token="mine").acquire)
        stays(next_one.is_alive, 0.3)
        proxy.deliver()
        assert release.result()
        assert server_ms(client, next_one.result()) > 0


def test_a_given_token_waits_for_its_last_release_asyncio(server: Server, proxy: LateProxy) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=proxy.port)
        async with slock.asyncio.Locks(client, ttl=SHORT) as locks:
            last = await locks.write("job", token="mine").acquire()
            proxy.keep("MUNLOCK")
            release = asyncio.create_task(last.release())
            await asyncio.to_thread(wait_until, proxy.has_kept)
            before = server.client().info("commandstats").get("cmdstat_slock.lock", {}).get("calls", 0)
            with pytest.raises(slock.TimedOut, match="last use of its token"):
                await locks.write("job", token="mine", wait=200 * MS).acquire()
            next_one = asyncio.create_task(locks.write("job", token="mine").acquire())
            _, late = await asyncio.wait([next_one], timeout=0.3)
            assert late
            assert server.client().info("commandstats")["cmdstat_slock.lock"]["calls"] == before
            proxy.deliver()
            assert await release
            assert server_ms(server.client(), await next_one) > 0
        await client.aclose()

    asyncio.run(main())
