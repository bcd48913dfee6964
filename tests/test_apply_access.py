"""SLOCK.APPLY is for replicas and the log; from ordinary connections only with slock.allow-apply.

That replicas and the log get it is in test_replication.py and test_persistence.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import (
    Locks,
    RawConnection,
    ReplicationStream,
    RespError,
    Server,
    digest,
    replica_of,
    wait_synced,
)
from harness.samples import release_samples, sample_states, take_samples
from harness.waiting import HOUR, Line

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]

APPLY = "SLOCK.APPLY"
FENCE = 4_000_000_000_000_000
CHANGES = [
    ("free", f"HOLD 0 write {FENCE} 1 4000000000000 thief"),
    ("k", "EXTEND 0 4000000000000 owner"),
    ("k", "RELEASE 0 owner"),
    ("k", f"FENCE {FENCE}"),
    ("k", "GIVE 0 thief"),
]


def _plain(raw: RawConnection, *words: str) -> object:
    return raw.call(APPLY, *words)


def _in_transaction(raw: RawConnection, *words: str) -> object:
    return raw.pipeline([("MULTI",), (APPLY, *words), ("EXEC",)])[-1][0]


def _in_script(raw: RawConnection, key: str, *words: str) -> object:
    script = "return redis.call('SLOCK.APPLY', KEYS[1], unpack(ARGV))"
    return raw.call("EVAL", script, 1, key, *words)


def _assert_refused(reply: object) -> None:
    assert isinstance(reply, RespError), reply
    assert reply.text.startswith("ERR ") and "slock.allow-apply" in reply.text


def _assert_all_refused(server: Server) -> None:
    client, raw = server.client(), server.raw()

    def state() -> tuple[object, ...]:
        return digest(client, "k"), client.dbsize(), client.info("slock")["slock_last_fence"]

    before = state()
    for send in (_plain, _in_transaction, _in_script):
        for change in CHANGES:
            _assert_refused(send(raw, *change))
            assert state() == before, change


def test_it_is_refused_on_a_primary(server: Server) -> None:
    Locks(server.client()).lock("k", "owner", HOUR)
    stream = ReplicationStream(server)
    _assert_all_refused(server)
    assert stream.commands() == []
    stream.close()


@pytest.fixture
def writable(make_server: MakeServer) -> Server:
    """A replica that takes writes from clients, with one lock from its primary."""
    primary, replica = make_server(name="primary"), make_server(name="replica", replica_read_only=False)
    replica_of(replica, primary)
    Locks(primary.client()).lock("k", "owner", HOUR)
    wait_synced(primary, replica)
    return replica


def test_it_is_refused_from_a_client_of_a_writable_replica(writable: Server) -> None:
    _assert_all_refused(writable)


def test_it_can_be_allowed_and_forbidden_at_run_time(make_server: MakeServer) -> None:
    server = make_server()
    client, raw = server.client(), server.raw()
    for value in ("yes", "no", "yes"):
        client.config_set("slock.allow-apply", value)
        Locks(client).lock("k", "owner", HOUR)
        reply = raw.call(APPLY, "k", "RELEASE 0 owner")
        if value == "yes":
            assert reply == 1 and not client.exists("k")
        else:
            _assert_refused(reply)
            assert client.exists("k")


def test_where_it_is_allowed_a_stream_can_be_fed_into_a_server(make_server: MakeServer) -> None:
    source, target = make_server(name="source"), make_server(name="target", slock_allow_apply=True)
    stream = ReplicationStream(source)
    samples = take_samples(source)
    recorded = stream.commands(keep_select=True)
    assert {command[0] for command in recorded} >= {APPLY.encode()}
    fed = ReplicationStream(target)
    ReplicationStream.replay(recorded, target)
    assert APPLY in fed.names(), "it goes on to the replicas"
    assert sample_states(target) == samples
    release_samples(target)


def test_where_it_is_allowed_it_serves_those_who_wait(make_server: MakeServer) -> None:
    server = make_server(slock_allow_apply=True)
    line = Line(server)
    line.locks.lock("k", "owner", HOUR)
    waiting = line.write("waiting")
    assert server.raw().ok(APPLY, "k", "RELEASE 0 owner") == 1
    waiting.fence()
