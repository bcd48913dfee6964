"""Waiting in a cluster while slots move and nodes are lost: never two owners, and nobody left hanging.

Who waits at a node that loses the slot is told something that a cluster client retries. MIGRATE's deletion of
the key is no release.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness import (
    Cluster,
    Info,
    RespError,
    Server,
    digest,
    key_slot,
    rounds,
    wait_synced,
    wait_until,
)
from harness.bound import hang_up, take_bound
from harness.causes import BRIEF, HOLDER
from harness.many import many
from harness.settings import free_port
from harness.waiting import (
    HOUR,
    Line,
    WaitingClient,
    all_turned_away,
    at_once,
    is_retriable,
    serve_in_order,
    wait_unblocked,
)

pytest_plugins = ["harness.cleanup"]


class Moving:
    """One lock and the two nodes between which its slot moves."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.cluster = cluster
        self.key = key
        self.source = cluster.node_of(key)
        self.target = cluster.other_than(self.source)
        self.slot = key_slot(self.source, key)
        self.line = Line(self.source, key)

    def begin(self) -> None:
        self.cluster.begin_move(self.slot, self.source, self.target)

    def move(self, waiting: list[WaitingClient]) -> None:
        self.begin()
        self.cluster.move_keys(self.slot, self.source, self.target)
        _all_turned_away(waiting)

    def end(self) -> None:
        self.cluster.end_move(self.slot, self.source, self.target)

    def give_up(self) -> None:
        for node in (self.source, self.target):
            node.client().execute_command("CLUSTER SETSLOT", self.slot, "STABLE")

    def owners(self) -> list[str]:
        """The tokens that hold at either node, asked as a client that was redirected."""
        tokens = []
        for node in (self.source, self.target):
            _, reply = at_once(node, ("ASKING",), ("SLOCK.INFO", self.key, "FULL"))
            info = None if isinstance(reply, RespError) else Info.of(reply)
            tokens += [holder.token.decode() for holder in info.holders or ()] if info else []
        return tokens

    def keys_at(self, node: Server) -> int:
        return at_once(node, ("CLUSTER", "COUNTKEYSINSLOT", self.slot))[0]

    def asks(self, token: str) -> Any:
        """A client that does as it is told: it goes to the target when the source says ASK."""
        reply = at_once(self.source, ("SLOCK.LOCK", self.key, token, HOUR))[0]
        if isinstance(reply, RespError) and reply.prefix == "ASK":
            reply = at_once(self.target, ("ASKING",), ("SLOCK.LOCK", self.key, token, HOUR))[1]
        return reply

    def release(self, token: str) -> None:
        for node in (self.source, self.target):
            at_once(node, ("ASKING",), ("SLOCK.UNLOCK", self.key, token))


def _all_turned_away(waiting: list[WaitingClient]) -> None:
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(is_retriable(outcome) for outcome in outcomes), outcomes


def _queue(line: Line) -> list[WaitingClient]:
    return [line.write("w1"), line.read("r1"), line.read("r2"), line.write("w2", wait=HOUR)]


def test_keys_of_several_slots_or_of_another_node_are_refused(cluster: Cluster) -> None:
    raw = cluster.nodes[0].raw()
    elsewhere = next(tag for tag in "abcdef" if cluster.node_of(tag) is not cluster.nodes[0])
    for prefix, keys in {"CROSSSLOT ": "ab", "MOVED ": [f"{{{elsewhere}}}{name}" for name in "xy"]}.items():
        own = raw.error("DEL", *keys)
        assert own.startswith(prefix)
        for name in ("MLOCK", "MRLOCK", "MUNLOCK", "MEXTEND", "MPTTL"):
            rest = ("me",) if name in ("MUNLOCK", "MPTTL") else ("me", HOUR)
            assert raw.error(*many(name, list(keys), *rest)) == own
    assert raw.ok("DBSIZE") == 0


