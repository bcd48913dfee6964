"""EPHEMERAL: a hold that ends with the connection that took it, however the connection ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from harness import Events, RawConnection, Server, now_ms, wait_past, wait_until
from harness.bound import hang_up, take_bound
from harness.many import many
from harness.waiting import HOUR, Line, WaitingClient, is_blocked

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]

# A client program that takes a lock, says so, and lives until it is killed.
PROGRAM = """
import socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
link.sendall(b"SLOCK.LOCK k owner 3600000 EPHEMERAL\\r\\n")
print(link.recv(100).decode(), flush=True)
link.recv(100)
"""


@pytest.fixture
def line(server: Server) -> Line:
    return Line(server)


# --- every way a connection ends


def _quits(line: Line, connection: RawConnection) -> None:
    assert connection.ok("QUIT") == b"OK"


def _closes(line: Line, connection: RawConnection) -> None:
    connection.close()


def _resets(line: Line, connection: RawConnection) -> None:
    connection.reset()


def _closes_with_unread_data(line: Line, connection: RawConnection) -> None:
    line.client.set("big", "x" * 1_000_000)
    for _ in range(20):
        connection.send("GET", "big")
    connection.close()


def _closes_in_the_middle_of_a_command(line: Line, connection: RawConnection) -> None:
    connection.send_bytes(b"*3\r\n$3\r\nSET\r\n$1\r\n")
    connection.close()


def _closes_inside_a_transaction(line: Line, connection: RawConnection) -> None:
    connection.pipeline([("WATCH", "other"), ("MULTI",), ("SLOCK.UNLOCK", "k", "owner")])
    connection.close()


def _is_killed(line: Line, connection: RawConnection) -> None:
    line.client.client_kill_filter(_id=connection.client_id())


def _breaks_the_protocol(line: Line, connection: RawConnection) -> None:
    connection.send_bytes(b"*1\r\n$x\r\n")


def _closes_while_it_waits(line: Line, connection: RawConnection) -> None:
    client_id = connection.client_id()
    assert line.locks.lock("other", "somebody", HOUR)
    connection.send("SLOCK.LOCK", "other", "owner", HOUR, "WAIT", 0)
    wait_until(lambda: is_blocked(line.client, client_id), what="it to wait")
    connection.close()


ENDS = [
    _quits,
    _closes,
    _resets,
    _closes_with_unread_data,
    _closes_in_the_middle_of_a_command,
    _closes_inside_a_transaction,
    _is_killed,
    _breaks_the_protocol,
    _closes_while_it_waits,
]


def _name(end: Callable) -> str:
    return end.__name__.strip("_").replace("_", " ")


@pytest.mark.parametrize("end", ENDS, ids=_name)
def test_when_the_connection_ends_the_next_waiter_has_the_lock(
    line: Line, end: Callable[[Line, RawConnection], None]
) -> None:
    connection = take_bound(line.server)
    waiting = [line.write("first"), line.write("second")]
    assert waiting[0].is_waiting()
    end(line, connection)
    fence = waiting[0].fence()
    assert line.holders() == ["first"] and line.locks.check("k", fence) == 1
    assert waiting[1].is_waiting()


@pytest.mark.parametrize("end", ENDS, ids=_name)
def test_when_the_connection_ends_the_key_is_gone(
    line: Line, end: Callable[[Line, RawConnection], None]
) -> None:
    end(line, take_bound(line.server))
    wait_until(lambda: not line.client.exists("k"), what="the lock to be free")
    assert line.locks.lock("k", "other", HOUR)


def test_a_killed_program_frees_its_lock(line: Line) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(line.server.port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline().startswith(":")
        waiting = line.write("next")
        assert waiting.is_waiting()
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    waiting.fence()


def test_a_connection_closed_for_being_idle_frees_its_lock(make_server: MakeServer) -> None:
    server = make_server(timeout=1, hz=100)
    take_bound(server)
    line = Line(server)
    line.write("next").fence()
    assert line.holders() == ["next"]


def test_a_user_who_is_deleted_loses_his_lock(line: Line) -> None:
    line.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all")
    connection = line.server.raw()
    connection.ok("AUTH", "guest", "any")
    assert connection.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    waiting = line.write("next")
    line.client.execute_command("ACL", "DELUSER", "guest")
    waiting.fence()


def test_a_plain_hold_outlives_its_connection(line: Line) -> None:
    connection = line.server.raw()
    fence = connection.ok("SLOCK.LOCK", "k", "owner", HOUR)
    hang_up(line.server, connection)
    assert line.locks.check("k", fence) == 1


def test_the_ttl_still_ends_the_hold_of_an_open_connection(line: Line) -> None:
    connection = line.server.raw()
    assert connection.ok("SLOCK.LOCK", "k", "owner", 30, "EPHEMERAL")
    line.write("next").fence()
    hang_up(line.server, connection)
    assert line.holders() == ["next"]


def test_only_the_readers_of_the_connection_leave(line: Line) -> None:
    one, two = take_bound(line.server, "RLOCK", token="one"), take_bound(line.server, "RLOCK", token="two")
    assert two.ok("SLOCK.RLOCK", "k", "three", HOUR) and two.ok("SLOCK.RLOCK", "j", "four", HOUR, "EPHEMERAL")
    events = Events(line.server)
    hang_up(line.server, two)
    wait_until(lambda: line.holders() == ["one", "three"], what="the second reader to leave")
    wait_until(lambda: not line.client.exists("j"), what="its other lock to be free")
    names = [(event.name, event.key) for event in events.so_far() if event.name.startswith("slock.")]
    assert sorted(names) == [("slock.runlock", b"j"), ("slock.runlock", b"k")]
    assert one.ok("SLOCK.RUNLOCK", "k", "one") == 1


@pytest.mark.parametrize("command", ["MLOCK", "MRLOCK"])
def test_a_set_of_keys_leaves_with_its_connection(line: Line, command: str) -> None:
    connection = line.server.raw()
    assert connection.ok(*many(command, "k a b", "owner", HOUR, "META", "m", "EPHEMERAL"))
    waiting = line.write("next")
    hang_up(line.server, connection)
    waiting.fence()
    assert line.client.exists("a", "b") == 0


def test_locks_of_every_database_leave(line: Line) -> None:
    connection = take_bound(line.server)
    connection.ok("SELECT", 5)
    assert connection.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    connection.ok("SELECT", 0)
    hang_up(line.server, connection)
    fifth = line.server.client(db=5)
    wait_until(lambda: not line.client.exists("k") and not fifth.exists("k"), what="both to be free")


def test_a_hold_taken_in_a_transaction_is_bound(line: Line) -> None:
    connection = line.server.raw()
    take = ("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    assert connection.pipeline([("MULTI",), take, ("EXEC",)])[-1][0] > 0
    hang_up(line.server, connection)
    wait_until(lambda: not line.client.exists("k"), what="the lock to be free")


def test_a_script_has_no_connection_to_be_bound_to(raw: RawConnection) -> None:
    script = "return redis.call('SLOCK.LOCK', KEYS[1], 'owner', 1000, 'EPHEMERAL')"
    assert "EPHEMERAL" in raw.error("EVAL", script, 1, "k")
    assert raw.ok("EXISTS", "k") == 0


# --- which connection counts


def _stays_held(line: Line, fence: int) -> None:
    """A waiter that comes after the connection has ended is not let in."""
    waiting = line.write("probe", wait=30)
    assert waiting.reply() == 0 and line.locks.check(line.key, fence) == 1, "the hold was lost"


@pytest.mark.parametrize("again", [("EPHEMERAL",), ()], ids=["bound", "plain"])
def test_a_refresh_by_another_connection_does_not_move_the_hold(line: Line, again: tuple) -> None:
    first, second = line.server.raw(), line.server.raw()
    fence = first.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    assert second.ok("SLOCK.LOCK", "k", "owner", HOUR, *again) == fence
    hang_up(line.server, second)
    _stays_held(line, fence)
    waiting = line.write("next")
    hang_up(line.server, first)
    waiting.fence()


def test_what_another_connection_acquires_anew_is_not_bound_to_the_first(line: Line) -> None:
    first, second = take_bound(line.server), line.server.raw()
    assert second.ok("SLOCK.UNLOCK", "k", "owner") == 1
    fence = second.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    hang_up(line.server, first)
    _stays_held(line, fence)
    waiting = line.write("next")
    hang_up(line.server, second)
    waiting.fence()


LOST = {
    "released": lambda line: line.release("owner"),
    "deleted": lambda line: line.client.delete("k"),
    "unlinked": lambda line: line.client.unlink("k"),
    "flushed": lambda line: line.client.flushall(),
    "renamed": lambda line: line.client.rename("k", "elsewhere"),
    "overwritten": lambda line: (line.client.set("k", "text"), line.client.delete("k")),
    "expired": lambda line: (
        line.locks.extend("k", "owner", 10),
        wait_past(line.client, now_ms(line.client) + 12),
    ),
}


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("same", [True, False], ids=["the same connection", "another connection"])
def test_a_hold_taken_anew_without_the_option_is_not_bound(line: Line, how: str, same: bool) -> None:
    first = take_bound(line.server)
    LOST[how](line)
    connection = first if same else line.server.raw()
    fence = connection.ok("SLOCK.LOCK", "k", "owner", HOUR)
    hang_up(line.server, first)
    _stays_held(line, fence)


def test_a_waiter_that_is_granted_later_is_bound_to_its_own_connection(line: Line) -> None:
    line.locks.lock("k", "other", HOUR)
    waiting = WaitingClient(line.server, "owner")
    waiting.ask("SLOCK.LOCK", "k", "owner", HOUR, "WAIT", 0, "EPHEMERAL")
    line.wait_until_waiting(waiting)
    behind = line.write("behind")
    line.release("other")
    fence = waiting.fence()
    retry = line.server.raw()
    assert retry.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL") == fence
    hang_up(line.server, retry)
    assert behind.is_waiting() and line.locks.check("k", fence) == 1
    waiting.connection.close()
    behind.fence()


def test_a_waiter_for_many_keys_is_bound_to_its_own_connection(line: Line) -> None:
    line.locks.lock("k", "other", HOUR)
    waiting = WaitingClient(line.server, "owner")
    waiting.ask(*many("MLOCK", "a k b", "owner", HOUR, "WAIT", 0, "EPHEMERAL"))
    line.wait_until_waiting(waiting)
    line.release("other")
    waiting.fence()
    behind = line.write("behind")
    waiting.connection.close()
    behind.fence()
    assert line.client.exists("a", "b") == 0


def test_a_waiter_that_left_before_its_grant_leaves_no_hold(line: Line) -> None:
    line.locks.lock("k", "other", HOUR)
    waiting = WaitingClient(line.server, "owner")
    waiting.ask("SLOCK.LOCK", "k", "owner", HOUR, "WAIT", 0, "EPHEMERAL")
    line.wait_until_waiting(waiting)
    waiting.connection.close()
    line.release("other")
    assert line.holders() in ([], ["owner"])
    wait_until(lambda: line.info() is None, what="nobody to hold or wait")


def _reload(line: Line) -> None:
    line.client.execute_command("DEBUG", "RELOAD")


def _restore(line: Line) -> None:
    payload = line.client.dump("k")
    line.client.delete("k")
    line.client.restore("k", 0, payload)


@pytest.mark.parametrize("remake", [_reload, _restore], ids=_name)
def test_a_hold_that_comes_back_under_its_name_is_bound(line: Line, remake: Callable[[Line], None]) -> None:
    connection = take_bound(line.server)
    remake(line)
    waiting = line.write("next")
    assert waiting.is_waiting()
    hang_up(line.server, connection)
    waiting.fence()


def test_swapdb_takes_the_bond_along(line: Line) -> None:
    connection = take_bound(line.server)
    line.client.swapdb(0, 5)
    waiting = Line(line.server, database=5).write("next")
    assert waiting.is_waiting()
    hang_up(line.server, connection)
    waiting.fence()


@pytest.mark.parametrize(("move", "to"), [(("RENAME", "k", "j"), ("j", 0)), (("MOVE", "k", 5), ("k", 5))])
def test_a_hold_that_gets_another_name_is_no_longer_bound(line: Line, move: tuple, to: tuple) -> None:
    connection = line.server.raw()
    fence = connection.ok("SLOCK.LOCK", "k", "owner", HOUR, "EPHEMERAL")
    line.client.execute_command(*move)
    hang_up(line.server, connection)
    _stays_held(Line(line.server, to[0], database=to[1]), fence)


def test_the_end_of_a_connection_does_not_reach_the_lock_that_was_renamed_over_its_own(line: Line) -> None:
    bound = take_bound(line.server)
    fence = line.locks.lock("durable", "owner", HOUR)
    with line.server.raw() as raw:
        kill = ("CLIENT", "KILL", "ID", bound.client_id())
        assert raw.pipeline([kill, ("RENAME", "durable", "k")]) == [1, b"OK"]
    _stays_held(line, fence)


def test_the_end_of_a_connection_does_not_reach_the_hold_that_came_after(line: Line) -> None:
    """The old connection dies, and at once its token gets a wider set by another."""
    first = take_bound(line.server)
    line.locks.lock("wider", "other", HOUR)
    second = WaitingClient(line.server, "owner")
    second.ask(*many("MLOCK", "k wider", "owner", HOUR, "WAIT", 0, "EPHEMERAL"))
    line.wait_until_waiting(second)
    with line.server.raw() as raw:
        kill = ("CLIENT", "KILL", "ID", first.client_id())
        assert raw.pipeline([kill, ("SLOCK.UNLOCK", "wider", "other")]) == [1, 1]
    fence = second.fence()
    assert line.locks.check("k", fence) == 1 == line.locks.check("wider", fence)
    hang_up(line.server, second.connection)
    wait_until(lambda: not line.client.exists("k", "wider"), what="the set to end with its connection")


@pytest.mark.parametrize("same", [True, False], ids=["its own connection", "another connection"])
@pytest.mark.parametrize(("take", "change"), [("RLOCK", "UPGRADE"), ("LOCK", "DOWNGRADE")])
def test_a_change_of_mode_keeps_the_bond(line: Line, take: str, change: str, same: bool) -> None:
    connection = take_bound(line.server, take)
    changer = connection if same else line.server.raw()
    fence = changer.ok(f"SLOCK.{change}", "k", "owner", HOUR)
    if not same:
        hang_up(line.server, changer)
        assert line.locks.check("k", fence) == 1
    waiting = line.write("next")
    hang_up(line.server, connection)
    waiting.fence()


@pytest.mark.parametrize("command", ["UPGRADE", "DOWNGRADE", "EXTEND", "UNLOCK"])
def test_commands_that_take_nothing_do_not_know_the_option(raw: RawConnection, command: str) -> None:
    ttl = () if command == "UNLOCK" else (HOUR,)
    assert raw.error(f"SLOCK.{command}", "k", "owner", *ttl, "EPHEMERAL").startswith("ERR ")
