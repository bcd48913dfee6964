"""Waiting in a cluster while the slot moves: never two owners, and nobody left hanging.

Who waits at a node that loses the slot is told something that a cluster client retries, and gets the lock
from the new owner. MIGRATE's deletion of the key is no release.
"""

from __future__ import annotations

import binascii
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from harness import Cluster, Info, RespError, Server, key_slot, wait_until
from harness.causes import HOLDER
from harness.oracle import Oracle
from harness.parked import HOUR, Line, Parked, at_once, blocked_clients, wait_unblocked

pytest_plugins = ["harness.going_home"]

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
        return node.client().execute_command("CLUSTER COUNTKEYSINSLOT", self.slot)

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


def _all_turned_away(waiting: list[Parked]) -> None:
    outcomes = [parked.outcome() for parked in waiting]
    assert all(_is_retriable(outcome) for outcome in outcomes), outcomes


def _queue(line: Line) -> list[Parked]:
    return [line.write("w1"), line.read("r1"), line.read("r2"), line.write("w2", wait=HOUR)]


# --- one step at a time


def test_while_the_key_is_still_there_the_queue_is_served_as_ever(cluster: Cluster) -> None:
    moving = Moving(cluster, "served")
    moving.line.locks.lock(moving.key, HOLDER, HOUR)
    first, second = moving.line.write("first"), moving.line.write("second")
    moving.begin()
    assert moving.line.release(HOLDER) == 1
    assert first.fence() and second.is_waiting()
    assert moving.owners() == ["first"]
    moving.give_up()
    moving.line.release("first")
    assert second.fence()
    moving.line.release("second")


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


def _one_owner_after_the_other(moving: Moving, waiting: list[Parked], newcomers: bool) -> None:
    def is_settled(parked: Parked) -> bool:
        reply = moving.asks("new") if newcomers else 0
        owners = moving.owners()
        assert len(owners) <= 1, owners
        return parked.is_answered() or (isinstance(reply, int) and reply > 0)

    for parked in waiting:
        wait_until(lambda parked=parked: is_settled(parked), 20, f"{parked} or a newcomer to have it")
        outcome = parked.outcome()
        if _is_retriable(outcome):
            assert moving.owners() in ([], ["new"])
        else:
            assert outcome > 0 and moving.owners() == [parked.token]
            assert moving.line.release(parked.token) == 1
    moving.release("new")
    assert wait_until(lambda: moving.asks("late"), what="a late client to have it")
    assert moving.owners() == ["late"]
    moving.release("late")


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


# --- clients of a cluster, at work while slots move


class Worker(threading.Thread):
    """Locks, works for a moment, and releases, again and again; a cluster client follows the redirections."""

    def __init__(self, number: int, node: Server, keys: list[str], oracle: Oracle) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.port = node.port
        self.keys = keys
        self.oracle = oracle
        self.chance = random.Random(number)
        self.done = 0
        self.stopping = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with redis.RedisCluster(host="127.0.0.1", port=self.port, socket_timeout=20) as client:
                while not self.stopping.is_set():
                    self._turn(client)
                    self.done += 1
        except BaseException as failure:
            self.failure = failure

    def _turn(self, client: redis.RedisCluster) -> None:
        key = self.chance.choice(self.keys)
        command, mode = self.chance.choice([("LOCK", "write"), ("LOCK", "write"), ("RLOCK", "read")])
        token = f"{self.number}:{self.done}"
        asked_at = self.oracle.asks(key)
        fence = self._insist(client, f"SLOCK.{command}", key, token, HOUR, "WAIT", 0)
        self.oracle.granted(key, token, mode, fence, asked_at)
        time.sleep(self.chance.uniform(0, 0.002))
        self.oracle.leaves(key, token)
        released = self._insist(client, "SLOCK.UNLOCK" if mode == "write" else "SLOCK.RUNLOCK", key, token)
        assert fence > 0 and released == 1, f"{token} got {fence} and released {released}"

    def _insist(self, client: redis.RedisCluster, *command: Any) -> Any:
        """What the library has not retried by itself."""
        for _ in range(200):
            try:
                return client.execute_command(*command)
            except (TryAgainError, MovedError, AskError, ClusterDownError):
                pass
            except redis.ResponseError as error:
                if str(error).split(" ")[0] not in RETRIABLE:
                    raise
            time.sleep(0.01)
        raise AssertionError(f"{command} was sent away again and again")


