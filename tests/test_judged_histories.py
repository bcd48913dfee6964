"""What decides about recorded histories (harness/histories.py): right ones pass, planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from harness import Server, wait_until
from harness.histories import MS, WANTS, Call, Times, judge, overlaps
from harness.recorded import LONG_MS, Crowd

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


RIGHT = {
    "one after the other": [
        call("LOCK", "x", 1, 10),
        call("LOCK", "y", 2, 0),
        call("UNLOCK", "x", 3, 1),
        call("LOCK", "y", 4, 11),
    ],
    "readers beside each other": [reads("x", 1, 10), reads("y", 1, 11), call("LOCK", "z", 2, 0)],
    "a limit": [reads("x", 1, 10, limit=2), reads("y", 2, 11, limit=2), reads("z", 3, 0, limit=2)],
    "a lease that ends": [call("LOCK", "x", 1, 10, ttl_ms=20), call("LOCK", "y", 22, 11)],
    "at the very deadline either": [call("LOCK", "x", 1, 10, ttl_ms=20), call("LOCK", "y", 22, 0)],
    "the clock was stepped": [call("LOCK", "x", 1, 10), call("LOCK", "y", 9, 11)],
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
    "in the order of arrival": [
        call("LOCK", "x", 1, 10),
        waits("LOCK", "y", 2, 8, 11),
        waits("LOCK", "z", 3, 10, 12),
        call("UNLOCK", "x", 7, 1),
        call("UNLOCK", "y", 9, 1),
    ],
    "an unknown order of arrival": [
        call("LOCK", "x", 1, 10),
        waits("LOCK", "y", 2, 10, 12, arrived=0),
        waits("LOCK", "z", 3, 8, 11, arrived=0),
        call("UNLOCK", "x", 7, 1),
        call("UNLOCK", "z", 9, 1),
    ],
    "a wait that runs out": [call("LOCK", "x", 1, 10), waits("LOCK", "y", 2, 12, 0, wait_ms=10)],
    "a wait that is cancelled": [
        call("LOCK", "x", 1, 10),
        waits("LOCK", "y", 2, 5, 0),
        call("CANCEL", "y", 4, 1),
    ],
    "who waits and is lost": [
        call("LOCK", "x", 1, 10),
        waits("LOCK", "y", 2, 50, None),
        call("UNLOCK", "x", 3, 1),
        call("LOCK", "z", 4, 11),
    ],
    "who waits, is granted and is lost": [
        call("LOCK", "x", 1, 10),
        waits("LOCK", "y", 2, 50, None, arrived=3),
        waits("LOCK", "z", 4, 2000, 0, wait_ms=1990),
        call("UNLOCK", "x", 6, 1),
    ],
    "an unanswered call that took place": [call("LOCK", "x", 1, None, 99), call("LOCK", "y", 2, 0)],
    "an unanswered call that did not": [call("LOCK", "x", 1, None, 99), call("LOCK", "y", 2, 10)],
    "asked again after a lost reply": [
        call("LOCK", "x", 1, None, 2),
        call("LOCK", "y", 3, 11, keys=[B]),
        call("LOCK", "x", 4, 10),
    ],
    "up and down": [
        reads("x", 1, 10),
        reads("y", 1, 11),
        waits("UPGRADE", "x", 2, 6, 12),
        call("RUNLOCK", "y", 5, 1),
        call("DOWNGRADE", "x", 7, 13),
        reads("y", 8, 14),
    ],
    "what a replica refuses": [
        call("LOCK", "x", 1, 10),
        call("DOWNGRADE", "x", 2, "READONLY"),
        call("EXTEND", "x", 3, "READONLY"),
        call("UNLOCK", "x", 4, "READONLY"),
        call("LOCK", "y", 5, "READONLY"),
        call("UNLOCK", "x", 6, 1),
    ],
    "many": [
        call("LOCK", "x", 1, 10, keys=[A, B]),
        waits("LOCK", "y", 2, 8, 11, keys=[B]),
        call("EXTEND", "x", 3, 1, keys=[A, B]),
        call("MUNLOCK", "x", 7, 2, keys=[A, B]),
    ],
    "a crash": [
        call("LOCK", "x", 1, 10),
        waits("LOCK", "y", 2, 6, None),
        crash(5, 6),
        call("LOCK", "z", 8, 0),
        call("UNLOCK", "x", 9, 1),
        call("LOCK", "z", 10, 11),
    ],
}

X_WRITES = [call("LOCK", "x", 1, 10)]
X_AND_QUEUE = [*X_WRITES, waits("LOCK", "y", 2, 20, 11), call("UNLOCK", "x", 19, 1)]

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
    return Times(stalls=then if "stall" in name else [], steps=then if "stepped" in name else [])


@pytest.mark.parametrize("name", RIGHT)
def test_what_may_happen_passes(name: str) -> None:
    verdict = judge(RIGHT[name], _times(name))
    assert verdict.problems == [] and not verdict.undecided


@pytest.mark.parametrize("name", WRONG)
def test_what_may_not_happen_is_found(name: str) -> None:
    (problem, *_) = judge(WRONG[name]).problems
    assert problem.startswith(("no order explains", "a fence went back", "one fence for two")), problem


@pytest.mark.parametrize("name", [name for name in RIGHT if "stall" in name or "stepped" in name])
def test_what_only_a_stall_or_a_step_excuses_is_found(name: str) -> None:
    assert judge(RIGHT[name]).problems
    assert judge(RIGHT[name], Times([(90 * MS, 95 * MS)], [(90 * MS, 95 * MS)])).problems


def test_a_step_excuses_no_fence() -> None:
    for name in ("a fence that goes back", "one fence for two"):
        assert judge(WRONG[name], Times(steps=[(0, 9 * MS)])).problems


def test_a_stall_excuses_what_is_late() -> None:
    late = WRONG["a lost wake-up at a deadline"]
    assert judge(late, Times(stalls=[(15 * MS, 905 * MS)])).problems == []
    assert judge(WRONG["two writers"], Times(stalls=[(0, 905 * MS)])).problems, "and nothing else"


def test_two_that_were_told_to_hold_at_a_time_overlap() -> None:
    for name, calls in RIGHT.items():
        assert not overlaps(calls) or "stepped" in name, name
    beside = ("two writers", "a reader beside a writer", "a writer beside a reader", "one key of many")
    for name in (*beside, "an upgrade beside a reader", "a crash that loses a hold"):
        ((first, second),) = overlaps(WRONG[name])
        assert first.reply < second.reply and first.token != second.token, name
    extended = [call("EXTEND", "x", 3, 1, ttl_ms=9), call("LOCK", "y", 5, 11)]
    assert overlaps([*X_WRITES, *extended]) and not overlaps(
        [*X_WRITES, replace(extended[0], reply=0), extended[1]]
    )
    assert not overlaps([*X_WRITES, call("UNLOCK", "x", 3, None, 99), call("LOCK", "y", 5, 11)])


# --- faults planted into a history that was recorded


@pytest.fixture(scope="module")
def recorded() -> Iterator[list[Call]]:
    """Of many processes, at a server to which nothing happens."""
    server = Server(name="recorded").start()
    crowd = Crowd([server.port], 3, 1)
    try:
        wait_until(lambda: crowd.size() > 300_000, 60, "the clients to do much")
        crowd.stop()
        calls, _ = crowd.calls(Times())
    finally:
        crowd.discard()
        server.stop()
        server.discard()
    return sorted(calls, key=lambda one: one.start)


def _released(calls: list[Call]) -> Iterator[tuple[Call, Call]]:
    """A hold for write that lasts until its release, which is the next that its token does."""
    for at, first in enumerate(calls):
        if first.name == "LOCK" and first.reply and first.ttl_ms == LONG_MS and len(first.keys) == 1:
            own = [one for one in calls[at + 1 :] if one.token == first.token]
            if own and own[0].name == "UNLOCK" and own[0].reply == 1:
                yield first, own[0]


def _beside_a_writer(name: str, calls: list[Call]) -> list[Call]:
    first, release = next(_released(calls))
    between = first.end + (release.start - first.end) // 2
    return [*calls, Call(name, first.keys, "planted", between, between, first.reply + 1, ttl_ms=LONG_MS)]


def _fence_goes_back(calls: list[Call]) -> list[Call]:
    first = [one for one, _ in _released(calls)][-1]
    lesser = next(one.reply for one in calls if one.name == "RLOCK" and one.reply) - 1
    return [replace(one, reply=lesser) if one.reply == first.reply else one for one in calls]


def _overtaking(calls: list[Call]) -> list[Call]:
    """Of two that waited for one lock, each gets the other's place in the queue."""
    waiting = [
        one for one in calls if one.name == "LOCK" and one.arrived and one.reply and len(one.keys) == 1
    ]
    one, two = next(
        (one, two)
        for one in waiting
        for two in waiting
        if one.keys == two.keys and one.arrived < two.start < two.arrived < one.end and one.reply < two.reply
    )
    places = {one: (two.start, two.arrived), two: (one.start, one.arrived)}
    return [replace(it, start=places[it][0], arrived=places[it][1]) if it in places else it for it in calls]


