"""A primary that becomes a replica answers everyone who waits, and grants nothing afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conftest import Pair
from harness import MakeServer, Server, digest, promote, replica_of, rounds, stays, wait_synced, wait_until
from harness.causes import BRIEF, HOLDER, KEY
from harness.moment_of_grant import in_one_turn
from harness.notify import Listener
from harness.replication import fail_over, role
from harness.settings import free_port
from harness.waiting import (
    HOUR,
    Line,
    all_turned_away,
    at_once,
    serve_in_order,
)


def _by_replicaof(old: Server, new: Server) -> None:
    promote(new)
    replica_of(old, new)


def _crash(old: Server, new: Server) -> None:
    old.kill9()
    promote(new)


@pytest.mark.parametrize("change", [_by_replicaof, fail_over, _crash])
def test_everyone_is_answered_and_the_hold_goes_on_at_the_new_primary(
    primary_and_replica: Pair, change: Callable[[Server, Server], None]
) -> None:
    old, new = primary_and_replica
    line, other = Line(old), Line(old, "read")
    fence = line.locks.lock(KEY, HOLDER, HOUR)
    for token in "ab":
        other.locks.rlock("read", token, HOUR)
    waiting = [*line.several(), other.upgrade("a"), other.write("w")]
    wait_synced(old, new)
    before = digest(line.client, KEY)
    change(old, new)
    if change is _crash:
        assert all(waiter.outcome() is None for waiter in waiting)
    else:
        all_turned_away(old, waiting)
        assert digest(old.client(), KEY) == before
    # Whoever waits, waits at the new primary.
    moved = Line(new)
    assert digest(moved.client, KEY) == before
    again = [moved.write("w1"), moved.read("r1")]
    assert moved.locks.check(KEY, fence) == 1 == moved.locks.extend(KEY, HOLDER, BRIEF)
    assert serve_in_order(moved, again)[0] > fence
    if change is not _crash:
        wait_synced(new, old)
        assert Line(old).info() is None


@pytest.mark.parametrize("where", ["pipeline", "transaction"])
def test_a_primary_that_follows_nobody_reachable_answers_too(make_server: MakeServer, where: str) -> None:
    """The hold is over before the change, or within a few ms of it: neither grants anything."""
    server = make_server()
    line, control = Line(server), server.raw()
    follow = ("REPLICAOF", "127.0.0.1", free_port())
    ends = [("SLOCK.UNLOCK", KEY, HOLDER), *(("SLOCK.EXTEND", KEY, HOLDER, ttl) for ttl in (1, 3, 5))]
    for number in range(rounds(8, 100)):
        assert line.locks.lock(KEY, HOLDER, HOUR)
        waiting = line.several()
        end = ends[number % 4]
        assert in_one_turn(control, [end, follow], where) == [1, b"OK"]
        all_turned_away(server, waiting)
        left = [] if end[0] == "SLOCK.UNLOCK" else [HOLDER]
        assert line.holders() in ([], left), "who was turned away holds the lock"
        assert control.ok("REPLICAOF", "NO", "ONE")
        wait_until(lambda: line.info() is None, what="the deadline, after which nobody holds it")


def test_all_requests_with_notify_are_told_that_the_server_is_no_primary(make_server: MakeServer) -> None:
    """More than are answered in one turn."""
    server = make_server()
    line, me = Line(server), Listener(server)
    line.locks.lock(KEY, HOLDER, HOUR)
    tags = [b"%d" % number for number in range(300)]
    for tag in tags:
        assert me.ask("SLOCK.LOCK", KEY, tag, HOUR, tag=tag) is None
    line.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    assert [me.message() for _ in tags] == [("-UNBLOCKED", tag) for tag in tags]


@pytest.mark.parametrize("options", [(), ("TIMEOUT", 400)], ids=["ABORT", "TIMEOUT"])
def test_a_failover_that_is_given_up_serves_the_queue_afterwards(
    primary_and_replica: Pair, options: tuple
) -> None:
    """The replica does not answer: writes are paused, the deadline passes, and the failover is aborted."""
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second")]
    replica.pause()
    assert at_once(primary, ("SLOCK.EXTEND", KEY, HOLDER, BRIEF), ("FAILOVER", *options)) == [1, b"OK"]
    if not options:
        wait_until(lambda: line.holders() == [], what="the deadline")
        stays(lambda: all(waiter.is_waiting() for waiter in waiting), 0.15, "who waits during a failover")
        line.client.execute_command("FAILOVER", "ABORT")
        replica.resume()
    assert waiting[0].is_answered(20)
    replica.resume()
    serve_in_order(line, waiting)
    wait_synced(primary, replica)
    assert role(primary) == "master"
    assert digest(replica.client(), KEY) == digest(line.client, KEY)
