"""Strict first in, first out, in a server: the order of the grants, and nobody who overtakes."""

from __future__ import annotations

import random
from itertools import groupby

from harness import Locks, Server
from harness.causes import HOLDER, KEY
from harness.waiting import HOUR, Line, WaitingClient, at_once, blocked_clients

pytest_plugins = ["harness.cleanup"]

CROWD = 100


def _batches(crowd: list[WaitingClient], modes: dict[str, str]) -> list[list[WaitingClient]]:
    """Who is granted together: each writer alone, neighbouring readers in one."""
    batches: list[list[WaitingClient]] = []
    for mode, group in groupby(crowd, key=lambda waiter: modes[waiter.token]):
        members = list(group)
        batches += [members] if mode == "read" else [[writer] for writer in members]
    return batches


def test_a_crowd_is_served_in_its_order_with_neighbouring_readers_together(
    server: Server, locks: Locks
) -> None:
    chance, line = random.Random(2026), Line(server)
    last_fence = locks.lock(KEY, HOLDER, HOUR)
    modes = {f"t{number}": chance.choice(["read", "read", "write"]) for number in range(CROWD)}
    crowd = [line.read(token) if mode == "read" else line.write(token) for token, mode in modes.items()]
    assert blocked_clients(line.client) == CROWD == locks.info(KEY).waiters
    queue = locks.full(KEY).queue
    assert [(waiter.token.decode(), waiter.mode) for waiter in queue] == list(modes.items())

    holding = [HOLDER]
    for batch in _batches(crowd, modes):
        for token in chance.sample(holding, len(holding)):
            assert locks.lock(KEY, "newcomer", HOUR) == 0 == locks.rlock(KEY, "newcomer", HOUR)
            assert line.release(token) == 1
        fences = [waiter.fence() for waiter in batch]
        assert [last_fence, *fences] == sorted({last_fence, *fences})
        last_fence = fences[-1]
        holding = [waiter.token for waiter in batch]
        del crowd[: len(batch)]
        assert line.holders() == sorted(holding)
        assert line.queued() == [waiter.token for waiter in crowd]
        assert all(waiter.is_waiting() for waiter in crowd[:3])
    assert all(line.release(token) == 1 for token in holding)
    assert locks.info(KEY) is None
    assert blocked_clients(line.client) == 0


def test_a_free_lock_is_granted_without_waiting(locks: Locks) -> None:
    assert locks.lock(KEY, "a", HOUR, wait=HOUR) > 0
    assert locks.rlock("other", "a", HOUR, wait=0) > 0 < locks.rlock("other", "b", HOUR, wait=0)


def test_a_holder_refreshes_extends_and_releases_past_the_queue(server: Server, locks: Locks) -> None:
    line = Line(server)
    fence, other = locks.rlock(KEY, HOLDER, HOUR), locks.rlock(KEY, "other", HOUR)
    writer, reader = line.write("writer"), line.read("reader")
    assert locks.rlock(KEY, HOLDER, 2 * HOUR, wait=0, meta="m") == fence
    assert locks.extend(KEY, "other", 3 * HOUR) == 1 == locks.check(KEY, other)
    assert locks.runlock(KEY, HOLDER) == 1 and writer.is_waiting() and reader.is_waiting()
    assert locks.runlock(KEY, "other") == 1
    fence = writer.fence()
    assert fence > other and reader.is_waiting()
    assert locks.lock(KEY, "writer", 5000, wait=0) == fence and locks.pttl(KEY, "writer") <= 5000
    # An old holder queues like anybody else.
    again = [(command, KEY, "writer", HOUR) for command in ("SLOCK.LOCK", "SLOCK.RLOCK")]
    assert at_once(server, ("SLOCK.UNLOCK", KEY, "writer"), *again) == [1, 0, 0]
    assert reader.fence()


def test_each_name_in_each_database_has_its_own_queue(server: Server) -> None:
    lines = [Line(server, key, database=database) for key in ("k", "l", "m") for database in (0, 1)]
    waiting = []
    for line in lines:
        line.locks.lock(line.key, HOLDER, HOUR)
        waiting.append(line.write(f"waits for {line.key} in {line.database}"))
    for line in reversed(lines):
        line.release(HOLDER)
        assert waiting.pop().fence()
        assert all(waiter.is_waiting() for waiter in waiting)
