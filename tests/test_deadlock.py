"""A wait that would close a cycle is refused at once. When that is so is proved in the core."""

from __future__ import annotations

import pytest

from harness import Server, digest
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR, Line, blocked_clients


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


@pytest.mark.parametrize(
    "command",
    [
        ("SLOCK.LOCK", "x", "b", HOUR, "WAIT", 0),
        ("SLOCK.RLOCK", "x", "b", HOUR, "WAIT", HOUR),
        many("MLOCK", "v x", "b", HOUR, "WAIT", 0),
    ],
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
    assert queues.lock("b", "x").is_waiting(), "there is no cycle any more"


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
