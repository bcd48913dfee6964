"""The drop-in does what `redis.asyncio.lock.Lock` does: the cases of redis-py's own tests.

What is not here, and why, is in DROP_IN.md.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

import slock_client.asyncio.drop_in
from harness import Server


def with_client(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test in an event loop of its own, with a client of the server."""

    @functools.wraps(test)
    def run(server: Server, **arguments: Any) -> None:
        async def connected() -> None:
            async with redis.asyncio.Redis(port=server.port, protocol=3) as client:
                await test(client, **arguments)

        asyncio.run(connected())

    parameters = list(inspect.signature(test).parameters.values())
    run.__signature__ = inspect.Signature([parameters[0].replace(name="server"), *parameters[1:]])  # type: ignore[attr-defined]
    return run


def make_lock(client: redis.asyncio.Redis, **options: Any) -> slock_client.asyncio.drop_in.Lock:
    return client.lock("job", lock_class=slock_client.asyncio.drop_in.Lock, **options)


async def give_to_another(client: redis.asyncio.Redis) -> slock_client.asyncio.drop_in.Lock:
    """Takes the lock away from its owner. Another owner has it then."""
    await client.delete("job")
    other = make_lock(client, timeout=10)
    assert await other.acquire(blocking=False)
    return other


async def wait_until_gone(lock: slock_client.asyncio.drop_in.Lock) -> None:
    while await lock.owned():
        await asyncio.sleep(0.004)


async def assert_gone(client: redis.asyncio.Redis) -> None:
    assert await client.exists("job") == 0


# --- acquire and release


@with_client
async def test_acquire_and_release(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client)
    assert await lock.acquire(blocking=False) is True
    assert isinstance(lock.local.token, bytes)
    await lock.release()
    await assert_gone(client)


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("token", ["test", b"test"])
@with_client
async def test_the_token_may_be_given(
    client: redis.asyncio.Redis, token: str | bytes, thread_local: bool
) -> None:
    lock = make_lock(client, thread_local=thread_local)
    assert await lock.acquire(blocking=False, token=token)
    assert lock.local.token == b"test"
    assert await lock.owned()
    await lock.release()
    await assert_gone(client)
    assert lock.local.token is None


@with_client
async def test_a_lock_is_not_reentrant(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client)
    assert await lock.acquire()
    token = lock.local.token
    assert await lock.acquire(blocking=False) is False
    assert lock.local.token == token and await lock.owned()
    await lock.release()


@with_client
async def test_locked(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client)
    assert await lock.locked() is False
    await lock.acquire(blocking=False)
    assert await lock.locked() is True
    assert await make_lock(client).locked() is True
    await lock.release()
    assert await lock.locked() is False


