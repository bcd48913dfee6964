"""A waiter that goes: by its time-out, its disconnect, by CLIENT KILL, CLIENT UNBLOCK, or with its user."""

from __future__ import annotations

import pytest

from harness import Locks, Server, wait_until
from harness.causes import HOLDER, KEY
from harness.waiting import HOUR, Line, WaitingClient, at_once, blocked_clients

LEAVER = "leaver"

# Long enough for everybody to wait behind, on a slow machine too; were it not, the test would still be true.
TIMEOUT = 250


# How it goes, and what it is told: 0, the start of an error, or None when it is not there to be told.
DEPARTURES = {
    "time-out": (lambda client, waiter: None, 0),
    "close": (lambda client, waiter: waiter.connection.close(), None),
    "reset": (lambda client, waiter: waiter.connection.reset(), None),
    "half-close": (lambda client, waiter: waiter.connection.socket.shutdown(1), None),
    "CLIENT KILL": (lambda client, waiter: client.client_kill_filter(_id=waiter.id), None),
    "ACL DELUSER": (lambda client, waiter: client.acl_deluser("guest"), None),
    "CLIENT UNBLOCK": (lambda client, waiter: client.client_unblock(waiter.id), 0),
    "CLIENT UNBLOCK ERROR": (lambda client, waiter: client.client_unblock(waiter.id, True), "UNBLOCKED "),
}


@pytest.mark.parametrize("how", DEPARTURES)
@pytest.mark.parametrize(("command", "protocol"), [("SLOCK.LOCK", 3), ("SLOCK.UPGRADE", 2)])
def test_who_leaves_is_gone(server: Server, locks: Locks, how: str, command: str, protocol: int) -> None:
    """An upgrader that leaves still reads."""
    line, (go, told) = Line(server), DEPARTURES[how]
    staying = [HOLDER, LEAVER] if command == "SLOCK.UPGRADE" else [HOLDER]
    for token in staying:
        locks.rlock(KEY, token, HOUR)
    leaver = WaitingClient(server, LEAVER, protocol=protocol)
    if how == "ACL DELUSER":
        line.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all")
        leaver.connection.ok("AUTH", "guest", "any")
    leaver.ask(command, KEY, LEAVER, HOUR, "WAIT", TIMEOUT if how == "time-out" else 0)
    line.wait_until_waiting(leaver)
    readers, writer = [line.read("r1"), line.read("r2")], line.write("w")
    go(line.client, leaver)
    if told == 0:
        assert leaver.reply() == 0
    elif told:
        assert leaver.error().startswith(told)
    elif how not in ("close", "reset"):
        assert leaver.outcome() is None
    assert all(reader.fence() for reader in readers) and writer.is_waiting()
    assert (line.holders(), line.queued()) == (sorted([*staying, "r1", "r2"]), ["w"])
    assert blocked_clients(line.client) == 1 == line.client.info("slock")["slock_waiters"]
    for token in line.holders():
        line.release(token)
    assert writer.fence()
    if told is not None:  # its connection goes on, and may wait again, for the same lock
        assert leaver.connection.ok("PING") == b"PONG"
        leaver.ask("SLOCK.LOCK", KEY, LEAVER, HOUR, "WAIT", 0)
        line.wait_until_waiting(leaver)
        assert line.queued() == [LEAVER]
        line.release("w")
        assert leaver.fence()


def test_who_needs_no_answer_leaves_no_memory_behind(server: Server, locks: Locks) -> None:
    """What the server keeps for a blocked client is freed also when the server has answered it itself."""
    line, waiter = Line(server), WaitingClient(server, LEAVER)
    locks.lock(KEY, HOLDER, HOUR)

    def used_after(times: int) -> int:
        for _ in range(times):
            waiter.ask("SLOCK.LOCK", KEY, LEAVER, HOUR, "WAIT", 0)
            line.wait_until_waiting(waiter)
            line.client.client_unblock(waiter.id)
            assert waiter.reply() == 0
        return line.client.info("memory")["used_memory"]

    before = used_after(20)
    assert used_after(200) - before < 200 * 500


# --- what a waiting connection does besides


def test_commands_behind_a_request_wait_for_its_answer(server: Server, locks: Locks) -> None:
    line, waiter = Line(server), WaitingClient(server, "a")
    locks.lock(KEY, HOLDER, HOUR)
    lock = ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0)
    for command in (lock, ("PING",), ("SLOCK.UNLOCK", KEY, "a"), lock):
        waiter.ask(*command)
    line.wait_until_waiting(waiter)
    behind = line.write("behind")
    assert waiter.is_waiting()
    line.release(HOLDER)
    assert waiter.fence()
    assert (waiter.reply(), waiter.reply()) == (b"PONG", 1)
    assert behind.fence()
    line.release("behind")
    assert waiter.fence()
    wait_until(lambda: blocked_clients(line.client) == 0, what="nobody to wait")
    waits = [("SLOCK.LOCK", KEY, f"a{number}", HOUR, "WAIT", 5) for number in range(20)]
    assert at_once(server, *waits, ("PING",)) == [0] * 20 + [b"PONG"], "each goes on after a time-out"
