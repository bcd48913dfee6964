"""Waiting for many keys at once: one order of arrival in all queues together, and never half a set."""

from __future__ import annotations

import random
import select
from collections.abc import Callable
from typing import NamedTuple

import pytest

from harness import RawConnection, ReplicationStream, Server, digest, replica_of, wait_synced, wait_until
from harness.many import many
from harness.oracle import Oracle
from harness.queues import Queues
from harness.waiting import HOUR, WaitingClient, at_once

pytest_plugins = ["harness.cleanup"]

KEYS = [f"key:{number}" for number in range(10)]
CLIENTS = 50


@pytest.fixture
def queues(server: Server) -> Queues:
    return Queues(server)


class Request(NamedTuple):
    token: str
    command: str
    keys: list[str]

    @property
    def mode(self) -> str:
        return "read" if self.command in ("MRLOCK", "RLOCK") else "write"

    def words(self) -> tuple:
        if self.command in ("LOCK", "RLOCK"):
            return (f"SLOCK.{self.command}", self.keys[0], self.token, HOUR, "WAIT", 0)
        return many(self.command, self.keys, self.token, HOUR, "WAIT", 0)


def _requests(dice: random.Random) -> dict[str, Request]:
    requests = {}
    for token in (f"t{number}" for number in range(CLIENTS)):
        command = dice.choice(["MLOCK", "MLOCK", "MRLOCK", "MRLOCK", "LOCK", "RLOCK"])
        size = dice.randint(2, 6) if command.startswith("M") else 1
        requests[token] = Request(token, command, dice.sample(KEYS, size))
    return requests


def _answered(waiters: list[WaitingClient]) -> list[WaitingClient]:
    by_socket = {one.connection.socket: one for one in waiters}
    ready, _, _ = select.select(list(by_socket), [], [], 20)
    assert ready, f"{len(waiters)} requests starve: {waiters}"
    return [by_socket[socket] for socket in ready]


def test_fifty_clients_get_their_overlapping_sets_in_order_of_arrival(queues: Queues) -> None:
    requests = _requests(random.Random(7))
    assert queues.raw.ok(*many("MLOCK", KEYS, "first", HOUR))
    outstanding = [queues.ask(token, *request.words()) for token, request in requests.items()]
    for key in KEYS:
        assert queues.queued(key) == [token for token, request in requests.items() if key in request.keys]
    queues.free("first", KEYS)
    oracle, fences = Oracle(), {}
    while outstanding:
        for waiter in _answered(outstanding):
            request, fence = requests[waiter.token], waiter.fence()
            fences[waiter.token] = fence
            for key in request.keys:
                oracle.granted(key, waiter.token, request.mode, fence, 0)
                oracle.leaves(key, waiter.token)
            outstanding.remove(waiter)
            assert queues.free(waiter.token, request.keys) == len(request.keys)
    assert not oracle.violations
    for key in KEYS:
        order = [fences[token] for token, request in requests.items() if key in request.keys]
        assert order == sorted(set(order)), f"somebody was overtaken at {key}"
    assert queues.client.dbsize() == 0


# --- all or none, at every moment


def _seen_together(raw: RawConnection, keys: str, token: str) -> int:
    """In one step: on how many of the keys the token has time left. All or none."""
    lefts = raw.pipeline([("MULTI",), *[("SLOCK.PTTL", key, token) for key in keys], ("EXEC",)])[-1]
    held = sum(left > 0 for left in lefts)
    assert held in (0, len(keys)), f"half a set: {lefts}"
    return held


