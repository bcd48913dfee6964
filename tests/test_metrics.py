"""INFO slock: every field agrees with a history that the test has written."""

from __future__ import annotations

import time

import pytest
import redis

from harness import Locks, MakeServer, RawConnection, Server, now_ms, wait_past, wait_until
from harness.causes import HOLDER
from harness.many import many
from harness.queues import Queues
from harness.replication import wait_synced
from harness.waiting import HOUR, Line

PARTS = ("p50", "p99", "p99.9", "max")
TIMES = ["oldest_wait_ms", "wait_ms_total", "wait_ms_max"]
TIMES += [f"{name}.{part}" for name in ("wait_ms", "hold_ms") for part in PARTS]
FIELDS = ["locks", "waiters", "waiting_places", "oldest_wait_ms", "waiting_users", "waiters_max"]
FIELDS += ["grants", "refusals", "handoffs", "releases", "expirations", "wait_timeouts", "wait_cancels"]
FIELDS += ["revoked_requests", "revoked_tokens_overwritten", "no_subscriber", "deadlocks", "evicted_locks"]
FIELDS += [*TIMES[1:], "last_fence"]


class Meter:
    """Compares the counters with what the test expects them to be: all fields, every time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = server.client()
        self.expected = self.read()
        assert list(self.expected) == FIELDS
        assert set(self.expected.values()) == {0}, "a new server has done nothing"

    def read(self) -> dict[str, int]:
        """All fields, and each part of a distribution as one."""
        fields = {}
        for name, value in self.client.info("slock").items():
            parts = value if isinstance(value, dict) else {"": value}
            fields |= {f"{name.removeprefix('slock_')}.{part}".rstrip("."): parts[part] for part in parts}
        return fields

    def grew(self, *, last_fence: int | None = None, **by: int) -> None:
        """Since the last call: these counters by so much, and no other; the last fence is this one."""
        now = self.read()
        self.expected |= {name: now[name] for name in [*TIMES, "waiting_places"]}
        self.expected |= {name: self.expected[name] + more for name, more in by.items()}
        self.expected["last_fence"] = last_fence or self.expected["last_fence"]
        assert now == self.expected

    def wait_for_locks(self, count: int) -> None:
        """What is flushed in the background is counted down there."""
        wait_until(lambda: self.read()["locks"] == count, what=f"{count} locks to be counted")


@pytest.fixture
def meter(make_server: MakeServer) -> Meter:
    return Meter(make_server())


def test_the_section_is_listed_and_asked_for_by_name(raw: RawConnection) -> None:
    for section in ("slock", "everything", "modules"):
        assert b"slock_locks:" in raw.ok("INFO", section), section


def test_every_field_agrees_with_a_history(meter: Meter) -> None:
    """Grants, refusals and hand-offs are requests; locks, releases and expirations are counted by key."""
    queues = Queues(meter.server)
    raw = queues.raw
    fence = raw.ok(*many("MLOCK", "a b w", "x", HOUR))
    meter.grew(grants=1, locks=3, last_fence=fence)
    assert raw.ok("SLOCK.LOCK", "w", "x", HOUR) == fence
    meter.grew()  # a refresh is neither a grant nor a refusal
    assert raw.ok("SLOCK.LOCK", "w", "y", HOUR) == 0 == raw.ok(*many("MRLOCK", "w free", "y", HOUR))
    meter.grew(refusals=2)
    assert raw.ok("SLOCK.EXTEND", "w", "x", HOUR) == 1 and raw.ok("SLOCK.EXTEND", "w", "y", HOUR) == 0
    assert raw.ok("SLOCK.CHECK", "w", fence) and raw.ok("SLOCK.INFO", "w")
    assert raw.ok("SLOCK.UNLOCK", "w", "y") == 0
    assert raw.error("SLOCK.RLOCK", "w", "x", HOUR) and raw.error("SLOCK.LOCK", "free", "x", 0)
    meter.grew()  # an error is not a refusal
    fence = raw.ok("SLOCK.LOCK", "held", "y", HOUR)
    meter.grew(grants=1, locks=1, last_fence=fence)

    waiting = [queues.mlock("y", "a b"), queues.lock("z", "w")]
    meter.grew(waiters=2, waiting_users=1, waiters_max=2)
    assert raw.error("SLOCK.LOCK", "held", "x", HOUR, "WAIT", 0).startswith("DEADLOCK ")
    meter.grew(deadlocks=1)
    assert queues.lock("brief", "w", wait=200).reply() == 0
    meter.grew(waiters_max=1, wait_timeouts=1)
    withdrawn = queues.mlock("withdrawn", "free w")
    assert raw.ok("SLOCK.CANCEL", "free", "withdrawn") == 1 and withdrawn.reply() == 0
    meter.grew(wait_cancels=1)
    assert not any(meter.read()[name] for name in TIMES[1:]), "only a wait that ended well is measured"
    wait_until(lambda: queues.locks.full("w").queue[0].waiting_ms >= 60, what="them to have waited a while")
    assert queues.free("x", "a b w") == 3
    fences = [waiter.fence() for waiter in waiting]
    meter.grew(waiters=-2, waiting_users=-1, releases=3, grants=2, handoffs=2, last_fence=max(fences))
    numbers = meter.read()
    assert numbers["wait_ms_total"] >= 2 * 60 and numbers["wait_ms_max"] >= 60
    assert numbers["wait_ms_max"] < numbers["wait_ms_total"] <= 3 * numbers["wait_ms_max"]
    assert numbers["wait_ms.max"] == numbers["wait_ms_max"] and numbers["hold_ms.p50"] >= 60
    assert raw.ok(*many("MEXTEND", "a b", "y", 20)) == 1
    wait_until(lambda: not meter.client.exists("a", "b"), what="both to expire")
    meter.grew(expirations=2, locks=-2)


# How many locks are left of two, one of which ("k") has a holder that has expired.
ENDS = {"DEL k": 1, "FLUSHALL ASYNC": 0, "SET k text": 1, "COPY other k REPLACE": 2, "RENAME other k": 1}


def test_a_holder_that_had_expired_is_counted_however_its_lock_goes(meter: Meter) -> None:
    locks = Locks(meter.client)
    for how, left in ENDS.items():
        locks.lock("other", "x", HOUR)
        together = meter.client.pipeline()
        together.execute_command("SLOCK.RLOCK", "k", "brief", 20)
        together.execute_command("SLOCK.RLOCK", "k", "stays", HOUR)
        _, fence = together.execute()
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


def test_locks_that_a_promoted_replica_evicts_are_counted(make_server: MakeServer) -> None:
    """As a replica it may not evict, so it has not listened for that."""
    primary = make_server()
    address = f"127.0.0.1 {primary.port}"
    replica = make_server(replicaof=address, maxmemory=1, maxmemory_policy="allkeys-lru")
    Locks(primary.client()).lock("k", "a", HOUR)
    wait_synced(primary, replica)
    client = replica.client()
    assert client.dbsize() == 1
    client.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: client.dbsize() == 0, what="the lock to be evicted")
    assert client.info("slock")["slock_evicted_locks"] == 1


def test_an_evicted_key_of_another_type_is_not_counted(make_server: MakeServer) -> None:
    """Though a lock went before it."""
    client = make_server(maxmemory_policy="allkeys-lru").client()
    Locks(client).lock("k", "a", HOUR)
    client.delete("k")
    client.set("s", 1)
    client.config_set("maxmemory", 1)
    wait_until(lambda: client.dbsize() == 0, what="the string to be evicted")
    assert client.info("slock")["slock_evicted_locks"] == 0


# --- how long it takes


def test_the_oldest_wait_is_shown_while_it_lasts(server: Server, client: redis.Redis) -> None:
    """All else that is shown of waits is of those that have ended."""

    def shown() -> int:
        return client.info("slock")["slock_oldest_wait_ms"]

    assert shown() == 0
    line, other = Line(server), Line(server, "other")
    assert line.locks.lock("k", HOLDER, HOUR) and line.locks.lock("other", HOLDER, HOUR)
    before = time.monotonic()
    first = line.write("first")
    wait_until(lambda: shown() >= 300, what="it to have waited for 300 ms")
    assert shown() <= (time.monotonic() - before) * 1000 + 1
    second = other.read("second")
    assert shown() >= 300, "of all that wait, on whichever lock"
    assert line.client.execute_command("SLOCK.CANCEL", "k", "first") == 1 and first.reply() == 0
    waited_ms = other.info().queue[0].waiting_ms
    assert waited_ms <= shown() <= other.info().queue[0].waiting_ms
    assert other.release(HOLDER) == 1 and second.fence()
    assert shown() == 0


def test_the_distributions_are_what_clients_have_measured(meter: Meter) -> None:
    """One of ten waits and holds is long. What timed out is in neither."""
    line, took_ms = Line(meter.server), []
    for number in range(10):
        before = time.monotonic()
        assert line.locks.lock("k", HOLDER, HOUR)
        waiting = line.write("next")
        assert number or line.write("brief", wait=20).reply() == 0
        if number == 9:
            wait_until(lambda: line.info().queue[0].waiting_ms >= 300, what="it to have waited for a while")
        assert line.release(HOLDER) == 1 and waiting.fence()
        assert line.release("next") == 1
        took_ms.append((time.monotonic() - before) * 1000)
    shown, took_ms = meter.read(), sorted(took_ms)
    for name in ("wait_ms", "hold_ms"):
        # A bucket is a millisecond up to 127 ms, and 1 % above.
        assert shown[f"{name}.p50"] <= took_ms[5] * 1.01 + 1
        assert 300 <= shown[f"{name}.p99"] <= shown[f"{name}.max"] * 1.01 + 1
        assert 300 <= shown[f"{name}.max"] <= took_ms[-1] + 1
    assert shown["wait_ms_total"] <= sum(took_ms) + 10 and shown["wait_ms_max"] == shown["wait_ms.max"]
