"""What newcomers, replicas, the log, WATCH and keyspace events see of a grant made on wake-up.

Never the request; and the grant in a unit of its own after whatever made it: one that came before its DEL
would be deleted by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from harness import Events, Server, digest
from harness.causes import FREEING, HOLDER, KEY, SHARING, Cause
from harness.load import level
from harness.many import many
from harness.queues import Queues
from harness.replication import ReplicationStream, replica_of, wait_synced
from harness.waiting import HOUR, Line, at_once, wait_unblocked

FIRST, SECOND = "first-of-those-who-wait", "second-of-those-who-wait"

Command = list[bytes]


class Replicated(NamedTuple):
    primary: Server
    replica: Server
    stream: ReplicationStream


@pytest.fixture(scope="module")
def _servers() -> Iterator[Replicated]:
    primary, replica = (
        Server(name=name, notify_keyspace_events="KEA").start() for name in ("primary", "replica")
    )
    replica_of(replica, primary)
    yield Replicated(primary, replica, ReplicationStream(primary))
    for server in (primary, replica):
        server.stop()
        server.discard()


@pytest.fixture
def replicated(_servers: Replicated) -> Iterator[Replicated]:
    _servers.primary.client().flushall()
    yield _servers
    level(_servers.primary, _servers.replica)
    _servers.primary.check()
    _servers.replica.check()


def names_token(commands: list[Command], token: str) -> bool:
    return any(token.encode() in arg for command in commands for arg in command)


def holds_no_request(commands: list[Command]) -> None:
    for command in commands:
        assert not command[0].upper().startswith(b"SLOCK.") or command[0] == b"SLOCK.APPLY", command
        assert all(arg.upper() != b"WAIT" for arg in command[1:]), command


def is_given_last(units: list[list[Command]], token: str) -> None:
    """The token is given its hold at the very end; and nobody else before, who did not hold already."""
    *before, grant = [command for unit in units for command in unit]
    assert grant[0] == b"SLOCK.APPLY" and grant[2].startswith(b"HOLD ") and names_token([grant], token), units
    for command in before:
        given = command[0] == b"SLOCK.APPLY" and command[2].startswith(b"HOLD ")
        assert not given or names_token([command], HOLDER), units
    holds_no_request([*before, grant])


@pytest.mark.parametrize("cause", FREEING + SHARING, ids=str)
def test_a_grant_comes_after_its_cause_and_before_newcomers(replicated: Replicated, cause: Cause) -> None:
    line, events = Line(replicated.primary), Events(replicated.primary)
    cause.hold(line.client)
    join = line.read if cause.readers_left else line.write
    first, second = join(FIRST), line.write(SECOND)
    commands = cause.commands(line.client) + [("DEBUG", "SLEEP", "0.08")] * cause.by_deadline
    replicated.stream.commands(), events.so_far()
    # In one write, so that the server runs it all before it can do anything else.
    newcomers = [(command, KEY, "newcomer", HOUR) for command in ("SLOCK.LOCK", "SLOCK.RLOCK")]
    late = [(*newcomer, "WAIT", 1) for newcomer in newcomers]
    assert at_once(replicated.primary, *commands, *newcomers, *late)[-4:] == [0] * 4
    first.fence()
    *caused, granted = units = replicated.stream.units()
    is_given_last(units, FIRST)
    if not cause.by_deadline:
        names = cause.replicated_as.encode().split() or [b"SLOCK.APPLY", b"DEL"]
        whole = {b"FLUSHDB", b"FLUSHALL", b"SWAPDB"}
        made = [command for unit in caused for command in unit if command[0].upper() in names]
        assert any(KEY.encode() in command[1:] or command[0].upper() in whole for command in made), units
        for command in granted:
            assert command[0] == b"SLOCK.APPLY" and not command[2].startswith(b"RELEASE "), units
    told = [event.name for event in events.so_far() if event.key == KEY.encode()]
    grant = "slock.rlock" if cause.readers_left else "slock.lock"
    assert told[-1] == grant and told.count(grant) == 1, told
    level(replicated.primary, replicated.replica)
    assert second.is_waiting() and line.holders() == sorted([FIRST, *cause.readers_left])
    # The first of the queue leaves last: its release is the one that frees the lock.
    for token in sorted(line.holders(), key=lambda token: token == FIRST):
        line.release(token)
    second.fence()
    units = replicated.stream.units()
    is_given_last(units, SECOND)
    assert len(units[-1]) == 1 and units[-2] == [[b"DEL", KEY.encode()]], units
    line.release(SECOND)


def test_who_waits_and_who_leaves_is_not_replicated_announced_or_watched(replicated: Replicated) -> None:
    line, events, watcher = Line(replicated.primary), Events(replicated.primary), replicated.primary.raw()
    line.locks.lock(KEY, HOLDER, HOUR)
    line.locks.rlock("read", "a", HOUR)
    line.locks.rlock("read", "b", HOUR)
    watcher.ok("WATCH", KEY)
    replicated.stream.commands(), events.so_far()
    timed_out, unblocked, killed = line.write("t1", wait=30), line.read("t2"), line.write("t3")
    upgrader = Line(replicated.primary, "read").upgrade("a", wait=30)
    assert timed_out.reply() == 0 == upgrader.reply()
    line.client.client_unblock(unblocked.id)
    line.client.client_kill_filter(_id=killed.id)
    wait_unblocked(line.client)
    assert replicated.stream.commands() == [] and events.so_far() == []
    assert watcher.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] == [b"PONG"]


def test_a_grant_on_wake_up_breaks_a_watch(replicated: Replicated) -> None:
    line, watcher = Line(replicated.primary), replicated.primary.raw()
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write(FIRST)
    assert watcher.pipeline([("SLOCK.UNLOCK", KEY, HOLDER), ("WATCH", KEY)]) == [1, b"OK"]
    waiting.fence()
    assert watcher.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] is None


def test_grants_in_several_databases_after_one_flushall(replicated: Replicated) -> None:
    lines = [Line(replicated.primary, database=database) for database in (0, 1, 5, 9)]
    for line in lines:
        line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write(f"waits in {line.database}") for line in lines]
    replicated.primary.client(db=3).flushall()
    assert all(waiter.fence() for waiter in waiting)
    wait_synced(replicated.primary, replicated.replica)
    for line in lines:
        there = replicated.replica.client(db=line.database)
        assert digest(there, KEY) == digest(line.client, KEY) != "0" * 40
    assert line.holders() == ["waits in 9"]


def test_a_set_is_granted_in_one_unit_and_a_replica_never_has_half_of_it(replicated: Replicated) -> None:
    queues, stream, watcher = Queues(replicated.primary), replicated.stream, replicated.replica.raw()
    queues.hold("x", "a b c")
    waiting = [queues.mlock(f"w{number}", "a b c") for number in range(20)]
    stream.commands()
    queues.free("x", "a b c")
    for waiter in waiting:
        waiter.fence()
        released, granted = stream.units()
        for unit in (released, granted):
            assert sorted(effect[1] for effect in unit) == [b"a", b"b", b"c"]
        assert all(effect[2].endswith(b" " + waiter.token.encode()) for effect in granted)
        seen = [("SLOCK.PTTL", key, waiter.token) for key in "abc"]
        held = [left > 0 for left in watcher.pipeline([("MULTI",), *seen, ("EXEC",)])[-1]]
        assert held in ([False] * 3, [True] * 3), "half a set"
        queues.free(waiter.token, "a b c")
    queues.raw.ok(*many("MRLOCK", "a b c", "last", HOUR))
