"""A waiter that goes: by its time-out, its disconnect, by CLIENT KILL, CLIENT UNBLOCK, or with its user."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Locks, Server, now_ms, wait_until
from harness.causes import HOLDER, KEY
from harness.waiting import (
    HOUR,
    Line,
    WaitingClient,
    at_once,
    blocked_clients,
    serve_in_order,
    wait_unblocked,
)

pytest_plugins = ["harness.cleanup"]

LEAVER = "leaver"

# Long enough for everybody to wait behind, on a slow machine too; were it not, the test would still be true.
TIMEOUT = 250


def _kill_by_address(client: redis.Redis, waiter: WaitingClient) -> None:
    host, port = waiter.connection.socket.getsockname()
    client.client_kill(f"{host}:{port}")


def _unblock(*how: str) -> Callable[[redis.Redis, WaitingClient], object]:
    return lambda client, waiter: client.execute_command("CLIENT UNBLOCK", waiter.id, *how)


# How it goes, and what it is told: 0, the start of an error, or None when it is not there to be told.
DEPARTURES = {
    "time-out": (lambda client, waiter: None, 0),
    "close": (lambda client, waiter: waiter.connection.close(), None),
    "reset": (lambda client, waiter: waiter.connection.reset(), None),
    "half-close": (lambda client, waiter: waiter.connection.socket.shutdown(1), None),
    "CLIENT KILL ID": (lambda client, waiter: client.client_kill_filter(_id=waiter.id), None),
    "CLIENT KILL address": (_kill_by_address, None),
    "ACL DELUSER": (lambda client, waiter: client.acl_deluser("guest"), None),
    "CLIENT UNBLOCK": (_unblock(), 0),
    "CLIENT UNBLOCK TIMEOUT": (_unblock("TIMEOUT"), 0),
    "CLIENT UNBLOCK ERROR": (_unblock("ERROR"), "UNBLOCKED "),
}


@pytest.mark.parametrize("how", DEPARTURES)
@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.UPGRADE"])
def test_who_leaves_is_gone_at_once_and_lets_on_those_behind_it(
    server: Server, locks: Locks, how: str, command: str
) -> None:
    """An upgrader that leaves still reads."""
    line, (go, told) = Line(server), DEPARTURES[how]
    staying = [HOLDER, LEAVER] if command == "SLOCK.UPGRADE" else [HOLDER]
    for token in staying:
        locks.rlock(KEY, token, HOUR)
    leaver = WaitingClient(server, LEAVER)
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


def test_a_crowd_leaves_at_once_and_the_rest_is_served_in_order(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    crowd = [line.write(f"t{number}") for number in range(30)]
    for waiter in crowd[::3]:
        waiter.connection.reset()
    staying = [waiter for at, waiter in enumerate(crowd) if at % 3]
    wait_until(lambda: len(line.queued()) == len(staying), what="the leavers to be gone")
    assert line.queued() == [waiter.token for waiter in staying]
    line.release(HOLDER)
    serve_in_order(line, staying)
    wait_unblocked(line.client)


def test_waits_end_in_the_order_of_their_moments_and_not_before(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    before = now_ms(line.client)
    staying, last, first = line.write("twin"), line.write("twin", wait=400), line.write("first", wait=120)
    assert first.reply() == 0 and now_ms(line.client) - before >= 119
    assert last.is_waiting() and line.queued() == ["twin", "twin"]
    assert last.reply() == 0
    assert staying.is_waiting() and line.queued() == ["twin"]
    line.release(HOLDER)
    assert staying.fence()


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


def test_a_pipeline_of_requests_goes_on_after_each_time_out(server: Server, locks: Locks) -> None:
    locks.lock(KEY, HOLDER, HOUR)
    waits = [("SLOCK.LOCK", KEY, f"a{number}", HOUR, "WAIT", 5) for number in range(20)]
    assert at_once(server, *waits, ("PING",)) == [0] * 20 + [b"PONG"]


def test_resp3_clients_wait_alike(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    granted, refused, unblocked = (WaitingClient(server, name, protocol=3) for name in "abc")
    for waiter, wait in ((granted, 0), (refused, 100), (unblocked, 0)):
        waiter.ask("SLOCK.LOCK", KEY, waiter.token, HOUR, "WAIT", wait)
        line.wait_until_waiting(waiter)
    assert refused.reply() == 0
    line.client.client_unblock(unblocked.id, error=True)
    assert unblocked.error().startswith("UNBLOCKED ")
    line.release(HOLDER)
    assert granted.fence()
