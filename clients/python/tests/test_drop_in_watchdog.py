"""The drop-in locks without a timeout: a watchdog renews them, and a loss is noticed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import MakeServer, Server, wait_until
from test_drop_in_asyncio import with_client
from test_drop_in_waits import SOURCE, die_with_parent, extensions

TTL = timedelta(milliseconds=1000)
TTL_MS = 1000


class ShortLock(slock_client.drop_in.Lock):
    watchdog_ttl = TTL


class ShortAsyncLock(slock_client.asyncio.drop_in.Lock):
    watchdog_ttl = TTL


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        yield client


def held_ms(server: Server) -> int:
    """For how long the present holder has the lock; 0 when there is none."""
    info = server.client(protocol=3).execute_command("SLOCK.INFO", "job", "FULL")
    return info[b"holders"][0][b"held-ms"] if info and info[b"holders"] else 0


def test_a_hold_without_timeout_has_a_short_time_to_live(client: redis.Redis) -> None:
    with client.lock("job", lock_class=slock_client.drop_in.Lock):
        assert 8000 < client.pttl("job") <= 10_000


@pytest.mark.parametrize("timeout", [None, 0])
def test_the_watchdog_renews(server: Server, client: redis.Redis, timeout: int | None) -> None:
    lock = client.lock("job", timeout, lock_class=ShortLock)
    assert lock.acquire()
    wait_until(lambda: held_ms(server) > 2 * TTL_MS)
    assert lock.owned()
    lock.release()
    assert not client.exists("job")


def test_a_hold_that_was_waited_for_is_renewed(server: Server, client: redis.Redis) -> None:
    holder = client.lock("job", timeout=1, lock_class=slock_client.drop_in.Lock)
    assert holder.acquire()
    lock = client.lock("job", lock_class=ShortLock)
    assert lock.acquire()
    wait_until(lambda: held_ms(server) > 2 * TTL_MS)
    lock.release()


def test_a_lock_with_a_timeout_is_not_renewed(client: redis.Redis) -> None:
    before = extensions(client)
    threads = threading.active_count()
    lock = client.lock("job", timeout=TTL_MS / 1000, lock_class=ShortLock)
    assert lock.acquire()
    assert threading.active_count() <= threads  # that of an earlier test may end
    wait_until(lambda: not client.exists("job"))
    assert extensions(client) == before


def test_nothing_is_renewed_after_the_release(client: redis.Redis) -> None:
    lock = client.lock("job", lock_class=ShortLock)
    assert lock.acquire()
    token = lock.local.token
    lock.release()
    # The same owner takes it again by itself. A renewal that came late would lengthen this hold.
    assert client.execute_command("SLOCK.LOCK", "job", token, 2 * TTL_MS)
    before = extensions(client)
    wait_until(lambda: not client.exists("job"))
    assert extensions(client) == before


def test_a_loss_is_noticed(client: redis.Redis) -> None:
    lock = client.lock("job", lock_class=ShortLock)
    assert lock.acquire()
    token = lock.local.token
    before = extensions(client)
    client.delete("job")
    wait_until(lambda: extensions(client) > before)
    # What the server says later does not bring the hold back.
    assert client.execute_command("SLOCK.LOCK", "job", token, 60_000)
    wait_until(lambda: not lock.owned())
    with pytest.raises(LockNotOwnedError) as caught:
        lock.release()
    assert caught.value.lock_name == "job"
    assert lock.local.token is None
    assert client.exists("job"), "what this token got later is another hold"


def test_a_paused_server_ends_the_hold(make_server: MakeServer) -> None:
    server = make_server()
    with redis.Redis(port=server.port, socket_timeout=0.1) as client:
        lock = client.lock("job", lock_class=ShortLock)
        assert lock.acquire()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.client().connection_pool.disconnect()
        threads = [thread for thread in threading.enumerate() if thread.name == "slock watchdog"]
        wait_until(lambda: not any(thread.is_alive() for thread in threads), what="the watchdog to give up")
        server.resume()
        assert lock.owned() is False
        with pytest.raises(LockNotOwnedError):
            lock.release()


def test_a_second_acquisition_after_a_loss(client: redis.Redis) -> None:
    lock = client.lock("job", lock_class=ShortLock)
    assert lock.acquire()
    client.delete("job")
    assert lock.acquire()
    assert lock.owned()
    lock.release()
    with pytest.raises(LockError):
        lock.release()


def test_a_lock_that_nobody_can_release_is_not_renewed(client: redis.Redis) -> None:
    client.lock("job", lock_class=ShortLock).acquire()
    gc.collect()
    wait_until(lambda: not client.exists("job"))


def test_a_lock_of_a_thread_that_has_ended_is_not_renewed(client: redis.Redis) -> None:
    lock = client.lock("job", lock_class=ShortLock)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    wait_until(lambda: not client.exists("job"))


def test_a_lock_that_is_not_thread_local_outlives_the_thread(server: Server, client: redis.Redis) -> None:
    lock = client.lock("job", lock_class=ShortLock, thread_local=False)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    wait_until(lambda: held_ms(server) > 2 * TTL_MS)
    lock.release()


HOLD = """
import redis, slock_client.drop_in, sys, time
from datetime import timedelta

