"""CANCEL: a request that waits is withdrawn from any connection, and ends as if its wait had run out."""

from __future__ import annotations

import pytest

from harness import MakeServer, ReplicationStream, Server, digest, rounds
from harness.causes import HOLDER, KEY
from harness.many import many
from harness.moment_of_grant import FIRST, HandOffs, in_one_turn
from harness.queues import Queues
from harness.waiting import HOUR, Line


@pytest.fixture
def queues(server: Server) -> Queues:
    return Queues(server)


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
    before = digest(queues.client, KEY), queues.count("wait_timeouts")
    cancels = queues.count("wait_cancels")
    for key, token in ((at, "other"), (at, HOLDER), ("free", FIRST)):
        assert queues.raw.ok("SLOCK.CANCEL", key, token) == 0
    assert waiting.is_waiting()
    assert queues.raw.ok("SLOCK.CANCEL", at, FIRST) == 1
    assert waiting.reply() == 0
    assert queues.raw.ok("SLOCK.CANCEL", at, FIRST) == 0 == queues.raw.ok("SLOCK.CANCEL", KEY, FIRST)
    assert (digest(queues.client, KEY), queues.count("wait_timeouts")) == before
    assert queues.count("wait_cancels") == cancels + 1
    assert queues.release(FIRST) == (command == "UPGRADE"), "who upgrades still reads"
    assert queues.release(HOLDER) == 1 and behind.fence()
    assert queues.holders(at) == ["behind"] and queues.client.dbsize() == 1


def test_it_works_where_writes_are_refused_or_paused(make_server: MakeServer) -> None:
    queues = Queues(make_server())
    queues.hold(HOLDER, KEY)
    for refuse in (("CONFIG", "SET", "min-replicas-to-write", 1), ("CLIENT", "PAUSE", HOUR, "WRITE")):
        waiting = queues.lock(FIRST, KEY)
        queues.raw.ok(*refuse)
        assert queues.raw.ok("SLOCK.CANCEL", KEY, FIRST) == 1
        assert waiting.reply() == 0
        queues.raw.ok("CONFIG", "SET", "min-replicas-to-write", 0)
    queues.raw.ok("CLIENT", "UNPAUSE")


def test_a_replica_cancels_nothing(primary_and_replica: tuple[Server, Server]) -> None:
    primary, replica = primary_and_replica
    line = Line(primary)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write(FIRST)
    for read_only in ("yes", "no"):
        replica.client().config_set("replica-read-only", read_only)
        assert replica.raw().error("SLOCK.CANCEL", KEY, FIRST).startswith("READONLY ")
    assert waiting.is_waiting() and line.queued() == [FIRST]


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
