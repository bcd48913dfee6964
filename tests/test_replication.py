"""What a primary tells its replicas, and what a replica makes of it."""

from __future__ import annotations

import pytest

from conftest import Pair
from harness import Locks, MakeServer, Server, digest, rounds, wait_past, wait_until
from harness.commands import commands
from harness.load import Load, all_digests
from harness.replication import ReplicationStream, promote, replica_of, wait_synced
from harness.samples import release_samples, sample_states, take_samples

LONG = 60_000
BRIEF = 250

EFFECTS = {"SLOCK.APPLY", "DEL", "UNLINK", "PEXPIREAT", "MULTI", "EXEC"}


# --- the stream

EFFECTIVE = """LOCK a META m | LOCK a META n | DOWNGRADE a | RLOCK b | RLOCK b META m | RUNLOCK b |
    UPGRADE a | EXTEND a | UNLOCK a | RLOCK a | RUNLOCK a"""


def test_what_is_replicated_is_the_effect(server: Server) -> None:
    stream, raw = ReplicationStream(server), server.raw()
    raw.ok("SELECT", 4)
    for line in EFFECTIVE.split("|"):
        name, token, *options = line.split()
        ttl = () if "UNLOCK" in name else (LONG,)
        assert raw.ok(f"SLOCK.{name}", "k", token, *ttl, *options)
        names = stream.names()
        assert names and set(names) <= EFFECTS, (line, names)
        assert "SLOCK.APPLY" in names or raw.ok("EXISTS", "k") == 0
        assert stream.database == 4


# --- primary and replica agree


@pytest.mark.parametrize(
    ("diskless", "at_replica"),
    [
        (False, {"repl_diskless_load": "disabled"}),
        (False, {"appendonly": True}),
        (True, {"repl_diskless_load": "disabled"}),
        (True, {"repl_diskless_load": "swapdb"}),
    ],
)
def test_a_full_sync_brings_every_lock_as_it_is(
    make_server: MakeServer, diskless: bool, at_replica: dict[str, object]
) -> None:
    primary, replica = make_server(repl_diskless_sync=diskless), make_server(**at_replica)
    before = take_samples(primary)
    replica_of(replica, primary)
    assert sample_states(replica) == sample_states(primary) == before
    later = Locks(primary.client()).lock("later", "a", LONG)
    wait_synced(primary, replica)
    assert Locks(replica.client()).check("later", later) == 1, "the stream goes on"


def test_the_stream_brings_every_lock_as_it_is_down_a_chain(make_server: MakeServer) -> None:
    """Into the log of a replica too; in the end the owners release what they hold."""
    first, second, third = (make_server(name=name) for name in ("first", "second", "third"))
    second.restart(appendonly=True)
    replica_of(second, first)
    replica_of(third, second)
    before = take_samples(first)
    wait_synced(first, second)
    wait_synced(second, third)
    assert sample_states(second) == sample_states(third) == sample_states(first) == before
    second.restart(kill=True)
    assert sample_states(second) == before
    first.kill9()
    promote(third)
    assert sample_states(third) == before
    release_samples(third)


@pytest.mark.parametrize("seed", range(rounds(1, 5)))
def test_digests_agree_after_any_history(primary_and_replica: Pair, seed: int) -> None:
    primary, replica = primary_and_replica
    load = Load(primary, seed=seed, brief=True)
    load.goes_on(2000)
    load.stop()
    wait_synced(primary, replica)
    assert all_digests(primary)
    # What expires between two looks is looked at again.
    wait_until(lambda: all_digests(primary) == all_digests(replica), 5, f"the digests to agree, seed {seed}")


# --- a replica only looks


@pytest.mark.parametrize("read_only", [True, False])
def test_a_replica_refuses_to_write_even_where_others_may(make_server: MakeServer, read_only: bool) -> None:
    primary = make_server(name="primary")
    replica = make_server(name="replica", replica_read_only=read_only)
    replica_of(replica, primary)
    fence = Locks(primary.client()).rlock("k", "me", LONG, meta="m")
    wait_synced(primary, replica)
    raw = replica.raw()
    before = digest(replica.client(), "k")
    for command in commands(replica).values():
        for key in ("k", "free"):
            if "readonly" not in command.flags:
                assert raw.error(*command.call(key)).startswith("READONLY"), command.name
            else:
                raw.ok(*command.call(key))
    assert digest(replica.client(), "k") == before and replica.client().dbsize() == 1
    locks = Locks(replica.client())
    assert locks.check("k", fence) == 1 and 0 < locks.pttl("k", "me") <= LONG
    assert [(h.token, h.fence, h.meta) for h in locks.full("k").holders] == [(b"me", fence, b"m")]


def test_a_replica_hides_what_has_expired_and_writes_nothing(primary_and_replica: Pair) -> None:
    """The primary is stopped, so that no DEL tells the replica what it must see by itself."""
    primary, replica = primary_and_replica
    locks = Locks(primary.client())
    lasting = locks.rlock("k", "lasting", LONG)
    brief_reader = locks.rlock("k", "brief", 2 * BRIEF)
    brief = locks.lock("gone", "brief", 2 * BRIEF)
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
