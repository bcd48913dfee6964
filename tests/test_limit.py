"""LIMIT: at most so many readers at once, each with an owner, a deadline and a fence, in order of arrival."""

from __future__ import annotations

import random
import threading

import pytest

from harness import Locks, MakeServer, RawConnection, ReplicationStream, Server, lock_state, promote, rounds
from harness.bound import hang_up
from harness.causes import BRIEF, HOLDER, KEY
from harness.many import many
from harness.queues import Queues
from harness.replication import replica_of
from harness.wait import now_ms, wait_past, wait_until
from harness.waiting import HOUR, Line, WaitingClient


@pytest.fixture
def line(server: Server) -> Queues:
    return Queues(server)


def _read(line: Line, token: str, limit: int, *options: object) -> WaitingClient:
    """A reader under a limit that waits if it has to."""
    return line.ask(token, "SLOCK.RLOCK", KEY, token, HOUR, "WAIT", 0, "LIMIT", limit, *options)


def _fill(line: Line, *tokens: str, key: str = KEY, ttl: int = HOUR, limit: int = 100) -> list[int]:
    fences = [line.locks.rlock(key, token, ttl, limit=limit) for token in tokens]
    assert all(fences)
    return fences


# --- the order, against a model

WRITES, UNLIMITED = 0, 1 << 31
CROWDS = {
    "all seven": [7],
    "a writer among them": [7] * 8 + [WRITES],
    "mixed": [1, 2, 3, 7, UNLIMITED, WRITES],
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_fifty_who_wait_are_served_in_order_and_never_more_than_their_limits(line: Line, crowd: str) -> None:
    """Strict order: whoever has room still waits for those who came before it and have none."""
    chance = random.Random(7)
    line.locks.lock(KEY, HOLDER, HOUR)
    queue: list[tuple[int, WaitingClient]] = []
    bound = set()
    for number in range(50):
        limit, token = chance.choice(CROWDS[crowd]), f"t{number}"
        if ask := {WRITES: line.write, UNLIMITED: line.read}.get(limit):
            queue.append((limit, ask(token)))
            continue
        options = ["EPHEMERAL"] if chance.random() < 0.2 else []
        bound |= {token} if options else set()
        queue.append((limit, _read(line, token, limit, *options)))
    shown = [waiter.limit for waiter in line.info().queue]
    assert shown == [limit if limit not in (WRITES, UNLIMITED) else None for limit, _ in queue]
    inside: dict[str, tuple[int, WaitingClient | None]] = {HOLDER: (WRITES, None)}
    last_fence = 0

    def has_room(limit: int) -> bool:
        is_written = any(its_limit == WRITES for its_limit, _ in inside.values())
        return not inside if limit == WRITES else not is_written and len(inside) < limit

    while inside:
        token = chance.choice(list(inside))
        limit, client = inside.pop(token)
        if limit == WRITES and chance.random() < 0.5:
            assert line.locks.downgrade(KEY, token, HOUR)
            inside[token] = UNLIMITED, client
        elif client and token in bound:
            hang_up(line.server, client.connection)
        else:
            assert line.release(token) == 1
        while queue and has_room(queue[0][0]):
            limit, waiter = queue.pop(0)
            fence = waiter.fence()
            assert fence > last_fence
            last_fence, inside[waiter.token] = fence, (limit, waiter)
        assert line.holders() == sorted(inside)
        assert not any(waiter.is_answered() for _, waiter in queue), "somebody overtook"
        assert not queue or line.locks.rlock(KEY, "newcomer", HOUR) == 0
    assert queue == []


def test_fifty_clients_at_once_are_never_more_than_seven(server: Server) -> None:
    """By what the clients were told, and by INFO. One is a writer, and some leave by closing."""
    times, mutex = rounds(5, 200), threading.Lock()
    inside: set[str] = set()
    fences: set[int] = set()
    wrong: list[object] = []

    def client(number: int) -> None:
        token, chance = f"t{number}", random.Random(number)
        take, leave, limit = ("LOCK", "UNLOCK", ()) if number == 0 else ("RLOCK", "RUNLOCK", ("LIMIT", 7))
        connection = RawConnection(server.port, timeout=60)
        for _ in range(times):
            bound = ("EPHEMERAL",) if chance.random() < 0.2 else ()
            fence = connection.ok(f"SLOCK.{take}", KEY, token, HOUR, "WAIT", 0, *limit, *bound)
            with mutex:
                inside.add(token)
                fences.add(fence)
                if len(inside) > (1 if "t0" in inside else 7):
                    wrong.append((token, sorted(inside)))
            connection.ok("PING")
            with mutex:
                inside.remove(token)
            if bound:
                connection.close()
                connection = RawConnection(server.port, timeout=60)
            elif connection.ok(f"SLOCK.{leave}", KEY, token) != 1:
                wrong.append((token, "had lost its hold"))
        connection.close()

    clients = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(50)]
    for thread in clients:
        thread.start()
    locks = Locks(server.client())
    while any(thread.is_alive() for thread in clients):
        info = locks.info(KEY)
        assert info is None or info.readers <= 7
    assert not wrong, wrong[:3]
    assert len(fences) == 50 * times and 0 not in fences
    wait_until(lambda: locks.info(KEY) is None, what="the last to leave")


