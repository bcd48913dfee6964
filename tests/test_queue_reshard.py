"""Clients at work in a cluster while slots move: never two owners, and everybody gets the lock in the end.

`make torture` moves them SLOCK_TORTURE_RESHARDS times, there and back.
"""

from __future__ import annotations

import binascii
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from harness import Cluster, Server, wait_until
from harness.histories import components, fence_problems, overlaps
from harness.lock_model import Call
from harness.recorded import now
from harness.waiting import HOUR, RETRIABLE, blocked_clients

RESHARDS = int(os.environ.get("SLOCK_TORTURE_RESHARDS", "1"))
TURNS = [0] * 10


def _work(number: int, node: Server, keys: list[str], calls: list[Call], stopping: threading.Event) -> None:
    """Locks, works for a moment, and releases, again and again; a cluster client follows the redirections."""
    chance = random.Random(number)

    def ask(name: str, key: str, *words: object, **told: int) -> int:
        start = now()
        reply = _insist(client, f"SLOCK.{name}", key, *words)
        calls.append(Call(name, (key,), words[0], start, now(), reply, **told))
        return reply

    with redis.RedisCluster(host="127.0.0.1", port=node.port, socket_timeout=20) as client:
        while not stopping.is_set():
            key, token = chance.choice(keys), f"{number}:{TURNS[number]}"
            command = chance.choice(["LOCK", "LOCK", "RLOCK"])
            fence = ask(command, key, token, HOUR, "WAIT", 0, ttl_ms=HOUR)
            time.sleep(chance.uniform(0, 0.002))
            released = ask("UNLOCK" if command == "LOCK" else "RUNLOCK", key, token)
            assert fence > 0 and released == 1, f"{token} got {fence} and released {released}"
            TURNS[number] += 1


def _insist(client: redis.RedisCluster, *command: Any) -> Any:
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


def _keys_of(slots: list[int], count: int) -> list[str]:
    keys = (f"busy{number}" for number in range(10**6))
    return list(islice((key for key in keys if binascii.crc_hqx(key.encode(), 0) % 16384 in slots), count))


@pytest.mark.parametrize("move", [Cluster.move_by_keys, Cluster.move_at_a_stroke])
def test_clients_at_work_while_slots_move(
    cluster: Cluster, move: Callable[[Cluster, list[int], Server, Server], None]
) -> None:
    source, target = cluster.nodes[1], cluster.nodes[2]
    slots = cluster.slots_of(source)[:SLOTS]
    keys = _keys_of(slots, 4)
    calls: list[Call] = []
    stopping, waited = threading.Event(), 0
    with ThreadPoolExecutor(len(TURNS)) as pool:
        workers = [pool.submit(_work, number, source, keys, calls, stopping) for number in range(len(TURNS))]

        def all_go_on() -> None:
            goals = [turns + 5 for turns in TURNS]

            def is_done() -> bool:
                reached = all(turns > goal for turns, goal in zip(TURNS, goals, strict=True))
                return reached or any(worker.done() for worker in workers)

            wait_until(is_done, 60, "every worker to get its turns")

        try:
            all_go_on()
            for _ in range(RESHARDS):
                move(cluster, slots, source, target)
                all_go_on()
                waited += sum(blocked_clients(node.client()) for node in cluster.nodes)
                source, target = target, source
        finally:
            stopping.set()
        for worker in workers:
            worker.result()
    assert all(cluster.node_of(key) is source for key in keys), "who has taken them last"
    assert all(target.client().execute_command("CLUSTER COUNTKEYSINSLOT", slot) == 0 for slot in slots)
    assert overlaps(calls) == []
    for of_one_key in components(calls):  # fences rise on each node, and so for each key
        assert fence_problems(of_one_key) == []
    print(f"{RESHARDS} reshards, {len(calls)} calls, {waited / RESHARDS} clients that waited")
    for node in cluster.nodes:
        assert blocked_clients(node.client()) == 0
        assert node.client().dbsize() == 0
