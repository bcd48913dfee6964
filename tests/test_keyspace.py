"""A lock is a key like any other: what the core's own commands do with it."""

from __future__ import annotations

import pytest
import redis

from conftest import Pair
from harness import Locks, RawConnection, Server, lock_state, wait_past, wait_synced, wait_until

TYPE = b"SLOCK-RWL"
SHORT = 60
LONG = 60_000


@pytest.fixture
def held(locks: Locks) -> int:
    """The fence of "a" on the write lock "k"."""
    return locks.lock("k", "a", LONG, meta="m")


# --- what it is


def test_a_lock_has_a_type_that_scan_finds(client: redis.Redis, locks: Locks) -> None:
    client.mset({f"string{n}": n for n in range(30)})
    for number in range(30):
        (locks.lock if number % 2 else locks.rlock)(f"lock{number}", "a", LONG)
    assert set(client.scan_iter(_type=TYPE.decode())) == {f"lock{number}".encode() for number in range(30)}
    assert client.type("lock0") == TYPE
    assert client.object("ENCODING", "lock0") and client.object("REFCOUNT", "lock0") == 1


# --- taking it away


@pytest.mark.parametrize("command", ["DEL k", "UNLINK k", "FLUSHALL SYNC", "FLUSHALL ASYNC", "SET k text"])
def test_a_lock_that_was_taken_away_is_free(
    client: redis.Redis, locks: Locks, raw: RawConnection, held: int, command: str
) -> None:
    client.execute_command(*command.split())
    if command.startswith("SET"):
        assert raw.error("SLOCK.UNLOCK", "k", "a").startswith("WRONGTYPE")
        client.delete("k")
    assert locks.info("k") is None
    assert locks.unlock("k", "a") == locks.check("k", held) == 0
    assert locks.lock("k", "b", LONG) > held


def test_persist_and_a_longer_expire_do_not_lengthen_a_hold(client: redis.Redis, locks: Locks) -> None:
    for key in ("persisted", "longer"):
        locks.lock(key, "a", SHORT * 3)
    locks.lock("mended", "a", LONG)
    end = client.pexpiretime("longer")
    client.persist("persisted"), client.persist("mended")
    client.pexpire("longer", 10 * LONG)
    wait_past(client, end)
    for key in ("persisted", "longer"):
        assert locks.pttl(key, "a") == -2 and locks.info(key) is None and locks.unlock(key, "a") == 0
        assert locks.lock(key, "b", LONG)
        assert 0 < client.pttl(key) <= LONG, "the key's expiry is that of the new hold"
        assert [h.token for h in locks.full(key).holders] == [b"b"]
    assert locks.extend("mended", "a", LONG) == 1 and 0 < client.pttl("mended") <= LONG


# --- moving it about

# The database and the key at which the lock is found afterwards.
MOVES = {
    "COPY k new": (0, "new"),
    "COPY k taken REPLACE": (0, "taken"),
    "COPY k new DB 5": (5, "new"),
    "MOVE k 5": (5, "k"),
    "RENAME k taken": (0, "taken"),
    "SWAPDB 0 5": (5, "k"),
}


@pytest.mark.parametrize("command", MOVES)
def test_a_lock_is_the_same_wherever_its_key_goes(server: Server, client: redis.Redis, command: str) -> None:
    locks = Locks(client)
    fences = [locks.rlock("k", b"\x00", LONG, meta="m"), locks.rlock("k", "b", 2 * LONG)]
    locks.lock("taken", "somebody", LONG)
    before = lock_state(client, "k")
    assert client.execute_command(*command.split())
    database, key = MOVES[command]
    there = server.client(db=database)
    assert not database or lock_state(client, key) != before, "databases do not share locks"
    assert lock_state(there, key) == before
    assert Locks(there).runlock(key, b"\x00") == Locks(there).runlock(key, "b") == 1
    if command.startswith("COPY"):
        assert lock_state(client, "k") == before, "each of the two is a lock of its own"
    else:
        assert locks.info("k") is None and locks.lock("k", "b", LONG) > max(fences)


def test_a_lock_that_comes_without_an_expiry_gets_its_own(primary_and_replica: Pair) -> None:
    """By `RESTORE key 0 payload`, or as a copy: the key expires at the last deadline, at replicas too."""
    primary, replica = primary_and_replica
    client = primary.client()
    locks = Locks(client)
    locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", 2 * LONG)
    before = lock_state(client, "k")
    payload = client.dump("k")
    fence = locks.lock("dead", "a", SHORT * 3)
    dead, end = client.dump("dead"), client.pexpiretime("dead")
    client.restore("other", 0, payload)
    assert lock_state(client, "other") == before
    client.persist("other")
    client.copy("other", "copy")
    assert lock_state(client, "copy") == before
    wait_past(client, end)
    client.restore("dead", 0, dead, replace=True)
    wait_until(lambda: not client.exists("dead"), what="the key to be collected")
    wait_synced(primary, replica)
    assert lock_state(replica.client(), "copy") == before == lock_state(replica.client(), "k")
    assert replica.client().dbsize() == client.dbsize() == 3
    client.restore("dead", 0, dead)
    client.restore("longer", LONG, dead)
    for key in ("dead", "longer"):
        assert locks.info(key) is None, "a payload restored after its deadline revives nothing"
        assert locks.check(key, fence) == locks.extend(key, "a", LONG) == 0
        assert locks.lock(key, "b", LONG) > fence


def test_the_module_cannot_be_unloaded_from_under_its_locks(raw: RawConnection, held: int) -> None:
    assert raw.error("MODULE", "UNLOAD", "slock").startswith("ERR ")
    assert raw.ok("SLOCK.CHECK", "k", held) == 1
