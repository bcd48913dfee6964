"""LIMIT: at most so many readers at once. With restarts and replicas: test_live_model.py."""

from __future__ import annotations

import pytest

from harness.causes import BRIEF, KEY
from harness.wait import now_ms, wait_past
from harness.waiting import HOUR, Line, WaitingClient


def _read(line: Line, token: str, limit: int) -> WaitingClient:
    """A reader under a limit that waits if it has to."""
    return line.ask(token, "SLOCK.RLOCK", KEY, token, HOUR, "WAIT", 0, "LIMIT", limit)


def _fill(line: Line, *tokens: str, limit: int = 100) -> list[int]:
    fences = [line.locks.rlock(KEY, token, HOUR, limit=limit) for token in tokens]
    assert all(fences)
    return fences


# --- the order


def test_who_waits_is_served_in_order_and_never_more_than_the_limits(line: Line) -> None:
    """Strict order: whoever has room still waits for those who came before it and have none."""
    _fill(line, "a", "b", "c", limit=3)
    waiting = [_read(line, "d", 2), _read(line, "e", 9), line.write("w"), _read(line, "f", 9), line.read("g")]
    assert [waiter.limit for waiter in line.info().queue] == [2, 9, None, 9, None]
    for token, granted in (
        ("a", []),
        ("b", ["d", "e"]),
        ("c", []),
        ("d", []),
        ("e", ["w"]),
        ("w", ["f", "g"]),
    ):
        assert line.locks.rlock(KEY, "newcomer", HOUR, limit=100) == 0 and line.release(token) == 1
        for name in granted:
            waiter = waiting.pop(0)
            assert waiter.token == name and waiter.fence()
        assert not any(waiter.is_answered() for waiter in waiting), f"somebody overtook after {token}"
    assert line.holders() == ["f", "g"]


# --- the limit is the request's


def test_a_limit_counts_the_others_and_not_the_owner(line: Line) -> None:
    fence, *_ = _fill(line, "a", "b", "c", limit=3)
    assert line.locks.rlock(KEY, "d", HOUR, limit=3) == 0
    waiting = [_read(line, "d", 3), _read(line, "d", 1), _read(line, "e", 9)]
    for limit in (1, 3, None):
        assert line.locks.rlock(KEY, "a", 2 * HOUR, limit=limit) == fence, "a refresh"
    assert line.locks.rlock(KEY, "e", HOUR) == 0, "whoever waits is not overtaken by itself either"
    line.release("b")
    first, again, last = (waiter.fence() for waiter in waiting)
    assert first == again < last, "who asks twice holds once"
    assert line.locks.rlock(KEY, "f", HOUR, limit=4) == 0
    assert line.locks.rlock(KEY, "f", HOUR, limit=2**31 - 1), "its own limit counts, and no one else's"
    assert line.locks.rlock(KEY, "g", HOUR) and line.info().readers == 6
    assert line.locks.lock(KEY, "w", HOUR) == 0


# --- permits that come back


@pytest.mark.parametrize("waits", [True, False])
def test_there_is_room_when_enough_deadlines_have_passed(line: Line, waits: bool) -> None:
    """The end of the second of them makes room, and none after it; nobody acts."""
    readers = 40
    _fill(line, *(f"t{number}" for number in range(readers)))
    before_ms = now_ms(line.client)
    assert line.locks.extend(KEY, "t0", BRIEF) == 1 == line.locks.extend(KEY, "t1", 3 * BRIEF)
    after_ms = now_ms(line.client)
    if waits:
        # A fence is at least the time of the grant in microseconds.
        assert _read(line, "new", readers - 1).fence() // 1000 >= before_ms + 3 * BRIEF
    else:
        wait_past(line.client, after_ms + 3 * BRIEF)
        assert line.locks.rlock(KEY, "new", HOUR, limit=readers - 1)
    assert line.info().readers == readers - 1
    assert line.locks.rlock(KEY, "late", HOUR, limit=readers - 1) == 0
