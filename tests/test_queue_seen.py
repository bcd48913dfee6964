"""What others see of a queue: keyspace events, WATCH, and the numbers that INFO keeps for the operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Events, Locks, Server, wait_until
from harness.causes import BRIEF, FREEING, HOLDER, KEY, Cause
from harness.waiting import HOUR, Line, at_once, serve_in_order, wait_unblocked

pytest_plugins = ["harness.cleanup"]


@pytest.fixture
def line(server: Server) -> Line:
    return Line(server)


@pytest.fixture
def events(server: Server) -> Events:
    return Events(server)


def _of_key(events: Events) -> list[str]:
    return [event.name for event in events.so_far() if event.key == KEY.encode()]


# --- keyspace events


def test_a_hand_over_is_a_release_and_a_lock(line: Line, events: Events) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("w"), line.read("r")]
    events.so_far()
    line.release(HOLDER)
    waiting[0].fence()
    assert _of_key(events) == ["slock.unlock", "del", "slock.lock"]
    line.release("w")
    waiting[1].fence()
    assert _of_key(events) == ["slock.unlock", "del", "slock.rlock"]


def test_readers_let_in_by_a_downgrade_are_announced_one_by_one(line: Line, events: Events) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.read("r1"), line.read("r2")]
    events.so_far()
    line.locks.downgrade(KEY, HOLDER, HOUR)
    assert all(waiter.fence() for waiter in waiting)
    assert _of_key(events) == ["slock.downgrade", "slock.rlock", "slock.rlock"]


def test_an_upgrade_on_wake_up_is_announced(line: Line, events: Events) -> None:
    for token in "ab":
        line.locks.rlock(KEY, token, HOUR)
    upgrade = line.upgrade("a")
    events.so_far()
    line.release("b")
    upgrade.fence()
    assert _of_key(events) == ["slock.runlock", "slock.upgrade"]


def test_who_waits_and_leaves_is_not_announced(line: Line, events: Events) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    events.so_far()
    timed_out, unblocked, killed = line.write("t", wait=30), line.read("u"), line.write("k")
    assert timed_out.reply() == 0
    line.client.client_unblock(unblocked.id)
    line.client.client_kill_filter(_id=killed.id)
    wait_unblocked(line.client)
    assert events.so_far() == []


@pytest.mark.parametrize("cause", FREEING, ids=str)
def test_the_lock_is_announced_last_whatever_freed_it(line: Line, events: Events, cause: Cause) -> None:
    cause.hold(line.client)
    waiting = line.write("waiting")
    commands = cause.commands(line.client)
    events.so_far()
    at_once(line.server, *commands)
    waiting.fence()
    names = _of_key(events)
    assert names[-1] == "slock.lock" and names.count("slock.lock") <= 2, names


# --- WATCH


@pytest.mark.parametrize(
    "free",
    [("SLOCK.UNLOCK", KEY, HOLDER), ("SLOCK.EXTEND", KEY, HOLDER, BRIEF)],
    ids=["release", "deadline"],
)
def test_a_grant_on_wake_up_spoils_a_watched_key(line: Line, free: tuple) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("first"), line.write("second")
    at_once(line.server, free)
    waiting[0].fence()
    with line.server.raw() as watcher:
        watcher.ok("WATCH", KEY)
        line.release("first")
        waiting[1].fence()
        assert watcher.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] is None


def test_who_waits_and_who_gives_up_spoils_no_watched_key(line: Line) -> None:
    line.locks.lock(KEY, HOLDER, HOUR)
    with line.server.raw() as watcher:
        watcher.ok("WATCH", KEY)
        assert line.write("w", wait=30).reply() == 0
        assert watcher.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] == [b"PONG"]


# --- INFO


def _numbers(client: redis.Redis) -> dict[str, int]:
    return {name.removeprefix("slock_"): value for name, value in client.info("slock").items()}


def test_info_counts_who_waits_is_handed_over_and_times_out(make_server: Callable[..., Server]) -> None:
    line = Line(make_server())
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("a"), line.read("b"), line.write("c")]
    brief = line.write("brief", wait=2000)
    assert _numbers(line.client)["waiters"] == 4
    assert brief.reply() == 0
    numbers = _numbers(line.client)
    assert (numbers["waiters"], numbers["waiters_max"], numbers["wait_timeouts"]) == (3, 4, 1)
    assert (numbers["grants"], numbers["handoffs"], numbers["locks"]) == (1, 0, 1)
    wait_until(lambda: line.info().queue[0].waiting_ms > 100, what="them to have waited for a while")
    line.release(HOLDER)
    last_fence = serve_in_order(line, waiting)[-1]
    numbers = _numbers(line.client)
    assert (numbers["waiters"], numbers["waiters_max"]) == (0, 4)
    assert (numbers["grants"], numbers["handoffs"], numbers["releases"]) == (4, 3, 4)
    assert (numbers["locks"], numbers["last_fence"]) == (0, last_fence)
    assert 100 <= numbers["wait_ms_max"] <= numbers["wait_ms_total"]
    assert numbers["wait_ms_total"] >= 300


def test_info_counts_deadlocks_and_expirations(make_server: Callable[..., Server]) -> None:
    server = make_server()
    x, y = Line(server, "x"), Line(server, "y")
    x.locks.lock("x", "a", HOUR)
    y.locks.lock("y", "b", HOUR)
    waiting = y.write("a")
    assert server.raw().error("SLOCK.LOCK", "x", "b", HOUR, "WAIT", 0).startswith("DEADLOCK ")
    y.locks.extend("y", "b", BRIEF)
    waiting.fence()
    numbers = _numbers(x.client)
    assert (numbers["deadlocks"], numbers["expirations"], numbers["handoffs"]) == (1, 1, 1)


def test_a_turned_away_queue_is_no_longer_counted(make_server: Callable[..., Server]) -> None:
    server = make_server()
    line = Line(server)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("a"), line.write("b"), line.write("c"), line.write("d")]
    waiting[0].connection.close()
    line.client.client_kill_filter(_id=waiting[1].id)
    line.client.client_unblock(waiting[2].id, error=True)
    wait_until(lambda: _numbers(line.client)["waiters"] == 1, what="three to be gone")
    line.client.set(KEY, "a string")
    assert waiting[3].error().startswith("WRONGTYPE ")
    assert _numbers(line.client)["waiters"] == 0
    assert Locks(line.client).lock("other", HOLDER, HOUR)