def _lost_wake_up(calls: list[Call]) -> list[Call]:
    """Who was granted is not, and waits for all his time; nobody else is granted from then on."""
    lost = next(
        one
        for one in calls
        if one.name == "LOCK"
        and one.arrived
        and one.wait_ms == 1500
        and one.reply
        and one.end < one.start + 500 * MS
    )
    before = [one for one in calls if one.token != lost.token and one.start < lost.end]
    others = [one for one in before if one.name not in WANTS or one.end < lost.end]
    end = lost.start + 1501 * MS
    look = Call("CHECK", lost.keys, "", lost.end + 100 * MS, lost.end + 101 * MS, 0, fence=1)
    return [*others, replace(lost, reply=0, end=end), look]


PLANTED: dict[str, Callable[[list[Call]], list[Call]]] = {
    "two writers": lambda calls: _beside_a_writer("LOCK", calls),
    "a reader beside a writer": lambda calls: _beside_a_writer("RLOCK", calls),
    "a fence that goes back": _fence_goes_back,
    "an overtaking": _overtaking,
    "a lost wake-up": _lost_wake_up,
}


@pytest.mark.soak  # a loaded machine may do what the model does not know
def test_a_recorded_history_passes(recorded: list[Call]) -> None:
    verdict = judge(recorded)
    print(f"{len(recorded)} calls in {verdict.parts} parts, {verdict.undecided} undecided")
    assert not verdict.problems, "\n\n".join(verdict.problems)
    assert verdict.undecided <= verdict.parts // 10


@pytest.mark.soak
@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_fault_in_a_recorded_history_is_found(recorded: list[Call], plant: Callable) -> None:
    assert judge(plant(recorded)).problems
