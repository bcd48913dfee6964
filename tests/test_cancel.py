"""CANCEL: a request that waits is withdrawn from any connection, and ends as if its wait had run out."""

from __future__ import annotations

from collections import Counter

import pytest

from harness import MakeServer, ReplicationStream, Server, digest, rounds
from harness.causes import HOLDER, KEY
from harness.many import many
from harness.moment_of_grant import FIRST, NEXT, HandOffs, holders, in_one_turn, poll, wait_gone
from harness.queues import Queues
from harness.raw import encode_command
from harness.waiting import HOUR, Line, WaitingClient, is_blocked, wait_unblocked


@pytest.fixture
def queues(server: Server) -> Queues:
    return Queues(server)


def _ended(line: Line) -> tuple[int, int]:
    """How many requests were withdrawn, and how many have timed out."""
    section = line.client.info("slock")
    return section["slock_wait_cancels"], section["slock_wait_timeouts"]


REQUESTS = {"LOCK": KEY, "RLOCK": KEY, "UPGRADE": KEY, "MLOCK": "b", "MRLOCK": "a"}


@pytest.mark.parametrize("command", REQUESTS)
def test_a_request_is_withdrawn_at_any_of_its_keys_and_the_next_is_served(
    queues: Queues, command: str
) -> None:
    at = REQUESTS[command]
    request = many(command, "a k b", FIRST, HOUR) if at != KEY else (f"SLOCK.{command}", KEY, FIRST, HOUR)
    if command == "UPGRADE":
        assert queues.locks.rlock(KEY, HOLDER, HOUR) and queues.locks.rlock(KEY, FIRST, HOUR)
    else:
        queues.hold(HOLDER, KEY)
    waiting, behind = queues.ask(FIRST, *request, "WAIT", HOUR), queues.lock("behind", at)
    before, (cancels, timeouts) = digest(queues.client, KEY), _ended(queues)
    for key, token in ((at, "other"), (at, HOLDER), ("free", FIRST)):
        assert queues.raw.ok("SLOCK.CANCEL", key, token) == 0
    assert waiting.is_waiting()
    assert queues.raw.ok("SLOCK.CANCEL", at, FIRST) == 1
    assert waiting.reply() == 0
    assert queues.raw.ok("SLOCK.CANCEL", at, FIRST) == 0 == queues.raw.ok("SLOCK.CANCEL", KEY, FIRST)
    assert _ended(queues) == (cancels + 1, timeouts) and digest(queues.client, KEY) == before
    assert queues.release(FIRST) == (command == "UPGRADE"), "who upgrades still reads"
    assert queues.release(HOLDER) == 1 and behind.fence()
    assert queues.holders(at) == ["behind"] and queues.client.dbsize() == 1


def test_all_requests_of_the_token_for_the_key_and_no_others(queues: Queues) -> None:
    elsewhere = Line(queues.server, KEY, database=1)
    for line in (queues, elsewhere):
        line.locks.lock(KEY, HOLDER, HOUR)
    queues.hold(HOLDER, "other")
    gone = [queues.lock(FIRST, KEY), queues.read(FIRST), queues.mlock(FIRST, "a k"), queues.lock(FIRST, KEY)]
    staying = [queues.lock(FIRST, "other"), queues.lock(NEXT, KEY), elsewhere.write(FIRST)]
    stream = ReplicationStream(queues.server)
    assert queues.raw.ok("SLOCK.CANCEL", KEY, FIRST) == 4
    assert [waiter.reply() for waiter in gone] == [0] * 4
    assert queues.queued() == [NEXT] and all(waiter.is_waiting() for waiter in staying)
    assert stream.commands() == []
    assert queues.free(HOLDER, "k other") == 2 and elsewhere.release(HOLDER) == 1
    assert all(waiter.fence() for waiter in staying)
    assert queues.client.exists("a") == 0


def test_it_works_where_writes_are_refused_or_paused(make_server: MakeServer) -> None:
    queues = Queues(make_server())
    queues.hold(HOLDER, KEY)
    for refuse, allow in (
        (("CONFIG", "SET", "min-replicas-to-write", 1), ("CONFIG", "SET", "min-replicas-to-write", 0)),
        (("CLIENT", "PAUSE", HOUR, "WRITE"), ("CLIENT", "UNPAUSE")),
    ):
        waiting = queues.lock(FIRST, KEY)
        queues.raw.ok(*refuse)
        assert queues.raw.ok("SLOCK.CANCEL", KEY, FIRST) == 1
        assert waiting.reply() == 0
        queues.raw.ok(*allow)


