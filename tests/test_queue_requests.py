"""Requests that wait: their arguments, their order, their limit, and what INFO shows of the queue.

Which request is served next is proved in the core; one crowd shows here that the server does so.
"""

from __future__ import annotations

import random
from itertools import groupby

import pytest
import redis

from harness import Locks, RawConnection, Server, digest, now_ms, wait_until
from harness.causes import HOLDER, KEY
from harness.locks import Info, as_dict
from harness.waiting import HOUR, Line, blocked_clients

FAMILY = ["SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.UPGRADE"]

# What tests/test_arguments.py does not have.
BAD_OPTIONS = (
    "WAIT 1.5|WAIT 1ms|WAIT 0x10|WAIT 9223372036854775807|WAIT 99999999999999999999|WAIT 1 extra|"
    "extra WAIT 1|WAITING 1|WAIT META m|META WAIT 1|META m WAIT|WAIT 1 META|WAIT 1 META m WAIT 2|"
    "META m WAIT 1 META m|META m WAIT -5"
)


@pytest.mark.parametrize("command", FAMILY)
def test_a_bad_wait_is_an_error_and_changes_nothing(
    client: redis.Redis, locks: Locks, raw: RawConnection, command: str
) -> None:
    locks.lock("held", HOLDER, HOUR)
    locks.rlock("read", "a", HOUR)
    client.set("text", "a string")
    before = [digest(client, key) for key in ("held", "read")]
    for options in [tuple(options.split()) for options in BAD_OPTIONS.split("|")] + [("WAIT", " 1")]:
        for key in ("held", "free", "read"):
            assert raw.error(command, key, "a", HOUR, *options).startswith("ERR "), options
    assert raw.error(command, "text", "a", HOUR, "WAIT", 0).startswith("WRONGTYPE ")
    assert [digest(client, key) for key in ("held", "read")] == before
    assert client.exists("free") == 0 == blocked_clients(client)


@pytest.mark.parametrize("options", [("WAIT", 0, "META", "WAIT"), ("meta", "WAIT", "wait", 0)])
@pytest.mark.parametrize("command", FAMILY[:2])
def test_wait_and_meta_come_in_any_order_and_case(
    server: Server, locks: Locks, command: str, options: tuple
) -> None:
    line = Line(server)
    assert line.ask("META", command, KEY, "META", HOUR, *options).fence(), "what is free needs no wait"
    line.release("META")
    locks.lock(KEY, HOLDER, HOUR)
    waiter = line.ask("META", command, KEY, "META", HOUR, *options)
    line.release(HOLDER)
    fence = waiter.fence()
    (holder,) = locks.full(KEY).holders
    assert (holder.token, holder.fence, holder.meta) == (b"META", fence, b"WAIT")


@pytest.mark.parametrize("command", ["SLOCK.LOCK", "SLOCK.UPGRADE"])
def test_the_ttl_starts_at_the_grant(server: Server, locks: Locks, command: str) -> None:
    line = Line(server)
    locks.rlock(KEY, HOLDER, HOUR)
    if command == "SLOCK.UPGRADE":
        locks.rlock(KEY, "a", 50_000)
    waiting = line.join(command, "a", ttl=60_000)
    wait_until(lambda: line.info().queue[0].waiting_ms > 250, what="it to have waited for a while")
    released_ms = now_ms(line.client)
    line.release(HOLDER)
    waiting.fence()
    assert released_ms + 60_000 <= line.client.pexpiretime(KEY) <= now_ms(line.client) + 60_000


# --- the order


def test_a_crowd_is_served_in_order_with_neighbouring_readers_together(server: Server, locks: Locks) -> None:
    chance, line = random.Random(2026), Line(server)
    last_fence = locks.lock(KEY, HOLDER, HOUR)
    modes = {f"t{number}": chance.choice(["read", "read", "write"]) for number in range(100)}
    crowd = [line.read(token) if mode == "read" else line.write(token) for token, mode in modes.items()]
    assert blocked_clients(line.client) == len(crowd) == locks.info(KEY).waiters
    queue = locks.full(KEY).queue
    assert [(waiter.token.decode(), waiter.mode) for waiter in queue] == list(modes.items())
    for leaver in crowd[::3]:
        leaver.connection.reset()
    del crowd[::3]
    wait_until(lambda: locks.info(KEY).waiters == len(crowd), what="those who close to be gone")
    assert line.queued() == [waiter.token for waiter in crowd]

    batches = [list(group) for _, group in groupby(crowd, key=lambda waiter: modes[waiter.token])]
    holding = [HOLDER]
    for group in batches:
        for batch in [group] if modes[group[0].token] == "read" else [[writer] for writer in group]:
            for token in chance.sample(holding, len(holding)):
                assert locks.lock(KEY, "newcomer", HOUR) == 0 == locks.rlock(KEY, "newcomer", HOUR)
                assert line.release(token) == 1
            fences = [waiter.fence() for waiter in batch]
            assert [last_fence, *fences] == sorted({last_fence, *fences})
            last_fence, holding = fences[-1], [waiter.token for waiter in batch]
            del crowd[: len(batch)]
            assert line.holders() == sorted(holding)
            assert line.queued() == [waiter.token for waiter in crowd]
            assert all(waiter.is_waiting() for waiter in crowd[:3])
    assert all(line.release(token) == 1 for token in holding)
    assert locks.info(KEY) is None
    assert blocked_clients(line.client) == 0