class ShortLock(slock_client.drop_in.Lock):
    watchdog_ttl = timedelta(milliseconds=1000)

client = redis.Redis(port=int(sys.argv[1]))
with client.lock("job", lock_class=ShortLock):
    print("held", flush=True)
    if sys.argv[2] == "exit":
        sys.exit()
    time.sleep(3600)
"""


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_a_hold_ends_with_its_process(server: Server, client: redis.Redis, how: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(server.port), how],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        preexec_fn=die_with_parent,
    )
    try:
        assert process.stdout and process.stdout.readline() == "held\n"
        if how == "kill":
            wait_until(lambda: held_ms(server) > 2 * TTL_MS)
            process.send_signal(signal.SIGKILL)
        process.wait()
        wait_until(lambda: not client.exists("job"))
    finally:
        process.kill()
        process.communicate()


# --- asyncio


@pytest.mark.parametrize("timeout", [None, 0])
@with_client
async def test_the_watchdog_of_asyncio_renews(client: redis.asyncio.Redis, timeout: int | None) -> None:
    async with client.lock("job", timeout, lock_class=ShortAsyncLock) as lock:
        token = lock.local.token
        until = asyncio.get_running_loop().time() + 2 * TTL_MS / 1000
        while asyncio.get_running_loop().time() < until:
            assert await client.execute_command("SLOCK.PTTL", "job", token) > 0
            await asyncio.sleep(0.01)
    assert not await client.exists("job")


@with_client
async def test_a_loss_is_noticed_in_asyncio(client: redis.asyncio.Redis) -> None:
    lock = client.lock("job", lock_class=ShortAsyncLock)
    assert await lock.acquire()
    token = lock.local.token
    await client.config_resetstat()
    await client.delete("job")
    while not any("extend" in name for name in await client.info("commandstats")):
        await asyncio.sleep(0.004)
    assert await client.execute_command("SLOCK.LOCK", "job", token, 60_000)
    while await lock.owned():
        await asyncio.sleep(0.004)
    with pytest.raises(LockNotOwnedError) as caught:
        await lock.release()
    assert caught.value.lock_name == "job"
    assert lock.local.token is None
    assert await client.exists("job"), "what this token got later is another hold"


@with_client
async def test_a_lock_of_asyncio_that_nobody_can_release_is_not_renewed(client: redis.asyncio.Redis) -> None:
    await client.lock("job", lock_class=ShortAsyncLock).acquire()
    gc.collect()
    while await client.exists("job"):
        await asyncio.sleep(0.004)


@with_client
async def test_a_lock_of_asyncio_with_a_timeout_has_no_watchdog(client: redis.asyncio.Redis) -> None:
    async with client.lock("job", timeout=10, lock_class=slock_client.asyncio.drop_in.Lock):
        names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
        assert names == {"slock connection"}
