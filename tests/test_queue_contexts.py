"""Where a client cannot be blocked, WAIT is ignored: in MULTI, in scripts and functions, on a replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from conftest import Pair
from harness import RawConnection, Server, digest, wait_synced, wait_until
from harness.causes import HOLDER, KEY
from harness.many import many
from harness.waiting import HOUR, Line, blocked_clients, is_blocked

REQUESTS = [
    ("SLOCK.LOCK", KEY, "a", HOUR, "META", "m", "WAIT", HOUR),
    ("SLOCK.RLOCK", KEY, "a", HOUR, "WAIT", 0, "META", "m"),
    ("SLOCK.UPGRADE", "read", "reader", HOUR, "WAIT", 0),
    many("MLOCK", ["free", KEY], "a", HOUR, "WAIT", 0),
    many("MRLOCK", ["free", KEY], "a", HOUR, "WAIT", 0),
]

CALL = "return redis.call(unpack(ARGV))"
LIBRARY = """#!lua name=probe
redis.register_function('probe', function(keys, args) return redis.call(unpack(args)) end)
"""


def _in_multi(raw: RawConnection, *request: Any) -> Any:
    return raw.pipeline([("MULTI",), request, ("EXEC",)])[-1][0]


def _in_a_function(raw: RawConnection, *request: Any) -> Any:
    raw.ok("FUNCTION", "LOAD", "REPLACE", LIBRARY)
    return raw.ok("FCALL", "probe", 0, *request)


WAYS = {
    "MULTI": _in_multi,
    "a script": lambda raw, *request: raw.ok("EVAL", CALL, 0, *request),
    "pcall": lambda raw, *request: raw.ok("EVAL", CALL.replace("call", "pcall"), 0, *request),
    "a script in MULTI": lambda raw, *request: _in_multi(raw, "EVAL", CALL, 0, *request),
    "a function": _in_a_function,
}


def _hold(client: redis.Redis) -> list[str]:
    """KEY is held by a writer, `read` by two readers."""
    client.execute_command("SLOCK.LOCK", KEY, HOLDER, HOUR)
    for token in ("reader", "other"):
        client.execute_command("SLOCK.RLOCK", "read", token, HOUR)
    return _digests(client)


def _digests(client: redis.Redis) -> list[str]:
    return [digest(client, key) for key in (KEY, "read", "free")]


def _nothing_happened(client: redis.Redis, before: list[str]) -> None:
    assert blocked_clients(client) == 0 == client.info("slock")["slock_waiters"]
    assert _digests(client) == before


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_where_it_cannot_wait(raw: RawConnection, client: redis.Redis, way: Callable[..., Any]) -> None:
    before = _hold(client)
    for request in REQUESTS:
        assert way(raw, *request) == 0, request
    raw.send("CLIENT", "REPLY", "OFF")
    raw.send("EVAL", CALL, 0, *REQUESTS[0])
    raw.send("CLIENT", "REPLY", "ON")
    assert raw.read() == b"OK"
    _nothing_happened(client, before)
    fence = way(raw, "SLOCK.LOCK", "free", "a", HOUR, "WAIT", 0)
    assert raw.ok("SLOCK.CHECK", "free", fence) == 1


@pytest.mark.parametrize("subscribe", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
def test_who_listens_waits_or_is_refused(server: Server, client: redis.Redis, subscribe: str) -> None:
    """Some servers block no such client, and say how it can wait."""
    before = _hold(client)
    for request in REQUESTS:
        with server.raw(protocol=3) as raw:
            client_id = raw.client_id()
            raw.send(subscribe, "channel")
            raw.read()
            raw.send(*request)
            wait_until(lambda: raw.has_reply(0) or is_blocked(client, client_id), what="it to wait or not")  # noqa: B023
            if raw.has_reply(0):
                assert "NOTIFY" in raw.read().text
        wait_until(lambda: blocked_clients(client) == 0, what="nobody to wait")
        _nothing_happened(client, before)


def test_a_replica_neither_parks_nor_grants(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    line, at_replica = Line(primary), replica.client()
    before = _hold(line.client)
    waiting = line.write("waiting")
    wait_synced(primary, replica)
    for request in [*REQUESTS, ("SLOCK.LOCK", "free", "a", HOUR, "WAIT", 0)]:
        assert replica.raw().error(*request).startswith("READONLY ")
    _nothing_happened(at_replica, before)
    # And a deadline that passes there grants nothing but what the primary has granted.
    line.locks.extend(KEY, HOLDER, 50)
    assert waiting.fence()
    wait_synced(primary, replica)
    assert _digests(at_replica) == _digests(line.client) != before
