"""INFO slock: every field agrees with a history that the test has written."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Locks, RawConnection, Server, now_ms, wait_past, wait_until
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR, Line

pytest_plugins = ["harness.cleanup"]

COUNTED = "grants refusals handoffs releases expirations wait_timeouts deadlocks evicted_locks"
FIELDS = f"locks waiters waiters_max {COUNTED} wait_ms_total wait_ms_max last_fence".split()
TIMES = {"wait_ms_total", "wait_ms_max"}


class Meter:
    """Compares the counters with what the test expects them to be: all fields, every time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = server.client()
        self.raw = server.raw()
        self.expected = self.read()
        assert list(self.expected) == FIELDS
        assert set(self.expected.values()) == {0}, "a new server has done nothing"

    def read(self) -> dict[str, int]:
        return {name.removeprefix("slock_"): value for name, value in self.client.info("slock").items()}

    def grew(self, **by: int) -> None:
        """Since the last call: these counters by so much, and no other. `last_fence` is an absolute value."""
        now = self.read()
        for name in FIELDS:
            if name == "last_fence":
                self.expected[name] = by.pop(name, self.expected[name])
            elif name in TIMES:
                self.expected[name] = now[name]
            else:
                self.expected[name] += by.pop(name, 0)
        assert not by, f"no such field: {by}"
        assert now == self.expected

    def wait_for_locks(self, count: int) -> None:
        """What is flushed in the background is counted down there."""
        wait_until(lambda: self.read()["locks"] == count, what=f"{count} locks to be counted")


@pytest.fixture
def meter(make_server: Callable[..., Server]) -> Meter:
    return Meter(make_server())


def test_the_section_is_listed_and_asked_for_by_name(raw: RawConnection) -> None:
    for section in ("slock", "everything", "modules"):
        assert b"slock_locks:" in raw.ok("INFO", section), section


def test_every_field_agrees_with_a_history_of_single_locks(meter: Meter) -> None:
    raw = meter.raw
    fence = raw.ok("SLOCK.LOCK", "w", "a", HOUR)
    meter.grew(grants=1, locks=1, last_fence=fence)
    assert raw.ok("SLOCK.LOCK", "w", "a", HOUR) == fence
    meter.grew()  # a refresh is neither a grant nor a refusal
    assert raw.ok("SLOCK.LOCK", "w", "b", HOUR) == 0 == raw.ok("SLOCK.RLOCK", "w", "b", HOUR)
    meter.grew(refusals=2)
    assert raw.ok("SLOCK.EXTEND", "w", "a", HOUR) == 1 and raw.ok("SLOCK.EXTEND", "w", "b", HOUR) == 0
    assert raw.ok("SLOCK.PTTL", "w", "a") and raw.ok("SLOCK.CHECK", "w", fence)
    assert raw.ok("SLOCK.INFO", "w") and raw.ok("SLOCK.UNLOCK", "w", "b") == 0
    meter.grew()
    raw.ok("SLOCK.RLOCK", "r", "a", HOUR)
    fence = raw.ok("SLOCK.RLOCK", "r", "b", HOUR)
    meter.grew(grants=2, locks=1, last_fence=fence)
    assert raw.ok("SLOCK.UPGRADE", "r", "a", HOUR) == 0
    meter.grew(refusals=1)
    raw.ok("SLOCK.RUNLOCK", "r", "b")
    meter.grew(releases=1)
    assert raw.error("SLOCK.LOCK", "r", "a", HOUR) and raw.error("SLOCK.LOCK", "x", "a", 0)
    meter.grew()  # an error is not a refusal
    raw.ok("SLOCK.UNLOCK", "w", "a")
    meter.grew(releases=1, locks=-1)


def test_waiting_is_counted_and_measured(meter: Meter) -> None:
    line = Line(meter.server)
    first = line.locks.lock("k", "x", HOUR)
    meter.grew(grants=1, locks=1, last_fence=first)
    waiting = [line.write("a"), line.read("b"), line.read("c")]
    meter.grew(waiters=3, waiters_max=3)
    brief = line.write("d", wait=200)
    meter.grew(waiters=1, waiters_max=1)
    assert brief.reply() == 0
    meter.grew(waiters=-1, wait_timeouts=1)
    wait_until(lambda: line.info().queue[2].waiting_ms >= 60, what="them to have waited a while")
    line.release("x")
    fence = waiting[0].fence()
    meter.grew(waiters=-1, releases=1, grants=1, handoffs=1, last_fence=fence)
    assert 60 <= meter.read()["wait_ms_max"] <= meter.read()["wait_ms_total"]
    line.release("a")
    fences = [waiter.fence() for waiter in waiting[1:]]
    meter.grew(waiters=-2, releases=1, grants=2, handoffs=2, last_fence=max(fences))
    numbers = meter.read()
    assert numbers["wait_ms_total"] >= 3 * 60 and numbers["wait_ms_max"] * 4 >= numbers["wait_ms_total"]


