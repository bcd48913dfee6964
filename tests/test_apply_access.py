"""SLOCK.APPLY is for replicas and the log; from ordinary connections only with slock.allow-apply."""

from __future__ import annotations

from harness import Locks, MakeServer, ReplicationStream, RespError, aof_commands, digest, replica_of
from harness.waiting import HOUR, Line

APPLY = "SLOCK.APPLY"
FENCE = 4_000_000_000_000_000
CHANGES = [
    ("free", f"HOLD 0 write {FENCE} 1 4000000000000 thief"),
    ("k", "EXTEND 0 4000000000000 owner"),
    ("k", "RELEASE 0 owner"),
    ("k", f"FENCE {FENCE}"),
    ("k", "GIVE 0 thief"),
]
SCRIPT = "return redis.call('SLOCK.APPLY', KEYS[1], ARGV[1])"


def _is_refused(reply: object) -> bool:
    return isinstance(reply, RespError) and reply.prefix == "ERR" and "slock.allow-apply" in reply.text


def test_it_is_refused_on_a_primary_and_on_a_writable_replica(make_server: MakeServer) -> None:
    """By itself, in a transaction and in a script."""
    primary, replica = make_server(name="primary"), make_server(name="replica", replica_read_only=False)
    Locks(primary.client()).lock("k", "owner", HOUR)
    replica_of(replica, primary)
    stream = ReplicationStream(primary)
    for server in (primary, replica):
        client, raw = server.client(), server.raw()
        before = digest(client, "k"), client.info("slock")["slock_last_fence"]
        for key, change in CHANGES:
            assert _is_refused(raw.call(APPLY, key, change))
            assert _is_refused(raw.pipeline([("MULTI",), (APPLY, key, change), ("EXEC",)])[-1][0])
            assert _is_refused(raw.call("EVAL", SCRIPT, 1, key, change))
            assert (digest(client, "k"), client.info("slock")["slock_last_fence"]) == before, change
        assert client.dbsize() == 1
    assert stream.commands() == []


def test_it_can_be_allowed_and_forbidden_at_run_time(make_server: MakeServer) -> None:
    """Where it is allowed it serves those who wait, and goes on to the replicas and the log."""
    server = make_server(appendonly=True)
    line, raw, stream = Line(server), server.raw(), ReplicationStream(server)
    line.client.config_set("slock.allow-apply", "yes")
    line.locks.lock("k", "owner", HOUR)
    waiting = line.write("waiting")
    assert raw.ok(APPLY, "k", "RELEASE 0 owner") == 1
    waiting.fence()
    for told in (stream.commands(), aof_commands(server)):
        assert [APPLY.encode(), b"k", b"RELEASE 0 owner"] in told
    line.client.config_set("slock.allow-apply", "no")
    assert _is_refused(raw.call(APPLY, "k", "RELEASE 0 waiting"))
    assert line.holders() == ["waiting"]
