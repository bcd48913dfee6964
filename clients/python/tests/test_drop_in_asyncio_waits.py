"""The drop-in of asyncio where it is better: the server's queue, cancellation, lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio

import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import Cluster, MakeServer, Server, key_slot
from test_drop_in_asyncio import with_client
from test_drop_in_waits import extensions


def make_lock(
    client: redis.asyncio.Redis | redis.asyncio.RedisCluster, **options: Any
) -> slock_client.asyncio.drop_in.Lock:
    return client.lock("job", lock_class=slock_client.asyncio.drop_in.Lock, **options)


class ShortLock(slock_client.asyncio.drop_in.Lock):
    """A lock whose watchdog has to renew it soon."""

    watchdog_ttl = timedelta(seconds=2)


async def queue(client: redis.asyncio.Redis) -> list[dict[bytes, Any]]:
    """Who waits for the lock, in order. The client speaks RESP3."""
    info = await client.execute_command("SLOCK.INFO", "job", "FULL")
    return info[b"queue"] if info else []


async def wait_for_waiters(client: redis.asyncio.Redis, count: int) -> None:
    end = asyncio.get_running_loop().time() + 30
    while len(await queue(client)) != count:
        assert asyncio.get_running_loop().time() < end, f"waited 30 s in vain for {count} waiters"
        await asyncio.sleep(0.004)


class FirstReplyLost(redis.asyncio.Connection):
    """A connection that closes after it sent `command`, when the server has answered. It does so once."""

    command: str | None = None

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        await super().send_packed_command(command, check_health)
        sent = b"".join(command) if isinstance(command, list) else command
        if FirstReplyLost.command and FirstReplyLost.command.encode() in sent:
            FirstReplyLost.command = None
            await super().read_response()
            await self.disconnect()
            raise redis.ConnectionError("the reply is lost")


def losing_reply_to(client: redis.asyncio.Redis, command: str) -> redis.asyncio.Redis:
    """A client that loses the first reply to `command`."""
    FirstReplyLost.command = command
    port = client.connection_pool.connection_kwargs["port"]
    pool = redis.asyncio.ConnectionPool(connection_class=FirstReplyLost, port=port)
    return redis.asyncio.Redis.from_pool(pool)


# --- the queue


@with_client
async def test_those_who_wait_are_served_in_order(client: redis.asyncio.Redis) -> None:
    order: list[int] = []

    async def take_a_turn(number: int) -> None:
        async with make_lock(client, timeout=10):
            order.append(number)

    async with make_lock(client, timeout=60):
        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(take_a_turn(number)))
            await wait_for_waiters(client, number + 1)
        assert await make_lock(client).acquire(blocking=False) is False
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4]


@with_client
async def test_a_release_wakes_at_once_whatever_sleep_is(client: redis.asyncio.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert await holder.acquire()
    waiter = asyncio.create_task(make_lock(client, timeout=10, sleep=3600).acquire())
    await wait_for_waiters(client, 1)
    await holder.release()
    assert await waiter is True


@with_client
async def test_the_time_out_of_the_client_does_not_cut_a_wait(client: redis.asyncio.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert await holder.acquire()
    port = client.connection_pool.connection_kwargs["port"]
    async with redis.asyncio.Redis(port=port, socket_timeout=0.1) as impatient:
        waiter = asyncio.create_task(make_lock(impatient, timeout=10).acquire())
        while not [one for one in await queue(client) if one[b"waiting-ms"] > 500]:
            await asyncio.sleep(0.004)
        assert len(await queue(client)) == 1
        await holder.release()
        assert await waiter is True


def test_a_wait_takes_no_connection_of_the_pool(server: Server) -> None:
    async def check() -> None:
        async with (
            redis.asyncio.Redis(port=server.port, max_connections=1) as client,
            redis.asyncio.Redis(port=server.port, protocol=3) as observer,
        ):
            holder = make_lock(client, timeout=60)
            assert await holder.acquire()
            waiters = []
            for number in range(3):
                waiters.append(asyncio.create_task(make_lock(client, timeout=10).acquire()))
                await wait_for_waiters(observer, number + 1)
            await holder.release()
            assert await waiters[0] is True
            for waiter in waiters[1:]:
                await client.delete("job")
                assert await waiter is True

    asyncio.run(check())


# --- cancellation


@with_client
async def test_a_cancelled_wait_leaves_nothing(client: redis.asyncio.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert await holder.acquire()
    waiting = make_lock(client)
    task = asyncio.create_task(waiting.acquire())
    await wait_for_waiters(client, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_for_waiters(client, 0)
    assert waiting.local.token is None
    await holder.release()
    assert not await client.exists("job")


@with_client
async def test_a_wait_in_a_timeout_of_asyncio(client: redis.asyncio.Redis) -> None:
    async with make_lock(client, timeout=60):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(make_lock(client).acquire(), 0.05)
        await wait_for_waiters(client, 0)
    assert not await client.exists("job")


@with_client
async def test_cancelled_at_the_grant_leaves_nothing(client: redis.asyncio.Redis) -> None:
    for number in range(100):
        holder, waiting = make_lock(client, timeout=60), make_lock(client)
        assert await holder.acquire()
        task = asyncio.create_task(waiting.acquire())
        await wait_for_waiters(client, 1)
        release = asyncio.create_task(holder.release())
        for _ in range(number % 10):
            await asyncio.sleep(0)
        task.cancel()
        await release
        try:
            await task
        except asyncio.CancelledError:
            assert waiting.local.token is None
        else:
            await waiting.release()
        await wait_for_waiters(client, 0)
        assert not await client.exists("job")


@with_client
async def test_cancelled_at_each_step_of_an_acquisition_leaves_nothing(client: redis.asyncio.Redis) -> None:
    for steps in range(60):
        lock = make_lock(client)
        task = asyncio.create_task(lock.acquire())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            assert await task
        except asyncio.CancelledError:
            assert lock.local.token is None
        else:
            await lock.release()
        async with make_lock(client, timeout=60):  # granted only when nothing is left
            pass


# --- lost connections


@with_client
async def test_a_lost_reply_to_acquire(client: redis.asyncio.Redis) -> None:
    async with losing_reply_to(client, "SLOCK.LOCK") as lossy:
        lock = make_lock(lossy, timeout=60)
        assert await lock.acquire(blocking=False) is True
        assert FirstReplyLost.command is None and await lock.owned()
        await lock.release()
        assert not await lock.locked()


@with_client
async def test_a_lost_reply_to_release(client: redis.asyncio.Redis) -> None:
    async with losing_reply_to(client, "SLOCK.UNLOCK") as lossy:
        lock = make_lock(lossy, timeout=60)
        assert await lock.acquire()
        await lock.release()
        assert FirstReplyLost.command is None and not await lock.locked()


@with_client
async def test_a_lost_reply_to_extend_adds_the_time_once(client: redis.asyncio.Redis) -> None:
    async with losing_reply_to(client, "SLOCK.EXTEND") as lossy:
        lock = make_lock(lossy, timeout=60)
        assert await lock.acquire()
        assert await lock.extend(60)
        assert FirstReplyLost.command is None
        assert 100_000 < await lossy.pttl("job") <= 120_000
        await lock.release()


@with_client
async def test_a_wait_whose_connections_are_killed_goes_on(client: redis.asyncio.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert await holder.acquire()
    waiter = asyncio.create_task(make_lock(client, timeout=10).acquire())
    await wait_for_waiters(client, 1)
    (first,) = await queue(client)
    await client.client_kill_filter(skipme=True)
    end = asyncio.get_running_loop().time() + 30
    while not (waits := await queue(client)) or waits[0][b"channel"] == first[b"channel"]:
        assert asyncio.get_running_loop().time() < end, "waited 30 s in vain for it to ask again"
        await asyncio.sleep(0.004)
    assert waits[0][b"token"] == first[b"token"]
    await holder.release()
    assert await waiter is True


def test_a_wait_over_a_restart_goes_on(make_server: MakeServer) -> None:
    server = make_server(save="")

    async def check() -> None:
        async with redis.asyncio.Redis(port=server.port, protocol=3) as client:
            assert await make_lock(client, timeout=60).acquire()
            waiter = asyncio.create_task(make_lock(client, timeout=10).acquire())
            await wait_for_waiters(client, 1)
            server.restart(kill=True)  # which forgets the hold
            assert await waiter is True
            assert await client.exists("job")

    asyncio.run(check())


# --- errors


@with_client
async def test_a_key_of_another_type_is_an_error(client: redis.asyncio.Redis) -> None:
    await client.set("job", "something else")
    lock = make_lock(client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await lock.acquire()
    assert lock.local.token is None
    assert await client.get("job") == b"something else"


def test_a_server_without_the_module(make_server: MakeServer) -> None:
    server = make_server(module=False)

    async def check() -> None:
        async with redis.asyncio.Redis(port=server.port) as client:
            with pytest.raises(slock_client.ModuleNotLoadedError):
                await make_lock(client).acquire()

    asyncio.run(check())


# --- a cluster


def test_in_a_cluster(cluster: Cluster) -> None:
    async def check() -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client:
            for name in ("a", "b", "c", "d"):
                where = cluster.node_of(name).client()
                lock = client.lock(name, lock_class=slock_client.asyncio.drop_in.Lock, timeout=10)
                async with lock:
                    assert await lock.owned() and await lock.locked()
                    assert await lock.extend(10) and await lock.reacquire()
                    other = client.lock(name, lock_class=slock_client.asyncio.drop_in.Lock, timeout=10)
                    assert await other.acquire(blocking=False) is False
                    assert await other.acquire(blocking_timeout=0.05) is False
                    waiter = asyncio.create_task(other.acquire())
                    while not where.execute_command("SLOCK.QUEUES"):
                        await asyncio.sleep(0.004)
                assert await waiter is True

    asyncio.run(check())


def test_in_a_cluster_whose_slot_moves(cluster: Cluster) -> None:
    source = cluster.node_of("moving")
    target = cluster.other_than(source)
    slot = key_slot(source, "moving")

    async def until(condition: Callable[[], Any]) -> None:
        while not condition():
            await asyncio.sleep(0.004)

    async def check() -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client:
            holder = client.lock("moving", lock_class=ShortLock)
            assert await holder.acquire()
            waiting = client.lock("moving", lock_class=slock_client.asyncio.drop_in.Lock, timeout=10)
            waiter = asyncio.create_task(waiting.acquire())
            at_source, at_target = source.client(), target.client()
            await until(lambda: at_source.execute_command("SLOCK.QUEUES"))
            cluster.begin_move(slot, source, target)
            cluster.move_keys(slot, source, target)
            cluster.end_move(slot, source, target)
            await until(lambda: at_target.execute_command("SLOCK.QUEUES"))
            at_target.config_resetstat()
            await until(lambda: extensions(at_target) >= 4)  # for longer than a ttl
            assert await holder.owned()
            await holder.release()
            assert await waiter is True
            assert await waiting.owned()
            await waiting.release()

    asyncio.run(check())
