"""What replicas and the append-only file see of a grant made on wake-up.

Never the request; and the grant in a unit of its own after whatever made it: one that came before its DEL
would be deleted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from harness import ReplicationStream, Server, aof_commands, digest, replica_of, wait_synced
from harness.causes import FREEING, HOLDER, KEY, REPLACING, SHARING, Cause
from harness.waiting import HOUR, Line, at_once, wait_unblocked

pytest_plugins = ["harness.cleanup"]

FIRST, SECOND = "first-of-those-who-wait", "second-of-those-who-wait"

Command = list[bytes]


class Replicated(NamedTuple):
    primary: Server
    replica: Server
    stream: ReplicationStream

    def digests_agree(self) -> None:
        wait_synced(self.primary, self.replica)
        for database in (0, 1):
            here, there = (server.client(db=database) for server in (self.primary, self.replica))
            assert sorted(here.keys()) == sorted(there.keys())
            for key in here.scan_iter():
                assert digest(here, key) == digest(there, key), key


@pytest.fixture(scope="module")
def _servers() -> Iterator[Replicated]:
    primary, replica = (Server(name=name).start() for name in ("primary", "replica"))
    replica_of(replica, primary)
    yield Replicated(primary, replica, ReplicationStream(primary))
    for server in (primary, replica):
        server.stop()
        server.discard()


@pytest.fixture
def replicated(_servers: Replicated) -> Iterator[Replicated]:
    _servers.primary.client().flushall()
    yield _servers
    _servers.digests_agree()
    _servers.primary.check()
    _servers.replica.check()


def names_token(commands: list[Command], token: str) -> bool:
    return any(token.encode() in arg for command in commands for arg in command)


def holds_no_request(commands: list[Command]) -> None:
    for command in commands:
        name = command[0].upper()
        assert not name.startswith(b"SLOCK.") or name == b"SLOCK.APPLY", command
        assert all(arg.upper() != b"WAIT" for arg in command[1:]), command


def concerns_key(command: Command) -> bool:
    name = command[0].upper()
    return KEY.encode() in command[1:] or name in (b"FLUSHDB", b"FLUSHALL", b"SWAPDB")


def is_given_last(units: list[list[Command]], token: str) -> None:
    """The token is given its hold at the very end; and nobody else before, who did not hold already."""
    *before, grant = [command for unit in units for command in unit]
    assert grant[0] == b"SLOCK.APPLY" and grant[2].startswith(b"HOLD ") and names_token([grant], token), units
    for command in before:
        given = command[0] == b"SLOCK.APPLY" and command[2].startswith(b"HOLD ")
        assert not given or names_token([command], HOLDER), units
    holds_no_request([*before, grant])


@pytest.mark.parametrize("cause", FREEING + SHARING, ids=str)
def test_a_grant_comes_after_its_cause_in_a_unit_of_its_own(replicated: Replicated, cause: Cause) -> None:
    line = Line(replicated.primary)
    cause.hold(line.client)
    join = line.read if cause.readers_left else line.write
    first, second = join(FIRST), line.write(SECOND)
    commands = cause.commands(line.client)
    replicated.stream.commands()
    newcomer = ("SLOCK.RLOCK" if cause.readers_left else "SLOCK.LOCK", KEY, "newcomer", HOUR)
    assert at_once(replicated.primary, *commands, newcomer)[-1] == 0
    first.fence()
    *caused, granted = units = replicated.stream.units()
    is_given_last(units, FIRST)
    if not cause.by_deadline:
        names = {name.encode() for name in cause.replicated_as} or {b"SLOCK.APPLY"}
        made = [command for unit in caused for command in unit if command[0].upper() in names]
        assert any(concerns_key(command) for command in made), units
        for command in granted:
            assert command[0] == b"SLOCK.APPLY" and not command[2].startswith(b"RELEASE "), units
    replicated.digests_agree()
    assert second.is_waiting()
    # The first of the queue leaves last: its release is the one that frees the lock.
    for token in sorted(line.holders(), key=lambda token: token == FIRST):
        line.release(token)
    second.fence()
    units = replicated.stream.units()
    is_given_last(units, SECOND)
    assert len(units[-1]) == 1 and names_token(units[-2], FIRST), units
    line.release(SECOND)


@pytest.mark.parametrize("cause", REPLACING, ids=str)
def test_who_gets_wrongtype_leaves_no_trace(replicated: Replicated, cause: Cause) -> None:
    line = Line(replicated.primary)
    cause.hold(line.client)
    waiting = [line.write(FIRST), line.read(SECOND)]
    commands = cause.commands(line.client)
    replicated.stream.commands()
    at_once(replicated.primary, *commands)
    assert all(waiter.error().startswith("WRONGTYPE ") for waiter in waiting)
    units = replicated.stream.units()
    assert not any(names_token(unit, token) for unit in units for token in (FIRST, SECOND)), units


def test_who_waits_and_who_leaves_is_not_replicated(replicated: Replicated) -> None:
    line = Line(replicated.primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    line.locks.rlock("read", "a", HOUR)
    line.locks.rlock("read", "b", HOUR)
    replicated.stream.commands()
    timed_out, unblocked, killed = line.write("t1", wait=30), line.read("t2"), line.write("t3")
    upgrader = Line(replicated.primary, "read").upgrade("a", wait=30)
    assert timed_out.reply() == 0 == upgrader.reply()
    line.client.client_unblock(unblocked.id)
    line.client.client_kill_filter(_id=killed.id)
    wait_unblocked(line.client)
    assert replicated.stream.commands() == []


def test_readers_let_in_by_a_writer_that_left_are_replicated(replicated: Replicated) -> None:
    line = Line(replicated.primary)
    line.locks.rlock(KEY, HOLDER, HOUR)
    writer, readers = line.write("writer"), [line.read(FIRST), line.read(SECOND)]
    replicated.stream.commands()
    line.client.client_unblock(writer.id, error=True)
    assert all(reader.fence() for reader in readers)
    commands = replicated.stream.commands()
    assert names_token(commands, FIRST) and names_token(commands, SECOND)
    assert not names_token(commands, "writer")
    holds_no_request(commands)


def test_an_upgrade_on_wake_up_comes_after_the_release(replicated: Replicated) -> None:
    line = Line(replicated.primary)
    line.locks.rlock(KEY, FIRST, HOUR)
    line.locks.rlock(KEY, HOLDER, HOUR)
    upgrade = line.upgrade(FIRST)
    replicated.stream.commands()
    line.release(HOLDER)
    assert upgrade.fence()
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


def test_the_grants_of_a_transaction_come_after_all_of_it(replicated: Replicated) -> None:
    keys = [f"k{number}" for number in range(5)]
    lines = [Line(replicated.primary, key) for key in keys]
    for line in lines:
        line.locks.lock(line.key, HOLDER, HOUR)
    waiting = [line.write(f"waits for {line.key}") for line in lines]
    replicated.stream.commands()
    releases = [("SLOCK.UNLOCK", key, HOLDER) for key in keys]
    at_once(replicated.primary, ("MULTI",), *releases, ("EXEC",))
    assert all(waiter.fence() for waiter in waiting)
    released, *granted = replicated.stream.units()
    assert len(released) == 5 and not names_token(released, "waits for")
    assert all(any(names_token(unit, waiter.token) for unit in granted) for waiter in waiting)


def test_a_queue_served_one_by_one_leaves_the_replica_level(replicated: Replicated) -> None:
    line = Line(replicated.primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    replicated.stream.commands()
    waiting = [line.read(f"t{n}") if n % 3 else line.write(f"t{n}") for n in range(40)]
    while holders := line.holders():
        wait_synced(replicated.primary, replicated.replica)
        assert digest(line.client, KEY) == digest(replicated.replica.client(), KEY)
        for token in holders:
            line.release(token)
    fences = [waiter.fence() for waiter in waiting]
    assert fences == sorted(set(fences))
    holds_no_request(replicated.stream.commands())


def test_the_append_only_file_gives_back_every_grant(make_server: Callable[..., Server]) -> None:
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
    waiting = line.locks.lock(KEY, HOLDER, HOUR) and line.write("never granted")

    def digests() -> dict[tuple[int, bytes], str]:
        clients = {database: server.client(db=database) for database in (0, 1)}
        return {
            (db, key): digest(client, key) for db, client in clients.items() for key in client.scan_iter()
        }

    before = digests()
    holds_no_request(aof_commands(server))
    server.restart(kill=True)
    assert digests() == before
    assert not waiting or Line(server).info().waiters == 0
    names = [key for _, key in before]
    assert sum(name.startswith(b"after") for name in names) >= len(causes) - 7