# --- INFO


def test_info_shows_the_queue_which_is_no_part_of_the_key(
    server: Server, client: redis.Redis, locks: Locks
) -> None:
    line = Line(server)
    fence = locks.lock(KEY, HOLDER, HOUR)
    before = (digest(client, KEY), client.dump(KEY), client.memory_usage(KEY))
    line.write("w", wait=HOUR)
    names = ["w", "\x00r", *(f"t{number}" for number in range(101))]
    for name in names[1:]:
        line.read(name)
    assert (digest(client, KEY), client.dump(KEY), client.memory_usage(KEY)) == before
    assert client.dbsize() == 1
    info = locks.full(KEY)
    assert (info.mode, info.readers, info.waiters, info.fence) == ("write", 0, 103, fence)
    first, second = info.queue[:2]
    assert (first.token, first.mode, first.timeout_ms) == (b"w", "write", HOUR)
    assert (second.token, second.mode, second.timeout_ms) == (b"\x00r", "read", 0)
    assert 0 <= second.waiting_ms <= first.waiting_ms < 20_000
    wait_until(lambda: locks.full(KEY).queue[1].waiting_ms > second.waiting_ms, what="the waiting to grow")
    assert locks.full(KEY).queue[0].timeout_ms == HOUR
    assert locks.info(KEY).waiters == 103 and locks.info(KEY).queue is None
    for count, shown in ((None, 100), (1, 1), (102, 102), (103, 103), (500, 103), (0, 103)):
        info = locks.full(KEY, count)
        assert info.waiters == 103
        assert [waiter.token.decode() for waiter in info.queue] == names[:shown]
    with server.raw(protocol=3) as raw:
        reply = raw.ok("SLOCK.INFO", KEY, "FULL", "COUNT", 1)
    assert isinstance(reply, dict)
    (waiter,) = as_dict(reply)["queue"]
    assert isinstance(waiter, dict) and waiter[b"token"] == b"w"


@pytest.mark.parametrize("protocol", [2, 3])
def test_info_tells_what_each_request_brought_and_which_client_waits(server: Server, protocol: int) -> None:
    """`client` is there for holders whose connection they are bound to; `limit` where one was given."""
    line, raw = Line(server), server.raw(protocol)
    bound = server.raw(protocol)
    assert bound.ok("SLOCK.RLOCK", KEY, HOLDER, HOUR, "EPHEMERAL", "LIMIT", 2)
    assert raw.ok("SLOCK.RLOCK", KEY, "beside", HOUR, "META", "m", "LIMIT", 5)
    asked = {
        "limited": ("SLOCK.RLOCK", KEY, "limited", HOUR, "LIMIT", 2, "META", b"\x00\xff", "WAIT", 0),
        "bound": ("SLOCK.MLOCK", 2, KEY, "free", "bound", HOUR, "EPHEMERAL", "WAIT", HOUR),
        "beside": ("SLOCK.UPGRADE", KEY, "beside", HOUR, "WAIT", 0),
        "most": ("SLOCK.MRLOCK", 1, KEY, "most", HOUR, "WAIT", 0, "LIMIT", 2**31 - 1),
    }
    crowd = [line.ask(token, *words, protocol=protocol) for token, words in asked.items()]
    info = Info.of(raw.ok("SLOCK.INFO", KEY, "FULL"))
    ids = [waiter.id for waiter in crowd]
    assert [(one.token, one.mode, one.meta, one.client, one.limit) for one in info.queue] == [
        (b"beside", "upgrade", b"", ids[2], None),
        (b"limited", "read", b"\x00\xff", ids[0], 2),
        (b"bound", "write", b"", ids[1], None),
        (b"most", "read", b"", ids[3], 2**31 - 1),
    ]
    holders = {holder.token: (holder.meta, holder.client) for holder in info.holders}
    assert holders == {HOLDER.encode(): (b"", bound.client_id()), b"beside": (b"m", None)}
    for token, then in ((HOLDER, crowd[2]), ("beside", crowd[0]), ("limited", crowd[1])):
        assert line.release(token) == 1 and then.fence()
    (holder,) = line.info().holders
    assert (holder.token, holder.client) == (b"bound", ids[1])
