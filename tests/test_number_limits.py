"""Numbers that no stored lock can carry are not given, and those that no clock gives are refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

import pytest
import redis

from harness import (
    Clock,
    Locks,
    LockState,
    ReplicationStream,
    Server,
    lock_state,
    now_ms,
    promote,
    replica_of,
    rewrite_aof,
    wait_synced,
    wait_until,
)
from harness.many import many
from harness.payloads import plain_dump, with_number
from harness.waiting import HOUR, Line, WaitingClient

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]
MakeClock = Callable[..., Clock]

# Fences are microseconds by the clock, and stay below this.
LIMIT = 2**53
LIMIT_SECONDS = LIMIT // 1_000_000
YEAR_2306 = int(datetime(2306, 1, 1, tzinfo=timezone.utc).timestamp())
YEAR_MS = 365 * 24 * HOUR


def _set(clock: Clock, unix_seconds: int) -> None:
    """From now on the clock shows this time."""
    clock.step(unix_seconds - int(time.time()))


def _pass_limit(server: Server, clock: Clock) -> None:
    _set(clock, LIMIT_SECONDS + 60)
    client = server.client()
    wait_until(lambda: client.time()[0] > LIMIT_SECONDS, what="the server to see the step")


@pytest.fixture
def clock(make_clock: MakeClock) -> Clock:
    """An hour before the limit."""
    clock = make_clock()
    _set(clock, LIMIT_SECONDS - 3600)
    return clock


# --- fences

OF_NOTHING = [
    ("SLOCK.LOCK", "free", "me", HOUR),
    ("SLOCK.RLOCK", "free", "me", HOUR),
    ("SLOCK.LOCK", "free", "me", HOUR, "WAIT", 0),
    ("SLOCK.LOCK", "free", "me", HOUR, "EPHEMERAL"),
    ("SLOCK.RLOCK", "read", "me", HOUR),
    many("MLOCK", "free other", "me", HOUR),
    many("MLOCK", "written free", "writer", HOUR),
    many("MRLOCK", "free read", "me", HOUR, "WAIT", 0),
]
OF_HOLDERS = [
    ("SLOCK.UPGRADE", "read", "reader", HOUR),
    ("SLOCK.DOWNGRADE", "written", "writer", HOUR),
]

PERSISTENCE = {
    "RDB": {},
    "AOF with preamble": {"appendonly": True},
    "AOF without preamble": {"appendonly": True, "aof_use_rdb_preamble": False},
}
each_persistence = pytest.mark.parametrize("settings", PERSISTENCE.values(), ids=PERSISTENCE)


def _states(client: redis.Redis) -> dict[bytes, LockState | None]:
    return {key: lock_state(client, key) for key in (b"written", b"read")}


def _assert_new_holds_are_refused(server: Server) -> None:
    client = server.client()
    before, size, stream = _states(client), client.dbsize(), ReplicationStream(server)
    with server.raw() as raw:
        for words in OF_NOTHING + (OF_HOLDERS if before[b"read"] else []):
            assert raw.error(*words).startswith("ERR "), words
        replies = raw.pipeline([("MULTI",), OF_NOTHING[0], ("EXEC",)])[-1]
        assert replies[0].prefix == "ERR"
    assert stream.commands() == []
    assert _states(client) == before and client.dbsize() == size
    stream.close()


@each_persistence
def test_no_fence_is_given_that_could_not_be_read_again(
    make_server: MakeServer, clock: Clock, settings: dict[str, object]
) -> None:
    server = make_server(environment=clock.environment, **settings)
    client = server.client()
    locks = Locks(client)
    fence = locks.lock("written", "writer", 12 * HOUR, meta=b"m")
    assert 0 < fence < LIMIT and locks.rlock("read", "reader", 12 * HOUR)
    _pass_limit(server, clock)
    _assert_new_holds_are_refused(server)

    assert locks.extend("written", "writer", 24 * HOUR) == 1, "who holds goes on"
    assert locks.lock("written", "writer", 23 * HOUR) == fence
    assert client.restore("copy", 0, client.dump("written"))
    assert locks.check("copy", fence) == 1 and locks.unlock("copy", "writer") == 1
    before = _states(client)
    if settings:
        rewrite_aof(server)
    server.restart(save=not settings)
    assert _states(server.client()) == before
    _assert_new_holds_are_refused(server)
    server.client().execute_command("DEBUG", "RELOAD")
    assert _states(server.client()) == before
    locks = Locks(server.client())
    assert locks.unlock("written", "writer") == 1 and locks.runlock("read", "reader") == 1


@each_persistence
def test_a_server_lives_in_the_year_2306_without_new_holds(
    make_server: MakeServer, clock: Clock, settings: dict[str, object]
) -> None:
    server = make_server(environment=clock.environment, **settings)
    server.client().set("text", "kept")
    _set(clock, YEAR_2306)
    if settings:
        rewrite_aof(server)
    server.restart(save=not settings)
    client = server.client()
    assert client.time()[0] >= YEAR_2306
    _assert_new_holds_are_refused(server)
    assert client.keys() == [b"text"]
    server.restart(save=not settings)
    assert server.client().get("text") == b"kept"


@each_persistence
def test_a_fence_just_below_the_limit_is_read_again(
    make_server: MakeServer, clock: Clock, settings: dict[str, object]
) -> None:
    server = make_server(environment=clock.environment, **settings)
    client = server.client()
    fences = [Locks(client).lock("written", "writer", HOUR), Locks(client).rlock("read", "reader", HOUR)]
    assert LIMIT - 2 * 3_600_000_000 < fences[0] < fences[1] < LIMIT
    client.restore("copy", 0, client.dump("written"))
    assert Locks(client).check("copy", fences[0]) == 1
    before = _states(client)
    server.restart(save=not settings)
    assert _states(server.client()) == before
    assert Locks(server.client()).lock("next", "me", HOUR) > fences[1]


def _waiters(line: Line, name: str) -> list[WaitingClient]:
    """Two requests for what the holder has, or an upgrade that waits for it."""
    if name == "UPGRADE":
        line.locks.rlock("k", "holder", 12 * HOUR)
        line.locks.rlock("k", "first", 12 * HOUR)
        return [line.upgrade("first"), line.write("second")]
    line.locks.lock("k", "holder", 12 * HOUR)
    waiting = [WaitingClient(line.server, token) for token in ("first", "second")]
    for waiter in waiting:
        words = many(name, ["also", "k"], waiter.token, HOUR) if name[0] == "M" else None
        waiter.ask(*(words or (f"SLOCK.{name}", "k", waiter.token, HOUR)), "WAIT", 0)
        line.wait_until_waiting(waiter)
    return waiting


@pytest.mark.parametrize("cause", ["release", "DEL"])
@pytest.mark.parametrize("name", ["LOCK", "RLOCK", "MLOCK", "MRLOCK", "UPGRADE"])
def test_who_waits_is_told_an_error(make_server: MakeServer, clock: Clock, name: str, cause: str) -> None:
    server = make_server(environment=clock.environment)
    line = Line(server)
    waiting = _waiters(line, name)
    _pass_limit(server, clock)
    assert all(waiter.is_waiting() for waiter in waiting)
    stream = ReplicationStream(server)
    if cause == "DEL":
        line.client.delete("k")
    else:
        assert line.release("holder") == 1
    assert waiting[0].error().startswith("NOTHELD " if (name, cause) == ("UPGRADE", "DEL") else "ERR ")
    if name == "UPGRADE" and cause == "release":
        assert line.holders() == ["first"] and line.queued() == ["second"], "it reads on"
        assert line.release("first") == 1
    assert waiting[1].error().startswith("ERR ")
    assert line.client.dbsize() == 0
    assert set(stream.names()) <= {"SLOCK.APPLY", "DEL", "UNLINK"}
    server.client().execute_command("DEBUG", "RELOAD")


# --- what comes from outside


@pytest.fixture
def writable_replica(make_server: MakeServer) -> tuple[Server, Server]:
    primary, replica = make_server(name="primary"), make_server(name="replica", replica_read_only=False)
    assert Locks(primary.client()).lock("k", "a", HOUR)
    replica_of(replica, primary)
    return primary, replica


@pytest.mark.parametrize("years", [9, 11])
@pytest.mark.parametrize("number", ["fence", "deadline"])
def test_a_writable_replica_judges_what_clients_restore(
    writable_replica: tuple[Server, Server], number: str, years: int
) -> None:
    primary, _ = writable_replica
    ahead_ms = now_ms(primary.client()) + years * YEAR_MS
    payload = plain_dump(primary.client(), "k")
    if number == "fence":
        payload = with_number(payload, Locks(primary.client()).info("k").fence, ahead_ms * 1000)
    else:
        payload = with_number(payload, primary.client().pexpiretime("k"), ahead_ms)
    for server in writable_replica:
        with server.raw() as raw:
            if years < 10:
                assert raw.ok("RESTORE", server.name, 0, payload) == b"OK"
            else:
                assert "Bad data format" in raw.error("RESTORE", server.name, 0, payload)
                assert raw.ok("EXISTS", server.name) == 0


@pytest.mark.parametrize("years", [9, 11])
@pytest.mark.parametrize(
    "change", ["HOLD 0 write {fence} 1 {deadline} b", "EXTEND 0 {at} a", "FENCE {fence}"]
)
def test_a_writable_replica_judges_what_clients_apply(
    writable_replica: tuple[Server, Server], change: str, years: int
) -> None:
    soon_ms = now_ms(writable_replica[0].client()) + HOUR
    at_ms = soon_ms + years * YEAR_MS
    texts = [change.format(fence=at_ms * 1000, deadline=soon_ms, at=at_ms)]
    if change.startswith("HOLD"):
        texts.append(change.format(fence=soon_ms * 1000, deadline=at_ms))
    for server in writable_replica:
        client = server.client()
        client.config_set("slock.allow-apply", "yes")
        for text in texts:
            before = lock_state(client, "k")
            with server.raw() as raw:
                if years < 10:
                    assert raw.ok("SLOCK.APPLY", "k", text) == 1
                else:
                    assert raw.error("SLOCK.APPLY", "k", text).startswith("ERR ")
                    assert lock_state(client, "k") == before


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writable"])
def test_what_the_primary_says_is_not_judged_by_the_clock_of_a_replica(
    make_server: MakeServer, make_clock: MakeClock, read_only: bool
) -> None:
    clock = make_clock(ahead=20 * YEAR_MS // 1000)
    primary = make_server(name="primary", environment=clock.environment)
    replica = make_server(name="replica", replica_read_only=read_only)
    locks = Locks(primary.client())
    assert locks.lock("synced", "a", HOUR, meta=b"m") and locks.rlock("extended", "a", HOUR)
    replica_of(replica, primary)
    assert locks.lock("streamed", "a", HOUR) and locks.extend("extended", "a", 2 * HOUR) == 1
    primary.client().restore("restored", 0, primary.client().dump("synced"))
    last = locks.rlock("extended", "b", HOUR)
    wait_synced(primary, replica)
    keys = ["synced", "streamed", "extended", "restored"]
    states = [lock_state(primary.client(), key) for key in keys]
    assert all(states) and [lock_state(replica.client(), key) for key in keys] == states
    primary.kill9()
    promote(replica)
    assert Locks(replica.client()).lock("next", "a", HOUR) > last
