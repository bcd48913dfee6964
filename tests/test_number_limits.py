"""Numbers that no stored lock can carry are not given, and those that no clock gives are refused."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from harness import Clock, Locks, MakeServer, Server, lock_state, now_ms, rewrite_aof, wait_until
from harness.many import many
from harness.payloads import plain_dump, with_number
from harness.replication import ReplicationStream, promote, replica_of, wait_synced
from harness.waiting import HOUR

MakeClock = Callable[..., Clock]

# Fences are microseconds by the clock, and stay below this.
LIMIT = 2**53
LIMIT_SECONDS = LIMIT // 1_000_000
KEYS = ("written", "read")
YEAR_MS = 365 * 24 * HOUR


def _set(server: Server, clock: Clock, unix_seconds: int) -> None:
    """From now on the clock shows this time."""
    clock.step(unix_seconds - int(time.time()))
    client = server.client()
    wait_until(lambda: client.time()[0] >= unix_seconds, what="the server to see the step")


@pytest.fixture
def clock(make_clock: MakeClock) -> Clock:
    """An hour before the limit."""
    return make_clock(ahead=LIMIT_SECONDS - 3600 - int(time.time()))


# --- fences


def test_no_fence_is_given_that_could_not_be_read_again(make_server: MakeServer, clock: Clock) -> None:
    server = make_server(environment=clock.environment, appendonly=True)
    client, locks = server.client(), Locks(server.client())
    fence = locks.lock("written", "writer", 12 * HOUR, meta=b"m")
    assert LIMIT - 2 * HOUR * 1000 < fence < LIMIT and locks.rlock("read", "reader", 12 * HOUR)
    _set(server, clock, LIMIT_SECONDS + 60)
    before, stream, raw = [lock_state(client, key) for key in KEYS], ReplicationStream(server), server.raw()
    for words in (
        ("SLOCK.LOCK", "free", "me", HOUR, "WAIT", 0),
        ("SLOCK.RLOCK", "read", "me", HOUR),
        many("MLOCK", "written free", "writer", HOUR),
        ("SLOCK.UPGRADE", "read", "reader", HOUR),
        ("SLOCK.DOWNGRADE", "written", "writer", HOUR),
    ):
        assert raw.error(*words).startswith("ERR "), words
    assert stream.commands() == [] and [lock_state(client, key) for key in KEYS] == before
    assert locks.extend("written", "writer", 24 * HOUR) == 1, "who holds goes on"
    assert locks.lock("written", "writer", 23 * HOUR) == fence
    before = [lock_state(client, key) for key in KEYS]
    rewrite_aof(server)
    server.restart()
    client, locks = server.client(), Locks(server.client())
    assert [lock_state(client, key) for key in KEYS] == before
    assert server.raw().error("SLOCK.LOCK", "free", "me", HOUR).startswith("ERR ")
    assert locks.unlock("written", "writer") == 1 and locks.runlock("read", "reader") == 1


# --- what comes from outside


@pytest.mark.parametrize("years", [0, 2])
def test_servers_judge_what_clients_restore_and_apply(make_server: MakeServer, years: int) -> None:
    """Accepted up to an hour beyond what the server could give, else an error that changes nothing.

    A writable replica, whose primary may allow longer ttls by another clock, allows a year and a day more.
    """
    primary = make_server(name="primary", slock_allow_apply=True)
    replica = make_server(name="replica", slock_allow_apply=True, replica_read_only=False)
    client = primary.client()
    fence = Locks(client).lock("k", "a", HOUR)
    replica_of(replica, primary)
    soon_ms = now_ms(client) + HOUR
    at_ms = soon_ms + years * YEAR_MS
    payload, deadline_ms = plain_dump(client, "k"), client.pexpiretime("k")
    commands: list[tuple] = [
        ("RESTORE", "restored", 0, with_number(payload, fence, at_ms * 1000), "REPLACE"),
        ("RESTORE", "restored", 0, with_number(payload, deadline_ms, at_ms), "REPLACE"),
        ("SLOCK.APPLY", "k", f"EXTEND 0 {at_ms} a"),
        ("SLOCK.APPLY", "k", f"FENCE {at_ms * 1000}"),
        ("SLOCK.APPLY", "k", f"HOLD 0 write {at_ms * 1000} 1 {soon_ms} b"),
        ("SLOCK.APPLY", "k", f"HOLD 0 write {soon_ms * 1000} 1 {at_ms} b"),
    ]
    for server in (replica, primary):
        client, raw = server.client(), server.raw()
        for command in commands:
            before = lock_state(client, "k"), client.dbsize()
            if years == 0:
                assert raw.ok(*command) in (1, b"OK")
            else:
                named = "Bad data format" if command[0] == "RESTORE" else "an hour beyond"
                assert named in raw.error(*command)
                assert (lock_state(client, "k"), client.dbsize()) == before


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writable"])
def test_what_the_primary_says_is_not_judged_by_the_clock_of_a_replica(
    make_server: MakeServer, make_clock: MakeClock, read_only: bool
) -> None:
    clock = make_clock(ahead=20 * YEAR_MS // 1000)
    primary = make_server(name="primary", environment=clock.environment)
    replica = make_server(name="replica", replica_read_only=read_only)
    client, locks = primary.client(), Locks(primary.client())
    assert locks.lock("synced", "a", HOUR, meta=b"m") and locks.rlock("extended", "a", HOUR)
    replica_of(replica, primary)
    assert locks.lock("streamed", "a", HOUR) and locks.extend("extended", "a", 2 * HOUR) == 1
    client.restore("restored", 0, client.dump("synced"))
    last = locks.rlock("extended", "b", HOUR)
    wait_synced(primary, replica)
    keys = ["synced", "streamed", "extended", "restored"]
    states = [lock_state(client, key) for key in keys]
    assert all(states) and [lock_state(replica.client(), key) for key in keys] == states
    primary.kill9()
    promote(replica)
    assert Locks(replica.client()).lock("next", "a", HOUR) > last
