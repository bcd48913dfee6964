"""A wait that would close a cycle is refused at once, by token, and what is held stays held."""

from __future__ import annotations

import pytest

from harness import Server, encode_command, wait_until
from harness.bound import take_bound
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients, wait_unblocked

pytest_plugins = ["harness.cleanup"]


class Table:
    """Locks and who waits for them, for stories like: a holds x, b holds y, a waits for y."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = server.client()
        self.raw = server.raw()

    def line(self, key: str) -> Line:
        return Line(self.server, key)

    def holds(self, token: str, key: str, command: str = "SLOCK.LOCK", ttl: int = HOUR) -> None:
        assert self.raw.ok(command, key, token, ttl) > 0

    def reads(self, token: str, key: str) -> None:
        self.holds(token, key, "SLOCK.RLOCK")

    def waits(self, token: str, key: str, command: str = "SLOCK.LOCK", *, wait: int = 0) -> WaitingClient:
        waiter = self.line(key).join(command, token, wait=wait)
        assert waiter.is_waiting(), f"{token} should wait for {key} and was told {waiter.reply()!r}"
        return waiter

    def refuses(self, token: str, key: str, command: str = "SLOCK.LOCK", *, wait: int = 0) -> str:
        before = blocked_clients(self.client)
        text = self.raw.error(command, key, token, HOUR, "WAIT", wait)
        assert text.startswith("DEADLOCK "), text
        assert blocked_clients(self.client) == before
        return text


@pytest.fixture
def table(server: Server) -> Table:
    return Table(server)


def _ring(table: Table, size: int, take: list[str]) -> list[WaitingClient]:
    """Token t0 holds k0 and waits for k1, and so on; the last one does not wait yet."""
    for at in range(size):
        table.holds(f"t{at}", f"k{at}", take[at])
    return [table.waits(f"t{at}", f"k{at + 1}") for at in range(size - 1)]


def _unwind(table: Table, waiting: list[WaitingClient]) -> None:
    """The refused one gives up what it holds, and then everybody gets what he waits for."""
    size = len(waiting) + 1
    assert table.line(f"k{size - 1}").release(f"t{size - 1}") == 1
    for at in reversed(range(size - 1)):
        assert waiting[at].fence()
        assert table.line(f"k{at + 1}").release(f"t{at}") == 1
        assert table.line(f"k{at}").release(f"t{at}") == 1
    wait_unblocked(table.client)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("wait", [0, HOUR], ids=["for ever", "for an hour"])
def test_a_cycle_of_writers_is_refused_where_it_would_close(table: Table, size: int, wait: int) -> None:
    waiting = _ring(table, size, ["SLOCK.LOCK"] * size)
    text = table.refuses(f"t{size - 1}", "k0", wait=wait)
    for at in range(size):
        assert f"t{at}" in text, f"the cycle is not named: {text}"
    last = Line(table.server, f"k{size - 1}")
    assert last.holders() == [f"t{size - 1}"], "it keeps what it holds"
    assert all(waiter.is_waiting() for waiter in waiting)
    _unwind(table, waiting)


@pytest.mark.parametrize("size", [2, 5])
def test_a_cycle_with_readers_in_it_is_refused(table: Table, size: int) -> None:
    take = ["SLOCK.RLOCK" if at % 2 else "SLOCK.LOCK" for at in range(size)]
    waiting = _ring(table, size, take)
    table.refuses(f"t{size - 1}", "k0")
    assert all(waiter.is_waiting() for waiter in waiting)


def test_a_cycle_closed_by_a_request_to_read_is_refused(table: Table) -> None:
    table.holds("a", "x")
    table.holds("b", "y")
    table.waits("a", "y", "SLOCK.RLOCK")
    table.refuses("b", "x", "SLOCK.RLOCK")


def test_a_cycle_through_one_of_many_readers_is_refused(table: Table) -> None:
    for token in ("r1", "r2", "r3"):
        table.reads(token, "x")
    table.holds("w", "y")
    table.waits("w", "x")
    table.refuses("r2", "y")
    table.refuses("r3", "y", "SLOCK.RLOCK")


def test_a_cycle_through_a_place_in_a_queue_is_refused(table: Table) -> None:
    """A reader does not pass a queued writer, so it waits for that writer as for a holder."""
    table.reads("r1", "y")
    table.holds("r2", "x")
    writer = table.waits("writer", "y")
    reader = table.waits("r2", "y", "SLOCK.RLOCK")
    text = table.refuses("r1", "x")
    assert "r1" in text
    assert table.line("y").release("r1") == 1
    assert writer.fence()
    assert table.line("y").release("writer") == 1
    assert reader.fence()


def test_a_cycle_closed_at_the_end_of_a_queue_is_refused(table: Table) -> None:
    table.reads("r1", "y")
    table.holds("r2", "x")
    table.waits("writer", "y")
    table.waits("r1", "x")
    table.refuses("r2", "y", "SLOCK.RLOCK")


def test_an_upgrade_that_would_close_a_cycle_is_refused(table: Table) -> None:
    table.reads("a", "x")
    table.reads("b", "x")
    table.holds("a", "y")
    table.waits("b", "y")
    table.refuses("a", "x", "SLOCK.UPGRADE")
    assert table.line("x").holders() == ["a", "b"]


def test_a_cycle_that_waits_for_an_upgrader_is_refused(table: Table) -> None:
    table.reads("a", "x")
    table.reads("b", "x")
    table.holds("c", "y")
    upgrade = table.waits("a", "x", "SLOCK.UPGRADE")
    table.waits("c", "x", "SLOCK.RLOCK")
    table.refuses("b", "y")
    table.line("x").release("b")
    assert upgrade.fence()


def test_a_chain_is_no_cycle(table: Table) -> None:
    waiting = _ring(table, 5, ["SLOCK.LOCK"] * 5)
    outsider = table.waits("outsider", "k0")
    also = table.waits("outsider too", "k4")
    assert table.line("k4").release("t4") == 1
    assert waiting[3].fence() and also.is_waiting() and outsider.is_waiting()


def test_waiting_for_two_locks_held_by_one_token_is_no_cycle(table: Table) -> None:
    table.holds("a", "x")
    table.holds("a", "y")
    first, second = table.waits("b", "x"), table.waits("b", "y")
    table.line("x").release("a")
    table.line("y").release("a")
    assert first.fence() and second.fence()


def test_readers_who_share_do_not_wait_for_each_other(table: Table) -> None:
    table.reads("a", "x")
    table.reads("b", "x")
    table.holds("w", "z")
    assert table.waits("a", "z") and table.waits("b", "z")


def test_a_request_that_does_not_wait_is_refused_and_no_deadlock(table: Table) -> None:
    table.holds("a", "x")
    table.holds("b", "y")
    table.waits("a", "y")
    assert table.raw.ok("SLOCK.LOCK", "x", "b", HOUR) == 0
    assert table.raw.pipeline([("MULTI",), ("SLOCK.LOCK", "x", "b", HOUR, "WAIT", 0), ("EXEC",)])[-1] == [0]


def test_no_cycle_is_left_when_a_waiter_has_gone(table: Table) -> None:
    table.holds("a", "x")
    table.holds("b", "y")
    gone = table.waits("a", "y")
    table.refuses("b", "x")
    gone.connection.close()
    wait_until(lambda: table.line("y").queued() == [], what="the waiter to be gone")
    assert table.waits("b", "x")


def test_no_cycle_is_left_when_a_hold_has_ended(table: Table) -> None:
    table.holds("a", "x")
    table.holds("b", "y")
    waiting = table.waits("a", "y")
    table.refuses("b", "x")
    table.line("y").locks.extend("y", "b", 1)
    assert waiting.fence()
    assert table.waits("b", "x")


def test_a_hold_past_its_deadline_is_part_of_no_cycle(table: Table) -> None:
    table.holds("a", "x")
    table.holds("b", "y")
    table.waits("a", "y")
    # All in one write: the deadline passes, and nobody has had the time to wake a.
    waiter = WaitingClient(table.server, "b")
    waiter.connection.send_bytes(b"SLOCK.EXTEND y b 1\r\nDEBUG SLEEP 0.01\r\n")
    waiter.ask("SLOCK.LOCK", "x", "b", HOUR, "WAIT", 0)
    assert waiter.reply() == 1 and waiter.reply() == b"OK"
    table.line("x").wait_until_waiting(waiter)
    assert waiter.is_waiting()
    assert table.line("x").queued() == ["b"]


def test_other_databases_take_part_with_the_same_token(table: Table) -> None:
    """A token is one owner, wherever its locks are."""
    table.holds("a", "x")
    elsewhere = Line(table.server, "x", database=1)
    elsewhere.locks.lock("x", "b", HOUR)
    elsewhere.write("a")
    table.refuses("b", "x")


def test_a_refused_wait_changes_nothing_that_others_see(table: Table) -> None:
    table.holds("a", "x")
    table.holds("b", "y")
    waiting = table.waits("a", "y")
    before = [table.client.execute_command("DEBUG", "DIGEST-VALUE", key) for key in "xy"]
    for _ in range(100):
        table.refuses("b", "x")
    assert [table.client.execute_command("DEBUG", "DIGEST-VALUE", key) for key in "xy"] == before
    assert table.line("x").queued() == [] and table.line("y").queued() == ["a"]
    assert table.line("y").release("b") == 1
    assert waiting.fence()


def test_tokens_of_any_bytes_are_named_without_harm(table: Table) -> None:
    """An error reply is one line: what is in a token must not end it."""
    nasty = b"a\r\n+OK\r\n\x00\xff"
    assert table.raw.ok("SLOCK.LOCK", "x", nasty, HOUR)
    table.holds("b", "y")
    waiting = WaitingClient(table.server, "nasty")
    waiting.ask("SLOCK.LOCK", "y", nasty, HOUR, "WAIT", 0)
    table.line("y").wait_until_waiting(waiting)
    table.refuses("b", "x")
    assert table.raw.ok("PING") == b"PONG"


def test_a_long_cycle_of_long_tokens_is_told_in_one_error(table: Table) -> None:
    tokens = [f"{at}".ljust(255, "x") for at in range(40)]
    for at, token in enumerate(tokens):
        table.holds(token, f"k{at}")
    for at, token in enumerate(tokens[:-1]):
        table.waits(token, f"k{at + 1}")
    text = table.refuses(tokens[-1], "k0")
    assert len(text) < 16_000
    assert table.raw.ok("PING") == b"PONG"


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
