"""A lock is a key like any other: what the core's own commands do with it."""

from __future__ import annotations

import pytest
import redis

from conftest import Pair
from harness import Locks, RawConnection, Server, digest, lock_state, wait_past, wait_synced, wait_until

TYPE = b"SLOCK-RWL"
SHORT = 60
LONG = 60_000


@pytest.fixture
def held(locks: Locks) -> int:
    """The fence of "a" on the write lock "k"."""
    return locks.lock("k", "a", LONG, meta="m")


# --- what it is


def test_type_and_encoding(client: redis.Redis, held: int) -> None:
    assert client.type("k") == TYPE
    assert client.object("ENCODING", "k")
    assert client.object("REFCOUNT", "k") == 1


def test_scan_finds_locks_by_type(client: redis.Redis, locks: Locks) -> None:
    client.mset({f"string{n}": n for n in range(30)})
    for number in range(30):
        (locks.lock if number % 2 else locks.rlock)(f"lock{number}", "a", LONG)
    found = set(client.scan_iter(_type=TYPE.decode()))
    assert found == {f"lock{number}".encode() for number in range(30)}


def test_memory_usage_grows_with_what_is_held(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", "t0", LONG)
    one = client.memory_usage("k")
    for number in range(1, 100):
        locks.rlock("k", f"t{number}", LONG)
    many = client.memory_usage("k", samples=0)
    locks.rlock("k", "t0", LONG, meta="m" * 1024)
    assert 0 < one < many
    assert many >= one + 99 * 20
    assert client.memory_usage("k", samples=0) >= many + 1024


@pytest.mark.parametrize("change", ["EXTEND", "META", "a reader more", "a reader less"])
def test_the_digest_covers_every_part_of_a_hold(client: redis.Redis, locks: Locks, change: str) -> None:
    locks.rlock("k", "a", LONG, meta="m")
    locks.rlock("k", "b", LONG)
    before = digest(client, "k")
    assert digest(client, "k") == before
    match change:
        case "EXTEND":
            locks.extend("k", "a", LONG - 1000)
        case "META":
            locks.rlock("k", "b", LONG, meta="m")
        case "a reader more":
            locks.rlock("k", "c", LONG)
        case "a reader less":
            locks.runlock("k", "b")
    assert digest(client, "k") != before


def test_core_commands_of_other_types_are_refused(raw: RawConnection, held: int) -> None:
    for command in (("GET", "k"), ("LPUSH", "k", "x"), ("HGETALL", "k"), ("INCR", "k")):
        assert raw.error(*command).startswith("WRONGTYPE")
    assert raw.ok("SLOCK.CHECK", "k", held) == 1


# --- taking it away


@pytest.mark.parametrize("command", ["DEL", "UNLINK"])
def test_a_deleted_lock_is_free(client: redis.Redis, locks: Locks, held: int, command: str) -> None:
    assert client.execute_command(command, "k") == 1
    assert locks.unlock("k", "a") == 0
    assert locks.check("k", held) == 0
    assert locks.lock("k", "b", LONG) > held


@pytest.mark.parametrize("how", ["SYNC", "ASYNC"])
def test_flushall_frees_every_lock(client: redis.Redis, locks: Locks, how: str) -> None:
    fences = [locks.rlock("k", f"t{number}", LONG) for number in range(200)]
    client.execute_command("FLUSHALL", how)
    assert locks.info("k") is None
    assert locks.lock("k", "b", LONG) > max(fences)


def test_a_lock_with_thousands_of_readers_is_freed_in_the_background(
    client: redis.Redis, locks: Locks
) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(3000):
        pipe.execute_command("SLOCK.RLOCK", "k", f"t{number}", LONG)
    last = max(pipe.execute())
    freed = client.info("memory")["lazyfreed_objects"]
    client.unlink("k")
    wait_until(lambda: client.info("memory")["lazyfreed_objects"] > freed, what="the lock to be freed")
    assert locks.lock("k", "w", LONG) > last


def test_a_lock_that_was_overwritten_is_lost(client: redis.Redis, raw: RawConnection, held: int) -> None:
    client.set("k", "value")
    assert raw.error("SLOCK.UNLOCK", "k", "a").startswith("WRONGTYPE")
    client.delete("k")
    assert raw.ok("SLOCK.LOCK", "k", "b", LONG) > held


def test_a_shorter_expire_frees_the_lock_early(client: redis.Redis, locks: Locks, held: int) -> None:
    client.pexpire("k", SHORT)
    wait_until(lambda: locks.pttl("k", "a") == -2, what="the key to expire")
    assert locks.lock("k", "b", LONG) > held


def test_persist_and_a_longer_expire_do_not_lengthen_a_hold(client: redis.Redis, locks: Locks) -> None:
    for key in ("persisted", "longer"):
        locks.lock(key, "a", SHORT * 3)
    end = client.pexpiretime("longer")
    client.persist("persisted")
    client.pexpire("longer", 10 * LONG)
    wait_past(client, end)
    for key in ("persisted", "longer"):
        assert locks.pttl(key, "a") == -2
        assert locks.info(key) is None
        assert locks.unlock(key, "a") == 0
        fence = locks.lock(key, "b", LONG)
        assert fence
        assert 0 < client.pttl(key) <= LONG, "the key's expiry is that of the new hold"
        assert [h.token for h in locks.full(key).holders] == [b"b"]


def test_extend_mends_the_expiry_that_a_user_took_away(client: redis.Redis, locks: Locks, held: int) -> None:
    client.persist("k")
    locks.extend("k", "a", LONG)
    assert 0 < client.pttl("k") <= LONG


# --- moving it about


def test_copy_makes_a_second_lock_with_the_same_holders(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", b"\x00", LONG, meta="m")
    locks.rlock("k", "b", 2 * LONG)
    before = lock_state(client, "k")
    assert client.copy("k", "copy") is True
    assert lock_state(client, "copy") == lock_state(client, "k") == before
    assert locks.runlock("copy", b"\x00") == 1
    assert lock_state(client, "k") == before
    assert client.copy("k", "copy") is False
    assert client.copy("k", "copy", replace=True) is True
    assert lock_state(client, "copy") == before


def test_copy_and_move_to_another_database(server: Server, client: redis.Redis, held: int) -> None:
    there = server.client(db=5)
    before = lock_state(client, "k")
    assert server.client().copy("k", "copy", destination_db=5) is True
    assert server.client().move("k", 5) is True
    assert client.exists("k") == 0
    assert lock_state(there, "k") == lock_state(there, "copy") == before
    assert Locks(there).unlock("k", "a") == Locks(there).unlock("copy", "a") == 1


@pytest.mark.parametrize("command", [("COPY", "x", "y", "DB", 5), ("MOVE", "x", 5)])
@pytest.mark.parametrize("kind", ["lock", "string"])
def test_a_client_stays_in_its_database(raw: RawConnection, command: tuple[object, ...], kind: str) -> None:
    """Some servers leave a client in the other database when a module listens to generic events there."""
    raw.ok("SELECT", 3)
    raw.ok(*(("SLOCK.LOCK", "x", "a", LONG) if kind == "lock" else ("SET", "x", "value")))
    assert raw.ok(*command) == 1
    assert b" db=3 " in raw.ok("CLIENT", "INFO")


def test_the_owner_releases_a_renamed_lock_by_its_new_name(
    client: redis.Redis, locks: Locks, held: int
) -> None:
    before = lock_state(client, "k")
    locks.lock("target", "somebody", LONG)
    client.rename("k", "target")
    assert locks.info("k") is None
    assert lock_state(client, "target") == before
    assert locks.unlock("target", "a") == 1
    assert locks.lock("k", "b", LONG) > held


def test_swapdb_swaps_locks(server: Server, client: redis.Redis, locks: Locks, held: int) -> None:
    client.swapdb(0, 6)
    assert locks.info("k") is None
    assert Locks(server.client(db=6)).check("k", held) == 1
    assert locks.lock("k", "b", LONG) > held


def test_databases_do_not_share_locks(server: Server, locks: Locks, held: int) -> None:
    there = Locks(server.client(db=7))
    fence = there.lock("k", "b", LONG)
    assert fence > held
    assert there.unlock("k", "a") == 0
    assert (locks.check("k", held), there.check("k", fence)) == (1, 1)


def test_dump_and_restore_keep_the_lock(client: redis.Redis, locks: Locks) -> None:
    locks.rlock("k", b"\xff" * 255, LONG, meta=b"\x00")
    locks.rlock("k", "b", 2 * LONG)
    before = lock_state(client, "k")
    payload = client.dump("k")
    client.restore("other", before.latest_deadline_ms, payload, absttl=True)
    assert lock_state(client, "other") == before
    locks.runlock("k", "b")
    client.restore("k", before.latest_deadline_ms, payload, absttl=True, replace=True)
    assert lock_state(client, "k") == before
    assert locks.runlock("k", "b") == 1


def test_a_lock_restored_without_an_expiry_gets_its_own(primary_and_replica: Pair) -> None:
    """`RESTORE key 0 payload`, the usual form: the key expires at the last deadline, at replicas too."""
    primary, replica = primary_and_replica
    client = primary.client()
    locks = Locks(client)
    locks.rlock("k", "a", LONG)
    locks.rlock("k", "b", 2 * LONG)
    before = lock_state(client, "k")
    payload = client.dump("k")
    locks.lock("dead", "a", SHORT)
    dead, end = client.dump("dead"), client.pexpiretime("dead")
    client.restore("other", 0, payload)
    assert lock_state(client, "other") == before
    wait_past(client, end)
    client.restore("dead", 0, dead, replace=True)
    wait_until(lambda: not client.exists("dead"), what="the key to be collected")
    wait_synced(primary, replica)
    assert lock_state(replica.client(), "other") == before == lock_state(replica.client(), "k")
    assert replica.client().dbsize() == client.dbsize() == 2


def test_a_payload_restored_after_its_deadline_revives_nothing(client: redis.Redis, locks: Locks) -> None:
    fence = locks.lock("k", "a", SHORT * 3)
    payload, end = client.dump("k"), client.pexpiretime("k")
    wait_past(client, end)
    client.restore("k", 0, payload, replace=True)
    client.restore("longer", LONG, payload, replace=True)
    for key in ("k", "longer"):
        assert locks.info(key) is None
        assert locks.check(key, fence) == 0
        assert locks.extend(key, "a", LONG) == 0
        assert locks.lock(key, "b", LONG) > fence


# --- what the server knows about the commands


def test_commands_tell_where_their_key_is(raw: RawConnection) -> None:
    calls = {
        "LOCK": ("a", LONG, "META", "m"),
        "RLOCK": ("a", LONG),
        "UNLOCK": ("a",),
        "RUNLOCK": ("a",),
        "EXTEND": ("a", LONG),
        "PTTL": ("a",),
        "CHECK": (1,),
        "INFO": ("FULL",),
        "UPGRADE": ("a", LONG),
        "DOWNGRADE": ("a", LONG),
    }
    for name, args in calls.items():
        assert raw.ok("COMMAND", "GETKEYS", f"SLOCK.{name}", "k", *args) == [b"k"], name


def test_an_acl_user_reaches_only_the_locks_of_its_pattern(server: Server, raw: RawConnection) -> None:
    raw.ok("ACL", "SETUSER", "worker", "on", "nopass", "resetkeys", "~lock:*", "+@all")
    try:
        worker = server.raw()
        worker.ok("AUTH", "worker", "any")
        assert worker.ok("SLOCK.LOCK", "lock:1", "a", LONG)
        for command in (("SLOCK.LOCK", "k", "a", LONG), ("SLOCK.INFO", "k"), ("SLOCK.UNLOCK", "k", "a")):
            assert worker.error(*command).startswith("NOPERM")
        worker.close()
    finally:
        raw.ok("ACL", "DELUSER", "worker")


def test_without_memory_a_lock_is_refused_and_a_release_is_not(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "w", "a", LONG)
    raw.ok("SLOCK.RLOCK", "r", "a", LONG)
    raw.ok("CONFIG", "SET", "maxmemory", "1")
    try:
        assert raw.error("SLOCK.LOCK", "k", "a", LONG).startswith("OOM")
        assert raw.error("SLOCK.RLOCK", "r", "b", LONG).startswith("OOM")
        assert raw.ok("SLOCK.EXTEND", "w", "a", LONG) == 1
        assert raw.ok("SLOCK.INFO", "w", "FULL")
        assert raw.ok("SLOCK.UNLOCK", "w", "a") == 1
        assert raw.ok("SLOCK.RUNLOCK", "r", "a") == 1
    finally:
        raw.ok("CONFIG", "SET", "maxmemory", "0")
