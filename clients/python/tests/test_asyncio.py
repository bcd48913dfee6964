"""What tasks share, and what they leave behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Cluster, MakeServer, Server

MINUTE = timedelta(minutes=1)


def run(
    server: Server, work: Callable[[slock_client.asyncio.Locks], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port, client_name="library")
        async with slock_client.asyncio.Locks(client, ttl=MINUTE, **options) as locks:
            await work(locks)
        await client.aclose()

    asyncio.run(main())


async def waiting(client: redis.Redis, count: int) -> None:
    """Returns when so many wait for `job`."""
    while waiters(client) != count:
        await asyncio.sleep(0.01)


def waiters(client: redis.Redis) -> int:
    info = client.execute_command("SLOCK.INFO", "job")
    if info is None:
        return 0
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    return int(fields[b"waiters"])


def test_commands_of_one_turn_of_the_loop_go_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = 0
    send = redis.asyncio.Connection.send_packed_command

    async def counted(*arguments: Any, **options: Any) -> None:
        nonlocal writes
        writes += 1
        await send(*arguments, **options)

    async def work(locks: slock_client.asyncio.Locks) -> None:
        assert await (await locks.write("first").acquire()).release()

        async def task(number: int) -> None:
            for _ in range(10):
                hold = await locks.write(f"job:{number}", renew=False).acquire()
                assert await hold.release()

        monkeypatch.setattr(redis.asyncio.Connection, "send_packed_command", counted)
        await asyncio.gather(*(task(number) for number in range(50)))
        assert writes < 250, "1,000 commands"

    run(server, work)


def test_many_tasks_wait_on_one_connection(make_server: MakeServer) -> None:
    server = make_server()
    client = server.client()

    async def work(locks: slock_client.asyncio.Locks) -> None:
        holder = await locks.write("job").acquire()
        order: list[int] = []

        async def task(number: int) -> None:
            async with locks.write("job", renew=False):
                order.append(number)

        tasks = [asyncio.create_task(task(number)) for number in range(500)]
        await waiting(client, 500)
        names = [one["name"] for one in client.client_list()]
        assert names.count("library") == 1
        await holder.release()
        await asyncio.gather(*tasks)
        assert order == list(range(500))

    run(server, work)


@pytest.mark.parametrize("how", ["notify", "block"])
def test_a_cancelled_task_leaves_nothing(server: Server, client: redis.Redis, how: str) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        holder = await locks.write("job").acquire()
        for _ in range(20):
            task = asyncio.create_task(locks.write("job").acquire())
            await waiting(client, 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert waiters(client) == 0
        assert await holder.release()
        assert not client.exists("job")

    run(server, work, waiting=how)


@pytest.mark.parametrize("how", ["notify", "block"])
def test_cancelled_at_any_moment(server: Server, client: redis.Redis, how: str) -> None:
    """After so many turns of the event loop, from before the request is sent until after the grant."""

    async def work(locks: slock_client.asyncio.Locks) -> None:
        for turns in range(60):
            holder = await locks.write("job").acquire()
            task = asyncio.create_task(locks.write("job").acquire())
            releases = asyncio.create_task(holder.release())
            for _ in range(turns % 30):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).release()
            assert await releases
            assert not client.exists("job") and waiters(client) == 0

    run(server, work, waiting=how)


def test_a_wait_by_asyncio_timeout(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        async with locks.write("job"):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(locks.write("job").acquire(), 0.1)
            assert waiters(client) == 0

    run(server, work)


def test_the_order_of_arrival_outlives_the_listening_connection(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        holder = await locks.write("job").acquire()
        order: list[int] = []

        async def task(number: int) -> None:
            async with locks.write("job"):
                order.append(number)

        tasks = []
        for number in range(10):
            tasks.append(asyncio.create_task(task(number)))
            await waiting(client, number + 1)
        first = client.execute_command("PUBSUB", "SHARDCHANNELS")
        assert client.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB") == 1
        while client.execute_command("PUBSUB", "SHARDCHANNELS") in (first, []):
            await asyncio.sleep(0.01)
        await waiting(client, 10)
        await holder.release()
        await asyncio.gather(*tasks)
        assert sorted(order) == list(range(10))

    run(server, work)


def test_close_ends_what_waits(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        task = asyncio.create_task(locks.write("job").acquire())
        await waiting(client, 1)
        await locks.close()
        with pytest.raises(slock_client.ClosedError):
            await task
        assert waiters(client) == 0
        with pytest.raises(slock_client.ClosedError):
            await locks.write("other").acquire()
        assert client.exists("job") and not hold.lost

    run(server, work)


def test_text_that_cannot_be_sent_harms_no_other_request(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        results = await asyncio.gather(
            locks.write("a").acquire(),
            locks.write("\ud800").acquire(),
            locks.write("b").acquire(),
            return_exceptions=True,
        )
        assert isinstance(results[1], UnicodeEncodeError)
        for key, hold in (("a", results[0]), ("b", results[2])):
            assert isinstance(hold, slock_client.asyncio.Hold)
            assert client.execute_command("SLOCK.CHECK", key, hold.fence) == 1

    run(server, work)


def test_each_hash_tag_waits_at_its_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slock_client.asyncio._listener, "PING_AFTER", 0.1)

    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
        async with slock_client.asyncio.Locks(client, ttl=MINUTE) as locks:
            keys = [f"job:{number}" for number in range(12)] + ["a}b", "{tag}:1"]
            holds = [await locks.write(key).acquire() for key in keys]
            tasks = [asyncio.create_task(locks.write(key).acquire()) for key in keys]
            nodes = [node.client() for node in cluster.nodes]
            while sum(len(node.execute_command("SLOCK.QUEUES", "COUNT", 0)) for node in nodes) < len(keys):
                await asyncio.sleep(0.01)
            for hold in holds:
                assert await hold.release()
            for task in tasks:
                assert await (await task).release()
            while any(node.execute_command("PUBSUB", "SHARDCHANNELS") for node in nodes):
                await asyncio.sleep(0.01)  # nobody waits any more
            # Nor does it stay when who wanted it is cancelled before he waits.
            hold = await locks.write("job").acquire()
            for turns in range(0, 60, 3):
                task = asyncio.create_task(locks.write("job").acquire())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while any(node.execute_command("PUBSUB", "SHARDCHANNELS") for node in nodes):
                    await asyncio.sleep(0.01)
            assert await hold.release()
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("connected", [False, True])
def test_a_loop_that_ends_with_a_cancelled_task_leaves_nothing(
    server: Server, client: redis.Redis, caplog: pytest.LogCaptureFixture, connected: bool
) -> None:
    # Tasks of the library are cancelled before their first step, at each moment that there is.
    async def main(key: str, turns: int) -> bool:
        own = redis.asyncio.Redis(port=server.port)
        locks = slock_client.asyncio.Locks(own, ttl=MINUTE)
        if connected:
            assert await (await locks.write("first").acquire()).release()
        task = asyncio.create_task(locks.write(key).acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        return task.done() and not task.cancelled()

    for turns in range(200):
        if asyncio.run(main(f"job:{turns}", turns)):
            break
        assert not client.exists(f"job:{turns}"), turns
        assert "could not be withdrawn" not in caplog.text, turns
    else:
        pytest.fail("the task never came to its end")


def test_a_hold_that_was_released_is_not_extended(server: Server, client: redis.Redis) -> None:
    async def work(locks: slock_client.asyncio.Locks) -> None:
        hold = await locks.write("job").acquire()
        assert await hold.release()
        with pytest.raises(slock_client.NotHeldError):
            await hold.extend()

    run(server, work)
    with slock_client.Locks(server.client()) as locks:
        hold = locks.write("job").acquire()
        assert hold.release()
        with pytest.raises(slock_client.NotHeldError):
            hold.extend()


def test_very_many_cancelled_waits_leave_nothing(server: Server, client: redis.Redis) -> None:
    """What stays in the queue would be granted to nobody, one after the other."""
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000)

    async def work(locks: slock_client.asyncio.Locks) -> None:
        tasks = [asyncio.create_task(locks.write("job").acquire()) for _ in range(1500)]
        await waiting(client, len(tasks))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(waiting(client, 0), 30)

    run(server, work)
