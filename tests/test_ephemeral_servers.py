"""EPHEMERAL holds on servers with replicas, logs and restarts; and in great numbers."""

from __future__ import annotations

import pytest
import redis

from harness import Locks, MakeServer, RespError, aof_commands, lock_state
from harness.bound import hang_up, take_bound
from harness.load import level
from harness.many import many
from harness.replication import ReplicationStream, promote, replica_of, wait_synced
from harness.settings import free_port
from harness.wait import now_ms, wait_past, wait_until
from harness.waiting import HOUR, Line

# --- replicas


def test_replicas_and_the_log_see_the_hold_end_with_the_connection(make_server: MakeServer) -> None:
    primary, replica = make_server(appendonly=True), make_server()
    replica_of(replica, primary)
    connection = primary.raw()
    assert connection.ok(*many("MLOCK", "a b", "owner", HOUR, "EPHEMERAL"))
    assert connection.ok("SLOCK.RLOCK", "c", "owner", HOUR, "EPHEMERAL")
    assert primary.client().execute_command("SLOCK.RLOCK", "c", "other", HOUR)
    line, stream = Line(primary, "a"), ReplicationStream(primary)
    waiting = line.write("next")
    level(primary, replica)
    connection.close()
    waiting.fence()
    wait_until(lambda: Locks(line.client).info("c").readers == 1, what="the reader to leave")
    level(primary, replica)
    commands = stream.commands() + aof_commands(primary)
    names = {command[0].upper() for command in commands}
    assert names <= {b"SELECT", b"SLOCK.APPLY", b"DEL", b"UNLINK", b"MULTI", b"EXEC"}, commands
    assert not any(b"EPHEMERAL" in arg.upper() for command in commands for arg in command)
    before = {key: lock_state(line.client, key) for key in "abc"}
    assert before["b"] is None and len(before["c"].holders) == 1 and before["a"].holders[0][0] == b"next"
    primary.restart(kill=True)
    assert {key: lock_state(primary.client(), key) for key in "abc"} == before, "its end is in the log"


def test_a_connection_that_ends_on_a_demoted_primary_changes_nothing(make_server: MakeServer) -> None:
    """At the new primary the hold has its ttl only."""
    one, two = make_server(), make_server()
    replica_of(two, one)
    connection = take_bound(one)
    wait_synced(one, two)
    promote(two)
    replica_of(one, two)
    hang_up(one, connection)
    line = Line(two)
    assert line.locks.extend("k", "owner", HOUR) == 1
    level(two, one)
    assert Locks(one.client()).info("k").mode == "write"
    line.locks.extend("k", "owner", 30)
    line.write("next").fence()
    level(two, one)


def test_a_primary_that_was_a_replica_for_a_moment_knows_only_the_ttl(make_server: MakeServer) -> None:
    server = make_server()
    connection, line = take_bound(server), Line(server)
    line.client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    line.client.execute_command("REPLICAOF", "NO", "ONE")
    waiting = line.write("next")
    hang_up(server, connection)
    assert not waiting.is_answered(0.1)
    assert line.holders() == ["owner"]


# --- restarts


@pytest.mark.parametrize("how", [{"kill": True}, {"save": True}], ids=["killed", "saved"])
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


# --- numbers


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def test_many_holds_on_one_connection_leave_nothing_behind(make_server: MakeServer) -> None:
    """What is known of a hold that has expired goes within a second."""
    server = make_server()
    client, raw = server.client(), server.raw()

    def hold(times: int, *options: str) -> None:
        commands = [("SLOCK.LOCK", "k", "owner", HOUR, *options), ("SLOCK.UNLOCK", "k", "owner")]
        commands += [many("MLOCK", "a b c", "owner", HOUR, *options), many("MUNLOCK", "c b a", "owner")]
        commands += [("SLOCK.LOCK", f"k{number}", "owner", 1, *options) for number in range(2000)]
        for _ in range(times):
            assert not any(isinstance(reply, RespError) for reply in raw.pipeline(commands[:4] * 500))
            raw.pipeline(commands[4:])
            wait_until(lambda: client.dbsize() == 0, what="all of them to expire")

    hold(1)
    before = _used(client)
    hold(5, "EPHEMERAL")
    wait_until(lambda: _used(client) - before < 64 * 1024, what="the memory to be free again")


def test_many_connections_that_end_leave_nothing_behind(make_server: MakeServer) -> None:
    server = make_server()
    client = server.client()
    holders = [take_bound(server, "RLOCK", token=f"owner {number}") for number in range(200)]
    for number, holder in enumerate(holders):
        assert holder.ok("SLOCK.LOCK", f"own {number}", "owner", HOUR, "EPHEMERAL")
    assert Locks(client).info("k").readers == 200 and client.dbsize() == 201
    for connection in holders:
        connection.close()
    wait_until(lambda: client.dbsize() == 0, what="every hold to end")
    numbers = client.info("slock")
    assert numbers["slock_locks"] == 0 and numbers["slock_releases"] == 400