def test_a_release_that_removes_the_key_turns_away_who_waits(cluster: Cluster) -> None:
    """The key would be made at the target now; as long as it is here, it is served here."""
    moving = Moving(cluster, "released")
    for token in "ab":
        moving.line.locks.rlock(moving.key, token, HOUR)
    upgrader, waiting = moving.line.upgrade("a"), [moving.line.write("w1"), moving.line.write("w2")]
    moving.begin()
    assert moving.line.release("b") == 1
    assert upgrader.fence() and all(waiter.is_waiting() for waiter in waiting)
    assert moving.owners() == ["a"]
    assert moving.line.release("a") == 1
    assert all(waiter.error().startswith("TRYAGAIN ") for waiter in waiting)
    assert moving.owners() == [] and moving.keys_at(moving.source) == 0
    moving.give_up()
    assert moving.line.locks.lock(moving.key, "w1", HOUR)
    moving.line.release("w1")


def test_who_waits_for_a_lock_that_moves_is_told_to_ask_again(cluster: Cluster) -> None:
    moving = Moving(cluster, "moved")
    fences = [moving.line.locks.rlock(moving.key, token, HOUR) for token in "ab"]
    moving.move([moving.line.upgrade("a"), *_queue(moving.line)])
    assert sorted(moving.owners()) == ["a", "b"] and moving.keys_at(moving.source) == 0
    moving.end()
    wait_unblocked(moving.source.client())
    there = Line(moving.target, moving.key)
    assert [there.locks.check(moving.key, fence) for fence in fences] == [1, 1]
    waiting = [there.upgrade("a"), there.write("w1"), there.read("r1")]
    assert there.release("b") == 1
    assert serve_in_order(there, waiting)[0] > fences[1]


@pytest.mark.parametrize("ends", ["deadline", "DEL", "UNLOCK"])
def test_a_lock_freed_while_its_slot_moves_has_one_new_owner(cluster: Cluster, ends: str) -> None:
    """Without its key the source sends newcomers to the target, so it may not grant it to who waits there."""
    moving = Moving(cluster, f"freed by {ends}")
    for number in range(rounds(4, 20)):
        assert moving.line.locks.lock(moving.key, HOLDER, HOUR)
        waiting = [moving.line.write("w1"), moving.line.write("w2")]
        moving.begin()
        how = {
            "deadline": ("SLOCK.EXTEND", moving.key, HOLDER, 1 + 5 * number),
            "DEL": ("DEL", moving.key),
            "UNLOCK": ("SLOCK.UNLOCK", moving.key, HOLDER),
        }
        at_once(moving.source, how[ends])
        _one_owner_after_the_other(moving, waiting, newcomers=number % 2 == 0)
        moving.give_up()
        wait_until(lambda: moving.keys_at(moving.source) == 0, what="the server to expire what is over")


def _one_owner_after_the_other(moving: Moving, waiting: list[WaitingClient], newcomers: bool) -> None:
    def is_done(waiter: WaitingClient) -> bool:
        reply = moving.asks("new") if newcomers else 0
        owners = moving.owners()
        assert len(owners) <= 1, owners
        return waiter.is_answered() or (isinstance(reply, int) and reply > 0)

    for waiter in waiting:
        wait_until(lambda waiter=waiter: is_done(waiter), 20, f"{waiter} or a newcomer to have it")
        outcome = waiter.outcome()
        if is_retriable(outcome):
            assert moving.owners() in ([], ["new"])
        else:
            assert outcome > 0 and moving.owners() == [waiter.token]
            assert moving.line.release(waiter.token) == 1
    moving.release("new")
    assert wait_until(lambda: moving.asks("late"), what="a late client to have it")
    assert moving.owners() == ["late"]
    moving.release("late")


def test_a_set_is_not_granted_where_another_of_its_keys_may_be_gone(cluster: Cluster) -> None:
    """A release at the source finds a waiting set, whose other key a newcomer has got at the target."""
    held, free = Moving(cluster, "{set}held"), Moving(cluster, "{set}free")
    held.line.locks.lock(held.key, HOLDER, HOUR)
    waiting = WaitingClient(held.source, "set")
    waiting.ask(*many("MLOCK", [held.key, free.key], "set", HOUR, "WAIT", 0))
    held.line.wait_until_waiting(waiting)
    held.begin()
    fence = free.asks("new")
    assert isinstance(fence, int) and fence > 0, "the target's, told by ASK"
    assert held.line.release(HOLDER) == 1
    assert is_retriable(waiting.outcome())
    assert free.owners() == ["new"] and held.owners() == []
    free.release("new")
    held.give_up()


