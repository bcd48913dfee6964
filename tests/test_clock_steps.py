"""The wall clock is stepped: durations do not notice, deadlines go by it, and fences rise all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Clock, Locks, Server, wait_until
from harness.many import many
from harness.waiting import HOUR, Line, WaitingClient

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]
MakeClock = Callable[..., Clock]

# Seconds, as the clock is stepped.
AN_HOUR = 3600
A_DAY = 24 * AN_HOUR

# Enough on any machine, and far from the hours by which the clock is wrong.
SOON = 20.0


@pytest.fixture
def clock(make_clock: MakeClock) -> Clock:
    return make_clock()


@pytest.fixture
def own(make_server: MakeServer, clock: Clock) -> Server:
    """A server with a clock that the test steps."""
    return make_server(environment=clock.environment)


def _is_granted(client: redis.Redis) -> bool:
    try:
        return client.execute_command("SLOCK.LOCK", "free", "me", HOUR) > 0
    except redis.ResponseError as error:
        assert str(error).startswith("GRACE "), error
        return False


def test_the_clock_of_a_server_and_of_its_module_can_be_stepped(own: Server, clock: Clock) -> None:
    client = own.client()
    before = client.time()[0]
    Locks(client).lock("k", "me", 10 * HOUR)

    def is_ahead(seconds: int) -> bool:
        hours = [client.time()[0] - before, 10 * AN_HOUR - Locks(client).pttl("k", "me") // 1000]
        return [round(passed / AN_HOUR) for passed in hours] == [seconds // AN_HOUR] * 2

    for ahead in (AN_HOUR, -AN_HOUR, 0):
        clock.step(ahead)
        wait_until(lambda ahead=ahead: is_ahead(ahead), what=f"the clock to be {ahead} seconds ahead")


def test_the_grace_ends_in_time_when_the_clock_is_set_back(make_server: MakeServer, clock: Clock) -> None:
    clock.step(A_DAY)
    server = make_server(environment=clock.environment, slock_restart_grace_ms=2000)
    clock.step(0)
    client = server.client()
    wait_until(lambda: _is_granted(client), SOON, "the grace to end")


def test_waiters_are_granted_in_time_when_the_clock_is_set_back_in_the_grace(
    make_server: MakeServer, clock: Clock
) -> None:
    server = make_server(environment=clock.environment, slock_restart_grace_ms=2000)
    waiting = Line(server, "free").write("waiting")
    clock.step(-A_DAY)
    waiting.fence()


def test_the_grace_is_not_cut_short_by_a_step_forward(make_server: MakeServer, clock: Clock) -> None:
    server = make_server(environment=clock.environment, slock_restart_grace_ms=HOUR)
    clock.step(A_DAY)
    assert not _is_granted(server.client())


def _ask(line: Line, token: str, name: str, wait: int) -> WaitingClient:
    waiter = WaitingClient(line.server, token)
    if name.startswith("M"):
        waiter.ask(*many(name, ["also", line.key], token, HOUR, "WAIT", wait))
    else:
        waiter.ask(f"SLOCK.{name}", line.key, token, HOUR, "WAIT", wait)
    line.wait_until_waiting(waiter)
    return waiter


each_request = pytest.mark.parametrize("name", ["LOCK", "RLOCK", "MLOCK", "MRLOCK"])


@each_request
def test_a_wait_ends_in_time_when_the_clock_is_set_back(own: Server, clock: Clock, name: str) -> None:
    line = Line(own)
    line.locks.lock("k", "holder", HOUR)
    waiting = _ask(line, "waiting", name, 1000)
    clock.step(-AN_HOUR)
    assert waiting.reply(SOON) == 0
    assert line.queued() == []


@each_request
def test_a_wait_is_not_cut_short_by_a_step_forward(own: Server, clock: Clock, name: str) -> None:
    line = Line(own)
    line.locks.lock("k", "holder", 10 * HOUR)
    waiting = _ask(line, "waiting", name, 60_000)
    clock.step(AN_HOUR)
    # Its wait ends, and the server looks who else waits too long.
    assert line.write("short", wait=30).reply(SOON) == 0
    assert waiting.is_waiting() and line.queued() == ["waiting"]
    assert line.release("holder") == 1
    assert waiting.fence()


def test_what_info_says_of_waiting_is_time_that_has_passed(own: Server, clock: Clock) -> None:
    line = Line(own)
    line.locks.lock("k", "holder", 10 * HOUR)
    line.write("waiting", wait=60_000)
    for ahead in (AN_HOUR, -AN_HOUR):
        clock.step(ahead)
        (waiter,) = line.info().queue
        assert 0 <= waiter.waiting_ms < HOUR / 2 and waiter.timeout_ms <= 60_000


def _writer(line: Line) -> WaitingClient:
    line.locks.lock("k", "brief", HOUR)
    return line.write("waiting")


def _reader_among_others(line: Line) -> WaitingClient:
    """The key's own expiry does not come: another reader stays."""
    line.locks.rlock("k", "brief", HOUR)
    line.locks.rlock("k", "waiting", 10 * HOUR)
    return line.upgrade("waiting")


@pytest.mark.parametrize("scene", [_writer, _reader_among_others])
def test_a_deadline_is_wall_time(own: Server, clock: Clock, scene: Callable[[Line], WaitingClient]) -> None:
    line = Line(own)
    waiting = scene(line)
    clock.step(2 * AN_HOUR)
    assert waiting.fence()
    assert line.locks.pttl("k", "brief") == -2 and line.holders() == ["waiting"]


def test_a_deadline_comes_later_when_the_clock_is_set_back(own: Server, clock: Clock) -> None:
    line = Line(own)
    fence = line.locks.lock("k", "brief", 1000)
    clock.step(-AN_HOUR)
    assert line.locks.pttl("k", "brief") > HOUR / 2
    # The server has looked at its deadlines and its waits, and the hold is still there.
    assert line.write("short", wait=1500).reply(SOON) == 0
    assert line.locks.check("k", fence) == 1


@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_fences_rise_after_a_step_back(make_server: MakeServer, clock: Clock, restarts: bool) -> None:
    server = make_server(environment=clock.environment, appendonly=True)
    fences = [Locks(server.client()).lock("first", "me", HOUR)]
    clock.step(-AN_HOUR)
    if restarts:
        server.restart()
    line = Line(server, "next")
    fences += [line.locks.lock("next", "me", HOUR), line.locks.rlock("read", "me", HOUR)]
    waiting = line.write("waiting")
    line.release("me")
    fences.append(waiting.fence())
    assert fences == sorted(set(fences))
