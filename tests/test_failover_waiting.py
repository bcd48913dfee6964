"""A primary that becomes a replica answers everyone who waits, and grants nothing afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness import Locks, RespError, Server, digest, promote, replica_of, stays, wait_synced, wait_until
from harness.causes import BRIEF, HOLDER, KEY
from harness.settings import free_port
from harness.waiting import (
    HOUR,
    Line,
    WaitingClient,
    at_once,
    blocked_clients,
    serve_in_order,
    wait_unblocked,
)

pytest_plugins = ["harness.cleanup"]

# What a client library retries or reports, when the connection is not closed without a word.
RETRIABLE = {"UNBLOCKED", "READONLY", "TRYAGAIN", "MOVED"}


def _was_turned_away(outcome: Any) -> bool:
    return outcome is None or (isinstance(outcome, RespError) and outcome.prefix in RETRIABLE)


def _queue(line: Line) -> list[WaitingClient]:
    return [line.write("w1"), line.read("r1"), line.read("r2"), line.write("w2", wait=HOUR)]


def _role(server: Server) -> str:
    with server.client() as client:
        return client.info("replication")["role"]


# --- REPLICAOF


def test_everyone_who_waits_is_answered_when_the_primary_becomes_a_replica(
    make_server: Callable[..., Server],
) -> None:
    old, new = make_server(name="old primary"), make_server(name="new primary")
    line, other = Line(old), Line(old, "read")
    line.locks.lock(KEY, HOLDER, HOUR)
    for token in "ab":
        other.locks.rlock("read", token, HOUR)
    waiting = [*_queue(line), other.upgrade("a"), other.write("w")]
    replica_of(new, old)
    before = digest(line.client, KEY)
    promote(new)
    replica_of(old, new)
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(_was_turned_away(outcome) for outcome in outcomes), outcomes
    wait_unblocked(old.client())
    assert Line(old).info().waiters == 0 == Line(old, "read").info().waiters
    assert digest(old.client(), KEY) == digest(new.client(), KEY) == before
    # The hold has moved on with its fence; whoever waits, waits at the new primary.
    moved = Line(new)
    again = [moved.write("w1"), moved.read("r1")]
    assert moved.release(HOLDER) == 1
    serve_in_order(moved, again)
    wait_synced(new, old)
    assert Line(old).info() is None


def test_a_primary_that_follows_nobody_reachable_answers_too(make_server: Callable[..., Server]) -> None:
    server = make_server()
    line = Line(server)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = _queue(line)
    line.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    assert all(_was_turned_away(waiter.outcome()) for waiter in waiting)
    client = server.client()
    wait_unblocked(client)
    assert Locks(client).info(KEY).waiters == 0
    client.execute_command("REPLICAOF", "NO", "ONE")
    assert line.holders() == [HOLDER]
    again = _queue(line)
    line.release(HOLDER)
    assert again[0].fence()


def test_a_deadline_after_the_role_has_changed_grants_nothing(make_server: Callable[..., Server]) -> None:
    server = make_server()
    line = Line(server)
    for number in range(20):
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = _queue(line)
        unreachable = ("REPLICAOF", "127.0.0.1", free_port())
        # The hold is over within a few ms of the change, before, with or after it.
        at_once(server, ("SLOCK.EXTEND", KEY, HOLDER, 1 + number % 5), unreachable)
        outcomes = [waiter.outcome() for waiter in waiting]
        assert all(_was_turned_away(outcome) for outcome in outcomes), outcomes
        line.client.execute_command("REPLICAOF", "NO", "ONE")
        wait_until(lambda: line.info() is None, what="the deadline, after which nobody holds it")
        assert line.locks.lock(KEY, HOLDER, HOUR)
        line.release(HOLDER)
    wait_unblocked(line.client)


# --- FAILOVER


def _fail_over(old: Server, new: Server, *before: tuple) -> None:
    at_once(old, *before, ("FAILOVER", "TO", "127.0.0.1", new.port))
    wait_until(lambda: _role(new) == "master" and _role(old) == "slave", 30, "the failover")
    wait_synced(new, old)


def test_a_failover_answers_everyone_and_the_hold_goes_on_at_the_new_primary(
    primary_and_replica: tuple[Server, Server],
) -> None:
    old, new = primary_and_replica
    line = Line(old)
    fence = line.locks.lock(KEY, HOLDER, HOUR)
    waiting = _queue(line)
    wait_synced(old, new)
    _fail_over(old, new)
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(_was_turned_away(outcome) for outcome in outcomes), outcomes
    wait_unblocked(old.client())
    assert Line(old).info().waiters == 0
    moved = Line(new)
    assert moved.locks.check(KEY, fence) == 1
    assert digest(old.client(), KEY) == digest(new.client(), KEY)
    again = _queue(moved)
    moved.release(HOLDER)
    assert again[0].fence() > fence


def test_failovers_across_deadlines_never_grant_what_the_new_primary_does_not_know(
    primary_and_replica: tuple[Server, Server],
) -> None:
    old, new = primary_and_replica
    for number in range(8):
        line = Line(old)
        assert line.locks.lock(KEY, HOLDER, HOUR)
        waiting = _queue(line)
        wait_synced(old, new)
        ends = ("SLOCK.EXTEND", KEY, HOLDER, (1, 5, 60)[number % 3])
        _fail_over(old, new, ends if number % 4 else ("SLOCK.UNLOCK", KEY, HOLDER))
        moved = Line(new)
        wait_until(lambda moved=moved: HOLDER not in moved.holders(), what="the deadline")
        told = {}
        for waiter in waiting:
            outcome = waiter.outcome()
            if not _was_turned_away(outcome):
                told[waiter.token] = outcome
        assert moved.holders() == sorted(told)
        for token, fence in told.items():
            assert moved.locks.check(KEY, fence) == 1
            assert moved.release(token) == 1
        assert blocked_clients(moved.client) == 0 == blocked_clients(old.client())
        old, new = new, old


def test_a_failover_that_is_given_up_serves_the_queue_afterwards(
    primary_and_replica: tuple[Server, Server],
) -> None:
    """The replica does not answer: writes are paused, the deadline passes, and the failover is aborted."""
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second")]
    replica.pause()
    replies = at_once(primary, ("SLOCK.EXTEND", KEY, HOLDER, BRIEF), ("FAILOVER",))
    assert replies == [1, b"OK"]
    wait_until(lambda: line.holders() == [], what="the deadline")
    stays(lambda: all(waiter.is_waiting() for waiter in waiting), 0.15, "who waits during a failover")
    line.client.execute_command("FAILOVER", "ABORT")
    replica.resume()
    serve_in_order(line, waiting)
    wait_synced(primary, replica)
    assert _role(primary) == "master"


def test_a_failover_aborted_by_its_own_timeout_loses_nobody(
    primary_and_replica: tuple[Server, Server],
) -> None:
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second")]
    replica.pause()
    at_once(primary, ("SLOCK.EXTEND", KEY, HOLDER, BRIEF), ("FAILOVER", "TIMEOUT", 400))
    assert waiting[0].fence()
    replica.resume()
    line.release("first")
    assert waiting[1].fence()
    wait_synced(primary, replica)
    assert digest(replica.client(), KEY) == digest(line.client, KEY)


def test_a_new_primary_after_a_crash_takes_waiters_at_once(
    primary_and_replica: tuple[Server, Server],
) -> None:
    old, new = primary_and_replica
    line = Line(old)
    fence = line.locks.lock(KEY, HOLDER, HOUR)
    waiting = _queue(line)
    wait_synced(old, new)
    old.kill9()
    assert all(waiter.outcome() is None for waiter in waiting)
    promote(new)
    moved = Line(new)
    again = moved.write("w1")
    assert moved.locks.check(KEY, fence) == 1
    moved.locks.extend(KEY, HOLDER, BRIEF)
    assert again.fence() > fence
