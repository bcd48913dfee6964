"""Active defragmentation moves locks about while they are used, and corrupts nothing."""

from __future__ import annotations

import random

import pytest
import redis

from harness import Locks, MakeServer, lock_state, replica_of, wait_synced, wait_until

HOUR = 3_600_000
KEYS = 6000
KEPT = 4


def _fill(client: redis.Redis) -> None:
    """Every KEPT-th key stays: there are holes between them."""
    pipe = client.pipeline(transaction=False)
    for number in range(KEYS):
        key, meta = f"lock:{number}", "m" * (number % 300)
        if number % 3:
            pipe.execute_command("SLOCK.LOCK", key, f"owner-{number}", HOUR, "META", meta)
        else:
            for reader in range(number % 7 + 1):
                pipe.execute_command("SLOCK.RLOCK", key, f"owner-{number}-{reader}", HOUR, "META", meta)
    for reader in range(3000):
        pipe.execute_command("SLOCK.RLOCK", "great", f"owner-{reader}", HOUR, "META", "m" * (reader % 300))
    for number in range(KEYS):
        if number % KEPT:
            pipe.delete(f"lock:{number}")
    pipe.execute()


SETTINGS = {"threshold-lower": 0, "threshold-upper": 1, "cycle-min": 50, "cycle-max": 75}
SETTINGS |= {"ignore-bytes": 1, "max-scan-fields": 1}


def test_locks_in_use_survive_being_moved(make_server: MakeServer) -> None:
    server, replica = make_server(name="fragmented", hz=100), make_server(name="replica")
    replica_of(replica, server)
    client, locks, dice = server.client(), Locks(server.client()), random.Random(3)
    try:
        client.config_set("activedefrag", "yes")
    except redis.ResponseError as error:
        pytest.skip(f"this server is built without active defragmentation: {error}")
    for name, value in SETTINGS.items():
        client.config_set(f"active-defrag-{name}", value)
    client.config_set("activedefrag", "no")
    _fill(client)
    kept = [f"lock:{number}" for number in range(0, KEYS, KEPT)]
    before = {key: lock_state(client, key) for key in [*dice.sample(kept, 200), "great"]}
    hits = client.info("stats")["active_defrag_hits"]
    client.config_set("activedefrag", "yes")
    waiting = server.raw()
    waiting.send("SLOCK.LOCK", "great", "next", HOUR, "WAIT", 0)
    busy = [key for key in kept if key not in before]

    def has_moved() -> bool:
        number = int(dice.choice(busy).split(":")[1])
        key, token = f"lock:{number}", f"owner-{number}"
        if number % 3:
            assert locks.extend(key, token, HOUR) == 1
            assert locks.downgrade(key, token, HOUR) and locks.upgrade(key, token, HOUR)
        else:
            assert locks.rlock(key, "passing", HOUR, meta=b"x" * dice.randrange(300))
            assert locks.runlock(key, "passing") == 1
        return client.info("stats")["active_defrag_hits"] - hits > 1000

    wait_until(has_moved, 30, "a thousand allocations to be moved")
    assert {key: lock_state(client, key) for key in before} == before
    wait_synced(server, replica)
    for key in dice.sample(kept, 200):
        assert lock_state(client, key) == lock_state(replica.client(), key)
    for reader in range(3000):
        assert locks.runlock("great", f"owner-{reader}") == 1
    assert waiting.read() > 0
    for number in range(0, KEYS, KEPT):
        tokens = [f"owner-{number}", *(f"owner-{number}-{reader}" for reader in range(number % 7 + 1))]
        released = sum(client.execute_command("SLOCK.MUNLOCK", 1, f"lock:{number}", one) for one in tokens)
        assert released == (1 if number % 3 else number % 7 + 1)
    assert client.keys() == [b"great"]
