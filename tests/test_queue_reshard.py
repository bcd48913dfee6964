"""Clients at work in a cluster while slots move: never two owners, and everybody gets the lock in the end."""

from __future__ import annotations

import binascii
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from harness import Cluster, Server, wait_until
from harness.oracle import Oracle
from harness.waiting import HOUR, RETRIABLE, at_once, blocked_clients


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
        """What the library does not retry by itself is retried here, as a lock library would."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                return client.execute_command(*command)
            except redis.ResponseError as error:
                moved = isinstance(error, (TryAgainError, MovedError, AskError, ClusterDownError))
                if not moved and str(error).split(" ")[0] not in RETRIABLE:
                    raise
            time.sleep(0.01)
        raise AssertionError(f"{command} was sent away again and again")


SLOTS = 12


def _first_slots(node: Server) -> list[int]:
    """The first slots of the node, which are those that `reshard` takes."""
    slots: list[int] = []
    for first, last, owner, *_ in at_once(node, ("CLUSTER", "SLOTS"))[0]:
        if owner[1] == node.port:
            slots += range(first, last + 1)
    return sorted(slots)[:SLOTS]


def _keys_of(slots: list[int], count: int) -> list[str]:
    keys = (f"busy{number}" for number in range(10**6))
    return list(islice((key for key in keys if binascii.crc_hqx(key.encode(), 0) % 16384 in slots), count))


def _command_line() -> str:
    """The redis-cli or valkey-cli beside the server under test, or of the PATH."""
    directory = os.path.dirname(os.environ.get("SERVER", ""))
    names = ("redis-cli", "valkey-cli")
    for name in (*(os.path.join(directory, name) for name in names), *names):
        if found := shutil.which(name):
            return found
    pytest.skip("neither redis-cli nor valkey-cli is here")


def _by_reshard(cluster: Cluster, source: Server, target: Server, slots: list[int]) -> None:
    ends = f"--cluster-from {cluster.node_id(source)} --cluster-to {cluster.node_id(target)}"
    options = f"{ends} --cluster-slots {len(slots)} --cluster-timeout 10000 --cluster-yes".split()
    command = [_command_line(), "--cluster", "reshard", f"127.0.0.1:{source.port}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


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


@pytest.mark.parametrize("move", [_by_reshard, _at_a_stroke], ids=["reshard", "atomic"])
def test_clients_at_work_while_slots_move(
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
