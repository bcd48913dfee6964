"""Strict first in, first out: the order of the grants, and nobody who overtakes."""

from __future__ import annotations

import random
from itertools import groupby

import pytest
import redis

from harness import Locks, Server
from harness.causes import FREEING, HOLDER, KEY, SHARING, Cause
from harness.waiting import (
    HOUR,
    Line,
    WaitingClient,
    at_once,
    blocked_clients,
    serve_in_order,
    wait_unblocked,
)

pytest_plugins = ["harness.cleanup"]

CROWD = 200


def _batches(crowd: list[WaitingClient], modes: dict[str, str]) -> list[list[WaitingClient]]:
    """Who is granted together: each writer alone, neighbouring readers in one."""
    batches: list[list[WaitingClient]] = []
    for mode, group in groupby(crowd, key=lambda waiter: modes[waiter.token]):
        members = list(group)
        batches += [members] if mode == "read" else [[writer] for writer in members]
    return batches


@pytest.mark.parametrize("seed", [1, 20_26, 777])
def test_a_crowd_is_served_in_its_order_with_neighbouring_readers_together(
    server: Server, locks: Locks, seed: int
) -> None:
    chance = random.Random(seed)
    print(f"seed {seed}")
    line = Line(server)
    last_fence = locks.lock(KEY, HOLDER, HOUR)
    modes = {f"t{number}": chance.choice(["read", "read", "write"]) for number in range(CROWD)}
    crowd = [line.read(token) if mode == "read" else line.write(token) for token, mode in modes.items()]
    assert blocked_clients(line.client) == CROWD == locks.info(KEY).waiters
    queue = locks.full(KEY).queue
    assert [(waiter.token.decode(), waiter.mode) for waiter in queue] == list(modes.items())

    batches = _batches(crowd, modes)
    holding = [HOLDER]
    for number, batch in enumerate(batches):
        for token in chance.sample(holding, len(holding)):
            assert locks.lock(KEY, "newcomer", HOUR) == 0
            assert locks.rlock(KEY, "newcomer", HOUR) == 0
            assert line.release(token) == 1
        fences = [waiter.fence() for waiter in batch]
        assert [last_fence, *fences] == sorted({last_fence, *fences})
        last_fence = fences[-1]
        holding = [waiter.token for waiter in batch]
        behind = [waiter for later in batches[number + 1 :] for waiter in later]
        assert line.holders() == sorted(holding)
        assert line.queued() == [waiter.token for waiter in behind]
        assert all(waiter.is_waiting() for waiter in behind[:3])
    for token in holding:
        assert line.release(token) == 1
    assert locks.info(KEY) is None
    assert blocked_clients(line.client) == 0


