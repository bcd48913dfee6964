"""UPGRADE that waits, and what DOWNGRADE does to a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Locks, RawConnection, RespError, Server, wait_until
from harness.causes import BRIEF, KEY
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients, serve_in_order, wait_unblocked

pytest_plugins = ["harness.cleanup"]


@pytest.fixture
def line(server: Server) -> Line:
    return Line(server)


def _readers(line: Line, *tokens: str) -> dict[str, int]:
    return {token: line.locks.rlock(KEY, token, HOUR) for token in tokens}


# --- who need not wait


def test_the_only_reader_is_upgraded_at_once(line: Line) -> None:
    fence = _readers(line, "a")["a"]
    assert line.locks.upgrade(KEY, "a", HOUR, wait=0) > fence
    assert line.info().mode == "write"


def test_the_only_reader_is_upgraded_before_all_who_queue(line: Line) -> None:
    _readers(line, "a")
    waiting = [line.write("w1"), line.read("r"), line.write("w2")]
    fence = line.locks.upgrade(KEY, "a", HOUR)
    assert fence > 0
    assert line.queued() == ["w1", "r", "w2"]
    assert all(waiter.is_waiting() for waiter in waiting)
    line.release("a")
    assert serve_in_order(line, waiting)[0] > fence


def test_the_writer_refreshes_with_an_upgrade_that_may_wait(line: Line) -> None:
    fence = line.locks.lock(KEY, "a", HOUR)
    waiting = line.read("r")
    assert line.locks.upgrade(KEY, "a", 5000, wait=0) == fence
    assert line.locks.pttl(KEY, "a") <= 5000 and waiting.is_waiting()


def test_who_holds_nothing_does_not_wait(line: Line, raw: RawConnection) -> None:
    assert raw.error("SLOCK.UPGRADE", KEY, "a", HOUR, "WAIT", 0).startswith("NOTHELD ")
    _readers(line, "b")
    assert raw.error("SLOCK.UPGRADE", KEY, "a", HOUR, "WAIT", 0).startswith("NOTHELD ")
    assert blocked_clients(line.client) == 0


# --- who waits


def test_an_upgrade_waits_for_the_other_readers_in_front_of_the_queue(line: Line) -> None:
    fences = _readers(line, "a", "b", "c")
    queued = [line.write("w"), line.read("r")]
    upgrade = line.upgrade("a")
    assert line.queued() == ["a", "w", "r"]
    assert line.info().waiters == 3
    line.release("b")
    assert upgrade.is_waiting()
    assert line.holders() == ["a", "c"], "an upgrader that waits still reads"
    assert line.locks.check(KEY, fences["a"]) == 1
    line.release("c")
    fence = upgrade.fence()
    assert fence > max(fences.values())
    assert line.locks.check(KEY, fences["a"]) == 0
    assert (line.info().mode, line.holders(), line.queued()) == ("write", ["a"], ["w", "r"])
    assert all(waiter.is_waiting() for waiter in queued)
    line.release("a")
    serve_in_order(line, queued)


def test_no_new_reader_is_admitted_while_an_upgrader_waits(line: Line) -> None:
    fences = _readers(line, "a", "b")
    upgrade = line.upgrade("a")
    assert line.locks.rlock(KEY, "new", HOUR) == 0
    reader = line.read("new")
    assert reader.is_waiting() and line.queued() == ["a", "new"]
    # Those who read already may refresh, extend and leave.
    assert line.locks.rlock(KEY, "b", HOUR, wait=0) == fences["b"]
    assert line.locks.rlock(KEY, "a", HOUR) == fences["a"]
    assert line.locks.extend(KEY, "b", HOUR) == 1
    line.release("b")
    assert upgrade.fence() and reader.is_waiting()
    line.release("a")
    assert reader.fence()


def test_the_upgraded_hold_has_the_ttl_from_the_grant_and_keeps_its_meta(line: Line) -> None:
    line.locks.rlock(KEY, "a", HOUR, meta="mine")
    _readers(line, "b")
    upgrade = line.upgrade("a", ttl=60_000)
    wait_until(lambda: line.info().queue[0].waiting_ms > 100, what="it to have waited for a while")
    line.release("b")
    fence = upgrade.fence()
    (holder,) = line.info().holders
    assert (holder.token, holder.fence, holder.meta) == (b"a", fence, b"mine")
    assert 55_000 < holder.pttl <= 60_000


@pytest.mark.parametrize(
    "gone",
    [
        lambda line: line.locks.extend(KEY, "b", BRIEF),
        lambda line: line.locks.runlock(KEY, "b"),
    ],
    ids=["its deadline", "RUNLOCK"],
)
def test_the_end_of_the_last_other_reader_grants_the_upgrade(
    line: Line, gone: Callable[[Line], object]
) -> None:
    _readers(line, "a", "b")
    upgrade = line.upgrade("a")
    gone(line)
    assert upgrade.fence()
    assert line.holders() == ["a"]


def test_a_second_upgrader_is_told_deadlock_at_once_and_keeps_reading(line: Line, raw: RawConnection) -> None:
    fences = _readers(line, "a", "b", "c")
    upgrade = line.upgrade("a")
    for wait in (0, HOUR):
        assert raw.error("SLOCK.UPGRADE", KEY, "b", HOUR, "WAIT", wait).startswith("DEADLOCK ")
    assert line.locks.check(KEY, fences["b"]) == 1
    assert line.queued() == ["a"] and upgrade.is_waiting()
    line.release("b")
    line.release("c")
    assert upgrade.fence()


def test_a_second_upgrade_that_does_not_wait_is_just_refused(line: Line) -> None:
    fences = _readers(line, "a", "b")
    upgrade = line.upgrade("a")
    assert line.locks.upgrade(KEY, "b", HOUR) == 0
    assert line.locks.check(KEY, fences["b"]) == 1
    line.release("b")
    assert upgrade.fence()


def test_after_a_waiting_upgrader_has_left_another_may_wait(line: Line) -> None:
    _readers(line, "a", "b")
    first = line.upgrade("a", wait=50)
    assert first.reply() == 0
    second = line.upgrade("b")
    assert line.queued() == ["b"]
    line.release("a")
    assert second.fence()


# --- an upgrader that leaves


@pytest.mark.parametrize("how", ["time-out", "KILL", "TIMEOUT", "ERROR", "close"])
def test_when_the_upgrader_leaves_it_still_reads_and_the_queue_moves_on(line: Line, how: str) -> None:
    fences = _readers(line, "a", "b")
    upgrade = line.upgrade("a", wait=250 if how == "time-out" else 0)
    reader, writer = line.read("r"), line.write("w")
    if how == "KILL":
        line.client.client_kill_filter(_id=upgrade.id)
    elif how == "close":
        upgrade.connection.reset()
    elif how != "time-out":
        line.client.client_unblock(upgrade.id, error=how == "ERROR")
    assert reader.fence() > max(fences.values())
    assert writer.is_waiting()
    assert (line.holders(), line.queued()) == (["a", "b", "r"], ["w"])
    assert line.locks.check(KEY, fences["a"]) == 1
    if how in ("time-out", "TIMEOUT"):
        assert upgrade.reply() == 0
    if how == "ERROR":
        assert upgrade.error().startswith("UNBLOCKED ")
    for token in "abr":
        line.release(token)
    assert writer.fence()


@pytest.mark.parametrize(
    "lose",
    [
        lambda line: line.locks.extend(KEY, "a", BRIEF),
        lambda line: line.locks.runlock(KEY, "a"),
    ],
    ids=["its deadline", "RUNLOCK"],
)
def test_an_upgrader_that_loses_its_read_hold_is_told_and_lets_the_queue_move_on(
    line: Line, lose: Callable[[Line], object]
) -> None:
    _readers(line, "a", "b")
    upgrade, reader = line.upgrade("a"), line.read("r")
    lose(line)
    assert upgrade.error().startswith("NOTHELD ")
    assert reader.fence()
    assert line.holders() == ["b", "r"]
    wait_unblocked(line.client)


def test_an_upgrader_whose_lock_is_deleted_is_told_and_the_queue_is_served(line: Line) -> None:
    _readers(line, "a", "b")
    upgrade, writer = line.upgrade("a"), line.write("w")
    line.client.delete(KEY)
    assert upgrade.error().startswith("NOTHELD ")
    assert writer.fence()
    assert line.holders() == ["w"]


def test_an_upgrader_gets_wrongtype_like_everybody(line: Line) -> None:
    _readers(line, "a", "b")
    waiting = [line.upgrade("a"), line.write("w")]
    line.client.set(KEY, "a string")
    assert all(waiter.error().startswith("WRONGTYPE ") for waiter in waiting)


def test_an_upgrade_and_its_departure_in_one_iteration(line: Line, server: Server) -> None:
    """Told and the writer, or not told and still a reader: never in between."""
    control = server.raw()
    waiter: WaitingClient | None = None
    for number in range(150):
        how = ("KILL", "TIMEOUT", "ERROR")[number % 3]
        _readers(line, "a", "b")
        waiter = waiter or WaitingClient(server, "a")
        waiter.ask("SLOCK.UPGRADE", KEY, "a", HOUR, "WAIT", 0)
        line.wait_until_waiting(waiter)
        gone = ("CLIENT", "KILL", "ID", waiter.id) if how == "KILL" else ("CLIENT", "UNBLOCK", waiter.id, how)
        assert control.pipeline([("SLOCK.RUNLOCK", KEY, "b"), gone])[0] == 1
        told = waiter.outcome()
        granted = isinstance(told, int) and told > 0
        assert granted or told in (0, None) or isinstance(told, RespError)
        assert line.info().mode == ("write" if granted else "read")
        assert line.queued() == []
        assert line.release("a") == 1
        if how == "KILL":
            waiter = None
    wait_unblocked(line.client)


# --- DOWNGRADE


def test_a_downgrade_admits_the_readers_at_the_head_and_no_writer(line: Line) -> None:
    fence = line.locks.lock(KEY, "a", HOUR)
    r1, r2, writer, r3 = line.read("r1"), line.read("r2"), line.write("w"), line.read("r3")
    own = line.locks.downgrade(KEY, "a", HOUR)
    fences = [fence, own, r1.fence(), r2.fence()]
    assert fences == sorted(set(fences))
    assert line.holders() == ["a", "r1", "r2"]
    assert line.queued() == ["w", "r3"]
    assert writer.is_waiting() and r3.is_waiting()
    for token in ("r1", "a", "r2"):
        assert writer.is_waiting()
        line.release(token)
    assert writer.fence() and r3.is_waiting()


def test_a_downgrade_lets_no_queued_writer_in(line: Line) -> None:
    line.locks.lock(KEY, "a", HOUR)
    writer, reader = line.write("w"), line.read("r")
    line.locks.downgrade(KEY, "a", HOUR)
    assert (line.holders(), line.queued()) == (["a"], ["w", "r"])
    assert writer.is_waiting() and reader.is_waiting()
    # And no newcomer passes that writer.
    assert line.locks.rlock(KEY, "new", HOUR) == 0


def test_down_and_up_again_while_others_queue(line: Line) -> None:
    fences = [line.locks.lock(KEY, "a", HOUR)]
    writer = line.write("w")
    for _ in range(10):
        fences.append(line.locks.downgrade(KEY, "a", HOUR))
        fences.append(line.locks.upgrade(KEY, "a", HOUR, wait=0))
    assert fences == sorted(set(fences))
    assert writer.is_waiting()
    line.release("a")
    assert writer.fence() > fences[-1]


def test_info_shows_the_upgrader_first(line: Line, locks: Locks, client: redis.Redis) -> None:
    _readers(line, "a", "b")
    line.write("w")
    line.upgrade("a", wait=HOUR)
    first, second = locks.full(KEY).queue
    assert (first.token, first.timeout_ms) == (b"a", HOUR)
    assert (second.token, second.mode) == (b"w", "write")
    assert first.mode in ("upgrade", "write")