def test_expired_holders_are_counted_one_by_one(meter: Meter) -> None:
    locks = Locks(meter.client)
    for token in ("a", "b", "c"):
        locks.rlock("r", token, 30)
    locks.rlock("r", "stays", HOUR)
    locks.lock("w", "a", 30)
    wait_past(meter.client, now_ms(meter.client) + 35)
    wait_until(lambda: not meter.client.exists("w"), what="the writer's key to go")
    meter.grew(grants=6, locks=1, expirations=4, last_fence=locks.rlock("r", "late", HOUR))


# How many locks are left of two, one of which ("k") has a holder that has expired.
ENDS = {"DEL k": 1, "UNLINK k": 1, "FLUSHALL": 0, "FLUSHALL ASYNC": 0, "FLUSHDB": 0, "SET k text": 1}
ENDS |= {"COPY other k REPLACE": 2, "PEXPIRE k 1": 1, "RENAME other k": 1}


def test_a_holder_that_had_expired_is_counted_however_its_lock_goes(meter: Meter) -> None:
    locks = Locks(meter.client)
    for how, left in ENDS.items():
        locks.lock("other", "x", HOUR)
        locks.rlock("k", "brief", 20)
        fence = locks.rlock("k", "stays", HOUR)
        wait_past(meter.client, now_ms(meter.client) + 25)
        meter.client.rename("k", "elsewhere")
        meter.grew(grants=3, locks=2, last_fence=fence)
        meter.client.rename("elsewhere", "k")
        meter.client.execute_command(*how.split())
        meter.wait_for_locks(left)
        meter.grew(locks=left - 2, expirations=1)
        meter.client.flushall()
        meter.wait_for_locks(0)
        meter.grew(locks=-left)


def test_locks_that_go_elsewhere_are_counted(meter: Meter) -> None:
    locks = Locks(meter.client)
    for key in ("a", "b"):
        fence = locks.lock(key, "x", HOUR)
    meter.grew(grants=2, locks=2, last_fence=fence)
    for command, more in (("COPY a c", 1), ("MOVE a 1", 0), ("SWAPDB 0 2", 0), ("FLUSHDB", 0)):
        meter.client.execute_command(*command.split())
        meter.grew(locks=more)


def test_a_refused_deadlock_is_counted(meter: Meter) -> None:
    queues = Queues(meter.server)
    queues.hold("A", "x")
    queues.hold("B", "y")
    queues.mlock("A", "y z")
    meter.grew(waiters=1, waiters_max=1, grants=2, locks=2, last_fence=meter.read()["last_fence"])
    assert queues.raw.error("SLOCK.LOCK", "x", "B", HOUR, "WAIT", 0).startswith("DEADLOCK ")
    assert queues.raw.error(*many("MRLOCK", "q x", "B", HOUR, "WAIT", 0)).startswith("DEADLOCK ")
    meter.grew(deadlocks=2)


def test_requests_for_many_keys_are_one_grant_of_many_holds(meter: Meter) -> None:
    """Grants, refusals and hand-offs are requests; locks, releases and expirations are counted by key."""
    queues = Queues(meter.server)
    fence = queues.raw.ok(*many("MLOCK", "a b c", "x", HOUR))
    meter.grew(grants=1, locks=3, last_fence=fence)
    assert queues.raw.ok(*many("MRLOCK", "c d", "y", HOUR)) == 0
    meter.grew(refusals=1)
    waiting = queues.mlock("y", "b c d")
    meter.grew(waiters=1, waiters_max=1)
    assert queues.free("x", "a b c") == 3
    fence = waiting.fence()
    meter.grew(waiters=-1, grants=1, handoffs=1, releases=3, last_fence=fence)
    assert queues.raw.ok(*many("MEXTEND", "b c d", "y", 20)) == 1
    wait_until(lambda: queues.client.dbsize() == 0, what="all to expire")
    meter.grew(expirations=3, locks=-3)


def test_evicted_locks_are_counted(make_server: Callable[..., Server]) -> None:
    server = make_server(maxmemory_policy="allkeys-lru")
    client, locks = server.client(), Locks(server.client())
    for number in range(50):
        locks.lock(f"lock:{number}", "a", HOUR)
    client.set("text", "x")
    client.config_set("maxmemory", 1)
    wait_until(lambda: client.dbsize() == 0, what="everything to be evicted")
    numbers = client.info("slock")
    assert numbers["slock_evicted_locks"] == 50 and numbers["slock_locks"] == 0


def test_locks_and_the_last_fence_come_back_with_the_data(make_server: Callable[..., Server]) -> None:
    server = make_server(appendonly=True)
    fences = [Locks(server.client()).lock(f"lock:{number}", "a", HOUR) for number in range(5)]
    server.restart()
    numbers = server.client().info("slock")
    assert (numbers["slock_locks"], numbers["slock_last_fence"]) == (5, fences[-1])
    assert numbers["slock_grants"] == 0
