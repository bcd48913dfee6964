"""What frees a lock wakes the next one at once. Each cause of it is in test_queue_replication.py.

While a waiter waits nobody talks to the server, so that no command can find by chance what a wake-up missed.
"""

from __future__ import annotations

import threading
import time
from itertools import count, takewhile

import pytest

from harness import MakeServer, wait_until
from harness.causes import BRIEF, HOLDER, KEY
from harness.many import many
from harness.waiting import HOUR, REPLY_TIMEOUT, Line, at_once, blocked_clients


@pytest.fixture
def line(make_server: MakeServer) -> Line:
    """On a fresh server: a timer that is left of earlier waits would wake, too."""
    return Line(make_server(hz=1, dynamic_hz=False))


# The least that each round of a test takes if only the next of the checks, which come once a second, wakes.
NEXT_CHECK_S = 0.5


@pytest.mark.parametrize("command", ["DEL", "UNLINK", "RENAME", "MOVE", "SWAPDB"])
def test_a_key_that_goes_wakes_at_once_without_any_further_event(line: Line, command: str) -> None:
    """No other command, no connection that closes: what would start the timer, too."""
    rounds = 10
    began = time.monotonic()
    for number in range(rounds):
        at = Line(line.server, f"k{number}")
        at.locks.lock(at.key, HOLDER, HOUR)
        waiting = at.write("next")
        words = {"RENAME": [at.key, f"to-{at.key}"], "MOVE": [at.key, 1], "SWAPDB": [0, 1]}
        line.client.execute_command(command, *words.get(command, [at.key]))
        waiting.fence()
    assert time.monotonic() - began < rounds * NEXT_CHECK_S


@pytest.mark.parametrize("how", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_a_hold_taken_for_a_short_time_ends_for_who_waits(line: Line, how: str) -> None:
    line.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    line.client.execute_command(how, KEY, HOLDER, 300)
    assert line.write("waiting").fence()
    line.client.execute_command(how, "other", HOLDER, 200)
    line.client.execute_command("PERSIST", "other")
    assert Line(line.server, "other").write("waiting").fence()


def test_many_deadlines_wake_each_its_own_lock(line: Line) -> None:
    """Each comes before all moments for which the timer waits by then."""
    line.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    lines = [Line(line.server, f"k{number}") for number in range(10)]
    for each in lines:
        each.locks.lock(each.key, HOLDER, HOUR)
    waiting = [each.write(f"waits for {each.key}") for each in lines]
    began = time.monotonic()
    for each, waiter in zip(lines, waiting, strict=True):
        at_once(line.server, ("SLOCK.EXTEND", each.key, HOLDER, 20))
        assert waiter.fence()
    assert time.monotonic() - began < len(lines) * NEXT_CHECK_S


def test_waits_that_end_elsewhere_do_not_put_off_a_grant(line: Line) -> None:
    """One ends every few milliseconds: an upgrade finds the reader whom the downgrade before it let in."""
    holder, reader, other = (line.server.raw() for _ in range(3))
    holder.ok("SLOCK.LOCK", "held", HOLDER, HOUR)
    is_over = threading.Event()

    def wait_again_and_again() -> None:
        for number in takewhile(lambda _: not is_over.is_set(), count()):
            assert other.call("SLOCK.LOCK", "held", "other", HOUR, "WAIT", 1 + number % 3) == 0

    waiting = threading.Thread(target=wait_again_and_again)
    waiting.start()
    try:
        for number in range(200):
            key = f"k{number}"
            holder.ok("SLOCK.LOCK", key, HOLDER, HOUR)
            reader.send("SLOCK.RLOCK", key, "reader", HOUR, "WAIT", 0)
            wait_until(lambda key=key: line.locks.info(key).waiters == 1, what="the reader to wait")
            holder.ok("SLOCK.DOWNGRADE", key, HOLDER, HOUR)
            assert holder.call("SLOCK.UPGRADE", key, HOLDER, HOUR) == 0, f"round {number}"
            assert reader.read()
    finally:
        is_over.set()
        waiting.join(REPLY_TIMEOUT)


@pytest.mark.parametrize("command", ["SET free string", "LPUSH free item", "RENAME text free"])
def test_another_type_under_a_free_name_is_noticed_within_a_second(line: Line, command: str) -> None:
    """The server reports neither to modules that have not subscribed to the events of all keys."""
    line.locks.lock(KEY, HOLDER, HOUR)
    line.client.set("text", "string")
    waiting = line.ask("first", *many("MLOCK", f"free {KEY}", "first", HOUR, "WAIT", 0))
    behind = line.write("behind")
    line.client.execute_command(*command.split())
    assert waiting.error().startswith("WRONGTYPE ")
    assert behind.is_waiting() and line.release(HOLDER) == 1 and behind.fence()


def test_a_key_whose_expiry_was_changed_goes_within_a_second_of_it(line: Line) -> None:
    """Also if the server itself does not come to remove it."""
    line.client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("next")
    assert line.client.pexpire(KEY, BRIEF)
    assert waiting.fence()


def test_swapdb_takes_a_holder_to_who_waits_in_the_other_database(line: Line) -> None:
    """The queue stays with its database and name; what is held there is another lock now."""
    there = Line(line.server, database=1)
    line.locks.lock(KEY, "holder here", HOUR)
    there.locks.lock(KEY, "holder there", HOUR)
    first, other = line.write("first"), there.write("other")
    line.client.swapdb(0, 1)
    assert (line.holders(), line.queued()) == (["holder there"], ["first"])
    assert (there.holders(), there.queued()) == (["holder here"], ["other"])
    line.release("holder there")
    assert first.fence() and other.is_waiting()
    there.release("holder here")
    assert other.fence()


def test_what_clients_sent_behind_a_wait_wakes_the_next_at_once(line: Line) -> None:
    """The server runs it when it has unblocked them, just before it sleeps, when it knows for how long.

    It would sleep for half a second on average.
    """
    started_s = line.client.info("server")["uptime_in_seconds"]
    client = line.server.raw()
    for number in range(60):
        line.locks.lock(KEY, HOLDER, HOUR)
        waiting = line.write(f"t{number}")
        client.send("BLPOP", "list", 0)
        wait_until(lambda: blocked_clients(line.client) == 2, what="both to wait")
        client.send("SLOCK.UNLOCK", KEY, HOLDER)
        line.client.lpush("list", "item")
        assert waiting.fence() and client.read() and client.read() == 1
        line.release(f"t{number}")
    assert line.client.info("server")["uptime_in_seconds"] - started_s < 15
