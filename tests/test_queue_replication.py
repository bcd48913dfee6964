"""What replicas and the append-only file see of a grant made on wake-up.

Never the request; the grant in one unit with the release of ours that made it; and after whatever else did,
because a grant that comes before its DEL is deleted by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from harness import ReplicationStream, Server, aof_commands, digest, replica_of, wait_synced
from harness.causes import FREEING, HOLDER, KEY, REPLACING, SHARING, Cause
from harness.parked import HOUR, Line, at_once, wait_unblocked

pytest_plugins = ["harness.going_home"]

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


def _run(replicated: Replicated, cause: Cause) -> list[list[Command]]:
    """Lets the cause happen to a queue of two and returns what was replicated, in units, up to the grant."""
    primary = replicated.primary
    line = Line(primary)
    cause.hold(line.client)
    join = line.read if cause.readers_left else line.write
    first, second = join(FIRST), line.write(SECOND)
    commands = cause.commands(line.client)
    replicated.stream.commands()
    at_once(primary, *commands)
    first.fence()
    units = replicated.stream.units()
    replicated.digests_agree()
    assert second.is_waiting()
    # The first of the queue leaves last: its release is the one that grants.
    for token in sorted(line.holders(), key=lambda token: token == FIRST):
        line.release(token)
    second.fence()
    later = replicated.stream.units()
    assert names_token(later[-1], SECOND) and names_token(later[-1], FIRST)
    holds_no_request([command for unit in [*units, *later] for command in unit])
    line.release(SECOND)
    return units


@pytest.mark.parametrize("cause", [cause for cause in FREEING + SHARING if cause.is_ours], ids=str)
def test_a_grant_is_in_one_unit_with_the_release_that_made_it(replicated: Replicated, cause: Cause) -> None:
    units = _run(replicated, cause)
    granting = [unit for unit in units if names_token(unit, FIRST)]
    assert granting == [units[-1]], units
    assert len(units) == (2 if cause.name == "RUNLOCK of all readers at once" else 1), units
    # The release is in it, as a command of its own or with the grant in one.
    assert len(units[-1]) > 1 or names_token(units[-1], HOLDER), units


@pytest.mark.parametrize("cause", [cause for cause in FREEING + SHARING if cause.replicated_as], ids=str)
def test_a_grant_comes_after_what_the_server_did_to_the_key(replicated: Replicated, cause: Cause) -> None:
    commands = [command for unit in _run(replicated, cause) for command in unit]
    granted = [at for at, command in enumerate(commands) if names_token([command], FIRST)]
    caused = [
        at
        for at, command in enumerate(commands)
        if command[0].decode().upper() in cause.replicated_as and concerns_key(command)
    ]
    assert caused and granted, commands
    assert max(caused) < min(granted), commands


@pytest.mark.parametrize("cause", [cause for cause in FREEING if "deadline" in cause.name], ids=str)
def test_a_grant_after_a_deadline_is_followed_by_no_deletion(replicated: Replicated, cause: Cause) -> None:
    commands = [command for unit in _run(replicated, cause) for command in unit]
    granted = next(at for at, command in enumerate(commands) if names_token([command], FIRST))
    later = [command[0].upper() for command in commands[granted:] if concerns_key(command)]
    assert not {b"DEL", b"UNLINK"} & set(later), commands


@pytest.mark.parametrize("cause", REPLACING, ids=str)
def test_who_gets_wrongtype_leaves_no_trace(replicated: Replicated, cause: Cause) -> None:
    line = Line(replicated.primary)
    cause.hold(line.client)
    waiting = [line.write(FIRST), line.read(SECOND)]
    commands = cause.commands(line.client)
    replicated.stream.commands()
    at_once(replicated.primary, *commands)
    assert all(parked.error().startswith("WRONGTYPE ") for parked in waiting)
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


def test_an_upgrade_on_wake_up_is_in_one_unit_with_the_release(replicated: Replicated) -> None:
    line = Line(replicated.primary)
    line.locks.rlock(KEY, FIRST, HOUR)
    line.locks.rlock(KEY, HOLDER, HOUR)
    upgrade = line.upgrade(FIRST)
    replicated.stream.commands()
    line.release(HOLDER)
    assert upgrade.fence()
    units = replicated.stream.units()
    assert len(units) == 1 and names_token(units[0], FIRST), units
    holds_no_request(units[0])


def test_grants_in_several_databases_after_one_flushall(replicated: Replicated) -> None:
    lines = [Line(replicated.primary, database=database) for database in (0, 1, 5, 9)]
    for line in lines:
        line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write(f"waits in {line.database}") for line in lines]
    replicated.primary.client(db=3).flushall()
    assert all(parked.fence() for parked in waiting)
    wait_synced(replicated.primary, replicated.replica)
    for line in lines:
        there = replicated.replica.client(db=line.database)
        assert digest(there, KEY) == digest(line.client, KEY) != "0" * 40
    assert line.holders() == ["waits in 9"]


def test_every_release_of_a_transaction_grants_in_its_unit(replicated: Replicated) -> None:
    keys = [f"k{number}" for number in range(5)]
    lines = [Line(replicated.primary, key) for key in keys]
    for line in lines:
        line.locks.lock(line.key, HOLDER, HOUR)
    waiting = [line.write(f"waits for {line.key}") for line in lines]
    replicated.stream.commands()
    releases = [("SLOCK.UNLOCK", key, HOLDER) for key in keys]
    at_once(replicated.primary, ("MULTI",), *releases, ("EXEC",))
    assert all(parked.fence() for parked in waiting)
    (unit,) = replicated.stream.units()
    assert all(names_token([*unit], parked.token) for parked in waiting)


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
    fences = [parked.fence() for parked in waiting]
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
