"""MEMORY USAGE counts what a lock costs, with all its holders, and agrees with `used_memory`.

`used_memory` counts what the server keeps beside the value too: an entry for the key's expiry and a slot in
two tables, whose sizes are powers of two. MEMORY USAGE leaves that out for the core types. For a lock, which
always has an expiry, the module counts it, as a constant. They agree best with as many locks as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import redis

from harness import MakeServer, wait_until

HOUR = 3_600_000
LOCKS = 10_000
READERS = 40_000


def _run(client: redis.Redis, commands: Iterable[tuple]) -> list[int]:
    """In batches of the same size, so that the buffers of the connection do not count."""
    commands, replies = list(commands), []
    for start in range(0, len(commands), 1000):
        pipe = client.pipeline(transaction=False)
        for command in commands[start : start + 1000]:
            pipe.execute_command(*command)
        replies += pipe.execute()
    return replies


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


@pytest.fixture
def fresh(make_server: MakeServer) -> redis.Redis:
    client = make_server().client()
    _run(client, [("SLOCK.LOCK", "warm", "up", HOUR)] * 2000)
    return client


KINDS: dict[str, Callable[[str], list[tuple]]] = {
    "a writer": lambda key: [("SLOCK.LOCK", key, f"owner-{key}", HOUR)],
    "three readers": lambda key: [("SLOCK.RLOCK", key, f"owner-{n}-{key}", HOUR) for n in range(3)],
    "with metadata": lambda key: [("SLOCK.LOCK", key, f"owner-{key}", HOUR, "META", "m" * 100)],
    "with long tokens": lambda key: [("SLOCK.LOCK", key, key.ljust(255, "t"), HOUR)],
}


@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_locks_are_counted_within_a_tenth(fresh: redis.Redis, kind: str) -> None:
    keys = [f"lock:{number:06}" for number in range(LOCKS)]
    before = _used(fresh)
    _run(fresh, (command for key in keys for command in KINDS[kind](key)))
    used = _used(fresh) - before
    usage = sum(_run(fresh, (("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys)))
    assert usage == pytest.approx(used, rel=0.1), f"a lock: MEMORY USAGE {usage / LOCKS}, used {used / LOCKS}"


def test_one_lock_with_tens_of_thousands_of_readers_is_counted_within_a_tenth(fresh: redis.Redis) -> None:
    before = _used(fresh)
    _run(fresh, (("SLOCK.RLOCK", "lock", f"owner-{number:06}", HOUR) for number in range(READERS)))
    used = _used(fresh) - before
    assert fresh.memory_usage("lock", samples=0) == pytest.approx(used, rel=0.1)
    assert fresh.memory_usage("lock") == pytest.approx(used, rel=0.1), "with the usual number of samples"
    _run(fresh, (("SLOCK.RUNLOCK", "lock", f"owner-{number:06}") for number in range(10, READERS)))
    assert fresh.memory_usage("lock") < used / 100, "holders that left are not paid for"
    fresh.delete("lock")
    # Perhaps by a thread in the background.
    wait_until(lambda: _used(fresh) - before < used / 20, what="the memory to be given back")
