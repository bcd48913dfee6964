"""The WAIT option: its arguments, whom it does not block, its limit, and what INFO shows of the queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from harness import Locks, RawConnection, Server, digest, stays, wait_until
from harness.causes import HOLDER, KEY
from harness.locks import as_dict
from harness.waiting import HOUR, Line, WaitingClient, blocked_clients, serve_in_order, wait_unblocked

pytest_plugins = ["harness.cleanup"]

FAMILY = ["SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.UPGRADE"]

BAD_WAITS = [
    ("WAIT",),
    ("WAIT", "-1"),
    ("WAIT", "soon"),
    ("WAIT", ""),
    ("WAIT", "1.5"),
    ("WAIT", " 1"),
    ("WAIT", "1ms"),
    ("WAIT", "0x10"),
    ("WAIT", "9223372036854775807"),
    ("WAIT", "9223372036854775808"),
    ("WAIT", "99999999999999999999"),
    ("WAIT", "1", "WAIT", "1"),
    ("WAIT", "1", "extra"),
    ("extra", "WAIT", "1"),
    ("WAITING", "1"),
]

BAD_WITH_META = [
    ("WAIT", "META", "m"),
    ("META", "WAIT", "1"),
    ("META", "m", "WAIT"),
    ("WAIT", "1", "META"),
    ("WAIT", "1", "META", "m", "WAIT", "2"),
    ("META", "m", "WAIT", "1", "META", "m"),
    ("META", "m", "WAIT", "-5"),
]


@pytest.mark.parametrize("options", BAD_WAITS, ids=" ".join)
@pytest.mark.parametrize("command", FAMILY)
def test_a_bad_wait_is_an_error_and_changes_nothing(
    client: redis.Redis, locks: Locks, raw: RawConnection, command: str, options: tuple[str, ...]
) -> None:
    locks.lock("held", HOLDER, HOUR)
    locks.rlock("read", "a", HOUR)
    before = [digest(client, key) for key in ("held", "read")]
    for key in ("held", "free", "read"):
        assert raw.error(command, key, "a", HOUR, *options).startswith("ERR ")
    assert [digest(client, key) for key in ("held", "read")] == before
    assert client.exists("free") == 0
    assert blocked_clients(client) == 0


@pytest.mark.parametrize("options", BAD_WITH_META, ids=" ".join)
@pytest.mark.parametrize("command", FAMILY[:2])
def test_a_bad_mix_of_wait_and_meta_is_an_error(
    client: redis.Redis, raw: RawConnection, command: str, options: tuple[str, ...]
) -> None:
    assert raw.error(command, "free", "a", HOUR, *options).startswith("ERR ")
    assert client.exists("free") == 0


def test_upgrade_takes_no_meta(raw: RawConnection) -> None:
    raw.ok("SLOCK.RLOCK", KEY, "a", HOUR)
    assert raw.error("SLOCK.UPGRADE", KEY, "a", HOUR, "META", "m").startswith("ERR ")
    assert raw.error("SLOCK.UPGRADE", KEY, "a", HOUR, "WAIT", 1, "META", "m").startswith("ERR ")


@pytest.mark.parametrize("options", [("WAIT", 0, "META", "m"), ("meta", "m", "wait", 0)])
@pytest.mark.parametrize("command", FAMILY[:2])
def test_wait_and_meta_come_in_any_order_and_case(
    server: Server, locks: Locks, command: str, options: tuple
) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    waiter = WaitingClient(server, "a")
    waiter.ask(command, KEY, "a", HOUR, *options)
    line.wait_until_waiting(waiter)
    line.release(HOLDER)
    fence = waiter.fence()
    (holder,) = locks.full(KEY).holders
    assert (holder.token, holder.fence, holder.meta) == (b"a", fence, b"m")


def test_meta_may_say_wait(server: Server, locks: Locks, raw: RawConnection) -> None:
    assert raw.ok("SLOCK.LOCK", KEY, "WAIT", HOUR, "META", "WAIT")
    assert locks.full(KEY).holders[0].meta == b"WAIT"
    assert locks.lock(KEY, "META", HOUR, wait=1) == 0


def test_bad_arguments_are_told_before_anybody_waits(client: redis.Redis, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", KEY, HOLDER, HOUR)
    for args in ((KEY, "", HOUR), (KEY, "a" * 256, HOUR), (KEY, "a", 0), (KEY, "a", 10**15)):
        assert raw.error("SLOCK.LOCK", *args, "WAIT", 0).startswith("ERR ")
    assert raw.error("SLOCK.LOCK", KEY, "a", HOUR, "WAIT", 0, "META", "m" * 1025).startswith("ERR ")
    client.set("text", "a string")
    for command in FAMILY:
        assert raw.error(command, "text", "a", HOUR, "WAIT", 0).startswith("WRONGTYPE ")
    assert blocked_clients(client) == 0


# --- whom it does not block


def test_who_holds_in_the_other_mode_does_not_wait(locks: Locks, raw: RawConnection) -> None:
    locks.lock("w", "a", HOUR)
    locks.rlock("r", "a", HOUR)
    assert "DOWNGRADE" in raw.error("SLOCK.RLOCK", "w", "a", HOUR, "WAIT", 0)
    assert "UPGRADE" in raw.error("SLOCK.LOCK", "r", "a", HOUR, "WAIT", 0)


def test_the_ttl_starts_at_the_grant(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("a", ttl=60_000)
    wait_until(lambda: line.info().queue[0].waiting_ms > 250, what="it to have waited for a while")
    line.release(HOLDER)
    waiting.fence()
    (holder,) = line.info().holders
    # Both at one instant: had the ttl started with the request, 250 ms would be missing here.
    assert abs(holder.pttl + holder.held_ms - 60_000) <= 20


# --- one token twice


@pytest.mark.parametrize("between", [[], ["x"], ["x", "y"]], ids=len)
@pytest.mark.parametrize("mode", ["write", "read"])
def test_one_token_waiting_twice_is_answered_twice_with_one_fence(
    server: Server, locks: Locks, mode: str, between: list[str]
) -> None:
    line = Line(server)
    join = line.write if mode == "write" else line.read
    locks.lock(KEY, HOLDER, HOUR)
    first = join("twin", ttl=HOUR)
    others = [line.write(token) for token in between]
    again = join("twin", ttl=HOUR // 2)
    line.release(HOLDER)
    assert first.fence() == again.fence()
    assert line.holders() == ["twin"]
    assert line.queued() == between
    assert line.release("twin") == 1
    assert line.release("twin") == 0
    serve_in_order(line, others)
    wait_unblocked(line.client)


def test_a_token_that_waits_in_both_modes_gets_the_first_and_wrongmode(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    write, read = line.write("twin"), line.read("twin")
    behind = line.write("behind")
    line.release(HOLDER)
    assert write.fence()
    assert read.error().startswith("WRONGMODE ")
    assert line.holders() == ["twin"] and behind.is_waiting()
    line.release("twin")
    assert behind.fence()


def test_a_waiter_whose_token_is_granted_elsewhere_keeps_its_place(server: Server, locks: Locks) -> None:
    """A token may wait for one lock and be given another: two locks, two holds."""
    line, other = Line(server), Line(server, "other")
    locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("a")
    assert locks.lock("other", "a", HOUR)
    line.release(HOLDER)
    assert waiting.fence()
    assert (line.release("a"), other.release("a")) == (1, 1)


# --- the limit


def test_past_max_waiters_a_wait_is_refused_and_served_again_when_one_leaves(
    make_server: Callable[..., Server],
) -> None:
    server = make_server(slock_max_waiters=3)
    line, other = Line(server), Line(server, "other")
    for each in (line, other):
        each.locks.lock(each.key, HOLDER, HOUR)
    raw = server.raw()
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
    assert other.queued() == ["late"]
    line.release(HOLDER)
    serve_in_order(line, waiting[:2])
    other.release(HOLDER)
    assert late.fence()
    assert server.log().count("QUEUEFULL") == 0


def test_max_waiters_can_be_changed_and_drops_nobody(make_server: Callable[..., Server]) -> None:
    server = make_server()
    line = Line(server)
    client = line.client
    assert client.config_get("slock.max-waiters") == {"slock.max-waiters": "100000"}
    line.locks.lock(KEY, HOLDER, HOUR)
    waiting = [line.write(f"t{number}") for number in range(5)]
    client.config_set("slock.max-waiters", 2)
    raw = server.raw()
    assert raw.error("SLOCK.LOCK", KEY, "new", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    assert line.queued() == [waiter.token for waiter in waiting]
    client.config_set("slock.max-waiters", 6)
    waiting.append(line.write("new"))
    assert raw.error("SLOCK.LOCK", KEY, "newer", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    line.release(HOLDER)
    serve_in_order(line, waiting)


@pytest.mark.parametrize("value", ["-1", "many", "", "1.5"])
def test_a_bad_max_waiters_is_refused(server: Server, raw: RawConnection, value: str) -> None:
    assert raw.error("CONFIG", "SET", "slock.max-waiters", value).startswith("ERR ")


# --- INFO


def test_info_shows_the_queue_in_order(server: Server, locks: Locks) -> None:
    line = Line(server)
    fence = locks.lock(KEY, HOLDER, HOUR)
    line.write("w", wait=HOUR)
    line.read(b"\x00r".decode(), wait=0)
    info = locks.full(KEY)
    assert (info.mode, info.readers, info.waiters, info.fence) == ("write", 0, 2, fence)
    first, second = info.queue
    assert (first.token, first.mode, first.timeout_ms) == (b"w", "write", HOUR)
    assert (second.token, second.mode, second.timeout_ms) == (b"\x00r", "read", 0)
    assert 0 <= second.waiting_ms <= first.waiting_ms < 20_000
    wait_until(lambda: locks.full(KEY).queue[1].waiting_ms > second.waiting_ms, what="the waiting to grow")
    assert locks.full(KEY).queue[0].timeout_ms == HOUR


def test_info_counts_the_queue_without_full_and_cuts_it_at_count(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    names = [f"t{number}" for number in range(103)]
    for name in names:
        line.read(name)
    assert locks.info(KEY).waiters == 103 and locks.info(KEY).queue is None
    for count, shown in ((None, 100), (1, 1), (5, 5), (102, 102), (103, 103), (500, 103), (0, 103)):
        info = locks.full(KEY, count)
        assert info.waiters == 103
        assert [waiter.token.decode() for waiter in info.queue] == names[:shown]


def test_info_is_a_map_in_resp3(server: Server, locks: Locks) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    line.write("w")
    with server.raw(protocol=3) as raw:
        reply = raw.ok("SLOCK.INFO", KEY, "FULL")
    assert isinstance(reply, dict)
    (waiter,) = as_dict(reply)["queue"]
    assert isinstance(waiter, dict) and waiter[b"token"] == b"w"


def test_a_queue_does_not_make_the_key_exist(server: Server, client: redis.Redis, locks: Locks) -> None:
    """While writes are paused nobody can be granted, so that for once a queue stands before a free lock."""
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("waiting")
    with server.raw() as raw:
        raw.pipeline([("SLOCK.EXTEND", KEY, HOLDER, 30), ("CLIENT", "PAUSE", 600_000, "WRITE")])
    try:
        wait_until(lambda: locks.pttl(KEY, HOLDER) == -2, what="the deadline")
        stays(waiting.is_waiting, 0.05, "a waiter of a paused server")
        info = locks.full(KEY)
        assert (info.mode, info.readers, info.waiters, info.holders) == ("free", 0, 1, ())
        assert [waiter.token for waiter in info.queue] == [b"waiting"]
        assert client.exists(KEY) == 0 and client.type(KEY) == b"none"
    finally:
        client.execute_command("CLIENT", "UNPAUSE")
    assert waiting.fence()


def test_the_queue_has_no_part_in_digest_dump_and_size(
    server: Server, client: redis.Redis, locks: Locks
) -> None:
    line = Line(server)
    locks.lock(KEY, HOLDER, HOUR)
    before = (digest(client, KEY), client.dump(KEY), client.memory_usage(KEY))
    for number in range(20):
        line.write(f"t{number}")
    assert (digest(client, KEY), client.dump(KEY), client.memory_usage(KEY)) == before
    assert client.dbsize() == 1
