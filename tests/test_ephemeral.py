"""EPHEMERAL: a hold that ends with the connection that took it, however the connection ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Locks, MakeServer, RawConnection, RespError, Server, aof_commands, lock_state, wait_until
from harness.bound import hang_up, take_bound
from harness.causes import commands_of
from harness.load import level
from harness.many import many
from harness.replication import ReplicationStream, replica_of
from harness.settings import free_port
from harness.wait import now_ms, wait_past
from harness.waiting import HOUR, Line, is_blocked


@pytest.fixture
def line(server: Server) -> Line:
    return Line(server)


# --- every way a connection ends


def _unread_data(line: Line, connection: RawConnection) -> None:
    line.client.set("big", "x" * 1_000_000)
    for _ in range(20):
        connection.send("GET", "big")
    connection.close()


def _in_a_wait(line: Line, connection: RawConnection) -> None:
    client_id = connection.client_id()
    assert line.locks.lock("other", "somebody", HOUR)
    connection.send("SLOCK.LOCK", "other", "owner", HOUR, "WAIT", 0)
    wait_until(lambda: is_blocked(line.client, client_id), what="it to wait")
    connection.close()


def _user_is_deleted(line: Line, connection: RawConnection) -> None:
    line.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all")
    connection.ok("AUTH", "guest", "any")
    line.client.execute_command("ACL", "DELUSER", "guest")


def _after(data: bytes) -> Callable[[Line, RawConnection], None]:
    """It closes when it has sent this."""

    def end(line: Line, connection: RawConnection) -> None:
        connection.send_bytes(data)
        connection.close()

    return end


ENDS = {
    "QUIT": lambda line, connection: connection.ok("QUIT"),
    "close": _after(b""),
    "reset": lambda line, connection: connection.reset(),
    "close with unread data": _unread_data,
    "close in a command": _after(b"*3\r\n$3\r\nSET\r\n$1\r\n"),
    "close in a transaction": _after(b"WATCH other\r\nMULTI\r\nSLOCK.UNLOCK k owner\r\n"),
    "close while it waits": _in_a_wait,
    "CLIENT KILL": lambda line, connection: line.client.client_kill_filter(_id=connection.client_id()),
    "ACL DELUSER": _user_is_deleted,
    "protocol error": lambda line, connection: connection.send_bytes(b"*1\r\n$x\r\n"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_when_the_connection_ends_its_locks_are_free(
    line: Line, end: Callable[[Line, RawConnection], object]
) -> None:
    connection = take_bound(line.server)
    assert connection.ok("SLOCK.LOCK", "alone", "owner", HOUR, "EPHEMERAL")
    waiting = [line.write("first"), line.write("second")]
    end(line, connection)
    fence = waiting[0].fence()
    assert line.holders() == ["first"] and line.locks.check("k", fence) == 1
    assert waiting[1].is_waiting()
    wait_until(lambda: not line.client.exists("alone"), what="the other lock to be free")


def test_sets_and_locks_of_every_database_and_of_transactions_leave(line: Line) -> None:
    connection, fifth = line.server.raw(), Line(line.server, database=5)
    assert connection.ok(*many("MLOCK", "k a b", "owner", HOUR, "META", "m", "EPHEMERAL"))
    assert connection.ok(*many("MRLOCK", "c d", "owner", HOUR, "EPHEMERAL"))
    take = ("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    replies = connection.pipeline([("SELECT", 5), ("MULTI",), take, ("EXEC",), ("SELECT", 0)])
    assert replies[3][0] > 0
    waiting = [line.write("next"), fifth.write("next")]
    hang_up(line.server, connection)
    assert all(waiter.fence() for waiter in waiting)
    wait_until(lambda: not line.client.exists("a", "b", "c", "d"), what="the sets to end")


def test_a_script_has_no_connection_to_be_bound_to(raw: RawConnection) -> None:
    script = "return redis.call('SLOCK.LOCK', KEYS[1], 'owner', 1000, 'EPHEMERAL')"
    assert "EPHEMERAL" in raw.error("EVAL", script, 1, "k")
    assert raw.ok("EXISTS", "k") == 0


# --- which hold, and which connection, counts

ONCE_MORE = f"SLOCK.LOCK k owner {HOUR}"
RESTORE = "local value = redis.call('DUMP', 'k') redis.call('DEL', 'k') redis.call('RESTORE', 'k', 0, value)"

# What happens to the hold; its key and database afterwards; and whether it ends with the connection.
CHANGES = [
    ("DEBUG RELOAD", "k", 0, True),
    (f'EVAL "{RESTORE}" 0', "k", 0, True),
    ("SWAPDB 0 5", "k", 5, False),
    ("RENAME k j", "j", 0, False),
    ("MOVE k 5", "k", 5, False),
    # The connection takes it without the option.
    (f"DEL k | {ONCE_MORE}", "k", 0, False),
    (f"FLUSHALL | {ONCE_MORE}", "k", 0, False),
    (f"SET k text | DEL k | {ONCE_MORE}", "k", 0, False),
]


@pytest.mark.parametrize(("change", "key", "database", "is_bound"), CHANGES)
def test_whether_a_hold_is_bound_after_a_change_of_its_key(
    line: Line, change: str, key: str, database: int, is_bound: bool
) -> None:
    connection = take_bound(line.server)
    for command in commands_of(change):
        connection.ok(*command)
    after = Line(line.server, key, database=database)
    fence, waiting = after.info().fence, after.write("next")
    assert waiting.is_waiting()
    hang_up(line.server, connection)
    if is_bound:
        waiting.fence()
    else:
        assert not waiting.is_answered(0.03) and after.locks.check(key, fence) == 1, "the hold was lost"


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


def test_many_holds_on_one_connection_leave_nothing_behind(make_server: MakeServer) -> None:
    """What is known of a hold that has expired goes within a second."""
    server = make_server()
    client, raw = server.client(), server.raw()

    def hold(times: int, *options: str) -> None:
        taken = [("SLOCK.LOCK", "k", "owner", HOUR, *options), ("SLOCK.UNLOCK", "k", "owner")]
        taken += [many("MLOCK", "a b c", "owner", HOUR, *options), many("MUNLOCK", "c b a", "owner")]
        brief = [("SLOCK.LOCK", f"k{number}", "owner", 1, *options) for number in range(2000)]
        for _ in range(times):
            assert not any(isinstance(reply, RespError) for reply in raw.pipeline(taken * 500))
            raw.pipeline(brief)
            wait_until(lambda: client.dbsize() == 0, what="all of them to expire")

    def used() -> int:
        return client.info("memory")["used_memory"]

    hold(1)
    before = used()
    hold(5, "EPHEMERAL")
    wait_until(lambda: used() - before < 64 * 1024, what="the memory to be free again")