def test_a_slot_that_is_lost_without_notice_takes_the_queue_along(cluster: Cluster) -> None:
    """The target claims the slot, and the old owner hears of it as gossip and drops its keys."""
    moving = Moving(cluster, "lost")
    moving.line.locks.lock(moving.key, HOLDER, HOUR)
    waiting = _queue(moving.line)
    target = moving.target.client()
    target.execute_command("CLUSTER SETSLOT", moving.slot, "IMPORTING", cluster.node_id(moving.source))
    target.execute_command("CLUSTER SETSLOT", moving.slot, "NODE", cluster.node_id(moving.target))
    _all_turned_away(waiting)
    wait_until(lambda: moving.keys_at(moving.source) == 0, what="the old owner to drop the key")
    wait_unblocked(moving.source.client())
    assert moving.owners() == []
    for node in cluster.nodes:
        wait_until(
            lambda node=node: (
                isinstance(at_once(node, ("GET", moving.key))[0], RespError) == (node != moving.target)
            ),
            what="all nodes to know the new owner",
        )


# --- nodes that are lost


def test_a_bound_hold_ends_also_when_its_connection_closed_while_the_cluster_was_down(
    cluster: Cluster,
) -> None:
    node = cluster.node_of("bound")
    client = node.client()
    owner = take_bound(node, key="bound")
    slots = at_once(node, ("CLUSTER", "SLOTS"))[0]
    lost = next(last for _, last, (_, port, *_), *_ in slots if port == node.port)
    assert lost != key_slot(node, "bound")
    client.execute_command("CLUSTER DELSLOTS", lost)
    wait_until(lambda: _state(node) == "fail", what="the cluster to be down")
    hang_up(node, owner)
    client.execute_command("CLUSTER ADDSLOTS", lost)
    wait_until(lambda: _state(node) == "ok", 20, "the cluster to be up")
    wait_until(lambda: not client.exists("bound"), what="the hold to end with its connection")


def _state(node: Server) -> str:
    text = at_once(node, ("CLUSTER", "INFO"))[0].decode()
    return dict(line.split(":", 1) for line in text.split())["cluster_state"]


def test_a_node_without_a_majority_turns_everybody_away(cluster: Cluster) -> None:
    """Beyond the partition another node may own the slot by now, so a deadline grants nothing here."""
    node, *others = cluster.nodes
    line = Line(node, next(name for name in map(str, range(100)) if cluster.node_of(name) is node))
    line.locks.lock(line.key, HOLDER, HOUR)
    waiting = _queue(line)
    for each in cluster.nodes:
        each.client().config_set("cluster-node-timeout", 500)
    for other in others:
        other.pause()
    try:
        wait_until(lambda: _state(node) == "fail", 20, "the node to see itself alone")
        all_turned_away(node, waiting)
    finally:
        for other in others:
            other.resume()
    for each in cluster.nodes:
        wait_until(lambda each=each: _state(each) == "ok", 30, "the cluster to be whole")
        each.client().config_set("cluster-node-timeout", 5000)
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
    replica.client().execute_command("CLUSTER MEET", "127.0.0.1", primary.port, primary.bus_port)

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
        return new.client().info("replication")["role"] == "master"

    wait_until(is_promoted, 30, "the failover")
    all_turned_away(old, waiting)
    wait_synced(new, old)
    moved = Line(new, key)
    assert moved.locks.check(key, fence) == 1
    again = moved.write("w1")
    moved.locks.extend(key, HOLDER, BRIEF)
    assert again.fence() > fence
    wait_synced(new, old)
    _, there = at_once(old, ("READONLY",), ("DEBUG", "DIGEST-VALUE", key))
    assert there == [digest(moved.client, key).encode()]
