"""Where a client cannot be blocked, WAIT is ignored: in MULTI, in scripts and functions, on a replica."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Locks, RespError, Server, digest, replica_of, wait_synced, wait_until
from harness.causes import HOLDER, KEY
from harness.waiting import HOUR, Line, blocked_clients, is_blocked

pytest_plugins = ["harness.cleanup"]

REQUESTS = [
    ("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0),
    ("SLOCK.RLOCK", KEY, "a", HOUR, "WAIT", 0, "META", "m"),
    ("SLOCK.LOCK", KEY, "a", HOUR, "META", "m", "WAIT", HOUR),
    ("SLOCK.UPGRADE", "read", "reader", HOUR, "WAIT", 0),
]

every_request = pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: " ".join(map(str, request)))

SCRIPT = "return redis.call(unpack(ARGV))"
LIBRARY = """#!lua name=probe
redis.register_function('probe', function(keys, args) return redis.call(unpack(args)) end)
"""


@pytest.fixture
def held(client: redis.Redis) -> redis.Redis:
    """KEY is held by a writer, `read` by two readers."""
    client.execute_command("SLOCK.LOCK", KEY, HOLDER, HOUR)
    for token in ("reader", "other"):
        client.execute_command("SLOCK.RLOCK", "read", token, HOUR)
    return client


def _nothing_happened(client: redis.Redis, before: list[str]) -> None:
    assert blocked_clients(client) == 0
    assert [digest(client, key) for key in (KEY, "read")] == before
    for key in (KEY, "read"):
        assert Locks(client).info(key).waiters == 0


@pytest.mark.parametrize("subscribe", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
@every_request
def test_a_client_that_listens_to_channels_waits_or_is_refused(
    server: Server, held: redis.Redis, request_: tuple, subscribe: str
) -> None:
    """Some servers block no such client."""
    before = [digest(held, key) for key in (KEY, "read")]
    with server.raw(protocol=3) as raw:
        client_id = raw.client_id()
        raw.send(subscribe, "channel")
        raw.read()
        raw.send(*request_)
        wait_until(lambda: raw.has_reply(0) or is_blocked(held, client_id), what="it to wait or be refused")
        if raw.has_reply(0):
            assert raw.read() == 0
    wait_until(lambda: blocked_clients(held) == 0, what="nobody to wait")
    _nothing_happened(held, before)


@every_request
def test_in_a_transaction_the_answer_is_0_at_once(server: Server, held: redis.Redis, request_: tuple) -> None:
    before = [digest(held, key) for key in (KEY, "read")]
    with server.raw() as raw:
        assert raw.pipeline([("MULTI",), request_, ("PING",), request_, ("EXEC",)])[-1] == [0, b"PONG", 0]
    _nothing_happened(held, before)


@every_request
@pytest.mark.parametrize("call", ["redis.call", "redis.pcall"])
def test_in_a_script_the_answer_is_0_at_once(
    server: Server, held: redis.Redis, request_: tuple, call: str
) -> None:
    before = [digest(held, key) for key in (KEY, "read")]
    with server.raw() as raw:
        script = SCRIPT.replace("redis.call", call)
        assert raw.ok("EVAL", script, 0, *request_) == 0
        assert raw.pipeline([("MULTI",), ("EVAL", script, 0, *request_), ("EXEC",)])[-1] == [0]
    _nothing_happened(held, before)


@every_request
def test_in_a_function_the_answer_is_0_at_once(server: Server, held: redis.Redis, request_: tuple) -> None:
    before = [digest(held, key) for key in (KEY, "read")]
    with server.raw() as raw:
        raw.ok("FUNCTION", "LOAD", "REPLACE", LIBRARY)
        assert raw.ok("FCALL", "probe", 0, *request_) == 0
    _nothing_happened(held, before)


@pytest.mark.parametrize("where", ["transaction", "script"])
def test_what_is_free_is_granted_there_with_wait(server: Server, locks: Locks, where: str) -> None:
    request = ("SLOCK.LOCK", "free", "a", HOUR, "WAIT", 0)
    with server.raw() as raw:
        if where == "script":
            fence = raw.ok("EVAL", SCRIPT, 0, *request)
        else:
            (fence,) = raw.pipeline([("MULTI",), request, ("EXEC",)])[-1]
    assert locks.check("free", fence) == 1


@pytest.mark.parametrize("where", ["transaction", "script"])
def test_wait_there_does_not_overtake_who_waits(server: Server, locks: Locks, where: str) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    writer = line.write("writer")
    request = ("SLOCK.RLOCK", KEY, "new", HOUR, "WAIT", 0)
    with server.raw() as raw:
        if where == "script":
            assert raw.ok("EVAL", SCRIPT, 0, *request) == 0
        else:
            assert raw.pipeline([("MULTI",), request, ("EXEC",)])[-1] == [0]
    line.release(HOLDER)
    assert writer.fence()


def test_a_transaction_and_a_script_hand_over_to_who_waits(server: Server, locks: Locks) -> None:
    """Only the request is barred from blocking there; a release inside wakes like any other."""
    line = Line(server)
    keys = ["a", "b", "c"]
    waiting = {}
    for key in keys:
        locks.lock(key, HOLDER, HOUR)
        waiting[key] = Line(server, key).write(f"waits for {key}")
    with server.raw() as raw:
        raw.pipeline([("MULTI",), *(("SLOCK.UNLOCK", key, HOLDER) for key in keys), ("EXEC",)])
    fences = [waiting[key].fence() for key in keys]
    assert len(set(fences)) == 3
    waiting = {key: Line(server, key).write("next") for key in keys}
    script = "for _, key in ipairs(KEYS) do redis.call('SLOCK.UNLOCK', key, 'waits for ' .. key) end"
    line.client.eval(script, 3, *keys)
    assert len({waiting[key].fence() for key in keys}) == 3


def test_a_script_whose_reply_nobody_reads_does_not_wait_either(server: Server, locks: Locks) -> None:
    locks.lock(KEY, HOLDER, HOUR)
    with server.raw() as raw:
        raw.send("CLIENT", "REPLY", "OFF")
        raw.send("EVAL", SCRIPT, 0, *REQUESTS[0])
        raw.send("CLIENT", "REPLY", "ON")
        assert raw.read() == b"OK"
        assert raw.ok("PING") == b"PONG"
    assert blocked_clients(locks.client) == 0


# --- a replica


@every_request
@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "writable"])
def test_a_replica_neither_parks_nor_grants(
    make_server: Callable[..., Server], request_: tuple, read_only: bool
) -> None:
    primary = make_server(name="primary")
    replica = make_server(name="replica", replica_read_only=read_only)
    at_primary, at_replica = primary.client(), replica.client()
    replica_of(replica, primary)
    locks = Locks(at_primary)
    locks.lock(KEY, HOLDER, HOUR)
    for token in ("reader", "other"):
        locks.rlock("read", token, HOUR)
    wait_synced(primary, replica)
    before = [digest(at_primary, key) for key in (KEY, "read")]
    for request in (request_, ("SLOCK.LOCK", "free", "a", HOUR, "WAIT", 0)):
        reply = replica.raw().call(*request)
        assert isinstance(reply, RespError) or reply == 0, reply
        if read_only:
            assert reply.prefix == "READONLY"
    assert blocked_clients(at_replica) == 0
    assert at_replica.exists("free") == 0
    assert [digest(at_replica, key) for key in (KEY, "read")] == before


def test_a_replica_shows_no_queue_and_a_deadline_there_grants_nothing(
    primary_and_replica: tuple[Server, Server],
) -> None:
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("waiting")
    wait_synced(primary, replica)
    at_replica = Locks(replica.client())
    assert at_replica.info(KEY).waiters == 0
    line.locks.extend(KEY, HOLDER, 50)
    assert waiting.fence()
    wait_synced(primary, replica)
    assert [holder.token for holder in at_replica.full(KEY).holders] == [b"waiting"]
    assert digest(replica.client(), KEY) == digest(line.client, KEY)
