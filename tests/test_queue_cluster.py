"""Waiting in a cluster while slots move and nodes are lost: never two owners, and nobody left hanging."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from harness import Cluster, MakeServer, RespError, Server, digest, key_slot, rounds
from harness.bound import hang_up, take_bound
from harness.causes import BRIEF, HOLDER
from harness.cluster import Slot, cluster_state, node_and_replica
from harness.locks import Info
from harness.many import many
from harness.replication import wait_synced
from harness.wait import wait_until
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


class Moving(Slot):
    """One lock and the two nodes between which its slot moves."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        super().__init__(cluster, key)
        self.key = key
        self.line = Line(self.source, key)

    def owners(self) -> list[str]:
        """The tokens that hold at either node, asked as a client that was redirected."""
        tokens = []
        for node in (self.source, self.target):
            _, reply = at_once(node, ("ASKING",), ("SLOCK.INFO", self.key, "FULL"))
            info = None if isinstance(reply, RespError) else Info.of(reply)
            tokens += [holder.token.decode() for holder in info.holders or ()] if info else []
        return tokens

    def keys_at_source(self) -> int:
        return self.at_source.ok("CLUSTER", "COUNTKEYSINSLOT", self.number)

    def asks(self, token: str) -> Any:
        """A client that does as it is told: it goes to the target when the source says ASK."""
        reply = at_once(self.source, ("SLOCK.LOCK", self.key, token, HOUR))[0]
        if isinstance(reply, RespError) and reply.prefix == "ASK":
            reply = at_once(self.target, ("ASKING",), ("SLOCK.LOCK", self.key, token, HOUR))[1]
        return reply

    def release(self, token: str) -> None:
        for node in (self.source, self.target):
            at_once(node, ("ASKING",), ("SLOCK.UNLOCK", self.key, token))


def _are_turned_away(waiting: list[WaitingClient]) -> None:
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(is_retriable(outcome) for outcome in outcomes), outcomes


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


@pytest.mark.parametrize("how", ["UNLOCK", "DEL", "deadline"])
def test_a_release_that_removes_the_key_turns_away_who_waits(cluster: Cluster, how: str) -> None:
    """The key would be made at the target now, where newcomers get it. While it is here, it is served."""
    moving = Moving(cluster, f"released by {how}")
    for token in "ab":
        moving.line.locks.rlock(moving.key, token, HOUR)
    upgrader, waiting = moving.line.upgrade("a"), [moving.line.write("w1"), moving.line.write("w2")]
    moving.open()
    assert moving.line.release("b") == 1
    assert upgrader.fence() and all(waiter.is_waiting() for waiter in waiting)
    assert moving.owners() == ["a"]
    ends = {"UNLOCK": ("SLOCK.UNLOCK", moving.key, "a"), "DEL": ("DEL", moving.key)}
    assert at_once(moving.source, ends.get(how, ("SLOCK.EXTEND", moving.key, "a", BRIEF))) == [1]
    outcome = waiting[0].outcome()
    if how == "deadline" and not is_retriable(outcome):  # then the key was there still
        assert outcome > 0 and moving.owners() == ["w1"] and moving.line.release("w1") == 1
    else:
        assert outcome.prefix == "TRYAGAIN"
    assert waiting[1].error().startswith("TRYAGAIN ")
    wait_until(lambda: moving.keys_at_source() == 0, what="the server to expire what is over")
    fence = moving.asks("new")
    assert isinstance(fence, int) and fence > 0 and moving.owners() == ["new"]
    moving.release("new")
    moving.close()


def test_who_waits_for_a_lock_that_moves_is_told_to_ask_again(cluster: Cluster) -> None:
    moving = Moving(cluster, "moved")
    fences = [moving.line.locks.rlock(moving.key, token, HOUR) for token in "ab"]
    waiting = [moving.line.upgrade("a"), *moving.line.several()]
    moving.open()
    moving.move_keys(10)
    _are_turned_away(waiting)
    assert sorted(moving.owners()) == ["a", "b"] and moving.keys_at_source() == 0
    cluster.end_move(moving.number, moving.source, moving.target)
    wait_unblocked(moving.source.client())
    there = Line(moving.target, moving.key)
    assert [there.locks.check(moving.key, fence) for fence in fences] == [1, 1]
    waiting = [there.upgrade("a"), there.write("w1"), there.read("r1")]
    assert there.release("b") == 1
    assert serve_in_order(there, waiting)[0] > fences[1]