# --- the limit is the request's


def test_a_limit_counts_the_others_and_not_the_owner(line: Line) -> None:
    fence, *_ = _fill(line, "a", "b", "c", limit=3)
    assert line.locks.rlock(KEY, "d", HOUR, limit=3) == 0
    waiting = [_read(line, "d", 3), _read(line, "d", 1), _read(line, "e", 9)]
    for limit in (1, 3, None):
        assert line.locks.rlock(KEY, "a", 2 * HOUR, limit=limit) == fence, "a refresh"
    assert line.locks.rlock(KEY, "e", HOUR) == 0, "whoever waits is not overtaken by itself either"
    line.release("b")
    first, again, last = (waiter.fence() for waiter in waiting)
    assert first == again < last, "who asks twice holds once"
    assert line.locks.rlock(KEY, "f", HOUR, limit=4) == 0
    assert line.locks.rlock(KEY, "f", HOUR, limit=2**31 - 1), "its own limit counts, and no one else's"
    assert line.locks.rlock(KEY, "g", HOUR) and line.info().readers == 6
    assert line.locks.lock(KEY, "w", HOUR) == 0


def test_over_several_keys_the_limit_counts_at_each(line: Queues) -> None:
    _fill(line, "1", "2", "3", key="a")
    _fill(line, "1", key="b")
    ask = many("MRLOCK", "a b", "set", HOUR, "LIMIT", 3)
    assert line.raw.ok(*ask) == 0 and line.locks.pttl("b", "set") == -2
    waiting = line.ask("set", *ask, "WAIT", 0)
    behind = line.ask("x", "SLOCK.RLOCK", "b", "x", HOUR, "WAIT", 0, "LIMIT", 9)
    line.locks.runlock("b", "1")
    assert waiting.is_waiting() and behind.is_waiting()
    line.locks.extend("a", "2", BRIEF)
    fence = waiting.fence()
    assert line.locks.check("a", fence) == 1 == line.locks.check("b", fence)
    assert behind.fence() > fence
    assert line.raw.ok(*ask[:-1], 1) == fence, "a refresh"


# --- permits that come back


@pytest.mark.parametrize("readers", [3, 40])
@pytest.mark.parametrize("waits", [True, False])
def test_there_is_room_when_enough_deadlines_have_passed(line: Queues, readers: int, waits: bool) -> None:
    """The end of the second of them makes room, and none after it; nobody acts."""
    _fill(line, *(f"t{number}" for number in range(readers)))
    before_ms = now_ms(line.client)
    assert line.locks.extend(KEY, "t0", BRIEF) == 1 == line.locks.extend(KEY, "t1", 3 * BRIEF)
    after_ms = now_ms(line.client)
    if waits:
        # A fence is at least the time of the grant in microseconds.
        assert _read(line, "new", readers - 1).fence() // 1000 >= before_ms + 3 * BRIEF
    else:
        wait_past(line.client, after_ms + 3 * BRIEF)
        assert line.locks.rlock(KEY, "new", HOUR, limit=readers - 1)
    assert line.info().readers == readers - 1
    assert line.locks.rlock(KEY, "late", HOUR, limit=readers - 1) == 0


