"""Waiting in a cluster that loses nodes: who waits is told, as with BLPOP, and nobody is granted there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Cluster, RespError, Server, digest, wait_synced, wait_until
from harness.causes import BRIEF, HOLDER
from harness.settings import free_port
from harness.waiting import HOUR, Line, WaitingClient, at_once, wait_unblocked

pytest_plugins = ["harness.cleanup"]

RETRIABLE = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED", "READONLY"}


@pytest.fixture
def key(cluster: Cluster) -> str:
    """A name that the first node serves."""
    return next(name for name in map(str, range(100)) if cluster.node_of(name) is cluster.nodes[0])


def _was_turned_away(outcome: Any) -> bool:
    return outcome is None or (isinstance(outcome, RespError) and outcome.prefix in RETRIABLE)


def _queue(line: Line) -> list[WaitingClient]:
    return [line.write("w1"), line.read("r1"), line.write("w2", wait=HOUR)]


def _state(node: Server) -> bytes:
    return at_once(node, ("CLUSTER", "INFO"))[0].split(b"\r\n")[0]


def _role(node: Server) -> str:
    with node.client() as client:
        return client.info("replication")["role"]


def test_a_node_without_a_majority_turns_everybody_away(cluster: Cluster, key: str) -> None:
    """Beyond the partition another node may own the slot by now, so a deadline grants nothing here."""
    node, *others = cluster.nodes
    line = Line(node, key)
    line.locks.lock(key, HOLDER, HOUR)
    waiting = _queue(line)
    for each in cluster.nodes:
        each.client().config_set("cluster-node-timeout", 500)
    for other in others:
        other.pause()
    try:
        wait_until(lambda: _state(node) == b"cluster_state:fail", 20, "the node to see itself alone")
        outcomes = [waiter.outcome() for waiter in waiting]
        assert all(_was_turned_away(outcome) for outcome in outcomes), outcomes
        wait_unblocked(node.client())
    finally:
        for other in others:
            other.resume()
        for each in cluster.nodes:
            each.client().config_set("cluster-node-timeout", 5000)
    for each in cluster.nodes:
        wait_until(lambda each=each: _state(each) == b"cluster_state:ok", 30, "the cluster to be whole")
    assert line.holders() == [HOLDER] and line.queued() == []
    again = line.write("w1")
    line.release(HOLDER)
    assert again.fence()
    line.release("w1")


@pytest.fixture
def succession() -> Iterator[tuple[Server, Server]]:
    """A node of a cluster of this test's own, and the replica that will take its place."""
    cluster = Cluster().start()
    primary = cluster.nodes[0]
    replica = Server(name="stand-in", cluster_enabled=True, cluster_port=free_port()).start()
    primary_id = cluster.node_id(primary)
    port, bus = primary.port, primary._settings["cluster-port"]
    replica.client().execute_command("CLUSTER MEET", "127.0.0.1", port, bus)

    def follows() -> bool:
        return at_once(replica, ("CLUSTER", "REPLICATE", primary_id))[0] == b"OK"

    def knows_all(node: Server) -> bool:
        known = at_once(node, ("CLUSTER", "NODES"))[0]
        links = known.count(b" connected") - known.count(b"handshake")
        return links == 4 and b"slave " + primary_id.encode() in known

    wait_until(follows, 30, "the stand-in to know its primary")
    wait_synced(primary, replica)
    for node in (*cluster.nodes, replica):
        wait_until(lambda node=node: knows_all(node), 30, f"{node} to know all others")
    yield primary, replica
    for server in (*cluster.nodes, replica):
        server.stop()
        server.discard()


def test_a_failover_in_a_cluster_turns_everybody_away_and_keeps_the_hold(
    succession: tuple[Server, Server],
) -> None:
    old, new = succession
    key = next(name for name in map(str, range(100)) if at_once(old, ("EXISTS", name)) == [0])
    line = Line(old, key)
    fence = line.locks.lock(key, HOLDER, HOUR)
    waiting = _queue(line)
    wait_synced(old, new)
    asked_at: list[float] = []

    def is_promoted() -> bool:
        # A vote may be lost; the server gives up after five seconds.
        if not asked_at or time.monotonic() > asked_at[-1] + 7:
            asked_at.append(time.monotonic())
            new.client().execute_command("CLUSTER FAILOVER")
        return _role(new) == "master"

    wait_until(is_promoted, 30, "the failover")
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(_was_turned_away(outcome) for outcome in outcomes), outcomes
    wait_until(lambda: _role(old) == "slave", 20, "the old one to follow")
    wait_synced(new, old)
    wait_unblocked(old.client())
    moved = Line(new, key)
    assert moved.locks.check(key, fence) == 1
    again = moved.write("w1")
    moved.locks.extend(key, HOLDER, BRIEF)
    assert again.fence() > fence
    wait_synced(new, old)
    with old.raw() as reader:
        reader.ok("READONLY")
        there = reader.ok("DEBUG", "DIGEST-VALUE", key)
    assert there == [digest(moved.client, key).encode()]
