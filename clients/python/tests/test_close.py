"""What `close` ends, and what a closed `Locks` or `Quorum` does not do any more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server, wait_until

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SHORT = timedelta(milliseconds=600)


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Starts `work`, and gives what waits for its result or error."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join()
        return results[0]

    return result


def readers(client: redis.Redis, *tokens: str) -> None:
    for token in tokens:
        assert client.execute_command("SLOCK.RLOCK", "job", token, 60_000)


def waiters(client: redis.Redis) -> int:
    info = client.execute_command("SLOCK.INFO", "job")
    if info is None:
        return 0
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    return int(fields[b"waiters"])


def polled(client: redis.Redis, least: int) -> bool:
    return int(client.info("commandstats").get("cmdstat_slock.lock", {"calls": 0})["calls"]) >= least


@pytest.mark.parametrize("kind", ["locks", "quorum"])
def test_an_acquisition_under_way_leaves_nothing(server: Server, client: redis.Redis, kind: str) -> None:
    # The server answers only when `close` waits for the acquisition already.
    own = redis.Redis(port=server.port)
    locks: Any = slock_client.Locks(own) if kind == "locks" else slock_client.Quorum([own], ttl=MINUTE)
    assert locks.write("other").acquire().release()  # it is connected
    client.execute_command("CLIENT", "PAUSE", 200, "WRITE")
    acquired = in_thread(locks.write("job").try_acquire)
    wait_until(lambda: locks._shared._under_way)
    locks.close()
    assert isinstance(acquired(), slock_client.ClosedError)
    assert not client.exists("job")


def test_the_loss_of_a_hold_is_told_after_close(server: Server, client: redis.Redis) -> None:
    told: list[object] = []
    hooks = slock_client.Hooks(lost=lambda label, reason: told.append(reason))
    locks = slock_client.Locks(redis.Redis(port=server.port), ttl=SHORT, hooks=hooks)
    locks.write("job", on_lost=lambda hold: told.append(hold.keys)).acquire()
    locks.close()
    wait_until(lambda: told == ["expired", ("job",)])
    wait_until(lambda: "slock watchdog" not in [thread.name for thread in threading.enumerate()])
    wait_until(lambda: not client.exists("job"))


def test_the_loss_of_an_asyncio_hold_is_told_after_close(server: Server) -> None:
    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        locks, told = slock_client.asyncio.Locks(own, ttl=SHORT), asyncio.Event()
        await locks.write("job", on_lost=lambda hold: told.set()).acquire()
        await locks.close()
        await asyncio.wait_for(told.wait(), 30)
        await own.aclose()

    asyncio.run(main())


def test_a_poll_ends_when_the_locks_are_closed(server: Server, client: redis.Redis) -> None:
    readers(client, "other")
    client.config_resetstat()
    locks = slock_client.Locks(server.client(), waiting=slock_client.polling.Constant(HOUR))
    acquired = in_thread(locks.write("job").acquire)
    wait_until(lambda: polled(client, 1))
    locks.close()
    assert isinstance(acquired(), slock_client.ClosedError)


def test_a_poll_ends_when_the_quorum_is_closed(server: Server, client: redis.Redis) -> None:
    readers(client, "other")
    client.config_resetstat()
    quorum = slock_client.Quorum([server.client()], poll=slock_client.polling.Constant(HOUR))
    acquired = in_thread(quorum.write("job").acquire)
    wait_until(lambda: polled(client, 1))
    quorum.close()
    assert isinstance(acquired(), slock_client.ClosedError)
    with pytest.raises(slock_client.ClosedError):
        quorum.write("other").try_acquire()
    assert not client.exists("other")


def test_an_upgrade_that_waits_is_withdrawn_before_close_returns(server: Server, client: redis.Redis) -> None:
    readers(client, "other")
    locks = slock_client.Locks(server.client())
    hold = locks.read("job").acquire()
    upgraded = in_thread(hold.upgrade)
    wait_until(lambda: waiters(client) == 1)
    locks.close()
    assert waiters(client) == 0
    assert isinstance(upgraded(), slock_client.ClosedError)


def test_an_asyncio_poll_ends_when_the_locks_are_closed(server: Server, client: redis.Redis) -> None:
    readers(client, "other")

    async def main(locks: Any) -> None:
        client.config_resetstat()
        task = asyncio.create_task(locks.write("job").acquire())
        while not polled(client, 1):
            await asyncio.sleep(0.01)
        await locks.close()
        with pytest.raises(slock_client.ClosedError):
            await task
        with pytest.raises(slock_client.ClosedError):
            await locks.write("other").try_acquire()

    async def both() -> None:
        poll = slock_client.polling.Constant(HOUR)
        own = redis.asyncio.Redis(port=server.port)
        await main(slock_client.asyncio.Locks(own, waiting=poll))
        await main(slock_client.asyncio.Quorum([own], poll=poll))
        await own.aclose()

    asyncio.run(both())
    assert not client.exists("other")


@pytest.mark.parametrize("waiting", ["notify", "block"])
def test_an_asyncio_upgrade_that_waits_is_withdrawn_before_close_returns(
    server: Server, client: redis.Redis, waiting: str
) -> None:
    readers(client, "other")

    async def main() -> None:
        own = redis.asyncio.Redis(port=server.port)
        locks = slock_client.asyncio.Locks(own, waiting=waiting)
        hold = await locks.read("job").acquire()
        task = asyncio.create_task(hold.upgrade())
        while waiters(client) == 0:
            await asyncio.sleep(0.01)
        await locks.close()
        assert waiters(client) == 0
        with pytest.raises(slock_client.ClosedError):
            await task
        await own.aclose()

    asyncio.run(main())
