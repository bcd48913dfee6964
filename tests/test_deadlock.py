"""A wait that would close a cycle is refused at once. When that is so is proved in the core."""

from __future__ import annotations

import pytest

from harness import Server, digest
from harness.causes import BRIEF, commands_of
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


def test_a_long_cycle_of_tokens_of_any_bytes_is_told_in_part_and_in_one_line(server: Server) -> None:
    """Each owner waits for what the next one holds."""
    queues = Queues(server)
    tokens = [f"{at}\r\n+OK\r\n\x00".ljust(255, "x") for at in range(40)]
    for at, token in enumerate(tokens):
        queues.hold(token, f"\\{at}")
    for at, token in enumerate(tokens[:-1]):
        queues.lock(token, f"\\{at + 1}")
    text = _refused(queues, "SLOCK.LOCK", "\\0", tokens[-1], HOUR, "WAIT", 0)
    assert text.endswith(", and 32 more") and len(text) < 16_000
    first, second = (f"{at}\\r\\n+OK\\r\\n\\x00".ljust(71, "x") for at in (0, 1))
    assert f'"{first}..." waits at "\\\\1" for "{second}..."' in text
    assert queues.raw.ok("PING") == b"PONG"


# --- cycles that no request closes

WRITTEN = f"SLOCK.LOCK x a {HOUR}"
READ = f"SLOCK.RLOCK x a {HOUR} | SLOCK.RLOCK x r {HOUR}"

# How a holds x, and how it loses it. After a new deadline nobody acts. Where r reads, the first of the queue
# at x goes on waiting.
LOSSES = {
    "UNLOCK": (WRITTEN, "SLOCK.UNLOCK x a"),
    "deadline": (WRITTEN, f"SLOCK.EXTEND x a {BRIEF}"),
    "DEL": (WRITTEN, "DEL x"),
    "PEXPIRE": (WRITTEN, f"PEXPIRE x {BRIEF}"),
    "RENAME": (WRITTEN, "RENAME x elsewhere"),
    "MOVE": (WRITTEN, "MOVE x 5"),
    "FLUSHDB": (WRITTEN, "FLUSHDB"),
    "SWAPDB": (WRITTEN, "SWAPDB 0 5"),
    "end of the connection": (f"{WRITTEN} EPHEMERAL", "QUIT"),
    "RUNLOCK beside a reader": (READ, "SLOCK.RUNLOCK x a"),
    "deadline beside a reader": (READ, f"SLOCK.EXTEND x a {BRIEF}"),
    "RENAME over it": (f"{WRITTEN} | SLOCK.LOCK w b {HOUR}", "RENAME w x"),
    "COPY over it": (f"{WRITTEN} | SLOCK.RLOCK w r {HOUR}", "COPY w x REPLACE"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_an_owner_that_loses_what_it_waits_for_among_others(server: Server, loss: str) -> None:
    """a waits for x, which it holds, and y; b stands before it at x, and waits for what a holds elsewhere."""
    queues, elsewhere, owner = Queues(server), Line(server, "z", database=1), server.raw()
    holds, lose = LOSSES[loss]
    for command in commands_of(holds):
        assert owner.ok(*command)
    queues.hold("c", "y")
    elsewhere.locks.lock("z", "a", HOUR)
    first, other = queues.lock("b", "x"), elsewhere.write("b")
    youngest = (queues.mrlock if holds is READ else queues.mlock)("a", "x y")
    assert all(waiter.is_waiting() for waiter in (first, other, youngest))
    before = queues.count("deadlocks")
    owner.ok(*lose.split())
    text = youngest.error()
    assert text.startswith("DEADLOCK "), text
    assert text.endswith('"a" waits at "x" for "b", "b" waits at "z" for "a"'), text
    assert other.is_waiting() and queues.count("deadlocks") == before + 1
    assert elsewhere.holders() == ["a"], "who is refused keeps what it holds"
    queues.free("c", "y"), queues.free("r", "x")
    assert first.fence()
    assert elsewhere.release("a") == 1 and other.fence()