SLOTS = 12


def _first_slots(node: Server) -> list[int]:
    """The first slots of the node, which are those that `reshard` takes."""
    slots: list[int] = []
    for first, last, owner, *_ in node.raw().ok("CLUSTER", "SLOTS"):
        if owner[1] == node.port:
            slots += range(first, last + 1)
    return sorted(slots)[:SLOTS]


def _keys_of(slots: list[int], count: int) -> list[str]:
    keys = []
    number = 0
    while len(keys) < count:
        key = f"busy{number}"
        if binascii.crc_hqx(key.encode(), 0) % 16384 in slots:
            keys.append(key)
        number += 1
    return keys


def _command_line() -> str:
    """The redis-cli or valkey-cli beside the server under test, or of the PATH."""
    server = os.environ.get("SERVER") or "redis-server"
    beside = (
        [str(Path(server).parent / name) for name in ("redis-cli", "valkey-cli")] if os.sep in server else []
    )
    for name in (*beside, "redis-cli", "valkey-cli"):
        if found := shutil.which(name):
            return found
    pytest.skip("neither redis-cli nor valkey-cli is here")


def _by_reshard(cluster: Cluster, source: Server, target: Server, slots: list[int]) -> None:
    arguments = {
        "from": cluster.node_id(source),
        "to": cluster.node_id(target),
        "slots": len(slots),
        "timeout": 10_000,
    }
    options = [word for name, value in arguments.items() for word in (f"--cluster-{name}", str(value))]
    done = subprocess.run(
        [_command_line(), "--cluster", "reshard", f"127.0.0.1:{source.port}", *options, "--cluster-yes"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _by_commands(cluster: Cluster, source: Server, target: Server, slots: list[int]) -> None:
    for slot in slots:
        cluster.begin_move(slot, source, target)
        while cluster.move_keys(slot, source, target):
            pass
        cluster.end_move(slot, source, target)


def _at_a_stroke(cluster: Cluster, source: Server, target: Server, slots: list[int]) -> None:
    """As newer servers do it: the slots are replicated, and change hands in one instant."""
    client = source.client()
    if b"MIGRATESLOTS" not in b" ".join(client.execute_command("CLUSTER HELP")):
        pytest.skip("this server moves slots key by key")
    ranges = [word for slot in slots for word in ("SLOTSRANGE", slot, slot, "NODE", cluster.node_id(target))]
    try:
        client.execute_command("CLUSTER MIGRATESLOTS", *ranges)
    except redis.ResponseError as refused:
        if "does not support atomic slot migration" in str(refused):
            pytest.skip("the module has not declared that its slots may move so")
        raise
    wait_until(lambda: not set(slots) & set(_first_slots(source)), 30, "the slots to have moved")


@pytest.mark.parametrize(
    "move", [_by_reshard, _by_commands, _at_a_stroke], ids=["reshard", "commands", "atomic"]
)
def test_clients_at_work_while_slots_move_there_and_back(
    cluster: Cluster, move: Callable[[Cluster, Server, Server, list[int]], None]
) -> None:
    source, target = cluster.nodes[1], cluster.nodes[2]
    slots = _first_slots(source)
    keys = _keys_of(slots, 4)
    oracle = Oracle()
    workers = [Worker(number, source, keys, oracle) for number in range(10)]
    for worker in workers:
        worker.start()

    def all_go_on() -> None:
        before = [worker.done for worker in workers]
        wait_until(
            lambda: all(w.failure or w.done > done + 5 for w, done in zip(workers, before, strict=True)),
            60,
            "every worker to get its turns",
        )

    try:
        all_go_on()
        move(cluster, source, target, slots)
        all_go_on()
        assert all(cluster.node_of(key) is target for key in keys)
        assert all(source.client().execute_command("CLUSTER COUNTKEYSINSLOT", slot) == 0 for slot in slots)
    finally:
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(30)
    assert [worker.failure for worker in workers if worker.failure] == []
    assert not any(worker.is_alive() for worker in workers), "a worker was left hanging"
    assert oracle.violations == []
    print(f"{oracle.grants} grants")
    for node in cluster.nodes:
        assert blocked_clients(node.client()) == 0
        assert node.client().dbsize() == 0
