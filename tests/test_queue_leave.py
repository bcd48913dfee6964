"""A waiter that goes: by its time-out, its disconnect, by CLIENT KILL, CLIENT UNBLOCK, or with its user.

It is gone at once, wherever it stood, and those behind it move up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import redis

from harness import Locks, RespError, Server, wait_until
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


@dataclass(frozen=True)
class Departure:
    name: str
    go: Callable[[redis.Redis, WaitingClient], object]
    # What it is told: 0, the start of an error, or None when it is not there to be told.
    told: int | str | None
    wait: int = 0

    def __str__(self) -> str:
        return self.name

    def happens(self, client: redis.Redis, waiter: WaitingClient) -> None:
        self.go(client, waiter)
        if self.told is None:
            return
        reply = waiter.reply()
        if isinstance(self.told, str):
            assert isinstance(reply, RespError) and reply.text.startswith(self.told), reply
        else:
            assert reply == self.told


def _half_close(client: redis.Redis, waiter: WaitingClient) -> None:
    waiter.connection.socket.shutdown(1)


def _kill(client: redis.Redis, waiter: WaitingClient) -> None:
    assert client.client_kill_filter(_id=waiter.id) == 1
    assert waiter.connection.is_closed_by_server()


def _kill_by_address(client: redis.Redis, waiter: WaitingClient) -> None:
    host, port = waiter.connection.socket.getsockname()
    client.client_kill(f"{host}:{port}")


def _unblock(error: bool) -> Callable[[redis.Redis, WaitingClient], object]:
    def go(client: redis.Redis, waiter: WaitingClient) -> None:
        assert client.client_unblock(waiter.id, error=error) == 1

    return go


DEPARTURES = [
    Departure("time-out", lambda client, waiter: None, 0, wait=TIMEOUT),
    Departure("close", lambda client, waiter: waiter.connection.close(), None),
    Departure("reset", lambda client, waiter: waiter.connection.reset(), None),
    Departure("half-close", _half_close, None),
    Departure("CLIENT KILL ID", _kill, None),
    Departure("CLIENT KILL address", _kill_by_address, None),
    Departure(
        "CLIENT UNBLOCK", lambda client, waiter: client.execute_command("CLIENT UNBLOCK", waiter.id), 0
    ),
    Departure("CLIENT UNBLOCK TIMEOUT", _unblock(error=False), 0),
    Departure("CLIENT UNBLOCK ERROR", _unblock(error=True), "UNBLOCKED "),
]

every_departure = pytest.mark.parametrize("departure", DEPARTURES, ids=str)


def _gone(line: Line) -> bool:
    return LEAVER not in line.queued()


@every_departure
@pytest.mark.parametrize("place", [0, 1, 2], ids=["head", "middle", "tail"])
@pytest.mark.parametrize("mode", ["write", "read"])
def test_who_leaves_is_gone_and_the_others_are_served(
    server: Server, locks: Locks, departure: Departure, place: int, mode: str
) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    names = ["a", "b"]
    names.insert(place, LEAVER)
    waiting = []
    for name in names:
        join = line.read if name == LEAVER and mode == "read" else line.write
        waiting.append(join(name, wait=departure.wait if name == LEAVER else 0))
    leaver = waiting.pop(place)
    departure.happens(line.client, leaver)
    wait_until(lambda: _gone(line), what="the leaver to be out of the queue")
    assert (line.queued(), line.holders()) == (["a", "b"], [HOLDER])
    assert all(waiter.is_waiting() for waiter in waiting)
    assert locks.info(KEY).waiters == 2 == blocked_clients(line.client)
    line.release(HOLDER)
    serve_in_order(line, waiting)
    assert line.info() is None
    wait_unblocked(line.client)


@every_departure
def test_when_a_writer_leaves_the_readers_behind_it_join_those_who_read(
    server: Server, locks: Locks, departure: Departure
) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    leaver = line.write(LEAVER, wait=departure.wait)
    readers = [line.read("r1"), line.read("r2")]
    writer = line.write("w")
    departure.happens(line.client, leaver)
    assert all(reader.fence() for reader in readers)
    assert writer.is_waiting()
    assert (line.holders(), line.queued()) == ([HOLDER, "r1", "r2"], ["w"])
    for token in line.holders():
        line.release(token)
    assert writer.fence()


@every_departure
def test_when_the_last_waiter_leaves_newcomers_are_admitted(
    server: Server, locks: Locks, departure: Departure
) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    leaver = line.write(LEAVER, wait=departure.wait)
    if not departure.wait:
        assert locks.rlock(KEY, "new", HOUR) == 0
    departure.happens(line.client, leaver)
    assert wait_until(lambda: locks.rlock(KEY, "new", HOUR), what="a reader to be admitted")
    assert locks.info(KEY).waiters == 0


@pytest.mark.parametrize("departure", [each for each in DEPARTURES if each.told is not None], ids=str)
def test_a_connection_that_was_answered_goes_on(server: Server, locks: Locks, departure: Departure) -> None:
    """And may wait again, for the same lock."""
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    leaver = line.write(LEAVER, wait=departure.wait)
    departure.happens(line.client, leaver)
    assert leaver.connection.ok("PING") == b"PONG"
    leaver.ask("SLOCK.LOCK", KEY, LEAVER, HOUR, "WAIT", 0)
    line.wait_until_waiting(leaver)
    assert line.queued() == [LEAVER]
    line.release(HOLDER)
    assert leaver.fence()


def test_the_waiter_of_a_deleted_user_is_gone(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    line.client.execute_command("ACL", "SETUSER", "guest", "on", "nopass", "~*", "+@all")
    leaver = WaitingClient(server, LEAVER)
    leaver.connection.ok("AUTH", "guest", "any")
    leaver.ask("SLOCK.LOCK", KEY, LEAVER, HOUR, "WAIT", 0)
    line.wait_until_waiting(leaver)
    waiting = line.write("a")
    line.client.execute_command("ACL", "DELUSER", "guest")
    assert leaver.connection.is_closed_by_server()
    assert line.queued() == ["a"]
    line.release(HOLDER)
    assert waiting.fence()


def test_a_crowd_leaves_at_once_and_the_rest_is_served_in_order(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    crowd = [line.write(f"t{number}") for number in range(60)]
    for at, waiter in enumerate(crowd):
        if at % 3 == 0:
            waiter.connection.reset()
    staying = [waiter for at, waiter in enumerate(crowd) if at % 3]
    wait_until(lambda: len(line.queued()) == len(staying), what="the leavers to be gone")
    assert line.queued() == [waiter.token for waiter in staying]
    line.release(HOLDER)
    serve_in_order(line, staying)
    wait_unblocked(line.client)


def test_time_outs_come_in_the_order_of_their_moments_not_of_the_queue(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    last, first = line.write("last", wait=600), line.write("first", wait=100)
    assert first.reply() == 0
    assert last.is_waiting() and line.queued() == ["last"]
    assert last.reply() == 0
    assert line.queued() == []


def test_a_wait_does_not_end_before_its_time(server: Server, locks: Locks) -> None:
    locks.lock(KEY, HOLDER, HOUR)
    seconds, microseconds = locks.client.time()
    assert locks.lock(KEY, "w", HOUR, wait=120) == 0
    later_seconds, later_microseconds = locks.client.time()
    waited = (later_seconds - seconds) * 1000 + (later_microseconds - microseconds) / 1000
    assert waited >= 119


def test_a_client_may_time_out_where_others_with_its_token_stay(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    brief, staying = line.write("twin", wait=150), line.write("twin")
    assert brief.reply() == 0
    assert staying.is_waiting() and line.queued() == ["twin"]
    line.release(HOLDER)
    assert staying.fence()


# --- what a waiting connection does besides


def test_commands_behind_a_request_wait_for_its_answer(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    waiter = WaitingClient(server, "a")
    for command in (
        ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0),
        ("PING",),
        ("SLOCK.UNLOCK", KEY, "a"),
        ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0),
    ):
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
