"""A cluster under faults: a silent node, and a slot that is being moved."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Cluster, Server, key_slot, wait_until
from slock_client import drop_in

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
POLL = slock_client.polling.Constant(SECOND / 50)


@pytest.fixture(scope="module")
def _slow_cluster() -> Iterator[Cluster]:
    cluster = Cluster(3, cluster_require_full_coverage=False)
    for node in cluster.nodes:
        node.configure(cluster_node_timeout=60_000)
    yield cluster.start()
    cluster.discard()


@pytest.fixture
def slow_cluster(_slow_cluster: Cluster) -> Iterator[Cluster]:
    """Three primaries that do not notice soon that one is silent. They have no data."""
    for node in _slow_cluster.nodes:
        node.client().flushall()
    yield _slow_cluster
    for node in _slow_cluster.nodes:
        node.resume()


def keys_of_each(cluster: Cluster) -> dict[Server, str]:
    """A key for each node, that of the silent node first."""
    found: dict[Server, str] = {}
    number = 0
    while len(found) < 3:
        found.setdefault(cluster.node_of(f"job{number}"), f"job{number}")
        number += 1
    return found


# --- nodes that are away


def test_a_short_outage_ends_no_asyncio_wait() -> None:
    """The program uses the client too, which forgets its nodes when they are away."""
    cluster = Cluster(1).start()
    node = cluster.nodes[0]

    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=node.port)
        async with slock_client.asyncio.Locks(client, ttl=MINUTE) as locks:
            await locks.write("job").acquire()
            waiter = asyncio.create_task(locks.write("job", wait=MINUTE).acquire())
            while not node.client().execute_command("SLOCK.QUEUES"):
                await asyncio.sleep(0.01)
            node.kill9()
            with pytest.raises(Exception):  # noqa: B017 # whichever
                await client.get("other")
            with pytest.raises(slock_client.TimedOutError):
                await locks.write("other").acquire()
            assert not waiter.done()
            node.start()
            assert await (await waiter).release()
        await client.aclose()

    asyncio.run(main())
    cluster.discard()


def test_a_call_to_silent_nodes_ends_with_its_time() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = redis.asyncio.RedisCluster("127.0.0.1", silent.getsockname()[1], socket_timeout=60)
            async with slock_client.asyncio.Locks(client, retry_for=SECOND) as locks:
                with pytest.raises(slock_client.TimedOutError):
                    await asyncio.wait_for(locks.write("job").acquire(), 10)
            await client.aclose()

    asyncio.run(main())


def test_the_queues_of_all_nodes(cluster: Cluster) -> None:
    keys = list(keys_of_each(cluster).values())
    address = {"host": "127.0.0.1", "port": cluster.nodes[0].port}
    client = redis.RedisCluster(**address)
    told: list[list[bytes]] = []

    async def main() -> None:
        async with redis.asyncio.RedisCluster(**address) as other, slock_client.asyncio.Locks(other) as locks:
            told.append([one.key for one in await locks.queues()])

    with ThreadPoolExecutor() as pool, slock_client.Locks(client, ttl=MINUTE) as locks:
        holds = [locks.write(key).acquire() for key in keys]
        for number, key in enumerate(keys, 1):
            pool.submit(locks.write(key, renew=False).acquire)
            # The nodes are asked one after the other, so the waits begin some time apart.
            wait_until(
                lambda number=number: (
                    [one.longest_wait > SECOND / 10 for one in locks.queues()] == [True] * number
                )
            )
        told.append([one.key for one in locks.queues()])
        asyncio.run(main())
        for hold in holds:
            assert hold.release()
    assert told == [[key.encode() for key in keys]] * 2, "the longest wait first"
    client.close()


# --- a silent node


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_silent_node_does_not_end_holds_at_the_others(slow_cluster: Cluster, silent: int) -> None:
    keys = keys_of_each(slow_cluster)
    client = redis.RedisCluster(host="127.0.0.1", port=slow_cluster.nodes[0].port)
    with slock_client.Locks(client, ttl=4 * SECOND) as locks:
        holds = {node: locks.write(key).acquire() for node, key in keys.items()}
        node = slow_cluster.nodes[silent]
        node.pause()
        lost, others = holds.pop(node), list(holds.values())
        wait_until(lambda: lost.lost)
        first = {hold.token: hold.valid_until for hold in others}
        wait_until(
            lambda: (
                any(hold.lost for hold in others)
                or all(hold.valid_until > first[hold.token] + 2 for hold in others)
            ),
            30,
        )
        assert not any(hold.lost for hold in others)
        node.resume()
        for hold in others:
            assert hold.release()
    client.close()


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_a_silent_node_does_not_end_asyncio_holds_at_the_others(slow_cluster: Cluster, silent: int) -> None:
    keys = keys_of_each(slow_cluster)

    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=slow_cluster.nodes[0].port)
        async with slock_client.asyncio.Locks(client, ttl=4 * SECOND) as locks:
            holds = {node: await locks.write(key).acquire() for node, key in keys.items()}
            node = slow_cluster.nodes[silent]
            node.pause()
            lost, others = holds.pop(node), list(holds.values())
            while not lost.lost:
                await asyncio.sleep(0.01)
            first = {hold.token: hold.valid_until for hold in others}
            end = time.monotonic() + 30
            while not all(hold.valid_until > first[hold.token] + 2 for hold in others):
                assert not any(hold.lost for hold in others)
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
            node.resume()
            for hold in others:
                assert await hold.release()
        await client.aclose()

    asyncio.run(main())


def test_the_slots_are_known_although_a_node_is_silent(slow_cluster: Cluster) -> None:
    """Whichever node is asked first."""
    keys = keys_of_each(slow_cluster)
    client = redis.RedisCluster(host="127.0.0.1", port=slow_cluster.nodes[0].port)
    for silent in slow_cluster.nodes:
        with slock_client.Locks(client, ttl=MINUTE) as locks:
            silent.pause()
            for node, key in keys.items():
                if node is not silent:
                    assert locks.write(key, wait=2 * SECOND).acquire().release()
            silent.resume()
    client.close()


# --- a slot that is being moved


@pytest.fixture
def moving(cluster: Cluster) -> Iterator[str]:
    """A key that does not exist, in a slot that is being moved."""
    source = cluster.node_of("job")
    target, slot = cluster.other_than(source), key_slot(source, "job")
    cluster.begin_move(slot, source, target)
    yield "job"
    for node in (source, target):
        node.client().execute_command("CLUSTER SETSLOT", slot, "STABLE")


def test_nodes_that_name_each_other_for_a_while(cluster: Cluster) -> None:
    """As they may when a slot has just been handed over: more redirections than are followed at once."""
    owner = cluster.node_of("job")
    other, slot = cluster.other_than(owner), key_slot(owner.client(), "job")

    def name(node: Server, named: Server) -> None:
        node.client().execute_command("CLUSTER SETSLOT", slot, "NODE", cluster.node_id(named))

    def redirections() -> int:
        return int(owner.client().info("errorstats").get("errorstat_MOVED", {"count": 0})["count"])

    client = redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    with slock_client.Locks(client, ttl=MINUTE, retry_for=MINUTE) as locks, ThreadPoolExecutor() as pool:
        assert locks.write("job").acquire().release()
        before = redirections()
        name(owner, other)
        name(other, owner)
        acquiring = pool.submit(locks.write("job").acquire)
        wait_until(lambda: acquiring.done() or redirections() > before + 8, 60, "many redirections")
        name(other, owner)
        name(owner, owner)
        assert acquiring.result(timeout=60).release()
    client.close()


@pytest.mark.parametrize("waiting", ["block", POLL], ids=["block", "poll"])
def test_a_free_lock_in_a_slot_that_is_being_moved(cluster: Cluster, moving: str, waiting: object) -> None:
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    with slock_client.Locks(client, ttl=SECOND, waiting=waiting) as locks:
        hold = locks.write(moving).try_acquire()
        assert hold is not None
        assert locks.write(moving).try_acquire() is None
        assert hold.release()
        hold = locks.write(moving, wait=20 * SECOND).acquire()
        first = hold.valid_until
        wait_until(lambda: hold.lost or hold.valid_until > first + 2)  # the renewals find it too
        waits = threading.Timer(0.2, hold.release)
        waits.start()
        with locks.write(moving, wait=20 * SECOND) as second:
            second.check()
        waits.join()
    client.close()


@pytest.mark.parametrize("waiting", ["notify", "block", POLL], ids=["notify", "block", "poll"])
def test_a_free_asyncio_lock_in_a_slot_that_is_being_moved(
    cluster: Cluster, moving: str, waiting: object
) -> None:
    async def main() -> None:
        client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
        async with slock_client.asyncio.Locks(client, ttl=SECOND, waiting=waiting) as locks:
            hold = await locks.write(moving, wait=20 * SECOND).acquire()
            first = hold.valid_until
            while not hold.valid_until > first + 2:
                hold.check()
                await asyncio.sleep(0.01)
            assert await hold.release()
        await client.aclose()

    asyncio.run(main())


# --- the drop-in in a forked process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_changes_the_watchdogs(server: Server) -> None:
    client = redis.Redis(port=server.port)
    with drop_in._locks._changing:
        child = os.fork()
        if child == 0:
            asks = threading.Thread(target=lambda: drop_in._locks.of(client), daemon=True)
            asks.start()
            asks.join(10)
            os._exit(1 if asks.is_alive() else 0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
