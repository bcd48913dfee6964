"""Locks inside MULTI, WATCH, Lua and functions."""

from __future__ import annotations

import pytest
import redis

from harness import Locks, ReplicationStream, RespError, Server, lock_state, wait_past

SHORT = 60
LONG = 60_000


def test_multi_takes_and_releases(client: redis.Redis, locks: Locks) -> None:
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SLOCK.LOCK", "w", "a", LONG)
    pipe.execute_command("SLOCK.LOCK", "w", "b", LONG)
    pipe.execute_command("SLOCK.RLOCK", "r", "a", LONG)
    pipe.execute_command("SLOCK.RLOCK", "r", "b", LONG)
    pipe.execute_command("SLOCK.UNLOCK", "w", "a")
    pipe.execute_command("SLOCK.LOCK", "w", "b", LONG)
    pipe.execute_command("SLOCK.INFO", "r")
    first, refused, reader, second_reader, released, second, _ = pipe.execute()
    assert (refused, released) == (0, 1)
    assert 0 < first < reader < second_reader < second
    assert locks.check("w", second) == 1
    assert locks.info("r").readers == 2


def test_an_error_in_multi_leaves_the_other_commands_their_effect(server: Server) -> None:
    raw = server.raw()
    for command in (("MULTI",), ("SLOCK.LOCK", "k", "a", LONG), ("SLOCK.RLOCK", "k", "a", LONG)):
        raw.ok(*command)
    granted, refused = raw.ok("EXEC")
    assert granted > 0
    assert isinstance(refused, RespError) and refused.prefix == "WRONGMODE"


def test_a_discarded_transaction_takes_nothing(server: Server, locks: Locks) -> None:
    raw = server.raw()
    raw.ok("MULTI")
    raw.ok("SLOCK.LOCK", "k", "a", LONG)
    raw.ok("DISCARD")
    assert locks.info("k") is None


# --- WATCH

UNCHANGED = {
    "a refused LOCK": (("SLOCK.LOCK", "k", "b", LONG),),
    "a refused RLOCK": (("SLOCK.RLOCK", "k", "b", LONG),),
    "a refused UNLOCK": (("SLOCK.UNLOCK", "k", "b"),),
    "a refused EXTEND": (("SLOCK.EXTEND", "k", "b", LONG),),
    "a LOCK with a bad ttl": (("SLOCK.LOCK", "k", "a", 0),),
    "the wrong mode": (("SLOCK.RLOCK", "k", "a", LONG),),
    "looking": (("SLOCK.INFO", "k", "FULL"), ("SLOCK.PTTL", "k", "a"), ("SLOCK.CHECK", "k", 1)),
    "a LOCK of another key": (("SLOCK.LOCK", "other", "b", LONG),),
}
CHANGED = {
    "a release": ("SLOCK.UNLOCK", "k", "a"),
    "an EXTEND": ("SLOCK.EXTEND", "k", "a", LONG * 2),
    "a refresh": ("SLOCK.LOCK", "k", "a", LONG * 2),
    "a DOWNGRADE": ("SLOCK.DOWNGRADE", "k", "a", LONG),
}


def transaction_goes_through(server: Server, watched: str, *commands: tuple[object, ...]) -> bool:
    """Whether a MULTI passes that watches `watched` while another connection runs `commands`."""
    watcher, other = server.raw(), server.raw()
    watcher.ok("WATCH", watched)
    for command in commands:
        other.call(*command)
    watcher.ok("MULTI")
    watcher.ok("PING")
    result = watcher.ok("EXEC")
    watcher.close(), other.close()
    return result is not None


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_changes_nothing_does_not_break_a_watch(server: Server, locks: Locks, name: str) -> None:
    locks.lock("k", "a", LONG)
    assert transaction_goes_through(server, "k", *UNCHANGED[name])


@pytest.mark.parametrize("name", CHANGED)
def test_what_changes_the_lock_breaks_a_watch(server: Server, locks: Locks, name: str) -> None:
    locks.lock("k", "a", LONG)
    assert not transaction_goes_through(server, "k", CHANGED[name])


@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_a_grant_breaks_a_watch_on_a_free_lock(server: Server, command: str) -> None:
    assert not transaction_goes_through(server, "k", (command, "k", "a", LONG))


