"""MEMORY USAGE counts what a lock costs: it grows with its holders and agrees with `used_memory`.

`used_memory` counts what the server keeps beside the value too: an entry for the key's expiry and a slot in
two tables, whose sizes are powers of two. MEMORY USAGE leaves that out for the core types. For a lock, which
always has an expiry, the module counts it, as a constant. They agree best with as many locks as here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
import redis

from harness import Server, wait_until

HOUR = 3_600_000
LOCKS = 10_000
READERS = 100_000

Commands = Callable[[str], list[tuple]]


class Cost(NamedTuple):
    used: int
    usage: int


def _key(number: int) -> str:
    return f"lock:{number:06}"


def _writer(key: str) -> list[tuple]:
    return [("SLOCK.LOCK", key, f"owner-{key}", HOUR)]


def _three_readers(key: str) -> list[tuple]:
    return [("SLOCK.RLOCK", key, f"owner-{reader}-{key}", HOUR) for reader in range(3)]


def _with_meta(key: str) -> list[tuple]:
    return [("SLOCK.LOCK", key, f"owner-{key}", HOUR, "META", "m" * 100)]


def _with_long_tokens(key: str) -> list[tuple]:
    return [("SLOCK.LOCK", key, key.ljust(255, "t"), HOUR)]


def _run(client: redis.Redis, commands: Iterator[tuple]) -> None:
    """In batches of the same size, so that the buffers of the connection do not count."""
    batch: list[tuple] = []

    def send() -> None:
        pipe = client.pipeline(transaction=False)
        for command in batch:
            pipe.execute_command(*command)
        pipe.execute()
        batch.clear()

    for command in commands:
        batch.append(command)
        if len(batch) == 1000:
            send()
    if batch:
        send()


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def _fresh(make_server: Callable[..., Server]) -> redis.Redis:
    client = make_server().client()
    _run(client, (("SLOCK.LOCK", "warm", "up", HOUR) for _ in range(2000)))
    return client


def _cost(make_server: Callable[..., Server], commands: Commands) -> Cost:
    client = _fresh(make_server)
    before = _used(client)
    _run(client, (command for number in range(LOCKS) for command in commands(_key(number))))
    used = _used(client) - before
    pipe = client.pipeline(transaction=False)
    for number in range(LOCKS):
        pipe.memory_usage(_key(number), samples=0)
    return Cost(used, sum(pipe.execute()))


@pytest.mark.parametrize("commands", [_writer, _three_readers, _with_meta, _with_long_tokens])
def test_ten_thousand_locks_are_counted_within_a_tenth(
    make_server: Callable[..., Server], commands: Commands
) -> None:
    cost = _cost(make_server, commands)
    assert cost.usage == pytest.approx(cost.used, rel=0.1), (
        f"a lock: MEMORY USAGE {cost.usage / LOCKS}, used_memory {cost.used / LOCKS}"
    )


def test_one_lock_with_a_hundred_thousand_readers_is_counted_within_a_tenth(
    make_server: Callable[..., Server],
) -> None:
    client = _fresh(make_server)
    before = _used(client)
    _run(client, (("SLOCK.RLOCK", "lock", f"owner-{number:06}", HOUR) for number in range(READERS)))
    used = _used(client) - before
    assert client.memory_usage("lock", samples=0) == pytest.approx(used, rel=0.1)
    assert client.memory_usage("lock") == pytest.approx(used, rel=0.1), "with the usual number of samples"
    client.delete("lock")
    # Perhaps by a thread in the background.
    wait_until(lambda: _used(client) - before < used / 20, what="the memory to be given back")


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
