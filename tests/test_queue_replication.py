"""What newcomers, replicas, the log, WATCH and keyspace events see of a grant made on wake-up.

Never the request; and the grant in a unit of its own after whatever made it: one that came before its DEL
would be deleted by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from harness import Events, MakeServer, Server, aof_commands, digest
from harness.causes import FREEING, HOLDER, KEY, REPLACING, SHARING, Cause
from harness.load import all_digests, level
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


@pytest.mark.parametrize("cause", REPLACING, ids=str)
def test_another_type_under_the_name_is_an_error_for_all_and_leaves_no_trace(
    replicated: Replicated, cause: Cause
) -> None:
    line = Line(replicated.primary)
    cause.hold(line.client)
    waiting = [line.write(FIRST), line.read(SECOND), line.write(SECOND)]
    replicated.stream.commands()
    at_once(replicated.primary, *cause.commands(line.client))
    assert all(waiter.error().startswith("WRONGTYPE ") for waiter in waiting)
    units = replicated.stream.units()
    assert not any(names_token(unit, token) for unit in units for token in (FIRST, SECOND)), units
    wait_unblocked(line.client)
    line.client.delete(KEY)
    assert line.info() is None and line.locks.lock(KEY, "new", HOUR)


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


def test_an_upgrade_on_wake_up_comes_after_the_release(replicated: Replicated) -> None:
    line = Line(replicated.primary)
    line.locks.rlock(KEY, FIRST, HOUR)
    line.locks.rlock(KEY, HOLDER, HOUR)
    upgrade, events = line.upgrade(FIRST), Events(replicated.primary)
    replicated.stream.commands()
    line.release(HOLDER)
    assert upgrade.fence()
    assert [event.name for event in events.so_far()] == ["slock.runlock", "slock.upgrade"]
    released, granted = units = replicated.stream.units()
    assert names_token(released, HOLDER) and len(granted) == 1, units
    is_given_last(units, FIRST)


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


def test_the_append_only_file_gives_back_every_grant(make_server: MakeServer) -> None:
    server = make_server(appendonly=True)
    line = Line(server)
    # Those that take everything away come first; what the others leave is kept under other names.
    causes = sorted(FREEING + SHARING, key=lambda cause: not cause.name.startswith(("FLUSH", "evict")))
    for number, cause in enumerate(causes):
        cause.hold(line.client)
        join = line.read if cause.readers_left else line.write
        first = join(FIRST)
        at_once(server, *cause.commands(line.client))
        first.fence()
        line.client.rename(KEY, f"after {number}: {cause}")
        line.client.delete("elsewhere")
        server.client(db=1).delete(KEY)
    line.locks.lock(KEY, HOLDER, HOUR)
    line.write("never granted")
    before = all_digests(server)
    holds_no_request(aof_commands(server))
    server.restart(kill=True)
    assert all_digests(server) == before and Line(server).info().waiters == 0
    assert sum(key.startswith(b"after") for _, key in before) >= len(causes) - 6
