"""Which error a block ends with, in the way of `asyncio.timeout`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server

TTL = timedelta(milliseconds=300)


def run(server: Server, work: Callable[[slock_client.asyncio.Locks], Awaitable[None]]) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(client, ttl=TTL) as locks:
            await work(locks)
        await client.aclose()

    asyncio.run(main())


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling() if sys.version_info >= (3, 11) else 0


@pytest.mark.parametrize("renew", [True, False])
def test_a_lost_hold_ends_the_block_with_lost(server: Server, renew: bool) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.LostError) as caught:
            async with locks.write("job", renew=renew) as hold:
                server.client().delete("job")
                await asyncio.Event().wait()
        assert caught.value.reason == ("gone" if renew else "expired") == hold.reason
        assert cancellations() == 0
        await asyncio.sleep(0)  # no cancellation is left

    run(server, work)


def test_work_that_catches_the_cancellation_ends_with_lost_too(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.LostError):
            async with locks.write("job"):
                server.client().delete("job")
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        assert cancellations() == 0

    run(server, work)


def test_an_error_of_the_work_is_not_replaced(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(ZeroDivisionError):
            async with locks.write("job") as hold:
                server.client().delete("job")
                try:
                    await asyncio.Event().wait()
                finally:
                    assert hold.lost
                    raise ZeroDivisionError
        assert cancellations() == 0
        await asyncio.sleep(0)

    run(server, work)


def test_a_loop_that_is_blocked_past_the_deadline(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.LostError):
            async with locks.write("job") as hold:
                while time.monotonic() < hold.valid_until:
                    pass  # work that never lets the loop run
                with pytest.raises(slock_client.LostError):
                    hold.check()
        assert cancellations() == 0
        await asyncio.sleep(0)  # the cancellation, which could not be delivered, does not come now

    run(server, work)


def test_a_cancellation_from_elsewhere_stays_one(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        entered = asyncio.Event()

        async def block() -> None:
            async with locks.write("job"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.client().exists("job")

    run(server, work)


def test_a_cancellation_beside_the_loss_stays_one(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        tasks: list[asyncio.Task[None]] = []

        def also_cancel(hold: object) -> None:
            tasks[0].cancel()

        async def block() -> None:
            async with locks.write("job", on_lost=also_cancel):
                server.client().delete("job")
                await asyncio.Event().wait()

        tasks.append(asyncio.create_task(block()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]

    if sys.version_info < (3, 11):
        pytest.skip("this Python does not count cancellations")
    run(server, work)


def test_a_block_over_a_hold_cancels_the_work(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        server.client().delete("job")
        with pytest.raises(slock_client.LostError):
            async with hold:
                await asyncio.sleep(3600)
        assert cancellations() == 0
        assert await hold.wait_lost() and hold.reason == "gone"
        assert await hold.release() is False

    run(server, work)


def test_holds_in_one_another(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.LostError) as caught:
            async with locks.write("outer"), locks.write("inner"):
                server.client().delete("outer")
                await asyncio.Event().wait()
        assert caught.value.label == "outer"
        assert not server.client().exists("inner")

    run(server, work)


def test_the_decorator_takes_a_hold_for_each_call(server: Server) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        inside = most = 0

        @locks.read("job", limit=2)
        async def step(number: int) -> int:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1
            return number

        assert await asyncio.gather(*(step(number) for number in range(10))) == list(range(10))
        assert most == 2

    run(server, work)
