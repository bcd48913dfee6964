"""Waiting for many keys at once: one order of arrival in all queues together, and never half a set."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from harness import RawConnection, ReplicationStream, Server, digest, replica_of, wait_synced, wait_until
from harness.many import many
from harness.oracle import Oracle
from harness.queues import Queues
from harness.waiting import HOUR, WaitingClient, at_once, wait_unblocked

pytest_plugins = ["harness.cleanup"]

KEYS = [f"key:{number}" for number in range(10)]
CLIENTS = 50


@pytest.fixture
def queues(server: Server) -> Queues:
    return Queues(server)


# --- the great disorder


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


def _requests(dice: random.Random, count: int, name: str = "t") -> list[Request]:
    requests = []
    for number in range(count):
        command = dice.choice(["MLOCK", "MLOCK", "MRLOCK", "MRLOCK", "LOCK", "RLOCK"])
        size = dice.randint(2, 6) if command.startswith("M") else 1
        requests.append(Request(f"{name}{number}", command, dice.sample(KEYS, size)))
    return requests


def _answered(waiters: list[WaitingClient]) -> list[WaitingClient]:
    readable = select.poll()
    by_number = {one.connection.socket.fileno(): one for one in waiters}
    for number in by_number:
        readable.register(number, select.POLLIN)
    ready = readable.poll(20_000)
    assert ready, f"{len(waiters)} requests starve: {waiters}"
    return [by_number[number] for number, _ in ready]


@pytest.mark.parametrize("seed", range(3))
def test_fifty_clients_get_their_overlapping_sets_in_order_of_arrival(queues: Queues, seed: int) -> None:
    dice = random.Random(seed)
    requests = _requests(dice, CLIENTS)
    assert queues.raw.ok(*many("MLOCK", KEYS, "first", HOUR))
    waiting = {request.token: queues.ask(request.token, *request.words()) for request in requests}
    for key in KEYS:
        assert queues.queued(key) == [request.token for request in requests if key in request.keys]
    queues.free("first", KEYS)
    oracle, fences, by_token = Oracle(), {}, {request.token: request for request in requests}
    outstanding = list(waiting.values())
    while outstanding:
        for waiter in _answered(outstanding):
            request, fence = by_token[waiter.token], waiter.fence()
            fences[waiter.token] = fence
            for key in request.keys:
                oracle.granted(key, waiter.token, request.mode, fence, 0)
                oracle.leaves(key, waiter.token)
            outstanding.remove(waiter)
            assert queues.free(waiter.token, request.keys) == len(request.keys)
    assert not oracle.violations
    for key in KEYS:
        order = [fences[request.token] for request in requests if key in request.keys]
        assert order == sorted(set(order)), f"somebody was overtaken at {key}"
    assert queues.client.dbsize() == 0


def test_fifty_clients_that_never_stop_all_get_through(queues: Queues) -> None:
    dice, rounds, oracle = random.Random(7), 6, Oracle()
    todo = {f"c{number}": _requests(dice, rounds, f"c{number}-") for number in range(CLIENTS)}
    expected = sum(len(request.keys) for requests in todo.values() for request in requests)
    clients = [WaitingClient(queues.server, name) for name in todo]
    asked: dict[str, tuple[Request, dict[str, int]]] = {}

    def ask_next(client: WaitingClient) -> None:
        request = todo[client.token].pop()
        asked[client.token] = request, {key: oracle.asks(key) for key in request.keys}
        client.ask(*request.words())

    for client in clients:
        ask_next(client)
    outstanding = list(clients)
    while outstanding:
        for client in _answered(outstanding):
            (request, before), fence = asked[client.token], client.fence()
            for key in request.keys:
                oracle.granted(key, request.token, request.mode, fence, before[key])
            for key in request.keys:
                oracle.leaves(key, request.token)
            client.ask(*many("MUNLOCK", request.keys, request.token))
            assert client.reply() == len(request.keys)
            if todo[client.token]:
                ask_next(client)
            else:
                outstanding.remove(client)
    assert not oracle.violations
    assert oracle.grants == expected
    wait_unblocked(queues.client)
    assert queues.client.dbsize() == 0


# --- all or none, at every moment


def _seen_together(raw: RawConnection, keys: str, token: str) -> list[int]:
    """In one step: the time left to `token` on each key."""
    names = keys.split()
    return raw.pipeline([("MULTI",), *[("SLOCK.PTTL", key, token) for key in names], ("EXEC",)])[-1]


def test_keys_that_expire_one_after_the_other_are_taken_when_the_last_is_free(queues: Queues) -> None:
    queues.hold("x", "a b c")
    waiting = queues.mlock("me", "a b c d")
    queues.locks.extend("a", "x", 30)
    wait_until(lambda: queues.locks.info("a").mode == "free", what="the first key to be free")
    assert queues.locks.lock("a", "barger", HOUR) == 0, "a waiting set was overtaken"
    at_once(queues.server, ("SLOCK.EXTEND", "b", "x", 50), ("SLOCK.EXTEND", "c", "x", 150))
    while waiting.is_waiting():
        held = [left > 0 for left in _seen_together(queues.raw, "a b c d", "me")]
        assert len(set(held)) == 1, f"half a set: {held}"
    fence = waiting.fence()
    assert [queues.locks.info(key).fence for key in "abcd"] == [fence] * 4


def test_a_set_ends_as_a_whole_with_its_deadline(queues: Queues) -> None:
    assert queues.raw.ok(*many("MLOCK", "a b c", "me", 60))
    parts: set[int] = {3}
    end = time.monotonic() + 10
    while parts != {0} and time.monotonic() < end:
        lefts = _seen_together(queues.raw, "a b c", "me")
        parts = {sum(left > 0 for left in lefts)}
        assert parts <= {0, 3}, lefts
    assert parts == {0}
    assert queues.locks.lock("b", "other", HOUR)


def test_one_key_that_is_lost_meanwhile_does_not_hold_up_a_waiting_set(queues: Queues) -> None:
    """The waiter holds one of its keys already; that hold expires while it waits."""
    queues.hold("x", "b")
    queues.hold("me", "a")
    waiting = queues.mlock("me", "a b")
    assert queues.holders("a") == ["me"], "it keeps what it holds"
    queues.locks.extend("a", "me", 20)
    wait_until(lambda: queues.holders("a") == [], what="its old hold to expire")
    assert waiting.is_waiting()
    queues.free("x", "b")
    fence = waiting.fence()
    assert [queues.locks.info(key).fence for key in "ab"] == [fence] * 2


# --- the queues


def test_a_set_waits_in_every_queue_and_holds_up_those_behind_it(queues: Queues) -> None:
    queues.hold("x", "a")
    waiting = queues.mlock("me", "a b")
    behind = queues.lock("behind", "b")
    assert queues.locks.info("b").mode == "free" and queues.queued("b") == ["me", "behind"]
    assert queues.locks.lock("b", "newcomer", HOUR) == 0
    assert queues.raw.ok(*many("MLOCK", "b c", "newcomer", HOUR)) == 0
    assert queues.locks.lock("c", "elsewhere", HOUR)
    queues.free("x", "a")
    waiting.fence()
    assert behind.is_waiting()
    assert queues.free("me", "a b") == 2
    behind.fence()


def test_opposite_orders_of_the_same_keys_do_not_block_each_other(queues: Queues) -> None:
    queues.hold("x", "a b")
    waiting = [queues.mlock("one", "a b"), queues.mlock("two", "b a"), queues.mlock("three", "a b")]
    queues.free("x", "a")
    assert all(waiter.is_waiting() for waiter in waiting)
    queues.free("x", "b")
    for waiter in waiting:
        waiter.fence()
        assert queues.free(waiter.token, "b a") == 2


def test_neighbouring_readers_of_overlapping_sets_are_let_in_together(queues: Queues) -> None:
    queues.hold("x", "a b c")
    readers = [queues.mrlock("one", "a b"), queues.mrlock("two", "b c"), queues.mrlock("three", "c a")]
    writer = queues.mlock("writer", "a c")
    late = queues.mrlock("late", "c")
    assert queues.free("x", "a b c") == 3
    assert len({reader.fence() for reader in readers}) == 3
    assert writer.is_waiting() and late.is_waiting()
    for reader in readers:
        queues.free(reader.token, "a b c")
    writer.fence()
    assert late.is_waiting()
    queues.free("writer", "a c")
    late.fence()


def _times_out(queues: Queues, waiting: WaitingClient) -> None:
    assert waiting.reply() == 0


def _disconnects(queues: Queues, waiting: WaitingClient) -> None:
    waiting.connection.close()


def _is_killed(queues: Queues, waiting: WaitingClient) -> None:
    queues.client.client_kill_filter(_id=waiting.id)


def _is_unblocked(queues: Queues, waiting: WaitingClient) -> None:
    queues.client.client_unblock(waiting.id)
    assert waiting.reply() == 0


def _is_unblocked_with_an_error(queues: Queues, waiting: WaitingClient) -> None:
    queues.client.client_unblock(waiting.id, error=True)
    assert waiting.error().startswith("UNBLOCKED ")


def _finds_another_type(queues: Queues, waiting: WaitingClient) -> None:
    queues.client.set("a", "text")
    assert waiting.error().startswith("WRONGTYPE ")


@pytest.mark.parametrize(
    "leave",
    [_times_out, _disconnects, _is_killed, _is_unblocked, _is_unblocked_with_an_error, _finds_another_type],
    ids=lambda leave: leave.__name__.strip("_").replace("_", " "),
)
def test_who_leaves_leaves_every_queue_and_lets_the_others_on(
    queues: Queues, leave: Callable[[Queues, WaitingClient], None]
) -> None:
    queues.hold("x", "a")
    brief = 150 if leave is _times_out else HOUR
    waiting = queues.mlock("me", "a b c", wait=brief)
    behind = [queues.lock("behind b", "b"), queues.mrlock("behind c", "c")]
    assert all(waiter.is_waiting() for waiter in behind)
    leave(queues, waiting)
    for waiter in behind:
        waiter.fence()
    assert queues.queued("b") == queues.queued("c") == []
    queues.client.delete("a")
    assert queues.queued("a") == []
    assert queues.holders("b") == ["behind b"] and queues.holders("c") == ["behind c"]


def test_a_set_does_not_wait_where_it_cannot_block(queues: Queues) -> None:
    queues.hold("x", "a")
    words = many("MLOCK", "a b", "me", HOUR, "WAIT", 0)
    assert queues.raw.pipeline([("MULTI",), words, ("EXEC",)])[-1] == [0]
    script = "return redis.call('SLOCK.MLOCK', 2, 'a', 'b', 'me', 1000, 'WAIT', 0)"
    assert queues.raw.ok("EVAL", script, 2, "a", "b") == 0
    assert queues.queued("a") == [] and queues.locks.info("b") is None


# --- deadlocks


def test_a_set_that_would_close_a_cycle_is_refused_and_keeps_what_it_holds(queues: Queues) -> None:
    queues.hold("A", "x")
    queues.hold("B", "y")
    waiting = queues.mlock("A", "z y w")
    text = queues.raw.error(*many("MLOCK", "v x", "B", HOUR, "WAIT", 0))
    assert text.startswith("DEADLOCK ") and "A" in text and "B" in text
    assert queues.holders("y") == ["B"] and queues.locks.info("v") is None
    assert queues.queued("x") == []
    queues.free("B", "y")
    waiting.fence()


def test_a_single_request_that_closes_a_cycle_with_a_set_is_refused(queues: Queues) -> None:
    queues.hold("A", "x")
    queues.hold("B", "y")
    waiting = queues.mlock("B", "z x")
    assert queues.raw.error("SLOCK.LOCK", "y", "A", HOUR, "WAIT", 0).startswith("DEADLOCK ")
    # B waits for A at x, and stands first in the queue of the free z.
    assert queues.raw.error("SLOCK.LOCK", "z", "A", HOUR, "WAIT", 0).startswith("DEADLOCK ")
    queues.free("A", "x")
    waiting.fence()


def test_a_long_cycle_through_sets_is_refused(queues: Queues) -> None:
    for token, key in zip("ABCD", "pqrs", strict=True):
        queues.hold(token, key)
    waiting = [queues.mlock(token, f"{key} free{token}") for token, key in zip("ABC", "qrs", strict=True)]
    text = queues.raw.error(*many("MRLOCK", "freeD p", "D", HOUR, "WAIT", 0))
    assert text.startswith("DEADLOCK ") and all(token in text for token in "ABCD")
    queues.free("D", "s")
    for waiter, key in zip(reversed(waiting), "srq", strict=True):
        waiter.fence()
        queues.free(waiter.token, [key, f"free{waiter.token}", chr(ord(key) - 1)])


# --- replicas


@pytest.fixture
def stream(server: Server) -> Iterator[ReplicationStream]:
    stream = ReplicationStream(server)
    yield stream
    stream.close()


def test_the_grant_of_a_set_is_one_unit_after_the_release(queues: Queues, stream: ReplicationStream) -> None:
    queues.hold("x", "a b")
    waiting = queues.mlock("me", "a b c")
    stream.commands()
    queues.free("x", "a b")
    waiting.fence()
    released, granted = stream.units()
    assert [effect[1] for effect in released] == [b"a", b"b"]
    assert sorted(effect[1] for effect in granted) == [b"a", b"b", b"c"]
    assert all(effect[2].endswith(b" me") for effect in granted)


def test_a_replica_never_has_half_a_set(make_server: Callable[..., Server]) -> None:
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    queues = Queues(primary)
    queues.hold("x", "a b c")
    waiting = [queues.mlock(f"w{number}", "a b c") for number in range(20)]
    watcher, seen = replica.raw(), set()
    queues.free("x", "a b c")
    for waiter in waiting:
        waiter.fence()
        lefts = _seen_together(watcher, "a b c", waiter.token)
        seen.add(len({left > 0 for left in lefts}))
        queues.free(waiter.token, "a b c")
    assert seen == {1}
    queues.raw.ok(*many("MRLOCK", "a b c", "last", HOUR))
    wait_synced(primary, replica)
    for key in "abc":
        assert digest(primary.client(), key) == digest(replica.client(), key)
