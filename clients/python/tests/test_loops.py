"""Event loops, threads, forks and greenlets: one `Locks` at the level of a module serves them all."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import Server, wait_until
from slock_client.testing import MemoryServer, _Link

SOURCE = str(Path(slock_client.__file__).parents[1])
TTL = 6.0


@pytest.fixture
def locks(server: Server) -> slock_client.asyncio.Locks:
    return slock_client.asyncio.Locks(redis.asyncio.Redis(port=server.port), ttl=TTL)


def run(code: str, server: Server) -> str:
    """What a program prints. Its first argument is the port."""
    words, env = [sys.executable, "-W", "ignore", "-c", code, str(server.port)], {**os.environ, "PYTHONPATH": SOURCE}
    return subprocess.check_output(words, text=True, timeout=40, env=env)


def renewal(hold: slock_client.Hold | slock_client.asyncio.Hold) -> Callable[[], bool]:
    """A condition: the hold has been renewed. What remains of it falls until then."""
    before = hold.remaining

    def is_renewed() -> bool:
        nonlocal before
        hold.check()
        now = hold.remaining
        before, is_more = now, now > before
        return is_more

    return is_renewed


async def take(locks: slock_client.asyncio.Locks, number: int, *, renewed: bool = False) -> int:
    async with locks.write("job", wait=20) as hold:
        is_over = renewal(hold) if renewed else (lambda: True)
        while not is_over():
            await asyncio.sleep(0.01)
        hold.check()
    return number


def test_two_live_loops(locks: slock_client.asyncio.Locks) -> None:
    def loop(number: int) -> list[int]:
        return [asyncio.run(take(locks, number)) for _ in range(5)]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(loop, range(6), timeout=30)) == [[number] * 5 for number in range(6)]


def test_a_loop_that_outlives_others(locks: slock_client.asyncio.Locks, client: redis.Redis) -> None:
    """As a fixture of a session does beside tests with loops of their own. One of these releases its hold."""
    session = asyncio.new_event_loop()
    thread = threading.Thread(target=session.run_forever, daemon=True)
    thread.start()
    hold = asyncio.run_coroutine_threadsafe(locks.write("session").acquire(), session).result(10)
    is_renewed = renewal(hold)
    for number in range(3):
        asyncio.run(take(locks, number, renewed=number < 2))
    wait_until(is_renewed)
    asyncio.run(hold.release())
    assert client.exists("session") == 0
    session.call_soon_threadsafe(session.stop)
    thread.join(10)
    session.close()


def test_a_hold_of_a_closed_loop_is_not_renewed(locks: slock_client.asyncio.Locks, client: redis.Redis) -> None:
    hold = asyncio.run(locks.write("job").acquire())
    wait_until(lambda: client.exists("job") == 0, TTL + 4)
    assert hold.lost


@pytest.mark.parametrize("is_silent", [False, True])
def test_the_end_of_a_loop_leaves_no_task(is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `asyncio.run`, which cancels all tasks: also with renewals and releases under way. Holds are left to their
    ttl."""
    server = MemoryServer()
    locks, held = slock_client.asyncio.Locks(server, ttl=0.4 if is_silent else 10), list[slock_client.asyncio.Hold]()

    async def silence(*_: object) -> None:
        await asyncio.sleep(60)

    async def main() -> asyncio.AbstractEventLoop:
        held.extend([await locks.write(f"job-{number}").acquire() for number in range(60)])
        if is_silent:
            monkeypatch.setattr("slock_client.testing._Link.send", silence)
            for hold in held[:20]:
                hold._claim.drop()
            await asyncio.sleep(0.2)
        return asyncio.get_running_loop()

    assert not asyncio.all_tasks(asyncio.run(main()))
    assert is_silent or server.holders("job-0") == [held[0].token]


def test_a_hold_that_nobody_has_is_ended(server: Server, client: redis.Redis) -> None:
    locks = slock_client.Locks(redis.Redis(port=server.port), ttl=TTL)
    hold = locks.write("job").acquire()
    is_renewed = renewal(hold)
    wait_until(is_renewed)
    del hold, is_renewed
    gc.collect()
    wait_until(lambda: client.exists("job") == 0, TTL + 4)
    locks.close()


