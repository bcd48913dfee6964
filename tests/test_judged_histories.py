"""What decides about recorded histories (harness/histories.py): right ones pass, planted faults are found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.histories import judge, overlaps
from harness.lock_model import MS, Call, Times

A, B = "a", "b"


def call(name: str, token: str, start: int, reply: int | str | None, end: int = 0, **more: object) -> Call:
    """Times in milliseconds; it takes half of one unless `end` says otherwise."""
    more["arrived"] = int(more.get("arrived", 0) * MS)
    keys = tuple(more.pop("keys", (A,)))
    ttl = more.pop("ttl_ms", 1000)
    return Call(name, keys, token, start * MS, end * MS or start * MS + 500, reply, ttl_ms=ttl, **more)


def crash(start: int, end: int) -> Call:
    return call("CRASH", "", start, 1, end, keys=())


def waits(name: str, token: str, start: int, end: int, reply: int | str | None, **more: object) -> Call:
    return call(name, token, start, reply, end, **{"wait_ms": 0, "arrived": start + 0.5, **more})


def reads(token: str, start: int, fence: int, **more: object) -> Call:
    return call("RLOCK", token, start, fence, **more)


# Right histories of all other kinds are judged in each run of torture.
RIGHT = {
    "a lease that ends": [call("LOCK", "x", 1, 10, ttl_ms=20), call("LOCK", "y", 22, 11)],
    "at the very deadline either": [call("LOCK", "x", 1, 10, ttl_ms=20), call("LOCK", "y", 22, 0)],
    "who held is refused for one that waits": [
        reads("x", 1, 10, ttl_ms=2),
        waits("RLOCK", "y", 2, 9, 11, limit=1),
        call("RLOCK", "x", 4, 0, 7),
        call("CHECK", "x", 8, 0, fence=10),
    ],
    "a stall at a release": [
        call("LOCK", "x", 1, 10),
        waits("RLOCK", "y", 2, 9, 11),
        call("UNLOCK", "x", 4, 1),
        call("RLOCK", "z", 6, 0),
    ],
    "a stall at a downgrade": [
        call("LOCK", "x", 1, 10),
        waits("RLOCK", "y", 2, 9, 13),
        call("DOWNGRADE", "x", 4, 11),
        call("UPGRADE", "x", 5, 12),
        call("UNLOCK", "x", 6, 1),
    ],
    "an unanswered call that took place": [call("LOCK", "x", 1, None, 99), call("LOCK", "y", 2, 0)],
    "an unanswered call that did not": [call("LOCK", "x", 1, None, 99), call("LOCK", "y", 2, 10)],
}

X_WRITES = [call("LOCK", "x", 1, 10)]

WRONG = {
    "two writers": [*X_WRITES, call("LOCK", "y", 2, 11)],
    "a reader beside a writer": [*X_WRITES, reads("y", 2, 11)],
    "a writer beside a reader": [reads("x", 1, 10), call("LOCK", "y", 2, 11)],
    "a reader past its limit": [reads("x", 1, 10), reads("y", 2, 11, limit=1)],
    "an upgrade beside a reader": [reads("x", 1, 10), reads("y", 1, 11), call("UPGRADE", "x", 2, 12)],
    "one key of many": [*X_WRITES, call("LOCK", "y", 2, 11, keys=[A, B])],
    "a fence that goes back": [*X_WRITES, call("UNLOCK", "x", 2, 1), call("LOCK", "y", 3, 9)],
    "a fence that goes back at another name": [*X_WRITES, call("LOCK", "y", 3, 9, keys=[B])],
    "one fence for two": [reads("x", 1, 10), reads("y", 2, 10)],
    "another fence at a refresh": [*X_WRITES, call("LOCK", "x", 2, 11)],
    "a newcomer overtakes": [
        *X_WRITES,
        waits("LOCK", "y", 2, 9, 12),
        call("UNLOCK", "x", 4, 1),
        reads("z", 5, 11),
    ],
    "a reader passes a writer that waits": [
        reads("x", 1, 10),
        waits("LOCK", "y", 2, 20, 12),
        reads("z", 4, 11),
        call("RUNLOCK", "x", 18, 1),
        call("RUNLOCK", "z", 19, 1),
    ],
    "one in the queue overtakes": [
        *X_WRITES,
        waits("LOCK", "y", 2, 20, 12),
        waits("LOCK", "z", 4, 8, 11),
        call("UNLOCK", "x", 7, 1),
        call("UNLOCK", "z", 9, 1),
    ],
    "a lost wake-up": [*X_WRITES, waits("LOCK", "y", 2, 900, 0, wait_ms=898), call("UNLOCK", "x", 5, 1)],
    "a lost wake-up at a deadline": [
        call("LOCK", "x", 1, 10, ttl_ms=20),
        waits("LOCK", "y", 2, 900, 0, wait_ms=898),
        call("CHECK", "z", 300, 0, fence=10),
    ],
    "a wake-up that comes late": [*X_WRITES, waits("LOCK", "y", 2, 20_000, 11), call("UNLOCK", "x", 5, 1)],
    "a wait that ends early": [*X_WRITES, waits("LOCK", "y", 2, 50, 0, wait_ms=100)],
    "refused although free": [*X_WRITES, call("UNLOCK", "x", 2, 1), call("LOCK", "y", 3, 0)],
    "a refresh that is refused": [
        reads("x", 1, 10),
        waits("LOCK", "y", 2, 20, 11),
        reads("x", 4, 0),
        call("RUNLOCK", "x", 9, 1),
    ],
    "a lease that ends early": [*X_WRITES, call("UNLOCK", "x", 900, 0)],
    "a lease that goes on": [*X_WRITES, call("LOCK", "y", 1030, 0)],
    "an extension that was forgotten": [
        call("LOCK", "x", 1, 10, ttl_ms=20),
        call("EXTEND", "x", 2, 1),
        call("PTTL", "x", 30, -2),
    ],
    "a deadline that GT has lowered": [
        *X_WRITES,
        call("EXTEND", "x", 2, 1, ttl_ms=20, is_gt=True),
        call("PTTL", "x", 3, 18),
    ],
    "a release by the fence of another hold": [*X_WRITES, call("UNLOCK", "x", 2, 1, fence=9)],
    "a crash that loses a hold": [*X_WRITES, crash(5, 6), call("LOCK", "y", 8, 11)],
    "a crash that revives a hold": [
        *X_WRITES,
        call("UNLOCK", "x", 3, 1),
        crash(5, 6),
        call("LOCK", "y", 8, 0),
    ],
    "a queue that outlives a crash": [
        *X_WRITES,
        waits("LOCK", "y", 2, 9, 11),
        crash(5, 6),
        call("UNLOCK", "x", 8, 1),
    ],
}


def _times(name: str) -> Times:
    then = [(3 * MS, 8 * MS)]
    return Times(then if "stall" in name else [])


@pytest.mark.parametrize("name", RIGHT)
def test_what_may_happen_passes(name: str) -> None:
    verdict = judge(RIGHT[name], _times(name))
    assert verdict.problems == [] and not verdict.undecided


@pytest.mark.parametrize("name", WRONG)
def test_what_may_not_happen_is_found(name: str) -> None:
    (problem, *_) = judge(WRONG[name]).problems
    assert problem.startswith(("no order explains", "a fence went back", "one fence for two")), problem


@pytest.mark.parametrize("name", [name for name in RIGHT if "stall" in name])
def test_what_only_a_stall_excuses_is_found(name: str) -> None:
    assert judge(RIGHT[name]).problems
    assert judge(RIGHT[name], Times([(90 * MS, 95 * MS)])).problems


def test_a_stall_excuses_nothing_else() -> None:
    late = WRONG["a lost wake-up at a deadline"]
    assert judge(late, Times(stalls=[(15 * MS, 905 * MS)])).problems == []
    assert judge(WRONG["two writers"], Times(stalls=[(0, 905 * MS)])).problems


def test_two_that_were_told_to_hold_at_a_time_overlap() -> None:
    for name, calls in RIGHT.items():
        assert not overlaps(calls), name
    beside = ("two writers", "a reader beside a writer", "a writer beside a reader", "one key of many")
    for name in (*beside, "an upgrade beside a reader", "a crash that loses a hold"):
        ((first, second),) = overlaps(WRONG[name])
        assert first.reply < second.reply and first.token != second.token, name
    extended = [call("EXTEND", "x", 3, 1, ttl_ms=9), call("LOCK", "y", 5, 11)]
    assert overlaps([*X_WRITES, *extended]) and not overlaps(
        [*X_WRITES, replace(extended[0], reply=0), extended[1]]
    )
    assert not overlaps([*X_WRITES, call("UNLOCK", "x", 3, None, 99), call("LOCK", "y", 5, 11)])
