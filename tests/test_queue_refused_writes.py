"""While the server refuses clients' writes, a timer grants nothing on their behalf."""

from __future__ import annotations

from collections.abc import Callable

from conftest import Pair
from harness import Locks, Server, stays, wait_until

LONG = 3_600_000


def test_a_primary_without_enough_replicas_grants_nothing_when_a_deadline_passes(
    primary_and_replica: Pair,
) -> None:
    primary, replica = primary_and_replica.primary, primary_and_replica.replica
    client = primary.client()
    locks = Locks(client)
    locks.lock("k", "a", LONG)
    waiter = primary.raw()
    waiter.send("SLOCK.LOCK", "k", "b", LONG, "WAIT", 0)
    wait_until(lambda: (info := locks.info("k")) and info.waiters == 1, what="b to wait")
    replica.client().replicaof("NO", "ONE")
    wait_until(lambda: client.info("replication")["connected_slaves"] == 0, what="the replica to be gone")
    with primary.raw() as raw:
        stop = ("CONFIG", "SET", "min-replicas-to-write", 1)
        assert raw.pipeline([("SLOCK.EXTEND", "k", "a", 50), stop]) == [1, b"OK"]
    wait_until(lambda: locks.pttl("k", "a") == -2, what="the deadline to pass")
    refused = primary.raw().error("SLOCK.LOCK", "other", "c", LONG)
    assert refused.startswith("NOREPLICAS")
    assert not waiter.has_reply(0.3)
    assert locks.info("k").waiters == 1
    client.config_set("min-replicas-to-write", 0)
    assert waiter.read() > 0
    assert locks.full("k").holders[0].token == b"b"


def test_a_primary_whose_snapshots_fail_grants_nothing_when_a_deadline_passes(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(save="3600 1")
    client = server.client()
    locks = Locks(client)
    (server.directory / "dump.rdb").mkdir()  # what cannot be replaced by a file
    locks.lock("k", "a", LONG)
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", what="BGSAVE to fail")
    client.config_set("stop-writes-on-bgsave-error", "no")
    waiter, impatient = server.raw(), server.raw()
    waiter.send("SLOCK.LOCK", "k", "b", LONG, "WAIT", 0)
    wait_until(lambda: (info := locks.info("k")) and info.waiters == 1, what="b to wait")
    impatient.send("SLOCK.LOCK", "k", "c", LONG, "WAIT", 2000)
    wait_until(lambda: (info := locks.info("k")) and info.waiters == 2, what="c to wait")
    with server.raw() as raw:
        stop = ("CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
        assert raw.pipeline([("SLOCK.EXTEND", "k", "a", 150), stop]) == [1, b"OK"]
    wait_until(lambda: locks.pttl("k", "a") == -2, what="the deadline to pass")
    assert server.raw().error("SLOCK.LOCK", "other", "d", LONG).startswith("MISCONF")
    assert impatient.read() == 0, "a wait runs out as ever"
    assert not waiter.has_reply(0.3) and locks.info("k").mode == "free"
    client.config_set("stop-writes-on-bgsave-error", "no")
    assert waiter.read() > 0
    assert locks.full("k").holders[0].token == b"b"


def test_waits_still_run_out_while_writes_are_refused(make_server: Callable[..., Server]) -> None:
    server = make_server()
    client = server.client()
    locks = Locks(client)
    locks.lock("k", "a", LONG)
    waiter = server.raw()
    waiter.send("SLOCK.LOCK", "k", "b", LONG, "WAIT", 2000)
    wait_until(lambda: locks.info("k").waiters == 1, what="b to wait")
    client.config_set("min-replicas-to-write", 1)
    assert waiter.read() == 0
    stays(lambda: locks.info("k").waiters == 0, 0.05, what="the queue to be empty")
