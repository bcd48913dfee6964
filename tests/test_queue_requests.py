"""The WAIT option: its arguments, whom it does not block, its limit, and what INFO shows of the queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Locks, RawConnection, Server, digest, now_ms, stays, wait_until
from harness.causes import HOLDER, KEY
from harness.locks import as_dict
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients, serve_in_order, wait_unblocked

pytest_plugins = ["harness.cleanup"]

FAMILY = ["SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.UPGRADE"]

BAD_OPTIONS = (
    "WAIT|WAIT -1|WAIT soon|WAIT 1.5|WAIT 1ms|WAIT 0x10|WAIT 9223372036854775807|WAIT 9223372036854775808|"
    "WAIT 99999999999999999999|WAIT 1 WAIT 1|WAIT 1 extra|extra WAIT 1|WAITING 1|"
    "WAIT META m|META WAIT 1|META m WAIT|WAIT 1 META|WAIT 1 META m WAIT 2|META m WAIT 1 META m|META m WAIT -5"
)
BAD = [tuple(options.split()) for options in BAD_OPTIONS.split("|")] + [("WAIT", ""), ("WAIT", " 1")]


@pytest.mark.parametrize("command", FAMILY)
def test_a_bad_wait_is_an_error_and_changes_nothing(
    client: redis.Redis, locks: Locks, raw: RawConnection, command: str
) -> None:
    locks.lock("held", HOLDER, HOUR)
    locks.rlock("read", "a", HOUR)
    before = [digest(client, key) for key in ("held", "read")]
    upgrade_takes_no_meta = [("META", "m"), ("WAIT", 1, "META", "m")] if command == FAMILY[2] else []
    for options in BAD + upgrade_takes_no_meta:
        for key in ("held", "free", "read"):
            assert raw.error(command, key, "a", HOUR, *options).startswith("ERR "), options
    client.set("text", "a string")
    assert raw.error(command, "text", "a", HOUR, "WAIT", 0).startswith("WRONGTYPE ")
    for args in (("held", "", HOUR), ("held", "b" * 256, HOUR), ("held", "b", 0), ("held", "b", 10**15)):
        assert raw.error(command, *args, "WAIT", 0).startswith("ERR ")
    assert [digest(client, key) for key in ("held", "read")] == before
    assert client.exists("free") == 0 == blocked_clients(client)


@pytest.mark.parametrize("options", [("WAIT", 0, "META", "WAIT"), ("meta", "WAIT", "wait", 0)])
@pytest.mark.parametrize("command", FAMILY[:2])
def test_wait_and_meta_come_in_any_order_and_case(
    server: Server, locks: Locks, command: str, options: tuple
) -> None:
    line, waiter = Line(server), WaitingClient(server, "META")
    locks.lock(KEY, HOLDER, HOUR)
    waiter.ask(command, KEY, "META", HOUR, *options)
    line.wait_until_waiting(waiter)
    line.release(HOLDER)
    fence = waiter.fence()
    (holder,) = locks.full(KEY).holders
    assert (holder.token, holder.fence, holder.meta) == (b"META", fence, b"WAIT")


@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.UPGRADE"])
def test_the_ttl_starts_at_the_grant(server: Server, locks: Locks, command: str) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    if command == "SLOCK.UPGRADE":
        locks.rlock(KEY, "a", HOUR)
    waiting = line.join(command, "a", ttl=60_000)
    wait_until(lambda: line.info().queue[0].waiting_ms > 250, what="it to have waited for a while")
    released_ms = now_ms(line.client)
    line.release(HOLDER)
    waiting.fence()
    assert released_ms + 60_000 <= line.client.pexpiretime(KEY) <= now_ms(line.client) + 60_000


@pytest.mark.parametrize("mode", ["write", "read"])
def test_one_token_waiting_twice_is_answered_twice_with_one_fence(
    server: Server, locks: Locks, mode: str
) -> None:
    line = Line(server)
    join = line.write if mode == "write" else line.read
    locks.lock(KEY, HOLDER, HOUR)
    first, other, again = join("twin"), line.write("x"), join("twin", ttl=HOUR // 2)
    line.release(HOLDER)
    assert first.fence() == again.fence()
    assert (line.holders(), line.queued()) == (["twin"], ["x"])
    assert line.release("twin") == 1 and line.release("twin") == 0
    assert other.fence()
    wait_unblocked(line.client)


# --- the limit


def test_past_max_waiters_a_wait_is_refused_and_nobody_is_dropped(make_server: Callable[..., Server]) -> None:
    server = make_server(slock_max_waiters=3)
    line, other, raw = Line(server), Line(server, "other"), server.raw()
    for each in (line, other):
        each.locks.lock(each.key, HOLDER, HOUR)
    waiting = [line.write("a"), line.read("b"), other.write("c")]
    for key in (KEY, "other"):
        assert raw.error("SLOCK.LOCK", key, "d", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
        assert raw.error("SLOCK.RLOCK", key, "d", HOUR, "WAIT", 5).startswith("QUEUEFULL ")
    # Who need not wait is not touched by the limit.
    assert raw.ok("SLOCK.LOCK", KEY, "d", HOUR) == 0
    assert raw.ok("SLOCK.LOCK", KEY, HOLDER, HOUR, "WAIT", 0) > 0
    assert raw.ok("SLOCK.LOCK", "free", "d", HOUR, "WAIT", 0) > 0
    waiting[2].connection.close()
    wait_until(lambda: other.queued() == [], what="the place to be free")
    late = other.write("late")
    line.client.config_set("slock.max-waiters", 2)
    assert raw.error("SLOCK.LOCK", KEY, "d", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    assert line.queued() == ["a", "b"] and other.queued() == ["late"]
    line.client.config_set("slock.max-waiters", 4)
    waiting[2] = line.write("d")
    assert raw.error("SLOCK.LOCK", KEY, "e", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    line.release(HOLDER)
    serve_in_order(line, waiting)
    other.release(HOLDER)
    assert late.fence()
    assert server.log().count("QUEUEFULL") == 0


def test_a_bad_max_waiters_is_refused(raw: RawConnection) -> None:
    assert raw.ok("CONFIG", "GET", "slock.max-waiters") == [b"slock.max-waiters", b"100000"]
    for value in ("-1", "many", "", "1.5"):
        assert raw.error("CONFIG", "SET", "slock.max-waiters", value).startswith("ERR ")


# --- INFO


def test_info_shows_the_queue_in_order(server: Server, locks: Locks) -> None:
    line = Line(server)
    fence = locks.lock(KEY, HOLDER, HOUR)
    line.write("w", wait=HOUR)
    line.read("\x00r", wait=0)
    info = locks.full(KEY)
    assert (info.mode, info.readers, info.waiters, info.fence) == ("write", 0, 2, fence)
    first, second = info.queue
    assert (first.token, first.mode, first.timeout_ms) == (b"w", "write", HOUR)
    assert (second.token, second.mode, second.timeout_ms) == (b"\x00r", "read", 0)
    assert 0 <= second.waiting_ms <= first.waiting_ms < 20_000
    wait_until(lambda: locks.full(KEY).queue[1].waiting_ms > second.waiting_ms, what="the waiting to grow")
    assert locks.full(KEY).queue[0].timeout_ms == HOUR
    with server.raw(protocol=3) as raw:
        reply = raw.ok("SLOCK.INFO", KEY, "FULL")
    assert isinstance(reply, dict)
    waiter, _ = as_dict(reply)["queue"]
    assert isinstance(waiter, dict) and waiter[b"token"] == b"w"


def test_info_counts_the_queue_without_full_and_cuts_it_at_count(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    names = [f"t{number}" for number in range(103)]
    for name in names:
        line.read(name)
    assert locks.info(KEY).waiters == 103 and locks.info(KEY).queue is None
    for count, shown in ((None, 100), (1, 1), (102, 102), (103, 103), (500, 103), (0, 103)):
        info = locks.full(KEY, count)
        assert info.waiters == 103
        assert [waiter.token.decode() for waiter in info.queue] == names[:shown]


def test_a_queue_does_not_make_the_key_exist_and_is_no_part_of_it(
    server: Server, client: redis.Redis, locks: Locks
) -> None:
    """While writes are paused nobody can be granted, so that for once a queue stands before a free lock."""
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    before = (digest(client, KEY), client.dump(KEY), client.memory_usage(KEY))
    waiting, *_ = [line.write(f"t{number}") for number in range(20)]
    assert (digest(client, KEY), client.dump(KEY), client.memory_usage(KEY)) == before
    assert client.dbsize() == 1
    with server.raw() as raw:
        raw.pipeline([("SLOCK.EXTEND", KEY, HOLDER, 30), ("CLIENT", "PAUSE", 600_000, "WRITE")])
    try:
        wait_until(lambda: locks.pttl(KEY, HOLDER) == -2, what="the deadline")
        stays(waiting.is_waiting, 0.05, "a waiter of a paused server")
        info = locks.full(KEY)
        assert (info.mode, info.readers, info.waiters, info.holders) == ("free", 0, 20, ())
        assert client.exists(KEY) == 0 and client.type(KEY) == b"none"
    finally:
        client.execute_command("CLIENT", "UNPAUSE")
    assert waiting.fence()