def test_a_set_is_not_granted_where_another_of_its_keys_may_be_gone(cluster: Cluster) -> None:
    """A release at the source finds a waiting set, whose other key a newcomer has got at the target."""
    held, free = Moving(cluster, "{set}held"), Moving(cluster, "{set}free")
    held.line.locks.lock(held.key, HOLDER, HOUR)
    waiting = held.line.ask("set", *many("MLOCK", [held.key, free.key], "set", HOUR, "WAIT", 0))
    held.open()
    fence = free.asks("new")
    assert isinstance(fence, int) and fence > 0, "the target's, told by ASK"
    assert held.line.release(HOLDER) == 1
    assert is_retriable(waiting.outcome())
    assert free.owners() == ["new"] and held.owners() == []
    free.release("new")
    held.close()


def test_a_slot_that_is_lost_without_notice_takes_the_queue_along(cluster: Cluster) -> None:
    """The target claims the slot, and the old owner hears of it as gossip and drops its keys."""
    moving = Moving(cluster, "lost")
    moving.line.locks.lock(moving.key, HOLDER, HOUR)
    waiting = moving.line.several()
    for state, node in (("IMPORTING", moving.source), ("NODE", moving.target)):
        moving.at_target.ok("CLUSTER", "SETSLOT", moving.number, state, cluster.node_id(node))
    _are_turned_away(waiting)
    wait_until(lambda: moving.keys_at_source() == 0, what="the old owner to drop the key")
    wait_unblocked(moving.source.client())
    assert moving.owners() == []
    for node in cluster.nodes:
        wait_until(lambda node=node: _owner_by(node, moving) == moving.target.port, what="all to know it")


def _owner_by(node: Server, slot: Slot) -> int:
    slots = at_once(node, ("CLUSTER", "SLOTS"))[0]
    return next(owner[1] for first, last, owner, *_ in slots if first <= slot.number <= last)


# --- requests for many keys: on all of them or on none, whatever moves or expires in between

KEYS = [f"{{whole}}:{number}" for number in range(64)]


@pytest.fixture
def slot(cluster: Cluster) -> Iterator[Slot]:
    """A slot without keys, which stays with its owner also when the test fails."""
    slot = Slot(cluster, KEYS[0])
    yield slot
    slot.open()
    _clear(slot)


def _clear(slot: Slot) -> None:
    slot.ask_everywhere([("DEL", key) for key in KEYS])
    slot.close()


def test_each_fence_that_is_told_is_on_every_key(slot: Slot) -> None:
    """A server may find a key at its first look and not at its second.

    Its clock may go on between the two, and a node whose slot is MIGRATING answers only for keys it has.
    """
    line, dice, control = Line(slot.source, KEYS[0]), random.Random(1), slot.at_source
    granted = played = 0
    while granted < rounds(20, 500):
        keys = KEYS[: dice.randint(2, len(KEYS))]
        control.ok(*many("MLOCK", keys, HOLDER, HOUR))
        command, tokens = dice.choice([("MLOCK", ["writer"]), ("MRLOCK", ["reader 1", "reader 2"])])
        waiting = [line.ask(token, *many(command, keys, token, HOUR, "WAIT", 0)) for token in tokens]
        slot.open()
        # All holds end in the same millisecond, or in neighbouring ones.
        spread, ttl = dice.choice([0, 0, 2]), dice.randint(4, 9)
        control.pipeline([("SLOCK.EXTEND", key, HOLDER, ttl - dice.randint(0, spread)) for key in keys])
        what = dice.choice(["stays open", "flips", "moves keys"])
        if what == "moves keys":
            waiting[0].is_answered(dice.uniform(0, 0.012))
            slot.move_keys(dice.randint(1, len(keys)))
        while what == "flips" and not all(waiter.is_answered() for waiter in waiting):
            slot.close()
            slot.open()
        granted += sum(_is_granted(slot, waiter, keys) for waiter in waiting)
        _clear(slot)
        played += 1
        assert played < 1000 + 50 * granted, f"only {granted} grants"