def test_a_check_in_another_thread_notices_a_loss(locks: slock_client.asyncio.Locks, client: redis.Redis) -> None:
    async def main() -> None:
        async with locks.write("job", renew=False, ttl=0.3) as hold:
            await asyncio.to_thread(wait_until, lambda: hold.lost)

    with pytest.raises(slock_client.LostError):
        asyncio.run(main())


def test_many_renewals_beside_a_silent_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for the other nodes, and do not take the threads that ask these."""
    nodes, send, over = [MemoryServer() for _ in range(3)], _Link.send, threading.Event()

    async def sends(link: _Link, *words: Any) -> Any:
        if link._server is nodes[2]:
            over.wait(20)
        return await send(link, *words)

    locks = slock_client.Quorum(nodes, ttl=15, node_timeout=0.5, retry_for=15)
    holds = [locks.write(f"job-{number}").acquire() for number in range(200)]
    monkeypatch.setattr(_Link, "send", sends)
    ends = {hold: hold.remaining + time.monotonic() + 0.1 for hold in holds}
    time.sleep(0.2)  # so that a renewal shows
    for hold in holds:
        hold._renew_at = 0.0  # all at once
    try:
        wait_until(lambda: all(hold.remaining + time.monotonic() > end for hold, end in ends.items()), 14)
        assert not any(hold.reason for hold in holds)
    finally:
        over.set()
        locks.close(release=True)


def test_a_forked_child(server: Server, client: redis.Redis) -> None:
    """It leaves a block of its parent, which goes on there, and has holds of its own renewed."""
    locks, child = slock_client.Locks(redis.Redis(port=server.port), ttl=TTL), 0
    with locks.write("parent"):
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0 and client.exists("parent") == 1
    if not child:
        is_renewed = False
        try:
            with locks.write("job") as hold:
                wait_until(renewal(hold))
            is_renewed = True
        finally:
            os._exit(not is_renewed)
    assert client.dbsize() == 0
    locks.close()


def test_the_end_of_the_interpreter(server: Server) -> None:
    """A finalizer closes, when the threads of the background stand still."""
    code = """
import sys, redis, slock_client
class Locks(slock_client.Locks): __del__ = slock_client.Locks.close
locks = Locks(redis.Redis(port=int(sys.argv[1])))
with locks.write("job"): print("done")
"""
    assert run(code, server) == "done\n"


@pytest.mark.parametrize("name", ["threading.Thread.start", "_thread.start_new_thread"])
def test_no_thread_can_be_started(server: Server, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    locks = slock_client.Locks(redis.Redis(port=server.port))
    monkeypatch.setattr(name, Mock(side_effect=RuntimeError))
    assert locks.info("job").mode == "free"
    with contextlib.nullcontext() if "Thread" in name else pytest.raises(RuntimeError):
        locks.write("job", ttl=1).acquire()


GEVENT = """
import sys, time
{before}
import redis, slock_client
{after}
import gevent
locks = slock_client.Locks(redis.Redis(port=int(sys.argv[1])), ttl=6)
order, ticks = [], []
def work(number):
    with locks.write("job", wait=20) as hold:
        before = hold.remaining
        while number == 0 and hold.remaining <= before:  # until it is renewed
            before = hold.remaining
            time.sleep(0.01)
        hold.check()
        order.append(number)
def tick():
    while len(order) < 5:
        ticks.append(1)
        gevent.sleep(0.05)
jobs = [gevent.spawn(work, number) for number in range(5)]
gevent.joinall([*jobs, gevent.spawn(tick)], timeout=20, raise_error=True)
assert sorted(order) == [0, 1, 2, 3, 4] and len(ticks) > 5, (order, ticks)
print("done")
"""


@pytest.mark.parametrize("patched", ["before", "after"])
def test_gevent_patched_before_or_after_the_import(server: Server, patched: str) -> None:
    pytest.importorskip("gevent")
    code = GEVENT.replace(f"{{{patched}}}", "from gevent import monkey; monkey.patch_all()")
    code = re.sub("{before}|{after}", "", code)
    assert run(code, server) == "done\n"


def test_uvloop(locks: slock_client.asyncio.Locks) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(take(locks, 1, renewed=True)) == 1
