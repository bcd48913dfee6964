"""MEMORY USAGE counts what a lock costs: it grows with its holders and agrees with `used_memory`.

`used_memory` counts what the server keeps beside the value too: an entry for the key's expiry and a slot in
two tables, whose sizes are powers of two. MEMORY USAGE leaves that out for the core types. For a lock, which
always has an expiry, the module counts it, as a constant. They agree best with as many locks as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import redis

from harness import Server, wait_until

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
def fresh(make_server: Callable[..., Server]) -> redis.Redis:
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
    fresh.delete("lock")
    # Perhaps by a thread in the background.
    wait_until(lambda: _used(fresh) - before < used / 20, what="the memory to be given back")


def test_the_count_grows_with_every_holder_and_shrinks_again(client: redis.Redis) -> None:
    usages = []
    for number in range(40):
        client.execute_command("SLOCK.RLOCK", "k", f"owner-{number}", HOUR)
        usages.append(client.memory_usage("k"))
    assert usages == sorted(usages) and usages[-1] - usages[0] > 39 * 40
    for number in range(1, 40):
        client.execute_command("SLOCK.RUNLOCK", "k", f"owner-{number}")
    assert client.memory_usage("k") < usages[-1] / 4, "holders that left are not paid for"


def test_the_count_grows_with_token_and_metadata(client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "a", "t", HOUR)
    client.execute_command("SLOCK.LOCK", "b", "t" * 255, HOUR)
    client.execute_command("SLOCK.LOCK", "c", "t", HOUR, "META", "m" * 1024)
    small, long_token, meta = (client.memory_usage(key) for key in "abc")
    assert small + 200 < long_token < small + 400
    assert small + 1000 < meta < small + 1400
    client.execute_command("SLOCK.LOCK", "c", "t", HOUR, "META", "")
    assert client.memory_usage("c") < small + 100
