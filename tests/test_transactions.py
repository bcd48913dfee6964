"""Locks inside MULTI, WATCH, Lua and functions."""

from __future__ import annotations

import pytest
import redis

from conftest import Pair
from harness import Locks, RawConnection, ReplicationStream, RespError, Server, wait_synced

LONG = 60_000


def test_multi_takes_and_releases_and_goes_on_after_an_error(raw: RawConnection, locks: Locks) -> None:
    commands = [
        ("SLOCK.LOCK", "w", "a", LONG),
        ("SLOCK.LOCK", "w", "b", LONG),
        ("SLOCK.RLOCK", "w", "a", LONG),
        ("SLOCK.RLOCK", "r", "a", LONG),
        ("SLOCK.UNLOCK", "w", "a"),
        ("SLOCK.LOCK", "w", "b", LONG),
    ]
    first, refused, error, reader, released, second = raw.pipeline([("MULTI",), *commands, ("EXEC",)])[-1]
    assert (refused, released) == (0, 1) and 0 < first < reader < second
    assert isinstance(error, RespError) and error.prefix == "WRONGMODE"
    assert locks.check("w", second) == 1 == locks.info("r").readers
    raw.pipeline([("MULTI",), ("SLOCK.LOCK", "k", "a", LONG), ("DISCARD",)])
    assert locks.info("k") is None


# --- WATCH

# Of the writer "a" of k. What is refused, an error, a look, or of another key changes nothing.
UNCHANGED = ["LOCK k b 9", "UNLOCK k b", "LOCK k a 0", "RLOCK k a 9999", "INFO k FULL", "LOCK other b 9999"]
UNCHANGED += ["LOCK k a 9999", "EXTEND k a 9999 GT", "LOCK free a 9999 XX"]
CHANGED = ["UNLOCK k a", "EXTEND k a 9999", "LOCK k a 9999999", "DOWNGRADE k a 9999", "RLOCK free a 9999"]


@pytest.mark.parametrize("command", [*UNCHANGED, *CHANGED])
def test_what_changes_the_lock_breaks_a_watch_and_nothing_else(
    server: Server, locks: Locks, raw: RawConnection, command: str
) -> None:
    locks.lock("k", "a", LONG)
    raw.ok("WATCH", "k", "free")
    server.raw().call(*f"SLOCK.{command}".split())
    goes_through = raw.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] is not None
    assert goes_through == (command in UNCHANGED)


def test_a_change_at_the_primary_breaks_a_watch_at_the_replica(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    locks, watcher = Locks(primary.client()), replica.raw()
    for change in (locks.lock, locks.extend):
        watcher.ok("WATCH", "k")
        assert change("k", "a", LONG)
        wait_synced(primary, replica)
        assert watcher.pipeline([("MULTI",), ("PING",), ("EXEC",)])[-1] is None


# --- scripts


def test_lua_takes_and_releases(client: redis.Redis, locks: Locks) -> None:
    script = """
        local fence = redis.call('SLOCK.LOCK', KEYS[1], ARGV[1], ARGV[2])
        local again = redis.call('SLOCK.LOCK', KEYS[1], 'other', ARGV[2])
        local wrong = redis.pcall('SLOCK.RLOCK', KEYS[1], ARGV[1], ARGV[2]).err
        return {fence, again, redis.call('SLOCK.PTTL', KEYS[1], ARGV[1]), wrong}
    """
    fence, again, left, wrong = client.eval(script, 1, "k", "a", LONG)
    assert again == 0 and 0 < left <= LONG and wrong.startswith(b"WRONGMODE ")
    assert locks.check("k", fence) == 1, "the fence came through Lua's numbers whole"
    assert client.eval("return redis.call('SLOCK.UNLOCK', KEYS[1], 'a')", 1, "k") == 1
    assert locks.info("k") is None


def test_a_script_that_may_not_write_may_look(raw: RawConnection) -> None:
    assert raw.ok("SLOCK.LOCK", "k", "a", LONG)
    look = "#!lua flags=no-writes\nreturn redis.call('SLOCK.PTTL', KEYS[1], 'a')"
    take = "#!lua flags=no-writes\nreturn redis.call('SLOCK.LOCK', KEYS[1], 'a', 1000)"
    assert raw.ok("EVAL", look, 1, "k") > 0
    assert "Write commands are not allowed" in raw.error("EVAL", take, 1, "k")


def test_a_transaction_and_a_script_are_replicated_as_one_unit(server: Server, raw: RawConnection) -> None:
    stream = ReplicationStream(server)
    commands = [("SLOCK.LOCK", "a", "t", LONG), ("SLOCK.RLOCK", "b", "t", LONG), ("SET", "c", "with them")]
    raw.pipeline([("MULTI",), *commands, ("EXEC",)])
    (unit,) = stream.units()
    assert [command[0] for command in unit].count(b"SLOCK.APPLY") == 2
    assert not [command for command in unit if command[0].upper() in (b"SLOCK.LOCK", b"SLOCK.RLOCK")]
    script = "redis.call('SLOCK.UNLOCK', KEYS[1], 't') redis.call('SLOCK.RUNLOCK', KEYS[2], 't')"
    raw.ok("EVAL", script, 2, "a", "b")
    assert len(stream.units()) == 1
