"""A block that ends in another thread or task than it began in, as those of fixtures and dependencies do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server, wait_until

MINUTE = timedelta(minutes=1)


@pytest.fixture
def threads() -> Iterator[list[Callable[..., Any]]]:
    """Two, each of which calls a function and gives its result."""
    pools = [ThreadPoolExecutor(1) for _ in range(2)]
    yield [lambda work, *arguments, pool=pool: pool.submit(work, *arguments).result(30) for pool in pools]
    for pool in pools:
        pool.shutdown()


def test_a_block_ends_in_another_thread(
    server: Server, client: redis.Redis, threads: list[Callable[..., Any]]
) -> None:
    one, other = threads
    with slock_client.Locks(redis.Redis(port=server.port), ttl=MINUTE) as locks:
        request = locks.write("job")
        hold = one(request.__enter__)
        other(request.__exit__, None, None, None)
        assert not client.exists("job")
        assert not hold.lost


def test_which_block_ends_is_not_known(
    server: Server, client: redis.Redis, threads: list[Callable[..., Any]]
) -> None:
    with slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(seconds=1)) as locks:
        request = locks.read("job")
        holds = [thread(request.__enter__) for thread in threads]
        with pytest.raises(RuntimeError, match="make a request for each"):
            request.__exit__(None, None, None)
        wait_until(lambda: all(hold.reason == "lease ended" for hold in holds))
        wait_until(lambda: not client.exists("job"))


def test_a_block_ends_in_another_task(server: Server, client: redis.Redis) -> None:
    async def main(deletes: bool) -> None:
        own = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(own, ttl=timedelta(seconds=1.5)) as locks:

            async def fixture() -> AsyncIterator[slock_client.asyncio.Hold]:
                async with locks.write("job") as hold:
                    yield hold

            async def step() -> slock_client.asyncio.Hold | None:
                return await anext(generator, None)

            generator = fixture()
            hold = await asyncio.create_task(step())
            assert hold is not None
            if deletes:
                client.delete("job")
                assert await hold.wait_lost()
                with pytest.raises(slock_client.LostError):
                    await asyncio.create_task(step())
            else:
                await asyncio.create_task(step())
                assert not hold.lost
            assert not client.exists("job")
        await own.aclose()

    asyncio.run(main(False))
    asyncio.run(main(True))
