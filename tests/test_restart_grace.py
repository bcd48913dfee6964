"""slock.restart-grace-ms: after a crash that may have lost a second, nothing new is given for a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import (
    Locks,
    ReplicationStream,
    Server,
    aof_commands,
    lock_state,
    wait_until,
    wait_until_logged,
)
from harness.many import many
from harness.waiting import HOUR, Line

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]
LONG_GRACE = HOUR


@pytest.fixture
def crash(make_server: MakeServer) -> Callable[[int], Server]:
    """A server that held locks, was killed, and has come back with so many milliseconds of grace."""

    def make(grace: int) -> Server:
        server = make_server(appendonly=True, appendfsync="everysec")
        locks = Locks(server.client())
        assert locks.lock("written", "me", HOUR, meta=b"kept")
        assert locks.rlock("read", "me", HOUR) and locks.rlock("read", "other", HOUR)
        wait_until_logged(server)
        server.restart(kill=True, slock_restart_grace_ms=grace)
        return server

    return make


def _is_grace(client: redis.Redis, *words: object) -> bool:
    try:
        client.execute_command(*words)
    except redis.ResponseError as error:
        assert str(error).startswith("GRACE "), error
        return True
    return False


NEW = [
    ("SLOCK.LOCK", "free", "me", HOUR),
    ("SLOCK.RLOCK", "free", "me", HOUR),
    ("SLOCK.RLOCK", "read", "new reader", HOUR),
    ("SLOCK.LOCK", "free", "me", HOUR, "META", "m", "EPHEMERAL"),
    many("MLOCK", "free other", "me", HOUR),
    many("MRLOCK", "free read", "new reader", HOUR),
    many("MLOCK", "written free", "me", HOUR),
]


def test_no_new_hold_is_given_in_the_grace(crash: Callable[[int], Server]) -> None:
    server = crash(LONG_GRACE)
    client = server.client()
    before = {key: lock_state(client, key) for key in ("written", "read")}
    logged = aof_commands(server)
    for words in NEW:
        assert _is_grace(client, *words), words
        assert _is_grace(server.client(), *words), words
    assert {key: lock_state(client, key) for key in before} == before
    assert client.dbsize() == 2 and aof_commands(server) == logged
    with server.raw() as raw:
        text = raw.error(*NEW[0])
        assert text.startswith("GRACE ")
        replies = raw.pipeline([("MULTI",), NEW[0], ("SLOCK.PTTL", "written", "me"), ("EXEC",)])[-1]
        assert replies[0].prefix == "GRACE" and replies[1] > 0


def test_who_holds_goes_on_in_the_grace(crash: Callable[[int], Server]) -> None:
    server = crash(LONG_GRACE)
    client = server.client()
    locks, stream = Locks(client), ReplicationStream(server)
    fence = locks.info("written").fence
    assert locks.lock("written", "me", HOUR // 2, meta=b"again") == fence, "a refresh"
    assert locks.rlock("read", "me", HOUR // 2) > 0
    assert locks.extend("written", "me", HOUR) == 1
    assert locks.pttl("written", "me") > HOUR // 2 and locks.check("written", fence) == 1
    assert client.execute_command(*many("MEXTEND", "written read", "me", HOUR)) == 1
    assert client.execute_command(*many("MLOCK", "written", "me", HOUR)) == fence
    assert locks.full("written").holders[0].meta == b"again"
    assert len(stream.commands()) == 8, "each change and the two of the set, in its MULTI"
    assert locks.runlock("read", "other") == 1
    assert client.execute_command(*many("MUNLOCK", "written read", "me")) == 2
    assert client.dbsize() == 0
    assert _is_grace(client, "SLOCK.LOCK", "written", "me", HOUR)


def _ends_soon(client: redis.Redis, in_ms: int = 300) -> None:
    """Shortens the grace, which counts from the start of the server."""
    since_ms = client.info("server")["uptime_in_seconds"] * 1000
    client.config_set("slock.restart-grace-ms", since_ms + 1000 + in_ms)


def test_after_the_grace_all_is_as_always(crash: Callable[[int], Server]) -> None:
    server = crash(LONG_GRACE)
    client = server.client()
    assert _is_grace(client, *NEW[0])
    _ends_soon(client)
    wait_until(lambda: not _is_grace(client, *NEW[0]), what="the grace to end")
    locks = Locks(client)
    assert locks.lock("written", "other", HOUR) == 0, "the old hold is still there"
    assert locks.unlock("free", "me") == 1 and locks.unlock("written", "me") == 1
    for words in NEW[3:5]:
        assert not _is_grace(client, *words)


def test_waiters_wait_and_are_granted_when_the_grace_ends(crash: Callable[[int], Server]) -> None:
    server = crash(LONG_GRACE)
    free, written = Line(server, "free"), Line(server, "written")
    waiting = [free.write("a"), free.write("b"), written.write("next")]
    assert all(waiter.is_waiting() for waiter in waiting)
    assert written.release("me") == 1
    assert waiting[2].is_waiting(), "a release in the grace gives the lock to nobody"
    assert free.client.info("slock")["slock_waiters"] == 3
    _ends_soon(free.client)
    waiting[0].fence()
    waiting[2].fence()
    assert waiting[1].is_waiting()
    free.release("a")
    waiting[1].fence()


def test_a_wait_that_ends_in_the_grace_is_a_refusal(crash: Callable[[int], Server]) -> None:
    server = crash(LONG_GRACE)
    line = Line(server, "free")
    assert line.write("a", wait=30).reply() == 0
    assert line.info() is None


def test_a_start_without_a_crash_has_its_grace_too(make_server: MakeServer) -> None:
    server = make_server(slock_restart_grace_ms=LONG_GRACE)
    assert _is_grace(server.client(), *NEW[0])


def test_without_the_setting_there_is_no_grace(crash: Callable[[int], Server]) -> None:
    server = crash(0)
    assert not _is_grace(server.client(), *NEW[0])
    assert Locks(server.client()).lock("written", "other", HOUR) == 0
