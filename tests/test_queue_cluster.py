"""Waiting in a cluster while the slot moves: never two owners, and nobody left hanging.

Who waits at a node that loses the slot is told something that a cluster client retries, and gets the lock
from the new owner. MIGRATE's deletion of the key is no release.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness import Cluster, Info, RespError, Server, key_slot, wait_until
from harness.bound import hang_up, take_bound
from harness.causes import HOLDER
from harness.many import many
from harness.waiting import HOUR, Line, WaitingClient, at_once, wait_unblocked

pytest_plugins = ["harness.cleanup"]

RETRIABLE = {"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"}


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

    def move_keys(self) -> None:
        self.cluster.move_keys(self.slot, self.source, self.target)

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


def _is_retriable(outcome: Any) -> bool:
    return isinstance(outcome, RespError) and outcome.prefix in RETRIABLE


def _all_turned_away(waiting: list[WaitingClient]) -> None:
    outcomes = [waiter.outcome() for waiter in waiting]
    assert all(_is_retriable(outcome) for outcome in outcomes), outcomes


def _queue(line: Line) -> list[WaitingClient]:
    return [line.write("w1"), line.read("r1"), line.read("r2"), line.write("w2", wait=HOUR)]


# --- one step at a time


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
    fence = moving.line.locks.lock(moving.key, HOLDER, HOUR)
    waiting = _queue(moving.line)
    moving.begin()
    moving.move_keys()
    _all_turned_away(waiting)
    assert moving.owners() == [HOLDER]
    assert moving.keys_at(moving.source) == 0
    moving.end()
    wait_unblocked(moving.source.client())
    there = Line(moving.target, moving.key)
    assert there.locks.check(moving.key, fence) == 1
    again = [there.write("w1"), there.read("r1")]
    assert there.release(HOLDER) == 1
    assert again[0].fence() > fence
    there.release("w1")
    assert again[1].fence()
    there.release("r1")
    assert moving.keys_at(moving.source) == 0


def test_a_waiting_upgrader_whose_lock_moves_keeps_its_read_hold_at_the_target(cluster: Cluster) -> None:
    moving = Moving(cluster, "upgrading")
    fences = [moving.line.locks.rlock(moving.key, token, HOUR) for token in "ab"]
    waiting = [moving.line.upgrade("a"), moving.line.write("w")]
    moving.begin()
    moving.move_keys()
    _all_turned_away(waiting)
    moving.end()
    there = Line(moving.target, moving.key)
    assert [there.locks.check(moving.key, fence) for fence in fences] == [1, 1]
    there.release("b")
    assert there.locks.upgrade(moving.key, "a", HOUR) > fences[1]
    there.release("a")


@pytest.mark.parametrize("ends", ["deadline", "DEL", "UNLOCK"])
@pytest.mark.parametrize("newcomers", [True, False], ids=["with newcomers", "without"])
def test_a_lock_freed_while_its_slot_moves_has_one_new_owner(
    cluster: Cluster, ends: str, newcomers: bool
) -> None:
    """Without its key the source sends newcomers to the target, so it may not grant it to who waits there."""
    moving = Moving(cluster, f"freed by {ends}")
    for number in range(10):
        assert moving.line.locks.lock(moving.key, HOLDER, HOUR)
        waiting = [moving.line.write("w1"), moving.line.write("w2")]
        moving.begin()
        how = {
            "deadline": ("SLOCK.EXTEND", moving.key, HOLDER, 1 + 3 * number),
            "DEL": ("DEL", moving.key),
            "UNLOCK": ("SLOCK.UNLOCK", moving.key, HOLDER),
        }
        at_once(moving.source, how[ends])
        _one_owner_after_the_other(moving, waiting, newcomers)
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
        if _is_retriable(outcome):
            assert moving.owners() in ([], ["new"])
        else:
            assert outcome > 0 and moving.owners() == [waiter.token]
            assert moving.line.release(waiter.token) == 1
    moving.release("new")
    assert wait_until(lambda: moving.asks("late"), what="a late client to have it")
    assert moving.owners() == ["late"]
    moving.release("late")


@pytest.mark.parametrize("repetition", range(3))
def test_a_set_is_not_granted_where_another_of_its_keys_may_be_gone(
    cluster: Cluster, repetition: int
) -> None:
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
    assert _is_retriable(waiting.outcome())
    assert free.owners() == ["new"] and held.owners() == []
    free.release("new")
    held.give_up()


def test_a_bound_hold_ends_also_when_its_connection_closed_while_the_cluster_was_down(
    cluster: Cluster,
) -> None:
    node = cluster.node_of("bound")
    client = node.client()
    owner = take_bound(node, key="bound")
    lost = next(slot for slot in _slots_of(node) if slot != key_slot(node, "bound"))
    client.execute_command("CLUSTER DELSLOTS", lost)
    wait_until(lambda: _state(node) == "fail", what="the cluster to be down")
    hang_up(node, owner)
    client.execute_command("CLUSTER ADDSLOTS", lost)
    wait_until(lambda: _state(node) == "ok", 20, "the cluster to be up")
    wait_until(lambda: not client.exists("bound"), what="the hold to end with its connection")


def _slots_of(node: Server) -> range:
    slots = at_once(node, ("CLUSTER", "SLOTS"))[0]
    first, last = next((first, last) for first, last, owner, *_ in slots if owner[1] == node.port)
    return range(first, last + 1)


def _state(node: Server) -> str:
    text = at_once(node, ("CLUSTER", "INFO"))[0].decode()
    return dict(line.split(":", 1) for line in text.split())["cluster_state"]


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