@pytest.mark.parametrize("bound", [[], ["EPHEMERAL"]], ids=["not bound", "bound"])
def test_the_permits_of_owners_that_died_come_back(make_server: MakeServer, bound: list[str]) -> None:
    """With their connections if they are bound to them, else at their deadlines.

    On a server of its own, where no fence was given ahead of the clock.
    """
    line = Line(make_server())
    ttl = HOUR if bound else 10 * BRIEF
    owners = [line.server.raw() for _ in range(3)]
    fences = [
        owner.ok("SLOCK.RLOCK", KEY, f"o{number}", ttl, "LIMIT", 3, *bound)
        for number, owner in enumerate(owners)
    ]
    waiting = [_read(line, f"w{number}", 3) for number in range(4)]
    for owner in owners:
        hang_up(line.server, owner)
    for fence, waiter in zip(fences, waiting, strict=False):
        granted_ms = waiter.fence() // 1000
        assert bound or granted_ms >= fence // 1000 + ttl
    assert waiting[3].is_waiting() and line.holders() == ["w0", "w1", "w2"]


# --- replicas and files

ROADS = {
    "RDB": ({}, lambda server: server.restart(save=True)),
    "log": ({"appendonly": True, "aof_use_rdb_preamble": False}, lambda server: server.restart(kill=True)),
    "log with preamble": ({"appendonly": True}, lambda server: server.restart(kill=True)),
    "replica": ({}, None),
    "replay": ({}, None),
}


@pytest.mark.parametrize("road", ROADS)
def test_the_count_holds_wherever_the_lock_arrives(make_server: MakeServer, road: str) -> None:
    settings, step = ROADS[road]
    server, other = make_server(**settings), make_server(slock_allow_apply=True)
    line, stream = Line(server), ReplicationStream(server)
    if road == "replica":
        replica_of(other, server)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [_read(line, token, 3) for token in "abc"]
    line.release(HOLDER)
    fences = [waiter.fence() for waiter in waiting]
    assert _read(line, "d", 3).is_waiting()
    commands, before = stream.commands(keep_select=True), lock_state(line.client, KEY)
    assert not any(word.upper() == b"LIMIT" for command in commands for word in command)
    if step:
        step(server)
        other = server
    elif road == "replica":
        promote(other)
    else:
        stream.replay(commands, other)
    after = Line(other)
    assert lock_state(after.client, KEY) == before and after.info().waiters == 0
    assert after.locks.rlock(KEY, "new", HOUR, limit=3) == 0
    assert after.locks.rlock(KEY, "a", HOUR, limit=1) == fences[0], "a refresh"
    new = _read(after, "new", 3)
    assert new.is_waiting()
    after.release("b")
    assert new.fence() > fences[-1]


# --- deadlocks


@pytest.mark.parametrize("comes_last", ["the limited", "the other"])
@pytest.mark.parametrize("writer_ahead", [False, True])
def test_a_limit_alone_closes_no_cycle(line: Queues, comes_last: str, writer_ahead: bool) -> None:
    """b reads k and waits for what a holds, and a waits for k. Any other reader may make room for it."""
    line.hold("a", "x")
    _fill(line, "b", "c")
    writer = line.lock("w", KEY) if writer_ahead else None
    asks = [lambda: _read(line, "a", 2), lambda: line.lock("b", "x")]
    first, last = (ask() for ask in (asks if comes_last == "the other" else asks[::-1]))
    limited, other = (first, last) if comes_last == "the other" else (last, first)
    assert first.is_waiting()
    if writer:
        # The writer waits for all readers, and a for the writer.
        assert last.error().startswith("DEADLOCK ")
    else:
        assert last.is_waiting()
        line.release("c")
        assert limited.fence() and line.free("a", "x") == 1 and other.fence()
