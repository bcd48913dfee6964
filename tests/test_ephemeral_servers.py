"""EPHEMERAL holds on servers with replicas, logs and restarts; and in great numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import (
    Locks,
    RawConnection,
    ReplicationStream,
    RespError,
    Server,
    aof_commands,
    digest,
    lock_state,
    now_ms,
    promote,
    replica_of,
    wait_past,
    wait_synced,
    wait_until,
)
from harness.bound import hang_up, take_bound
from harness.many import many
from harness.waiting import HOUR, Line

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]


def _digests_agree(primary: Server, replica: Server) -> None:
    wait_synced(primary, replica)
    here, there = primary.client(), replica.client()
    assert sorted(here.keys()) == sorted(there.keys())
    for key in here.scan_iter():
        assert digest(here, key) == digest(there, key)


# --- replicas


def test_a_replica_sees_the_hold_end_with_the_connection(make_server: MakeServer) -> None:
    primary, replica = make_server(appendonly=True), make_server()
    replica_of(replica, primary)
    connection = primary.raw()
    assert connection.ok(*many("MLOCK", "a b", "owner", HOUR, "EPHEMERAL"))
    assert connection.ok("SLOCK.RLOCK", "c", "owner", HOUR, "EPHEMERAL")
    assert primary.client().execute_command("SLOCK.RLOCK", "c", "other", HOUR)
    line = Line(primary, "a")
    waiting = line.write("next")
    _digests_agree(primary, replica)
    connection.close()
    waiting.fence()
    wait_until(lambda: Locks(line.client).info("c").readers == 1, what="the reader to leave")
    _digests_agree(primary, replica)
    far = Locks(replica.client())
    assert far.full("a").holders[0].token == b"next" and far.info("b") is None and far.info("c").readers == 1
    before = {key: lock_state(line.client, key) for key in ("a", "c")}
    primary.restart(kill=True)
    assert {key: lock_state(primary.client(), key) for key in ("a", "c")} == before
    assert Locks(primary.client()).info("b") is None, "its end is in the log"


def test_the_end_of_a_hold_and_the_next_grant_reach_replicas_as_effects(server: Server) -> None:
    connection, stream = take_bound(server), ReplicationStream(server)
    line = Line(server)
    waiting = line.write("next")
    connection.close()
    waiting.fence()
    commands = stream.commands()
    names = {command[0].upper() for command in commands}
    assert names <= {b"SLOCK.APPLY", b"DEL", b"UNLINK", b"MULTI", b"EXEC"}, commands
    assert b"next" in b" ".join(commands[-1 if commands[-1][0].upper() != b"EXEC" else -2])
    stream.close()


def test_a_promoted_replica_keeps_the_hold_for_its_ttl_only(make_server: MakeServer) -> None:
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    connection = primary.raw()
    fence = connection.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    wait_synced(primary, replica)
    promote(replica)
    connection.close()
    locks = Locks(replica.client())
    assert locks.check("k", fence) == 1
    locks.extend("k", "owner", 30)
    Line(replica).write("next").fence()


def test_a_connection_that_ends_on_a_demoted_primary_changes_nothing_there(make_server: MakeServer) -> None:
    one, two = make_server(), make_server()
    replica_of(two, one)
    connection = take_bound(one)
    wait_synced(one, two)
    promote(two)
    replica_of(one, two)
    _digests_agree(two, one)
    hang_up(one, connection)
    assert Locks(two.client()).extend("k", "owner", HOUR) == 1
    _digests_agree(two, one)
    assert Locks(one.client()).info("k").mode == "write"
    assert Locks(two.client()).unlock("k", "owner") == 1
    _digests_agree(two, one)


@pytest.mark.parametrize("mode", ["WRITE", "ALL"])
def test_a_connection_that_ends_while_clients_are_paused_frees_its_lock_after_it(
    make_server: MakeServer, mode: str
) -> None:
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    connection = take_bound(primary)
    line = Line(primary)
    waiting = line.write("next")
    primary.raw().ok("CLIENT", "PAUSE", 400, mode)
    connection.close()
    assert not waiting.is_answered(0.1), "a lock was granted in the pause"
    waiting.fence()
    _digests_agree(primary, replica)


# --- restarts


@pytest.mark.parametrize(
    "how", [{"kill": True}, {"kill": False}, {"save": True}], ids=["killed", "shut down", "saved"]
)
def test_after_a_restart_only_the_ttl_counts(make_server: MakeServer, how: dict) -> None:
    server = make_server(appendonly="save" not in how)
    connection = server.raw()
    assert connection.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    assert connection.ok("SLOCK.LOCK", "brief", "owner", 1, "EPHEMERAL")
    before = lock_state(server.client(), "k")
    server.restart(**how)
    assert lock_state(server.client(), "k") == before
    hang_up(server, server.raw())
    line = Line(server)
    waiting = line.write("next")
    assert waiting.is_waiting()
    line.locks.extend("k", "owner", 20)
    waiting.fence()
    wait_past(line.client, now_ms(line.client) + 1)
    assert line.locks.info("brief") is None


def test_the_log_does_not_know_the_option(make_server: MakeServer) -> None:
    server = make_server(appendonly=True)
    take_bound(server)
    assert not any(b"EPHEMERAL" in arg.upper() for command in aof_commands(server) for arg in command)


# --- numbers


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def _bound_rounds(raw: RawConnection, rounds: int) -> None:
    commands = [("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL"), ("SLOCK.UNLOCK", "k", "owner")]
    commands += [(*many("MLOCK", "a b c", "owner", HOUR), "EPHEMERAL"), many("MUNLOCK", "c b a", "owner")]
    for _ in range(rounds // 100):
        assert not any(isinstance(reply, RespError) for reply in raw.pipeline(commands * 100))


def test_many_holds_on_one_connection_leave_nothing_behind(make_server: MakeServer) -> None:
    server = make_server()
    client, raw = server.client(), server.raw()
    _bound_rounds(raw, 200)
    before = _used(client)
    _bound_rounds(raw, 5000)
    assert _used(client) - before < 64 * 1024
    assert client.dbsize() == 0


def test_many_expired_holds_of_one_open_connection_leave_nothing_behind(make_server: MakeServer) -> None:
    server = make_server()
    client, raw = server.client(), server.raw()

    def expire(count: int) -> None:
        raw.pipeline([("SLOCK.LOCK", f"k{number}", "owner", 1, "EPHEMERAL") for number in range(count)])
        wait_until(lambda: client.dbsize() == 0, what="all of them to expire")

    expire(2000)
    before = _used(client)
    for _ in range(4):
        expire(2000)
    assert _used(client) - before < 64 * 1024


def test_many_connections_that_end_leave_nothing_behind(make_server: MakeServer) -> None:
    server = make_server()
    client = server.client()
    holders = [take_bound(server, "RLOCK", token=f"owner {number}") for number in range(300)]
    for number in range(300):
        assert holders[number].ok("SLOCK.LOCK", f"own {number}", "owner", HOUR, "EPHEMERAL")
    assert Locks(client).info("k").readers == 300 and client.dbsize() == 301
    for connection in holders:
        connection.close()
    wait_until(lambda: client.dbsize() == 0, what="every hold to end")
    numbers = client.info("slock")
    assert numbers["slock_locks"] == 0 and numbers["slock_releases"] == 600
