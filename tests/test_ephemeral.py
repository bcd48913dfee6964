"""EPHEMERAL: a hold that ends with the connection that took it, however the connection ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import MakeServer, RawConnection, Server, wait_until
from harness.bound import hang_up, take_bound
from harness.causes import commands_of
from harness.many import many
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


def _in_a_command(line: Line, connection: RawConnection) -> None:
    connection.send_bytes(b"*3\r\n$3\r\nSET\r\n$1\r\n")
    connection.close()


def _in_a_transaction(line: Line, connection: RawConnection) -> None:
    connection.pipeline([("WATCH", "other"), ("MULTI",), ("SLOCK.UNLOCK", "k", "owner")])
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


ENDS = {
    "QUIT": lambda line, connection: connection.ok("QUIT"),
    "close": lambda line, connection: connection.close(),
    "reset": lambda line, connection: connection.reset(),
    "close with unread data": _unread_data,
    "close in a command": _in_a_command,
    "close in a transaction": _in_a_transaction,
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
    assert waiting[0].is_waiting()
    end(line, connection)
    fence = waiting[0].fence()
    assert line.holders() == ["first"] and line.locks.check("k", fence) == 1
    assert waiting[1].is_waiting()
    wait_until(lambda: not line.client.exists("alone"), what="the other lock to be free")


def test_a_connection_closed_for_being_idle_frees_its_lock(make_server: MakeServer) -> None:
    server = make_server(timeout=1, hz=100)
    take_bound(server)
    Line(server).write("next").fence()


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
    assert raw.error("SLOCK.UPGRADE", "k", "owner", HOUR, "EPHEMERAL").startswith("ERR ")
    assert raw.ok("EXISTS", "k") == 0


# --- which connection counts


ANEW = f"SLOCK.LOCK k owner {HOUR}"
RESTORE = "local value = redis.call('DUMP', 'k') redis.call('DEL', 'k') redis.call('RESTORE', 'k', 0, value)"

# What happens to the hold; its key and database afterwards; and whether it ends with the connection.
CHANGES = [
    ("DEBUG RELOAD", "k", 0, True),
    (f'EVAL "{RESTORE}" 0', "k", 0, True),
    ("SWAPDB 0 5", "k", 5, True),
    ("RENAME k j", "j", 0, False),
    ("MOVE k 5", "k", 5, False),
    # The connection takes it anew, without the option.
    (f"DEL k | {ANEW}", "k", 0, False),
    (f"FLUSHALL | {ANEW}", "k", 0, False),
    (f"RENAME k elsewhere | {ANEW}", "k", 0, False),
    (f"SET k text | DEL k | {ANEW}", "k", 0, False),
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


@pytest.mark.parametrize(
    "request_", [("SLOCK.LOCK", "k"), ("SLOCK.MLOCK", 3, "a", "k", "b")], ids=["one", "set"]
)
def test_a_waiter_is_bound_to_its_own_connection(line: Line, request_: tuple) -> None:
    line.locks.lock("k", "other", HOUR)
    gone, waiting = (
        line.ask(token, *request_, token, HOUR, "WAIT", 0, "EPHEMERAL") for token in ("gone", "owner")
    )
    gone.connection.close()
    line.release("other")
    fence = waiting.fence()
    retry, behind = line.server.raw(), line.write("behind")
    assert retry.ok(*request_, "owner", HOUR, "EPHEMERAL") == fence
    hang_up(line.server, retry)
    assert behind.is_waiting() and line.locks.check("k", fence) == 1
    waiting.connection.close()
    behind.fence()
    assert line.client.exists("a", "b") == 0


def test_the_end_of_a_connection_does_not_reach_the_hold_that_came_after(line: Line) -> None:
    """The old connection dies, and at once its token gets a wider set by another."""
    first = take_bound(line.server)
    line.locks.lock("wider", "other", HOUR)
    second = line.ask("owner", *many("MLOCK", "k wider", "owner", HOUR, "WAIT", 0, "EPHEMERAL"))
    with line.server.raw() as raw:
        kill = ("CLIENT", "KILL", "ID", first.client_id())
        assert raw.pipeline([kill, ("SLOCK.UNLOCK", "wider", "other")]) == [1, 1]
    fence = second.fence()
    assert line.locks.check("k", fence) == 1 == line.locks.check("wider", fence)
    hang_up(line.server, second.connection)
    wait_until(lambda: not line.client.exists("k", "wider"), what="the set to end with its connection")
