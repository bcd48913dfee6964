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
    locks.lock("k", "a", 300)
    waiter = primary.raw()
    waiter.send("SLOCK.LOCK", "k", "b", LONG, "WAIT", 0)
    wait_until(lambda: (info := locks.info("k")) and info.waiters == 1, what="b to wait")
    replica.client().replicaof("NO", "ONE")
    wait_until(lambda: client.info("replication")["connected_slaves"] == 0, what="the replica to be gone")
    client.config_set("min-replicas-to-write", 1)
    wait_until(lambda: locks.pttl("k", "a") == -2, what="the deadline to pass")
    refused = primary.raw().error("SLOCK.LOCK", "other", "c", LONG)
    assert refused.startswith("NOREPLICAS")
    assert not waiter.has_reply(0.3)
    assert locks.info("k").waiters == 1
    client.config_set("min-replicas-to-write", 0)
    assert waiter.read() > 0
    assert locks.full("k").holders[0].token == b"b"


def test_waits_still_run_out_while_writes_are_refused(make_server: Callable[..., Server]) -> None:
    server = make_server()
    client = server.client()
    locks = Locks(client)
    locks.lock("k", "a", LONG)
    waiter = server.raw()
    waiter.send("SLOCK.LOCK", "k", "b", LONG, "WAIT", 200)
    wait_until(lambda: locks.info("k").waiters == 1, what="b to wait")
    client.config_set("min-replicas-to-write", 1)
    assert waiter.read() == 0
    stays(lambda: locks.info("k").waiters == 0, 0.05, what="the queue to be empty")