def test_keys_that_expire_one_after_the_other_are_taken_when_the_last_is_free(queues: Queues) -> None:
    queues.hold("x", "a b c")
    waiting = queues.mlock("me", "a b c d")
    queues.locks.extend("a", "x", 30)
    wait_until(lambda: queues.locks.info("a").mode == "free", what="the first key to be free")
    assert queues.locks.lock("a", "barger", HOUR) == 0, "a waiting set was overtaken"
    at_once(queues.server, ("SLOCK.EXTEND", "b", "x", 50), ("SLOCK.EXTEND", "c", "x", 150))
    while waiting.is_waiting():
        _seen_together(queues.raw, "abcd", "me")
    fence = waiting.fence()
    assert [queues.locks.info(key).fence for key in "abcd"] == [fence] * 4


# --- the queues


def test_a_set_waits_in_every_queue_in_one_order(queues: Queues) -> None:
    queues.hold("x", "a")
    # The waiter holds one of its keys already; that hold expires while it waits.
    queues.hold("one", "c")
    waiting = [queues.mlock("one", "a b c"), queues.mlock("two", "b a")]
    readers, behind = [queues.mrlock("r1", "b a"), queues.mrlock("r2", "a d")], queues.lock("behind", "d")
    queues.locks.extend("c", "one", 20)
    wait_until(lambda: queues.holders("c") == [], what="its old hold to expire")
    assert queues.locks.info("b").mode == "free" and queues.queued("b") == ["one", "two", "r1"]
    assert queues.locks.lock("b", "newcomer", HOUR) == 0
    assert queues.raw.ok(*many("MLOCK", "b e", "newcomer", HOUR)) == 0
    assert queues.locks.lock("e", "elsewhere", HOUR)
    queues.free("x", "a")
    for waiter in waiting:
        fence = waiter.fence()
        assert queues.locks.info("a").fence == fence == queues.locks.info("b").fence
        assert queues.free(waiter.token, "a b c") >= 2
    assert all(reader.fence() for reader in readers) and behind.is_waiting()
    assert queues.free("r2", "a d") == 2 and behind.fence()


def _is_unblocked(queues: Queues, waiting: WaitingClient) -> None:
    queues.client.client_unblock(waiting.id, error=True)
    assert waiting.error().startswith("UNBLOCKED ")


def _finds_another_type(queues: Queues, waiting: WaitingClient) -> None:
    queues.client.set("a", "text")
    assert waiting.error().startswith("WRONGTYPE ")


@pytest.mark.parametrize("leave", [_is_unblocked, _finds_another_type])
def test_who_leaves_leaves_every_queue_and_lets_the_others_on(
    queues: Queues, leave: Callable[[Queues, WaitingClient], None]
) -> None:
    queues.hold("x", "a")
    waiting = queues.mlock("me", "a b c", wait=HOUR)
    behind = [queues.lock("behind b", "b"), queues.mrlock("behind c", "c")]
    leave(queues, waiting)
    assert all(waiter.fence() for waiter in behind)
    queues.client.delete("a")
    assert [queues.queued(key) for key in "abc"] == [[]] * 3
    assert queues.holders("b") == ["behind b"] and queues.holders("c") == ["behind c"]


# --- replicas


def test_a_set_is_granted_in_one_unit_and_a_replica_never_has_half_of_it(
    make_server: Callable[..., Server],
) -> None:
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    queues, stream, watcher = Queues(primary), ReplicationStream(primary), replica.raw()
    queues.hold("x", "a b c")
    waiting = [queues.mlock(f"w{number}", "a b c") for number in range(20)]
    stream.commands()
    queues.free("x", "a b c")
    for waiter in waiting:
        waiter.fence()
        released, granted = stream.units()
        assert [sorted(effect[1] for effect in unit) for unit in (released, granted)] == [
            [b"a", b"b", b"c"]
        ] * 2
        assert all(effect[2].endswith(b" " + waiter.token.encode()) for effect in granted)
        _seen_together(watcher, "abc", waiter.token)
        queues.free(waiter.token, "a b c")
    queues.raw.ok(*many("MRLOCK", "a b c", "last", HOUR))
    wait_synced(primary, replica)
    for key in "abc":
        assert digest(primary.client(), key) == digest(replica.client(), key)