def test_a_newcomer_that_waits_stands_at_the_end(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    waiting = [line.write("first"), line.read("second"), line.write("third"), line.read("fourth")]
    assert line.queued() == ["first", "second", "third", "fourth"]
    line.release(HOLDER)
    assert len(serve_in_order(line, waiting)) == 4


def test_a_reader_does_not_pass_a_queued_writer(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    writer = line.write("writer")
    assert locks.rlock(KEY, "reader", HOUR) == 0
    reader = line.read("reader")
    assert writer.is_waiting() and reader.is_waiting()
    line.release(HOLDER)
    assert writer.fence() and reader.is_waiting()
    line.release("writer")
    assert reader.fence()


def test_readers_that_hold_do_not_hold_up_the_head_longer_than_they_hold(
    server: Server, locks: Locks
) -> None:
    """Readers coming one after the other, never all gone, would starve a writer that did not queue."""
    line = Line(server)
    locks.rlock(KEY, "r0", HOUR)
    writer = line.write("writer")
    readers = []
    for number in range(1, 6):
        readers.append(line.read(f"r{number}"))
    line.release("r0")
    assert writer.fence()
    assert line.holders() == ["writer"]
    line.release("writer")
    assert all(reader.fence() for reader in readers)
    assert line.holders() == [f"r{number}" for number in range(1, 6)]


def test_a_free_lock_is_granted_without_waiting(locks: Locks) -> None:
    assert locks.lock(KEY, "a", HOUR, wait=HOUR) > 0
    assert locks.rlock("other", "a", HOUR, wait=0) > 0
    assert locks.rlock("other", "b", HOUR, wait=0) > 0


# --- what a holder does never queues


def test_a_holder_refreshes_extends_and_releases_past_the_queue(server: Server, locks: Locks) -> None:
    line = Line(server)
    fence = locks.rlock(KEY, HOLDER, HOUR)
    other = locks.rlock(KEY, "other", HOUR)
    writer = line.write("writer")
    assert locks.rlock(KEY, HOLDER, 2 * HOUR) == fence
    assert locks.rlock(KEY, HOLDER, 2 * HOUR, wait=0, meta="m") == fence
    assert locks.extend(KEY, "other", 3 * HOUR) == 1
    assert locks.check(KEY, other) == 1
    assert line.queued() == ["writer"]
    assert locks.runlock(KEY, HOLDER) == 1
    assert writer.is_waiting()
    assert locks.runlock(KEY, "other") == 1
    assert writer.fence() > other


def test_the_writer_refreshes_with_wait_while_others_queue(server: Server, locks: Locks) -> None:
    line = Line(server)
    fence = locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write("w"), line.read("r")]
    assert locks.lock(KEY, HOLDER, 5000, wait=0) == fence
    assert locks.pttl(KEY, HOLDER) <= 5000
    assert locks.lock(KEY, HOLDER, HOUR, wait=10) == fence
    line.release(HOLDER)
    serve_in_order(line, waiting)


def test_the_old_holder_queues_like_anybody_else(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("waiting")
    replies = at_once(
        server,
        ("SLOCK.UNLOCK", KEY, HOLDER),
        ("SLOCK.LOCK", KEY, HOLDER, HOUR),
        ("SLOCK.RLOCK", KEY, HOLDER, HOUR),
    )
    assert replies == [1, 0, 0]
    assert waiting.fence()


# --- newcomers in the very instant in which the lock becomes free


@pytest.mark.parametrize("cause", [*FREEING, *SHARING], ids=str)
@pytest.mark.parametrize("newcomer", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_a_newcomer_right_behind_the_cause_does_not_overtake(
    server: Server, client: redis.Redis, cause: Cause, newcomer: str
) -> None:
    line = Line(server)
    cause.hold(client)
    first = line.read("first") if cause.readers_left else line.write("first")
    second = line.write("second")
    commands = cause.commands(client)
    if cause.by_deadline:
        commands.append(("DEBUG", "SLEEP", "0.08"))
    # In one write, so that the server runs it all before it can do anything else.
    replies = at_once(
        server, *commands, (newcomer, KEY, "newcomer", HOUR), (newcomer, KEY, "newcomer", HOUR, "WAIT", 1)
    )
    assert replies[-2:] == [0, 0], replies
    assert first.fence()
    assert second.is_waiting()
    assert line.holders() == sorted(["first", *cause.readers_left])
    for token in line.holders():
        line.release(token)
    assert second.fence()
    wait_unblocked(client)


def test_a_newcomer_in_the_same_transaction_does_not_overtake(server: Server, locks: Locks) -> None:
    line = Line(server)
    for release in (("SLOCK.UNLOCK", KEY, HOLDER), ("DEL", KEY)):
        locks.lock(KEY, HOLDER, HOUR)
        waiting = line.write("waiting")
        replies = at_once(
            server,
            ("MULTI",),
            release,
            ("SLOCK.LOCK", KEY, "new", HOUR),
            ("SLOCK.RLOCK", KEY, "new", HOUR),
            ("EXEC",),
        )
        assert replies[-1] == [1, 0, 0]
        assert waiting.fence()
        line.release("waiting")


def test_a_newcomer_in_the_same_script_does_not_overtake(server: Server, locks: Locks) -> None:
    script = """
        local freed = redis.call(KEYS[2], KEYS[1], ARGV[1])
        return {freed, redis.call('SLOCK.LOCK', KEYS[1], 'new', 1000), redis.call('SLOCK.INFO', KEYS[1])[2]}
    """
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("waiting")
    reply = line.client.eval(script, 2, KEY, "SLOCK.UNLOCK", HOLDER)
    assert reply[:2] == [1, 0]
    assert waiting.fence()


def test_locks_of_the_same_name_in_two_databases_have_two_queues(server: Server) -> None:
    here, there = Line(server), Line(server, database=1)
    for line in (here, there):
        line.locks.lock(KEY, HOLDER, HOUR)
    first, other = here.write("first"), there.write("other")
    assert (here.queued(), there.queued()) == (["first"], ["other"])
    here.release(HOLDER)
    assert first.fence() and other.is_waiting()
    there.release(HOLDER)
    assert other.fence()


def test_queues_of_different_locks_do_not_touch(server: Server) -> None:
    lines = [Line(server, f"k{number}") for number in range(10)]
    waiting = {}
    for line in lines:
        line.locks.lock(line.key, HOLDER, HOUR)
        waiting[line.key] = line.write(f"waits for {line.key}")
    for line in reversed(lines):
        line.release(HOLDER)
        assert waiting.pop(line.key).fence()
        assert all(waiter.is_waiting() for waiter in waiting.values())