@pytest.mark.parametrize("name", ["SLOCK.UNLOCK", "SLOCK.RUNLOCK", "SLOCK.EXTEND"])
def test_a_refusal_does_not_break_a_watch_on_a_free_lock(server: Server, name: str) -> None:
    command = (name, "k", "a", *([LONG] if name == "SLOCK.EXTEND" else []))
    assert transaction_goes_through(server, "k", command)


# --- scripts


def test_lua_takes_and_releases(client: redis.Redis, locks: Locks) -> None:
    script = """
        local fence = redis.call('SLOCK.LOCK', KEYS[1], ARGV[1], ARGV[2])
        local again = redis.call('SLOCK.LOCK', KEYS[1], 'other', ARGV[2])
        return {fence, again, redis.call('SLOCK.PTTL', KEYS[1], ARGV[1])}
    """
    fence, again, left = client.eval(script, 1, "k", "a", LONG)
    assert again == 0 and 0 < left <= LONG
    assert locks.check("k", fence) == 1, "the fence came through Lua's numbers whole"
    assert client.eval("return redis.call('SLOCK.UNLOCK', KEYS[1], 'a')", 1, "k") == 1
    assert locks.info("k") is None


def test_lua_sees_errors_with_their_prefix(client: redis.Redis, locks: Locks) -> None:
    locks.lock("k", "a", LONG)
    script = "local r = redis.pcall('SLOCK.RLOCK', KEYS[1], 'a', 1000) return r.err"
    assert client.eval(script, 1, "k").startswith(b"WRONGMODE ")


def test_a_script_that_may_not_write_may_look(server: Server) -> None:
    raw = server.raw()
    assert raw.ok("SLOCK.LOCK", "k", "a", LONG)
    look = "#!lua flags=no-writes\nreturn redis.call('SLOCK.PTTL', KEYS[1], 'a')"
    take = "#!lua flags=no-writes\nreturn redis.call('SLOCK.LOCK', KEYS[1], 'a', 1000)"
    assert raw.ok("EVAL", look, 1, "k") > 0
    assert "Write commands are not allowed" in raw.error("EVAL", take, 1, "k")


def test_a_function_takes_a_lock(client: redis.Redis, locks: Locks) -> None:
    library = (
        "#!lua name=locklib\n"
        "redis.register_function('take', function(keys, args)\n"
        "  return redis.call('SLOCK.LOCK', keys[1], args[1], args[2])\n"
        "end)"
    )
    client.function_load(library, replace=True)
    try:
        fence = client.fcall("take", 1, "k", "a", LONG)
        assert locks.check("k", fence) == 1
        assert client.fcall("take", 1, "k", "b", LONG) == 0
    finally:
        client.function_delete("locklib")


def test_a_transaction_and_a_script_are_replicated_as_one_unit(server: Server, client: redis.Redis) -> None:
    stream = ReplicationStream(server)
    pipe = client.pipeline(transaction=True)
    pipe.execute_command("SLOCK.LOCK", "a", "t", LONG)
    pipe.execute_command("SLOCK.RLOCK", "b", "t", LONG)
    pipe.set("c", "with them")
    pipe.execute()
    (unit,) = stream.units()
    assert [command[0] for command in unit].count(b"SLOCK.APPLY") == 2
    assert not [command for command in unit if command[0].upper() in (b"SLOCK.LOCK", b"SLOCK.RLOCK")]
    client.eval(
        "redis.call('SLOCK.UNLOCK', KEYS[1], 't') redis.call('SLOCK.RUNLOCK', KEYS[2], 't')", 2, "a", "b"
    )
    assert len(stream.units()) == 1
    stream.close()


def test_a_deadline_that_passes_inside_a_script_does_not_split_it(client: redis.Redis, locks: Locks) -> None:
    """Whatever clock a script sees, a hold that is there is there whole: granted, or refused and held."""
    locks.lock("k", "a", SHORT)
    script = """
        local got = redis.call('SLOCK.LOCK', KEYS[1], 'b', 60000)
        local left = redis.call('SLOCK.PTTL', KEYS[1], 'b')
        return {got, left}
    """
    end = client.pexpiretime("k")
    while True:
        got, left = client.eval(script, 1, "k")
        assert (got > 0) == (left > 0)
        if got:
            break
    wait_past(client, end)
    assert lock_state(client, "k").holders[0][0] == b"b"