def test_a_replica_cancels_nothing(primary_and_replica: tuple[Server, Server]) -> None:
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write(FIRST)
    for read_only in ("yes", "no"):
        replica.client().config_set("replica-read-only", read_only)
        assert replica.raw().error("SLOCK.CANCEL", KEY, FIRST).startswith("READONLY ")
    assert waiting.is_waiting() and line.queued() == [FIRST]


# --- races

CAUSES = {
    "UNLOCK": lambda key: [("SLOCK.UNLOCK", key, HOLDER)],
    "DEL": lambda key: [("DEL", key)],
    "a deadline": lambda key: [("SLOCK.EXTEND", key, HOLDER, 1), ("DEBUG", "SLEEP", "0.002")],
}


@pytest.mark.parametrize("order", ["cause first", "cancel first", "transaction", "script"])
@pytest.mark.parametrize("cause", CAUSES)
def test_who_is_cancelled_before_the_end_of_the_turn_is_not_granted(
    server: Server, cause: str, order: str
) -> None:
    hand_offs, stream = HandOffs(server), ReplicationStream(server)
    for number in range(rounds(5, 200)):
        hand_offs.begin(f"k{number}")
        cancel = ("SLOCK.CANCEL", hand_offs.key, FIRST)
        if order == "script":
            cancel = ("EVAL", "return redis.call('SLOCK.CANCEL', KEYS[1], ARGV[1])", 1, *cancel[1:])
        commands = CAUSES[cause](hand_offs.key)
        commands = [cancel, *commands] if order == "cancel first" else [*commands, cancel]
        assert in_one_turn(hand_offs.control, commands, order).count(1) >= 2
        assert hand_offs.first.reply() == 0
        assert not hand_offs.end(None, has_gone=False)
    assert not any(FIRST.encode() in word for command in stream.commands() for word in command)
    hand_offs.judge()


def _race(rivals: HandOffs, line: Line, key: str, race: str) -> tuple[int, int | None]:
    """A round: what CANCEL has said, and what the waiter was told, if it was there to be told."""
    control, other, first = rivals.control, rivals.other, rivals.first
    commands = [("SLOCK.CANCEL", key, FIRST), ("SLOCK.UNLOCK", key, FIRST)]
    release = ("SLOCK.UNLOCK", key, HOLDER)
    assert control.ok("SLOCK.LOCK", key, HOLDER, HOUR)
    for waiter, ms in ((first, 3 if "time-out" in race else 0), (rivals.next, 0)):
        waiter.ask("SLOCK.LOCK", key, waiter.token, HOUR, "WAIT", ms)
        poll(lambda of=waiter: of.is_answered() or is_blocked(line.client, of.id), "it to wait")
    steps = [lambda: other.send_bytes(b"".join(encode_command(*command) for command in commands))]
    steps += [lambda: control.send(*release)] if "grant" in race else []
    steps += [first.connection.close] if "close" in race else []
    rivals.chance.shuffle(steps)
    rivals.spin(0.004 if "time-out" in race else 0)
    for step in steps:
        step()
        rivals.spin(0.0002)
    cancelled, released = other.read(), other.read()
    if "close" in race:
        wait_gone(rivals.witness, first.id)
        rivals.first, told = WaitingClient(rivals.server, FIRST), None
    else:
        told = first.reply()
    assert (control.read() if "grant" in race else control.ok(*release)) == 1
    if cancelled:
        assert (cancelled, told or 0, released) == (1, 0, 0)
    elif told is not None:
        assert told >= 0 and released == (told > 0)
        assert ("grant" if told else "time-out") in race
    fence = rivals.next.fence()
    assert holders(rivals.witness, key) == {NEXT: fence}
    assert control.ok("SLOCK.UNLOCK", key, NEXT) == 1 and control.ok("SLOCK.INFO", key) is None
    return cancelled, told


@pytest.mark.parametrize("race", ["grant", "time-out", "close", "grant and time-out", "grant and close"])
def test_what_cancel_says_and_what_the_waiter_is_told_agree(server: Server, race: str) -> None:
    """Withdrawn: 0 and no hold. Else its fence, or its own time-out. UNLOCK behind CANCEL leaves nothing."""
    rivals, line = HandOffs(server), Line(server)
    cancels, timeouts = _ended(line)
    ends = [_race(rivals, line, f"k{number}", race) for number in range(rounds(50, 2000))]
    print(*sorted(Counter((end[0], end[1] and min(end[1], 1)) for end in ends).items(), key=str))
    assert _ended(line) == (cancels + sum(end[0] for end in ends), timeouts + ends.count((0, 0)))
    wait_unblocked(line.client)
