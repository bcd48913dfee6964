"""A fence is never followed by a lower one or the same: after a loss of data, a restart or a failover."""

from __future__ import annotations

import time

import pytest
import redis

from harness import Locks, MakeServer, promote, replica_of, rewrite_aof, wait_synced
from harness.payloads import plain_dump, with_number

LONG = 60_000


def next_fence(client: redis.Redis) -> int:
    """A new hold's fence."""
    fence = Locks(client).lock("next", "probe", LONG)
    assert fence > 0 and Locks(client).unlock("next", "probe") == 1
    return fence


def take_from_the_future(client: redis.Redis) -> int:
    """A write lock whose fence is far ahead of the clock, as from a server whose clock was.

    A greater fence afterwards shows memory and not the clock. An hour ahead is allowed.
    """
    locks = Locks(client)
    fence = locks.lock("k", "a", 100 * LONG)
    ahead = time.time_ns() // 1000 + 3_500_000_000
    client.restore("k", 100 * LONG, with_number(plain_dump(client, "k"), fence, ahead), replace=True)
    assert locks.check("k", ahead) == 1
    return ahead


def test_fences_rise_whatever_the_key_token_mode_or_database(client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        pipe.execute_command("SELECT", number % 3)
        pipe.execute_command(("SLOCK.LOCK", "SLOCK.RLOCK")[number % 2], f"k{number}", f"t{number % 7}", LONG)
    fences = pipe.execute()[1::2]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize(
    "command", ["DEL k", "UNLINK k", "FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB", "SWAPDB 0 9", "RENAME k j"]
)
def test_fences_rise_across_the_loss_of_the_key(client: redis.Redis, command: str) -> None:
    ahead = take_from_the_future(client)
    assert next_fence(client) > ahead
    client.execute_command(*command.split())
    assert Locks(client).lock("k", "b", LONG) > ahead


AOF = {"appendonly": True, "appendfsync": "always"}
PERSISTENCE = {
    "RDB": ({}, lambda server: server.client().save()),
    "AOF with preamble": (AOF, lambda server: None),
    "AOF without preamble": ({**AOF, "aof_use_rdb_preamble": False}, lambda server: None),
    "rewritten AOF with preamble": (AOF, rewrite_aof),
    "rewritten AOF without preamble": ({**AOF, "aof_use_rdb_preamble": False}, rewrite_aof),
}


@pytest.mark.parametrize("name", PERSISTENCE)
def test_fences_rise_across_a_restart_with_locks_and_without(make_server: MakeServer, name: str) -> None:
    settings, persist = PERSISTENCE[name]
    server = make_server(**settings)
    ahead = take_from_the_future(server.client())
    last = next_fence(server.client())
    persist(server)
    for kill in (False, True):
        server.restart(kill=kill)
        assert Locks(server.client()).check("k", ahead) == 1
        assert next_fence(server.client()) > last > ahead
    last = next_fence(server.client())
    assert Locks(server.client()).unlock("k", "a") == 1
    persist(server)
    server.restart(kill=True)
    assert server.client().dbsize() == 0
    if name != "rewritten AOF without preamble":  # it keeps locks and nothing else, so it cannot know
        assert next_fence(server.client()) > last


@pytest.mark.parametrize("late", [False, True], ids=["by the stream", "by the snapshot"])
def test_fences_rise_across_the_promotion_of_a_replica(make_server: MakeServer, late: bool) -> None:
    """The locks are gone when a late replica makes its full sync: the snapshot carries the fence."""
    primary, replica = make_server(name="primary"), make_server(name="replica")
    for old, new in ((primary, replica), (replica, primary)):
        promote(old)
        if not late:
            replica_of(new, old)
        take_from_the_future(old.client())
        last = next_fence(old.client())
        old.client().flushall()
        replica_of(new, old)
        wait_synced(old, new)
        promote(new)
        assert next_fence(new.client()) > last, "also of a primary that was one before"
