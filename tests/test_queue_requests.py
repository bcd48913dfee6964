"""Requests that wait: when their ttl begins, and what INFO shows of the queue.

Which is served next is proved in the core; test_live_model.py shows it here.
"""

from __future__ import annotations

import pytest
import redis

from harness import Locks, Server, digest, now_ms, wait_until
from harness.causes import HOLDER, KEY
from harness.locks import Info, as_dict
from harness.waiting import HOUR, Line


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


# --- INFO


def test_info_shows_the_queue(server: Server, client: redis.Redis, locks: Locks) -> None:
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