def _is_granted(slot: Slot, waiter: WaitingClient, keys: list[str]) -> bool:
    """And then it holds all keys, else none."""
    reply = waiter.reply()
    waiter.connection.close()
    if isinstance(reply, RespError):
        assert is_retriable(reply), reply.text
        lefts = slot.ask_everywhere([("SLOCK.PTTL", key, waiter.token) for key in keys])
        assert all(left == -2 for both in lefts for left in both), f"{reply.text}, but it holds {lefts}"
        return False
    checks = slot.ask_everywhere([("SLOCK.CHECK", key, reply) for key in keys])
    assert all(both.count(1) == 1 for both in checks), f"keys lack the fence {reply}: {checks}"
    return True


# --- nodes that are lost


def test_a_bound_hold_whose_connection_closes_while_the_cluster_is_down_ends_by_its_ttl(
    cluster: Cluster,
) -> None:
    node = cluster.node_of("bound")
    client = node.client()
    owner = take_bound(node, key="bound")
    slots = at_once(node, ("CLUSTER", "SLOTS"))[0]
    lost = next(last for _, last, (_, port, *_), *_ in slots if port == node.port)
    assert lost != key_slot(node, "bound")
    client.execute_command("CLUSTER DELSLOTS", lost)
    wait_until(lambda: cluster_state(node) == "fail", what="the cluster to be down")
    hang_up(node, owner)
    client.execute_command("CLUSTER ADDSLOTS", lost)
    wait_until(lambda: cluster_state(node) == "ok", 20, "the cluster to be up")
    assert client.exists("bound"), "nobody knows of its connection any more"
    assert node.raw().ok("SLOCK.EXTEND", "bound", "owner", 1) == 1
    wait_until(lambda: not client.exists("bound"), what="the hold to end by its ttl")


def test_a_node_without_a_majority_turns_everybody_away(cluster: Cluster) -> None:
    """Beyond the partition another node may own the slot by now, so a deadline grants nothing here."""
    node, *others = cluster.nodes
    line = Line(node, next(name for name in map(str, range(100)) if cluster.node_of(name) is node))
    line.locks.lock(line.key, HOLDER, HOUR)
    waiting = line.several()
    for each in cluster.nodes:
        each.client().config_set("cluster-node-timeout", 500)
    for other in others:
        other.pause()
    try:
        wait_until(lambda: cluster_state(node) == "fail", 20, "the node to see itself alone")
        all_turned_away(node, waiting)
    finally:
        for other in others:
            other.resume()
    for each in cluster.nodes:
        wait_until(lambda each=each: cluster_state(each) == "ok", 30, "the cluster to be whole")
        each.client().config_set("cluster-node-timeout", 5000)
    assert line.holders() == [HOLDER] and line.queued() == []
    again = line.write("w1")
    line.release(HOLDER)
    assert again.fence()
    line.release("w1")


def test_a_failover_in_a_cluster_turns_everybody_away_and_keeps_the_hold(make_server: MakeServer) -> None:
    old, new = node_and_replica(make_server)
    line = Line(old)
    fence = line.locks.lock(line.key, HOLDER, HOUR)
    waiting = line.several()
    wait_synced(old, new)
    new.client().execute_command("CLUSTER FAILOVER")
    wait_until(lambda: new.client().info("replication")["role"] == "master", 30, "the failover")
    all_turned_away(old, waiting)
    wait_synced(new, old)
    moved = Line(new)
    assert moved.locks.check(line.key, fence) == 1
    again = moved.write("w1")
    moved.locks.extend(line.key, HOLDER, BRIEF)
    assert again.fence() > fence
    wait_synced(new, old)
    _, there = at_once(old, ("READONLY",), ("DEBUG", "DIGEST-VALUE", line.key))
    assert there == [digest(moved.client, line.key).encode()]
