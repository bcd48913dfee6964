"""The wall clock is stepped: durations do not notice, and deadlines go by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Clock, MakeServer, Server
from harness.waiting import HOUR, Line

# Seconds, as the clock is stepped.
AN_HOUR = 3600
A_DAY = 24 * AN_HOUR

# Enough on any machine, and far from the hours by which the clock is wrong.
SOON = 20.0


@pytest.fixture
def clock(make_clock: Callable[..., Clock]) -> Clock:
    return make_clock()


@pytest.fixture
def own(make_server: MakeServer, clock: Clock) -> Server:
    """A server with a clock that the test steps."""
    return make_server(environment=clock.environment)


# --- durations


def test_the_grace_ends_in_time_whichever_way_the_clock_is_set(make_server: MakeServer, clock: Clock) -> None:
    """For who waits, and for who comes later."""
    clock.step(A_DAY)
    server = make_server(environment=clock.environment, slock_restart_grace_ms=700)
    waiting = Line(server, "free").write("waiting")
    clock.step(0)
    assert waiting.reply(SOON) > 0
    assert server.raw().ok("SLOCK.LOCK", "other", "me", HOUR) > 0
    server.restart(slock_restart_grace_ms=HOUR)
    clock.step(A_DAY)
    assert server.raw().error("SLOCK.LOCK", "free", "me", HOUR).startswith("GRACE ")


def test_a_wait_ends_in_time_when_the_clock_is_set_back(own: Server, clock: Clock) -> None:
    line = Line(own)
    line.locks.lock("k", "holder", HOUR)
    waiting = line.write("waiting", wait=500)
    clock.step(-AN_HOUR)
    assert waiting.reply(SOON) == 0 and line.queued() == []


def test_a_wait_is_not_cut_short_by_a_step_forward(own: Server, clock: Clock) -> None:
    line = Line(own)
    line.locks.lock("k", "holder", 10 * HOUR)
    waiting = line.write("waiting", wait=60_000)
    clock.step(AN_HOUR)
    # Its wait ends, and the server looks who else waits too long.
    assert line.write("short", wait=30).reply(SOON) == 0
    assert waiting.is_waiting()
    for step in (AN_HOUR, -AN_HOUR):
        clock.step(step)
        (shown,) = line.info().queue
        assert 0 <= shown.waiting_ms < HOUR / 2 and shown.timeout_ms <= 60_000, "as time has passed"
    line.client.delete("k")
    assert waiting.fence()


# --- deadlines


@pytest.mark.parametrize("reads", [False, True], ids=["a writer", "a reader beside another"])
def test_a_deadline_is_wall_time(own: Server, clock: Clock, reads: bool) -> None:
    """Beside another reader the key's own expiry does not come."""
    line = Line(own)
    if reads:
        line.locks.rlock("k", "brief", HOUR)
        line.locks.rlock("k", "waiting", 10 * HOUR)
        waiting = line.upgrade("waiting")
    else:
        line.locks.lock("k", "brief", HOUR)
        waiting = line.write("waiting")
    clock.step(2 * AN_HOUR)
    assert waiting.fence()
    assert line.locks.pttl("k", "brief") == -2 and line.holders() == ["waiting"]


def test_a_deadline_comes_later_when_the_clock_is_set_back(own: Server, clock: Clock) -> None:
    line = Line(own)
    fence = line.locks.lock("k", "brief", 500)
    clock.step(-AN_HOUR)
    assert line.locks.pttl("k", "brief") > HOUR / 2
    # The server has looked at its deadlines and its waits, and the hold is still there.
    assert line.write("short", wait=700).reply(SOON) == 0
    assert line.locks.check("k", fence) == 1