@pytest.mark.parametrize("decode_responses", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_owned(server: Server, decode_responses: bool, protocol: int) -> None:
    async def check() -> None:
        options = {"decode_responses": decode_responses, "protocol": protocol}
        async with redis.asyncio.Redis(port=server.port, **options) as client:
            first, second = make_lock(client), make_lock(client)
            assert await first.owned() is False
            await first.acquire(blocking=False)
            assert (await first.owned(), await second.owned()) == (True, False)
            assert (await first.locked(), await second.locked()) == (True, True)
            await first.release()
            assert (await first.owned(), await second.owned()) == (False, False)
            await second.acquire(blocking=False)
            assert (await first.owned(), await second.owned()) == (False, True)
            await second.release()
            assert (await first.owned(), await second.owned()) == (False, False)

    asyncio.run(check())


@with_client
async def test_competing_locks(client: redis.asyncio.Redis) -> None:
    first, second = make_lock(client), make_lock(client)
    assert await first.acquire(blocking=False)
    assert await second.acquire(blocking=False) is False
    await first.release()
    assert await second.acquire(blocking=False)
    assert await first.acquire(blocking=False) is False
    await second.release()


@with_client
async def test_a_token_may_be_handed_to_another_lock(client: redis.asyncio.Redis) -> None:
    lock, other = make_lock(client, timeout=10), make_lock(client, timeout=10)
    assert await lock.acquire()
    other.local.token = lock.local.token
    assert await other.owned() and await other.extend(10) and await other.reacquire()
    await other.release()
    await assert_gone(client)


@with_client
async def test_the_attributes_are_those_of_the_constructor(client: redis.asyncio.Redis) -> None:
    lock = client.lock(
        "job",
        timeout=7,
        sleep=0.5,
        blocking=False,
        blocking_timeout=3,
        lock_class=slock_client.asyncio.drop_in.Lock,
        thread_local=False,
        raise_on_release_error=False,
    )
    assert (lock.redis, lock.name, lock.timeout, lock.sleep) == (client, "job", 7, 0.5)
    assert (lock.blocking, lock.blocking_timeout, lock.thread_local) == (False, 3, False)
    assert lock.raise_on_release_error is False
    lock = slock_client.asyncio.drop_in.Lock(client, "job")
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (None, 0.1, True, None)
    assert (lock.thread_local, lock.raise_on_release_error) == (True, True)
    assert lock.local.token is None


# --- the time to live


@pytest.mark.parametrize(("timeout", "most_ms"), [(10, 10_000), (9.5, 9500), (9.9996, 9999)])
@with_client
async def test_a_timeout_is_given_in_seconds(
    client: redis.asyncio.Redis, timeout: float, most_ms: int
) -> None:
    lock = make_lock(client, timeout=timeout)
    assert await lock.acquire(blocking=False)
    assert most_ms - 1500 < await client.pttl("job") <= most_ms
    await lock.release()


@pytest.mark.parametrize("timeout", [0.0004, -1])
@with_client
async def test_a_timeout_below_a_millisecond_is_an_error_of_the_server(
    client: redis.asyncio.Redis, timeout: float
) -> None:
    lock = make_lock(client, timeout=timeout)
    with pytest.raises(redis.ResponseError):
        await lock.acquire()
    await assert_gone(client)
    assert lock.local.token is None


# --- waiting


@with_client
async def test_blocking_timeout(client: redis.asyncio.Redis) -> None:
    holder = make_lock(client)
    assert await holder.acquire(blocking=False)
    lock = make_lock(client, sleep=0.05, blocking_timeout=0.2)
    time = asyncio.get_running_loop().time
    started = time()
    assert await lock.acquire() is False
    assert time() - started > 0.2 - 0.05
    assert lock.local.token is None
    await holder.release()


@with_client
async def test_blocking_timeout_of_a_call(client: redis.asyncio.Redis) -> None:
    async with make_lock(client, blocking=False):
        lock = make_lock(client)
        assert await lock.acquire(blocking_timeout=0.05) is False
        assert await lock.acquire(blocking=True, blocking_timeout=0.05) is False


@pytest.mark.parametrize("blocking_timeout", [0, -1, 0.0001])
@with_client
async def test_a_blocking_timeout_of_nothing_asks_once(
    client: redis.asyncio.Redis, blocking_timeout: float
) -> None:
    lock = make_lock(client, blocking_timeout=blocking_timeout)
    assert await lock.acquire() is True
    assert await make_lock(client, blocking_timeout=blocking_timeout).acquire() is False
    await lock.release()


@with_client
async def test_blocking_of_the_constructor(client: redis.asyncio.Redis) -> None:
    async with make_lock(client):
        assert await make_lock(client, blocking=False).acquire() is False
        assert await make_lock(client, blocking=False, blocking_timeout=60).acquire() is False


@with_client
async def test_not_blocking_is_stronger_than_a_blocking_timeout(client: redis.asyncio.Redis) -> None:
    async with make_lock(client):
        assert await make_lock(client).acquire(blocking=False, blocking_timeout=60) is False


@with_client
async def test_a_long_sleep_and_a_short_blocking_timeout(client: redis.asyncio.Redis) -> None:
    async with make_lock(client):
        assert await make_lock(client, sleep=60, blocking_timeout=0.1).acquire() is False


# --- the context manager


@with_client
async def test_context_manager(client: redis.asyncio.Redis) -> None:
    async with make_lock(client, blocking_timeout=0.2) as lock:
        assert isinstance(lock, slock_client.asyncio.drop_in.Lock)
        assert await lock.owned()
    await assert_gone(client)


@with_client
async def test_context_manager_raises_when_the_lock_is_not_acquired(client: redis.asyncio.Redis) -> None:
    async with make_lock(client, blocking=False):
        with pytest.raises(LockError) as caught:
            async with make_lock(client, blocking_timeout=0.05):
                raise AssertionError("the block ran without the lock")
        assert not isinstance(caught.value, LockNotOwnedError)


@with_client
async def test_context_manager_raises_when_the_lock_ran_out(client: redis.asyncio.Redis) -> None:
    with pytest.raises(LockNotOwnedError):
        async with make_lock(client, timeout=0.05) as lock:
            await wait_until_gone(lock)


@with_client
async def test_context_manager_raises_when_another_owns_the_lock(client: redis.asyncio.Redis) -> None:
    with pytest.raises(LockNotOwnedError):
        async with make_lock(client, timeout=10, blocking=False):
            other = await give_to_another(client)
    assert await other.owned()
    await other.release()


@with_client
async def test_context_manager_raises_when_the_block_released_the_lock(client: redis.asyncio.Redis) -> None:
    with pytest.raises(LockError):
        async with make_lock(client, timeout=10) as lock:
            await lock.release()


@pytest.mark.parametrize("how", ["runs out", "is released"])
@with_client
async def test_context_manager_may_log_that_the_lock_is_gone(
    client: redis.asyncio.Redis, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    async with make_lock(client, timeout=0.05, raise_on_release_error=False) as lock:
        if how == "is released":
            await lock.release()
        else:
            await wait_until_gone(lock)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@with_client
async def test_an_error_of_the_block_comes_through(client: redis.asyncio.Redis) -> None:
    with pytest.raises(KeyError):
        async with make_lock(client):
            raise KeyError
    await assert_gone(client)


# --- release


@with_client
async def test_releasing_an_unlocked_lock_is_an_error(client: redis.asyncio.Redis) -> None:
    with pytest.raises(LockError) as caught:
        await make_lock(client).release()
    assert not isinstance(caught.value, LockNotOwnedError)
    assert caught.value.lock_name == "job"


@with_client
async def test_releasing_a_lock_that_another_owns_is_an_error(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client)
    await lock.acquire(blocking=False)
    other = await give_to_another(client)
    with pytest.raises(LockNotOwnedError):
        await lock.release()
    assert lock.local.token is None
    assert await other.owned()
    await other.release()


@with_client
async def test_a_release_that_was_cancelled_may_be_repeated(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client)
    await lock.acquire(blocking=False)
    token = lock.local.token
    release = asyncio.create_task(lock.release())
    release.cancel()
    with pytest.raises(asyncio.CancelledError):
        await release
    assert lock.local.token == token
    await lock.release()
    await assert_gone(client)


# --- extend


@pytest.mark.parametrize("seconds", [10, 10.5])
@with_client
async def test_extend(client: redis.asyncio.Redis, seconds: float) -> None:
    lock = make_lock(client, timeout=seconds)
    assert await lock.acquire(blocking=False)
    before = await client.pttl("job")
    assert await lock.extend(seconds) is True
    assert before + seconds * 1000 - 1500 < await client.pttl("job") <= before + seconds * 1000
    await lock.release()


@with_client
async def test_extend_with_a_new_time_to_live(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert await lock.acquire(blocking=False)
    assert await lock.extend(60, replace_ttl=True) is True
    assert 58_000 < await client.pttl("job") <= 60_000
    assert await lock.extend(10, replace_ttl=True) is True
    assert 8000 < await client.pttl("job") <= 10_000
    await lock.release()


@with_client
async def test_extend_by_less_than_nothing(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client, timeout=20)
    assert await lock.acquire(blocking=False)
    assert await lock.extend(-10) is True
    assert 8000 < await client.pttl("job") <= 10_000
    assert await lock.extend(-60) is True
    await assert_gone(client)


@with_client
async def test_extending_an_unlocked_lock_is_an_error(client: redis.asyncio.Redis) -> None:
    with pytest.raises(LockError) as caught:
        await make_lock(client, timeout=10).extend(10)
    assert not isinstance(caught.value, LockNotOwnedError)


@with_client
async def test_extending_a_lock_without_timeout_is_an_error(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client)
    assert await lock.acquire(blocking=False)
    with pytest.raises(LockError) as caught:
        await lock.extend(10)
    assert not isinstance(caught.value, LockNotOwnedError)
    await lock.release()


@pytest.mark.parametrize("replace_ttl", [False, True])
@with_client
async def test_extending_a_lock_that_another_owns_is_an_error(
    client: redis.asyncio.Redis, replace_ttl: bool
) -> None:
    lock = make_lock(client, timeout=10)
    assert await lock.acquire(blocking=False)
    other = await give_to_another(client)
    with pytest.raises(LockNotOwnedError):
        await lock.extend(10, replace_ttl)
    assert await client.pttl("job") <= 10_000
    await other.release()


# --- reacquire


@with_client
async def test_reacquire(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert await lock.acquire(blocking=False)
    assert await lock.extend(5, replace_ttl=True)
    assert await client.pttl("job") <= 5000
    assert await lock.reacquire() is True
    assert 8000 < await client.pttl("job") <= 10_000
    await lock.release()


@with_client
async def test_reacquiring_an_unlocked_lock_is_an_error(client: redis.asyncio.Redis) -> None:
    with pytest.raises(LockError) as caught:
        await make_lock(client, timeout=10).reacquire()
    assert not isinstance(caught.value, LockNotOwnedError)


@with_client
async def test_reacquiring_a_lock_without_timeout_is_an_error(client: redis.asyncio.Redis) -> None:
    async with make_lock(client, timeout=None, blocking=False) as lock:
        with pytest.raises(LockError) as caught:
            await lock.reacquire()
        assert not isinstance(caught.value, LockNotOwnedError)


@with_client
async def test_reacquiring_a_lock_that_another_owns_is_an_error(client: redis.asyncio.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert await lock.acquire(blocking=False)
    other = await give_to_another(client)
    with pytest.raises(LockNotOwnedError):
        await lock.reacquire()
    await other.release()


# --- lock_class


@with_client
async def test_lock_class(client: redis.asyncio.Redis) -> None:
    assert type(make_lock(client)) is slock_client.asyncio.drop_in.Lock
    assert isinstance(make_lock(client), redis.asyncio.lock.Lock)
