"""What a primary tells its replicas, and what a replica makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import redis

from harness import (
    Locks,
    ReplicationStream,
    Server,
    digest,
    lock_state,
    now_ms,
    promote,
    replica_of,
    wait_past,
    wait_synced,
    wait_until,
)
from harness.samples import release_samples, sample_states, take_samples

MakeServer = Callable[..., Server]
Pair = tuple[Server, Server]

LONG = 60_000
BRIEF = 250

EFFECTS = {"SLOCK.APPLY", "DEL", "UNLINK", "PEXPIREAT", "MULTI", "EXEC"}


# --- the stream

EFFECTIVE = {
    "LOCK": [("LOCK", "k", "a", LONG, "META", "m")],
    "RLOCK": [("RLOCK", "k", "a", LONG)],
    "a second reader": [("RLOCK", "k", "b", LONG), ("RLOCK", "k", "a", LONG)],
    "a refresh": [("LOCK", "k", "a", LONG), ("LOCK", "k", "a", LONG, "META", "m")],
    "UNLOCK": [("LOCK", "k", "a", LONG), ("UNLOCK", "k", "a")],
    "RUNLOCK of the last": [("RLOCK", "k", "a", LONG), ("RUNLOCK", "k", "a")],
    "RUNLOCK of one": [("RLOCK", "k", "b", LONG), ("RLOCK", "k", "a", LONG), ("RUNLOCK", "k", "a")],
    "EXTEND": [("LOCK", "k", "a", LONG), ("EXTEND", "k", "a", LONG)],
    "UPGRADE": [("RLOCK", "k", "a", LONG), ("UPGRADE", "k", "a", LONG)],
    "DOWNGRADE": [("LOCK", "k", "a", LONG), ("DOWNGRADE", "k", "a", LONG)],
}


@pytest.mark.parametrize("name", EFFECTIVE)
def test_what_is_replicated_is_the_effect(server: Server, client: redis.Redis, name: str) -> None:
    stream = ReplicationStream(server)
    for command, *args in EFFECTIVE[name]:
        stream.commands()
        assert client.execute_command(f"SLOCK.{command}", *args)
    names = stream.names()
    assert names and set(names) <= EFFECTS, names
    if not name.startswith(("UNLOCK", "RUNLOCK of the last")):
        assert "SLOCK.APPLY" in names
    stream.close()


def test_an_effect_goes_to_the_database_of_the_lock(server: Server) -> None:
    stream = ReplicationStream(server)
    Locks(server.client(db=4)).lock("k", "a", LONG)
    assert "SLOCK.APPLY" in stream.names() and stream.database == 4
    stream.close()


def test_a_look_at_expired_holders_replicates_at_most_that_they_are_gone(
    server: Server, client: redis.Redis, locks: Locks
) -> None:
    locks.rlock("k", "brief", BRIEF)
    locks.lock("gone", "brief", BRIEF)
    end = client.pexpiretime("gone")
    locks.rlock("k", "lasting", LONG)
    stream = ReplicationStream(server)
    wait_past(client, end)
    for key in ("k", "gone"):
        locks.full(key), locks.info(key), locks.pttl(key, "brief"), locks.check(key, 1)
    assert set(stream.names()) <= {"DEL", "UNLINK", "SLOCK.APPLY"}
    stream.close()


# --- primary and replica agree


@pytest.mark.parametrize(
    ("at_primary", "at_replica"),
    [
        ({"repl_diskless_sync": False}, {"repl_diskless_load": "disabled"}),
        ({"repl_diskless_sync": True}, {"repl_diskless_load": "disabled"}),
        ({"repl_diskless_sync": True}, {"repl_diskless_load": "swapdb"}),
        ({"repl_diskless_sync": False}, {"appendonly": True}),
    ],
    ids=["by file", "by socket", "into the other databases", "into a log"],
)
def test_a_full_sync_brings_every_lock_as_it_is(
    make_server: MakeServer, at_primary: dict[str, object], at_replica: dict[str, object]
) -> None:
    primary, replica = make_server(name="primary", **at_primary), make_server(name="replica", **at_replica)
    before = take_samples(primary)
    replica_of(replica, primary)
    assert sample_states(replica) == sample_states(primary) == before
    later = Locks(primary.client()).lock("later", "a", LONG)
    wait_until(lambda: Locks(replica.client()).check("later", later), what="the stream to go on")


def test_the_stream_brings_every_lock_as_it_is(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    before = take_samples(primary)
    wait_synced(primary, replica)
    assert sample_states(replica) == sample_states(primary) == before


def test_a_partial_sync_brings_what_was_missed(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    client = primary.client()
    locks = Locks(client)
    locks.lock("released", "a", LONG)
    locks.rlock("changed", "a", LONG)
    wait_synced(primary, replica)
    replica.pause()
    client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    before = take_samples(primary)
    locks.unlock("released", "a")
    locks.extend("changed", "a", 2 * LONG)
    replica.resume()
    wait_synced(primary, replica)
    stats = client.info("stats")
    assert (stats["sync_full"], stats["sync_partial_ok"]) == (1, 1)
    assert sample_states(replica) == before
    assert lock_state(replica.client(), "released") is None
    assert lock_state(replica.client(), "changed") == lock_state(client, "changed")


def test_a_promoted_replica_has_the_locks_and_their_owners_release_them(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    before = take_samples(primary)
    wait_synced(primary, replica)
    primary.kill9()
    promote(replica)
    assert sample_states(replica) == before
    release_samples(replica)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_digests_agree_after_any_history(primary_and_replica: Pair, seed: int) -> None:
    primary, replica = primary_and_replica
    client = primary.client()
    chance = random.Random(seed)
    keys = [f"k{number}" for number in range(12)]

    def agree() -> None:
        wait_synced(primary, replica)
        other = replica.client()
        for key in keys:
            # A key that expires between two looks is looked at again: both sides are judged at one time.
            wait_until(
                lambda key=key: digest(client, key) == digest(other, key), 5, f"digests of {key}, seed {seed}"
            )
        other.close()

    for _ in range(6):
        for _ in range(250):
            run_any_command(client, chance, chance.choice(keys))
        agree()
    end = now_ms(client) + 80
    wait_past(client, end)
    agree()
    wait_synced(primary, replica)
    for key in keys:
        assert lock_state(client, key) == lock_state(replica.client(), key)


def run_any_command(client: redis.Redis, chance: random.Random, key: str) -> None:
    token = chance.choice(["a", "b", "c"])
    ttl = chance.choice([1, 5, 20, 80, LONG])
    match chance.randrange(14):
        case 0 | 1 | 2:
            command = ["SLOCK.LOCK", key, token, ttl, "META", chance.randbytes(chance.randrange(20))]
        case 3 | 4 | 5 | 6:
            command = ["SLOCK.RLOCK", key, token, ttl]
        case 7:
            command = ["SLOCK.UNLOCK", key, token]
        case 8:
            command = ["SLOCK.RUNLOCK", key, token]
        case 9:
            command = ["SLOCK.EXTEND", key, token, ttl]
        case 10:
            command = ["SLOCK.UPGRADE", key, token, ttl]
        case 11:
            command = ["SLOCK.DOWNGRADE", key, token, ttl]
        case 12:
            command = chance.choice([["DEL", key], ["PERSIST", key], ["PEXPIRE", key, ttl]])
        case _:
            command = ["COPY", key, f"k{chance.randrange(12)}", "REPLACE"]
    try:
        client.execute_command(*command)
    except redis.ResponseError as error:
        # COPY of a key onto itself is an error of the core's own.
        assert command[0] == "COPY" or str(error).startswith(("WRONGMODE", "NOTHELD")), (command, error)


# --- a replica only looks


@pytest.mark.parametrize("read_only", [True, False])
def test_a_replica_refuses_to_write_even_where_others_may(make_server: MakeServer, read_only: bool) -> None:
    primary = make_server(name="primary")
    replica = make_server(name="replica", replica_read_only=read_only)
    replica_of(replica, primary)
    Locks(primary.client()).lock("k", "a", LONG)
    wait_synced(primary, replica)
    raw = replica.raw()
    before = digest(replica.client(), "k")
    for command, *args in (
        ("LOCK", "k", "a", LONG),
        ("LOCK", "free", "a", LONG),
        ("RLOCK", "free", "a", LONG),
        ("UNLOCK", "k", "a"),
        ("RUNLOCK", "k", "a"),
        ("EXTEND", "k", "a", LONG),
        ("UPGRADE", "k", "a", LONG),
        ("DOWNGRADE", "k", "a", LONG),
    ):
        assert raw.error(f"SLOCK.{command}", *args).startswith("READONLY")
    assert digest(replica.client(), "k") == before


def test_a_replica_answers_who_asks(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    fence = Locks(primary.client()).rlock("k", "a", LONG, meta="m")
    wait_synced(primary, replica)
    locks = Locks(replica.client())
    assert locks.check("k", fence) == 1
    assert 0 < locks.pttl("k", "a") <= LONG
    assert [(h.token, h.fence, h.meta) for h in locks.full("k").holders] == [(b"a", fence, b"m")]


def test_a_replica_hides_what_has_expired_and_writes_nothing(primary_and_replica: Pair) -> None:
    """The primary is stopped, so that no DEL tells the replica what it must see by itself."""
    primary, replica = primary_and_replica
    locks = Locks(primary.client())
    brief = locks.lock("gone", "brief", 4 * BRIEF)
    brief_reader = locks.rlock("k", "brief", 4 * BRIEF)
    lasting = locks.rlock("k", "lasting", LONG)
    wait_synced(primary, replica)
    client = replica.client()
    at_replica = Locks(client)
    end = client.pexpiretime("gone")
    primary.pause()
    wait_past(client, end)
    before = client.info("replication")["slave_repl_offset"], client.dbsize()
    for key, fence in (("gone", brief), ("k", brief_reader)):
        assert at_replica.pttl(key, "brief") == -2
        assert at_replica.check(key, fence) == 0
    assert at_replica.info("gone") is None and at_replica.full("gone") is None
    info = at_replica.full("k")
    assert (info.readers, info.fence) == (1, lasting)
    assert [h.token for h in info.holders] == [b"lasting"]
    assert (client.info("replication")["slave_repl_offset"], client.dbsize()) == before
    assert client.dbsize() == 2, "the replica waits for the primary to delete the key"
    primary.resume()
    wait_until(lambda: client.dbsize() == 1, what="the primary to delete the key")
    wait_synced(primary, replica)
    assert digest(client, "k") == digest(primary.client(), "k")


def test_a_replica_stopped_across_a_deadline_revives_nothing(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    client = primary.client()
    locks = Locks(client)
    replica.pause()
    locks.lock("expired", "brief", BRIEF)
    locks.lock("succeeded", "brief", BRIEF)
    locks.rlock("mixed", "brief", BRIEF)
    end = now_ms(client) + BRIEF
    locks.rlock("mixed", "lasting", LONG)
    wait_past(client, end)
    fence = locks.lock("succeeded", "successor", LONG)
    replica.resume()
    at_replica = Locks(replica.client())

    def is_there() -> bool:
        """Whatever of the stream has arrived, nobody who is dead is to be seen."""
        for key in ("expired", "succeeded", "mixed"):
            assert at_replica.pttl(key, "brief") == -2
            info = at_replica.full(key)
            assert info is None or b"brief" not in [h.token for h in info.holders]
        return at_replica.check("succeeded", fence) == 1

    wait_until(is_there, what="the stream to arrive")
    wait_synced(primary, replica)
    assert at_replica.info("expired") is None
    assert at_replica.info("mixed").readers == 1
    for key in ("expired", "succeeded", "mixed"):
        assert digest(replica.client(), key) == digest(client, key)


def test_the_owner_holds_on_through_a_chain_of_replicas(make_server: MakeServer) -> None:
    first, second, third = (make_server(name=name) for name in ("first", "second", "third"))
    replica_of(second, first)
    replica_of(third, second)
    before = take_samples(first)
    wait_synced(first, second)
    wait_synced(second, third)
    assert sample_states(third) == before
    promote(third)
    release_samples(third)
