"""A server that is down or silent: calls end with their time, and nothing is left when it answers again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.exceptions

import slock_client
import slock_client.asyncio
import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import MakeServer, Server, wait_until
from harness.settings import free_port
from late_proxy import LateProxy

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
POLL = slock_client.polling.Constant(SECOND / 50)

# A call may end so long after its time, in seconds. It is about half a second; this machine may be busy.
LATE = 1.5


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """The block ends so many seconds after it began, at most a little later."""
    began = time.monotonic()
    try:
        yield
    finally:
        assert time.monotonic() - began < seconds + LATE


def is_free(server: Server) -> bool:
    """Whether nobody holds `job` and nobody waits for it."""
    return server.client().execute_command("SLOCK.INFO", "job") is None


def answered(server: Server) -> bool:
    """Whether a request for `job` has been withdrawn and released."""
    stats = server.client().info("commandstats")
    return "cmdstat_slock.cancel" in stats and bool(
        {"cmdstat_slock.munlock", "cmdstat_slock.unlock"} & set(stats)
    )


def wait_until_withdrawn(server: Server) -> None:
    """Returns when nothing is left, after the server has got what was sent while it was silent."""
    wait_until(lambda: answered(server) and is_free(server), 30, "the request to be withdrawn")


def run_asyncio(
    port: int, work: Callable[[slock_client.asyncio.Locks], Awaitable[None]], **options: Any
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=port)
        locks = slock_client.asyncio.Locks(client, ttl=MINUTE, **options)
        await work(locks)
        await locks.close()
        await client.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("waiting", ["block", POLL], ids=["block", "poll"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_a_silent_server_does_not_make_a_wait_longer(
    make_server: MakeServer, waiting: Any, connected: bool
) -> None:
    server = make_server()
    with slock_client.Locks(redis.Redis(port=server.port), waiting=waiting, ttl=MINUTE) as locks:
        if connected:
            assert locks.write("other").acquire().release()
            server.client().config_resetstat()
        server.pause()
        with pytest.raises(slock_client.TimedOutError, match="job") as caught, ends_within(1):
            locks.write("job", wait=SECOND).acquire()
        assert isinstance(caught.value.__cause__, redis.exceptions.TimeoutError)
        server.resume()
        if connected:
            wait_until_withdrawn(server)
        assert is_free(server)


@pytest.mark.parametrize("waiting", ["notify", "block", POLL], ids=["notify", "block", "poll"])
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_a_silent_server_does_not_make_an_asyncio_wait_longer(
    make_server: MakeServer, waiting: Any, connected: bool
) -> None:
    server = make_server()

    async def work(locks: slock_client.asyncio.Locks) -> None:
        if connected:
            assert await (await locks.write("other").acquire()).release()
            server.client().config_resetstat()
        server.pause()
        with pytest.raises(slock_client.TimedOutError, match="job") as caught, ends_within(1):
            await locks.write("job", wait=SECOND).acquire()
        assert isinstance(caught.value.__cause__, redis.exceptions.TimeoutError)
        server.resume()
        end = time.monotonic() + 30
        while not (is_free(server) and (answered(server) or not connected)):
            assert time.monotonic() < end, "waited 30 s in vain for the request to be withdrawn"
            await asyncio.sleep(0.01)

    run_asyncio(server.port, work, waiting=waiting)


@pytest.mark.parametrize("waiting", ["notify", "block"])
def test_a_server_that_falls_silent_during_an_asyncio_wait(make_server: MakeServer, waiting: str) -> None:
    server = make_server()
    server.client().execute_command("SLOCK.LOCK", "job", "other", 60_000)

    async def work(locks: slock_client.asyncio.Locks) -> None:
        task = asyncio.create_task(locks.write("job", wait=2 * SECOND).acquire())
        while not server.client().execute_command("SLOCK.QUEUES"):
            await asyncio.sleep(0.01)
        server.pause()
        with pytest.raises(slock_client.TimedOutError), ends_within(2):
            await task
        server.resume()
        server.client().execute_command("SLOCK.UNLOCK", "job", "other")
        while not (answered(server) and is_free(server)):
            await asyncio.sleep(0.01)

    run_asyncio(server.port, work, waiting=waiting)


def test_a_server_that_falls_silent_during_a_wait(make_server: MakeServer) -> None:
    server = make_server()
    server.client().execute_command("SLOCK.LOCK", "job", "other", 60_000)
    with slock_client.Locks(redis.Redis(port=server.port), ttl=MINUTE) as locks:
        pause = threading.Thread(
            target=lambda: (
                wait_until(lambda: server.client().execute_command("SLOCK.QUEUES")),
                server.pause(),
            )
        )
        pause.start()
        with pytest.raises(slock_client.TimedOutError), ends_within(2):
            locks.write("job", wait=2 * SECOND).acquire()
        pause.join()
        server.resume()
        server.client().execute_command("SLOCK.UNLOCK", "job", "other")
        wait_until_withdrawn(server)


def test_a_cancelled_task_does_not_wait_for_a_silent_server(make_server: MakeServer) -> None:
    server = make_server()

    async def work(locks: slock_client.asyncio.Locks) -> None:
        assert await (await locks.write("other").acquire()).release()
        server.client().config_resetstat()
        server.pause()
        with pytest.raises(asyncio.TimeoutError), ends_within(0.3):
            await asyncio.wait_for(locks.write("job").acquire(), 0.3)
        server.resume()
        while not (answered(server) and is_free(server)):
            await asyncio.sleep(0.01)

    run_asyncio(server.port, work)


@pytest.mark.parametrize("state", ["silent", "down", "refusing"])
def test_an_attempt_ends_with_retry_for(make_server: MakeServer, state: str) -> None:
    server = make_server(min_replicas_to_write=1 if state == "refusing" else 0)
    server.client().ping()
    if state == "silent":
        server.pause()
    elif state == "down":
        server.kill9()
    with slock_client.Locks(redis.Redis(port=server.port), retry_for=SECOND) as locks:
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            locks.write("job").try_acquire()
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            locks.release("job", "token")

    async def work(asyncio_locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            await asyncio_locks.write("job").try_acquire()
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            await asyncio_locks.release("job", "token")

    run_asyncio(server.port, work, retry_for=SECOND)
    server.resume()


def has_waited(server: Server, ms: int) -> bool:
    """Whether somebody has waited for so long."""
    queues: Any = server.client().execute_command("SLOCK.QUEUES")
    fields = [one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True)) for one in queues]
    return any(one[b"longest-wait-ms"] >= ms for one in fields)


def test_an_outage_soon_after_a_wait_began(make_server: MakeServer) -> None:
    """A wait is silent, but its connection was open: until it was lost the server was there."""
    server = make_server()

    def outage() -> None:
        wait_until(lambda: has_waited(server, 400))
        server.kill9()
        server.start()

    def hold_others() -> None:
        server.client().execute_command("SLOCK.LOCK", "job", "other", 60_000)

    async def work(locks: slock_client.asyncio.Locks) -> None:
        assert await (await locks.write("other").acquire()).release()
        hold_others()
        task = asyncio.create_task(locks.write("job").acquire())
        await asyncio.to_thread(outage)
        assert await (await task).release()

    with (
        ThreadPoolExecutor() as pool,
        slock_client.Locks(redis.Redis(port=server.port), retry_for=SECOND / 5) as locks,
    ):
        assert locks.write("other").acquire().release()
        hold_others()
        task = pool.submit(locks.write("job").acquire)
        outage()
        assert task.result(timeout=30).release()
    run_asyncio(server.port, work, waiting="block", retry_for=SECOND / 5)


def test_a_wait_on_a_connection_that_ended_while_it_was_idle(make_server: MakeServer) -> None:
    server = make_server()

    async def work(locks: slock_client.asyncio.Locks) -> None:
        server.start()
        assert await (await locks.write("job").acquire()).release()
        server.kill9()
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            await locks.write("job").acquire()

    with slock_client.Locks(redis.Redis(port=server.port), retry_for=SECOND) as locks:
        assert locks.write("job").acquire().release()
        server.kill9()
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            locks.write("job").acquire()
    run_asyncio(server.port, work, waiting="block", retry_for=SECOND)


def test_the_cause_of_a_time_out_is_the_last_error(make_server: MakeServer) -> None:
    refusing = make_server(min_replicas_to_write=1)
    closed = free_port()

    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.TimedOutError, match="job") as caught:
            await locks.write("job", wait=SECOND / 2).acquire()
        causes.append(caught.value.__cause__)

    for port, text in ((refusing.port, "NOREPLICAS"), (closed, "111")):
        causes: list[BaseException | None] = []
        with slock_client.Locks(redis.Redis(port=port)) as locks:
            with pytest.raises(slock_client.TimedOutError, match="job") as caught, ends_within(0.5):
                locks.write("job", wait=SECOND / 2).acquire()
            causes.append(caught.value.__cause__)
        run_asyncio(port, work)
        for cause in causes:
            assert isinstance(cause, redis.RedisError) and text in str(cause)


def test_a_time_out_that_the_server_told_has_no_cause(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000)

    async def work(locks: slock_client.asyncio.Locks) -> None:
        with pytest.raises(slock_client.TimedOutError, match="job") as caught:
            await locks.write("job", wait=SECOND / 10).acquire()
        assert caught.value.__cause__ is None

    with slock_client.Locks(redis.Redis(port=server.port)) as locks:
        for wait in (SECOND / 10, timedelta(0)):
            with pytest.raises(slock_client.TimedOutError, match="job") as caught:
                locks.write("job", wait=wait).acquire()
            assert caught.value.__cause__ is None
    run_asyncio(server.port, work)


def test_a_server_that_does_not_accept_at_first_is_waited_for(make_server: MakeServer) -> None:
    """The time to connect is not the wait: the client tries again."""
    server = make_server()
    server.pause()
    client = redis.Redis(port=server.port, socket_timeout=0.2)
    with slock_client.Locks(client, ttl=MINUTE) as locks:
        resuming = threading.Timer(1.0, server.resume)  # longer than one attempt to connect takes
        resuming.start()
        hold = locks.write("job", wait=MINUTE).acquire()
        resuming.join()
        assert hold.release()


def test_an_extension_ends_with_the_validity_and_a_release_with_retry_for(make_server: MakeServer) -> None:
    server = make_server()

    async def work(locks: slock_client.asyncio.Locks) -> None:
        server.resume()
        hold = await locks.write("other", ttl=SECOND, renew=False).acquire()
        server.pause()
        with pytest.raises(slock_client.LostError), ends_within(1):
            await hold.extend()

    with slock_client.Locks(redis.Redis(port=server.port), ttl=SECOND, renew=False) as locks:
        first, second = locks.write("job").acquire(), locks.write("other").acquire()
        server.pause()
        with pytest.raises(slock_client.TimedOutError), ends_within(3):
            first.release()
        with pytest.raises(slock_client.LostError), ends_within(1):
            second.extend()
        server.resume()
        wait_until(lambda: is_free(server), 30)
    run_asyncio(server.port, work)
    server.resume()


# --- the drop-in


@pytest.mark.parametrize("state", ["silent", "down"])
@pytest.mark.parametrize(("options", "seconds"), [({"blocking": False}, 3), ({"blocking_timeout": 1}, 1)])
def test_the_drop_in_ends_in_time(
    make_server: MakeServer, state: str, options: dict[str, Any], seconds: float
) -> None:
    server = make_server()
    if state == "silent":
        server.pause()
    else:
        server.kill9()
    client = redis.Redis(port=server.port)
    with pytest.raises(redis.RedisError), ends_within(seconds):
        client.lock("job", lock_class=slock_client.drop_in.Lock).acquire(**options)
    client.close()

    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port) as asyncio_client:
            with pytest.raises(redis.RedisError), ends_within(seconds):
                await asyncio_client.lock("job", lock_class=slock_client.asyncio.drop_in.Lock).acquire(
                    **options
                )

    asyncio.run(main())
    server.resume()


def test_the_drop_in_leaves_nothing_at_a_server_that_was_silent(make_server: MakeServer) -> None:
    server = make_server()
    with redis.Redis(port=server.port) as client:
        lock = client.lock("job", lock_class=slock_client.drop_in.Lock, timeout=60)
        with lock:
            pass
        server.client().config_resetstat()
        server.pause()
        with pytest.raises(redis.RedisError), ends_within(1):
            lock.acquire(blocking_timeout=1)
        server.resume()
        wait_until_withdrawn(server)

    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port) as asyncio_client:
            asyncio_lock = asyncio_client.lock(
                "job", lock_class=slock_client.asyncio.drop_in.Lock, timeout=60
            )
            async with asyncio_lock:
                pass
            server.client().config_resetstat()
            server.pause()
            with pytest.raises(redis.RedisError), ends_within(1):
                await asyncio_lock.acquire(blocking_timeout=1)
            server.resume()
            while not (answered(server) and is_free(server)):
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_waits_end_with_their_time_when_a_subscription_is_not_confirmed(
    server: Server, client: redis.Redis
) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000)
    proxy = LateProxy(server.port)

    async def work(locks: slock_client.asyncio.Locks) -> None:
        proxy.keep("SSUBSCRIBE")
        request = locks.write("job", wait=SECOND)
        with ends_within(1):
            ended = await asyncio.gather(*(request.acquire() for _ in range(100)), return_exceptions=True)
        assert {type(one) for one in ended} == {slock_client.TimedOutError}
        proxy.deliver()

    run_asyncio(proxy.port, work)
    client.execute_command("SLOCK.UNLOCK", "job", "other")
    wait_until(lambda: is_free(server))
    proxy.close()


def test_a_command_larger_than_the_buffers_ends_with_its_time(make_server: MakeServer) -> None:
    server = make_server()
    keys = [str(number) * 4_000_000 for number in range(1, 4)]

    async def work(locks: slock_client.asyncio.Locks) -> None:
        await locks.release("other", "nobody")  # it is connected
        server.pause()
        with pytest.raises(slock_client.TimedOutError), ends_within(1):
            await asyncio.wait_for(locks.write(*keys, wait=SECOND).acquire(), 20)
        server.resume()
        assert await locks.write("job").acquire()

    run_asyncio(server.port, work)
    wait_until(lambda: server.client().dbsize() == 1)


def test_an_operator_is_told_once_that_the_server_is_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    port = free_port()
    with redis.Redis(port=port) as client, slock_client.Locks(client, retry_for=2 * SECOND) as locks:
        for _ in range(2):
            with pytest.raises(slock_client.TimedOutError):
                locks.write("job").acquire()
    [told] = [record for record in caplog.records if record.name == "slock_client"]
    assert f"localhost:{port} is out of reach" in told.message


def test_an_operator_of_asyncio_is_told_again_of_the_next_outage(
    make_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    server = make_server()

    async def two_outages(locks: slock_client.asyncio.Locks) -> None:
        for _ in range(2):
            await (await locks.write("job").acquire()).release()
            server.kill9()
            with pytest.raises(slock_client.TimedOutError):
                await locks.write("job").acquire()
            server.start()

    run_asyncio(server.port, two_outages, retry_for=2 * SECOND)
    assert caplog.text.count("is out of reach") == 2
