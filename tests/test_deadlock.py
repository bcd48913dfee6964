"""A wait that would close a cycle is refused at once, by token, and what is held stays held.

When that is so is proved in the core against a search by brute force; here is what only a server shows.
"""

from __future__ import annotations

import pytest

from harness import Server, digest, encode_command, wait_until
from harness.bound import take_bound
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients

pytest_plugins = ["harness.cleanup"]


@pytest.fixture
def queues(server: Server) -> Queues:
    """a holds x and waits for y, which b holds."""
    queues = Queues(server)
    queues.hold("a", "x")
    queues.hold("b", "y")
    queues.waiting = queues.lock("a", "y")
    return queues


def _refused(queues: Queues, *command: object) -> str:
    before = blocked_clients(queues.client)
    text = queues.raw.error(*command)
    assert text.startswith("DEADLOCK "), text
    assert blocked_clients(queues.client) == before
    return text


CLOSES = ("SLOCK.LOCK", "x", "b", HOUR, "WAIT", 0)


@pytest.mark.parametrize(
    "command",
    [CLOSES, ("SLOCK.RLOCK", "x", "b", HOUR, "WAIT", HOUR), many("MLOCK", "v x", "b", HOUR, "WAIT", 0)],
)
def test_who_would_close_a_cycle_is_refused_and_nothing_changes(queues: Queues, command: tuple) -> None:
    before = [digest(queues.client, key) for key in "xyv"]
    for _ in range(100):
        text = _refused(queues, *command)
    assert text.index("a") and text.index("b"), "the cycle is named"
    assert [digest(queues.client, key) for key in "xyv"] == before
    assert queues.queued("x") == [] and queues.queued("y") == ["a"]
    # Who does not wait closes no cycle.
    assert queues.raw.ok("SLOCK.LOCK", "x", "b", HOUR) == 0
    assert queues.raw.pipeline([("MULTI",), command, ("EXEC",)])[-1] == [0]
    assert queues.free("b", "y") == 1
    assert queues.waiting.fence()


def test_a_cycle_goes_through_readers_queues_upgrades_and_sets(server: Server) -> None:
    queues = Queues(server)
    for token in ("r1", "r2"):
        assert queues.locks.rlock("x", token, HOUR)
    queues.hold("w", "y")
    queues.hold("m", "z")
    upgrade = queues.ask("r1", "SLOCK.UPGRADE", "x", "r1", HOUR, "WAIT", 0)
    queues.mrlock("w", "x free")  # behind the upgrade
    queues.mlock("m", "free y")  # behind w in the queue of a key that nobody holds
    for text in (
        _refused(queues, *many("MLOCK", "v z", "r2", HOUR, "WAIT", 0)),
        _refused(queues, "SLOCK.RLOCK", "z", "r2", HOUR, "WAIT", 0),
    ):
        assert all(token in text for token in ("r2", "m", "w")), text
    assert queues.locks.runlock("x", "r2") == 1
    assert upgrade.fence()


@pytest.mark.parametrize("how", ["the waiter leaves", "the hold ends"])
def test_no_cycle_is_left_when_part_of_it_has_gone(queues: Queues, how: str) -> None:
    _refused(queues, *CLOSES)
    if how == "the waiter leaves":
        queues.waiting.connection.close()
        wait_until(lambda: queues.queued("y") == [], what="the waiter to be gone")
    else:
        queues.locks.extend("y", "b", 1)
        assert queues.waiting.fence()
    assert queues.lock("b", "x").is_waiting()


def test_a_hold_past_its_deadline_is_part_of_no_cycle(queues: Queues) -> None:
    # All in one write: the deadline passes, and nobody has had the time to wake a.
    waiter = WaitingClient(queues.server, "b")
    commands = [("SLOCK.EXTEND", "y", "b", 1), ("DEBUG", "SLEEP", "0.01"), CLOSES]
    waiter.connection.send_bytes(b"".join(encode_command(*command) for command in commands))
    assert waiter.reply() == 1 and waiter.reply() == b"OK"
    queues.line.wait_until_waiting(waiter)
    assert waiter.is_waiting() and queues.queued("x") == ["b"]


def test_nobody_waits_for_a_hold_whose_connection_has_closed(server: Server) -> None:
    """The hold ends in this turn of the event loop: it closes no cycle for a request that comes in it."""
    bound, y = take_bound(server, key="x", token="e"), Line(server, "y")
    y.locks.lock("y", "w", HOUR)
    waiting = Line(server, "x").write("w")
    again = WaitingClient(server, "e")
    commands = [("CLIENT", "KILL", "ID", bound.client_id()), ("SLOCK.LOCK", "y", "e", HOUR, "WAIT", 0)]
    again.connection.send_bytes(b"".join(encode_command(*command) for command in commands))
    assert again.reply() == 1 and waiting.fence() and again.is_waiting()
    y.release("w")
    assert again.fence()


def test_other_databases_take_part_with_the_same_token(queues: Queues) -> None:
    """A token is one owner, wherever its locks are."""
    elsewhere = Line(queues.server, "z", database=1)
    elsewhere.locks.lock("z", "c", HOUR)
    elsewhere.write("b")
    _refused(queues, "SLOCK.LOCK", "x", "c", HOUR, "WAIT", 0)


def test_a_long_cycle_of_long_tokens_of_any_bytes_is_told_in_one_line(server: Server) -> None:
    queues = Queues(server)
    tokens = [f"{at}\r\n+OK\r\n\x00".ljust(255, "x") for at in range(40)]
    for at, token in enumerate(tokens):
        queues.hold(token, f"k{at}")
    for at, token in enumerate(tokens[:-1]):
        queues.lock(token, f"k{at + 1}")
    assert len(_refused(queues, "SLOCK.LOCK", "k0", tokens[-1], HOUR, "WAIT", 0)) < 16_000
    assert queues.raw.ok("PING") == b"PONG"
