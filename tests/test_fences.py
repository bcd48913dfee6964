"""A fence is never followed by a lower one or the same: after a loss of data, a restart or a failover."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Locks, Server, now_ms, promote, replica_of, rewrite_aof, wait_synced
from harness.payloads import plain_dump, with_number

MakeServer = Callable[..., Server]
Pair = tuple[Server, Server]

LONG = 60_000

# By how much a fence is ahead of the clock in the tests which must not be saved by the clock.
HOUR_US = 3_600_000_000


def next_fence(client: redis.Redis, key: str = "next") -> int:
    """A new hold's fence."""
    locks = Locks(client)
    fence = locks.lock(key, "probe", LONG)
    assert fence > 0
    locks.unlock(key, "probe")
    return fence


def test_fences_rise_whatever_the_key_token_mode_or_database(server: Server, client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        command = ("SLOCK.LOCK", "SLOCK.RLOCK")[number % 2]
        pipe.execute_command("SELECT", number % 3)
        pipe.execute_command(command, f"k{number}", f"t{number % 7}", LONG)
    fences = pipe.execute()[1::2]
    assert fences == sorted(set(fences))


def test_a_fence_is_at_least_the_clock(client: redis.Redis) -> None:
    before = now_ms(client)
    assert next_fence(client) >= (before - 10) * 1000


@pytest.mark.parametrize(
    "command",
    [("DEL", "k"), ("UNLINK", "k"), ("FLUSHALL",), ("FLUSHALL", "ASYNC"), ("FLUSHDB",), ("SWAPDB", "0", "9")],
    ids=" ".join,
)
def test_fences_rise_across_the_loss_of_the_key(client: redis.Redis, command: tuple[str, ...]) -> None:
    ahead = take_from_the_future(client)
    client.execute_command(*command)
    assert Locks(client).lock("k", "b", LONG) > ahead


def take_from_the_future(client: redis.Redis, key: str = "k") -> int:
    """A write lock whose fence is an hour ahead of the clock, as from a server whose clock was.

    A greater fence afterwards shows memory and not the clock.
    """
    locks = Locks(client)
    fence = locks.lock(key, "a", 100 * LONG)
    ahead = fence + HOUR_US
    client.restore(key, 100 * LONG, with_number(plain_dump(client, key), fence, ahead), replace=True)
    assert locks.check(key, ahead) == 1
    return ahead


def test_a_fence_that_arrived_with_a_lock_is_passed_by_the_next(client: redis.Redis) -> None:
    ahead = take_from_the_future(client)
    assert next_fence(client) > ahead
    Locks(client).unlock("k", "a")
    assert next_fence(client) > ahead


def save(server: Server) -> None:
    server.client().save()


def nothing(server: Server) -> None:
    pass


AOF = {"appendonly": True, "appendfsync": "always"}
PERSISTENCE = {
    "RDB": ({}, save),
    "AOF with preamble": ({**AOF, "aof_use_rdb_preamble": True}, nothing),
    "AOF without preamble": ({**AOF, "aof_use_rdb_preamble": False}, nothing),
    "rewritten AOF with preamble": ({**AOF, "aof_use_rdb_preamble": True}, rewrite_aof),
    "rewritten AOF without preamble": ({**AOF, "aof_use_rdb_preamble": False}, rewrite_aof),
}


@pytest.mark.parametrize("kill", [False, True], ids=["shutdown", "crash"])
@pytest.mark.parametrize("name", PERSISTENCE)
def test_fences_rise_across_a_restart(make_server: MakeServer, name: str, kill: bool) -> None:
    settings, persist = PERSISTENCE[name]
    server = make_server(**settings)
    last = next_fence(server.client())
    ahead = take_from_the_future(server.client())
    persist(server)
    server.restart(kill=kill)
    assert Locks(server.client()).check("k", ahead) == 1
    assert next_fence(server.client()) > ahead > last


@pytest.mark.parametrize("name", [name for name in PERSISTENCE if name != "rewritten AOF without preamble"])
def test_fences_rise_across_a_restart_without_any_lock_left(make_server: MakeServer, name: str) -> None:
    """A rewrite without preamble keeps locks and nothing else: the only mode that cannot know."""
    settings, persist = PERSISTENCE[name]
    server = make_server(**settings)
    take_from_the_future(server.client())
    last = next_fence(server.client(), "another")
    assert Locks(server.client()).unlock("k", "a") == 1
    persist(server)
    server.restart(kill=True)
    assert server.client().dbsize() == 0
    assert next_fence(server.client()) > last


def test_fences_rise_across_the_promotion_of_a_replica(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    client = primary.client()
    take_from_the_future(client)
    last = next_fence(client)
    client.flushall()
    wait_synced(primary, replica)
    primary.kill9()
    promote(replica)
    assert next_fence(replica.client()) > last


def test_fences_rise_on_a_replica_that_came_late(make_server: MakeServer) -> None:
    """The locks are gone when the replica makes its full sync: the snapshot carries the fence."""
    primary, replica = make_server(name="primary"), make_server(name="replica")
    client = primary.client()
    take_from_the_future(client)
    last = next_fence(client)
    client.flushall()
    replica_of(replica, primary)
    promote(replica)
    assert next_fence(replica.client()) > last


def test_a_demoted_primary_goes_on_above_its_successor(primary_and_replica: Pair) -> None:
    old, new = primary_and_replica
    promote(new)
    replica_of(old, new)
    take_from_the_future(new.client())
    last = next_fence(new.client())
    wait_synced(new, old)
    promote(old)
    assert next_fence(old.client()) > last
