"""The drop-in does what `redis.lock.Lock` does: the cases of redis-py's own tests, through `lock_class`.

What is not here, and why, is in DROP_IN.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import Server, wait_until


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        yield client


def make_lock(client: redis.Redis, **options: Any) -> slock_client.drop_in.Lock:
    return client.lock("job", lock_class=slock_client.drop_in.Lock, **options)


def give_to_another(client: redis.Redis) -> slock_client.drop_in.Lock:
    """Takes the lock away from its owner. Another owner has it then."""
    client.delete("job")
    other = make_lock(client, timeout=10)
    assert other.acquire(blocking=False)
    return other


def assert_gone(client: redis.Redis) -> None:
    assert client.exists("job") == 0


# --- acquire and release


def test_acquire_and_release(client: redis.Redis) -> None:
    lock = make_lock(client)
    assert lock.acquire(blocking=False) is True
    assert isinstance(lock.local.token, bytes)
    lock.release()
    assert_gone(client)


@pytest.mark.parametrize("thread_local", [True, False])
@pytest.mark.parametrize("token", ["test", b"test"])
def test_the_token_may_be_given(client: redis.Redis, token: str | bytes, thread_local: bool) -> None:
    lock = make_lock(client, thread_local=thread_local)
    assert lock.acquire(blocking=False, token=token)
    assert lock.local.token == b"test"
    assert lock.owned()
    lock.release()
    assert_gone(client)
    assert lock.local.token is None


def test_a_token_is_encoded_as_the_client_encodes(server: Server) -> None:
    with redis.Redis(port=server.port, encoding="latin-1") as client:
        lock = make_lock(client)
        assert lock.acquire(token="caf\u00e9")
        assert lock.local.token == b"caf\xe9"
        lock.release()


def test_each_acquisition_has_a_token_of_its_own(client: redis.Redis) -> None:
    lock = make_lock(client)
    assert lock.acquire()
    first = lock.local.token
    lock.release()
    assert lock.acquire()
    assert lock.local.token != first
    lock.release()


def test_a_lock_is_not_reentrant(client: redis.Redis) -> None:
    lock = make_lock(client)
    assert lock.acquire()
    token = lock.local.token
    assert lock.acquire(blocking=False) is False
    assert lock.local.token == token and lock.owned()
    lock.release()


def test_locked(client: redis.Redis) -> None:
    lock = make_lock(client)
    assert lock.locked() is False
    lock.acquire(blocking=False)
    assert lock.locked() is True
    assert make_lock(client).locked() is True
    lock.release()
    assert lock.locked() is False


@pytest.mark.parametrize("decode_responses", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_owned(server: Server, decode_responses: bool, protocol: int) -> None:
    with redis.Redis(port=server.port, decode_responses=decode_responses, protocol=protocol) as client:
        first, second = make_lock(client), make_lock(client)
        assert first.owned() is False
        first.acquire(blocking=False)
        assert (first.owned(), second.owned()) == (True, False)
        assert (first.locked(), second.locked()) == (True, True)
        first.release()
        assert (first.owned(), second.owned()) == (False, False)
        second.acquire(blocking=False)
        assert (first.owned(), second.owned()) == (False, True)
        second.release()
        assert (first.owned(), second.owned()) == (False, False)


def test_competing_locks(client: redis.Redis) -> None:
    first, second = make_lock(client), make_lock(client)
    assert first.acquire(blocking=False)
    assert second.acquire(blocking=False) is False
    first.release()
    assert second.acquire(blocking=False)
    assert first.acquire(blocking=False) is False
    second.release()


def test_a_token_may_be_handed_to_another_lock(client: redis.Redis) -> None:
    lock, other = make_lock(client, timeout=10), make_lock(client, timeout=10)
    assert lock.acquire()
    other.local.token = lock.local.token
    assert other.owned() and other.extend(10) and other.reacquire()
    other.release()
    assert_gone(client)


def test_the_attributes_are_those_of_the_constructor(client: redis.Redis) -> None:
    lock = client.lock(
        "job",
        timeout=7,
        sleep=0.5,
        blocking=False,
        blocking_timeout=3,
        lock_class=slock_client.drop_in.Lock,
        thread_local=False,
        raise_on_release_error=False,
    )
    assert (lock.redis, lock.name, lock.timeout, lock.sleep) == (client, "job", 7, 0.5)
    assert (lock.blocking, lock.blocking_timeout, lock.thread_local) == (False, 3, False)
    assert lock.raise_on_release_error is False
    lock = slock_client.drop_in.Lock(client, "job")
    assert (lock.timeout, lock.sleep, lock.blocking, lock.blocking_timeout) == (None, 0.1, True, None)
    assert (lock.thread_local, lock.raise_on_release_error) == (True, True)
    assert lock.local.token is None


# --- the time to live


@pytest.mark.parametrize(("timeout", "most_ms"), [(10, 10_000), (9.5, 9500), (9.9996, 9999)])
def test_a_timeout_is_given_in_seconds(client: redis.Redis, timeout: float, most_ms: int) -> None:
    lock = make_lock(client, timeout=timeout)
    assert lock.acquire(blocking=False)
    assert most_ms - 1500 < client.pttl("job") <= most_ms
    lock.release()


@pytest.mark.parametrize("timeout", [0.0004, -1])
def test_a_timeout_below_a_millisecond_is_an_error_of_the_server(client: redis.Redis, timeout: float) -> None:
    lock = make_lock(client, timeout=timeout)
    with pytest.raises(redis.ResponseError):
        lock.acquire()
    assert_gone(client)
    assert lock.local.token is None


def test_a_lock_ends_with_its_timeout(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=0.05)
    assert lock.acquire()
    wait_until(lambda: not lock.owned())
    assert not lock.locked()
    assert lock.local.token is not None
    with pytest.raises(LockNotOwnedError):
        lock.release()


# --- waiting


def test_blocking_timeout(client: redis.Redis) -> None:
    holder = make_lock(client)
    assert holder.acquire(blocking=False)
    lock = make_lock(client, sleep=0.05, blocking_timeout=0.2)
    started = time.monotonic()
    assert lock.acquire() is False
    assert time.monotonic() - started > 0.2 - 0.05
    assert lock.local.token is None
    holder.release()


def test_blocking_timeout_of_a_call(client: redis.Redis) -> None:
    with make_lock(client, blocking=False):
        lock = make_lock(client)
        assert lock.acquire(blocking_timeout=0.05) is False
        assert lock.acquire(sleep=0.01, blocking=True, blocking_timeout=0.05) is False


@pytest.mark.parametrize("blocking_timeout", [0, -1, 0.0001])
def test_a_blocking_timeout_of_nothing_asks_once(client: redis.Redis, blocking_timeout: float) -> None:
    lock = make_lock(client, blocking_timeout=blocking_timeout)
    assert lock.acquire() is True
    assert make_lock(client, blocking_timeout=blocking_timeout).acquire() is False
    lock.release()


def test_blocking_of_the_constructor(client: redis.Redis) -> None:
    with make_lock(client):
        assert make_lock(client, blocking=False).acquire() is False
        assert make_lock(client, blocking=False, blocking_timeout=60).acquire() is False


def test_not_blocking_is_stronger_than_a_blocking_timeout(client: redis.Redis) -> None:
    with make_lock(client):
        assert make_lock(client).acquire(blocking=False, blocking_timeout=60) is False


def test_a_long_sleep_and_a_short_blocking_timeout(client: redis.Redis) -> None:
    with make_lock(client):
        assert make_lock(client, sleep=60, blocking_timeout=0.1).acquire() is False


# --- the context manager


def test_context_manager(client: redis.Redis) -> None:
    with make_lock(client, blocking_timeout=0.2) as lock:
        assert isinstance(lock, slock_client.drop_in.Lock)
        assert lock.owned()
    assert_gone(client)


def test_context_manager_raises_when_the_lock_is_not_acquired(client: redis.Redis) -> None:
    with make_lock(client, blocking=False):
        with pytest.raises(LockError) as caught, make_lock(client, blocking_timeout=0.05):
            raise AssertionError("the block ran without the lock")
        assert caught.value.lock_name == "job"
        assert not isinstance(caught.value, LockNotOwnedError)


def test_context_manager_raises_when_the_lock_ran_out(client: redis.Redis) -> None:
    with pytest.raises(LockNotOwnedError) as caught, make_lock(client, timeout=0.05) as lock:
        wait_until(lambda: not lock.owned())
    assert caught.value.lock_name == "job"


def test_context_manager_raises_when_another_owns_the_lock(client: redis.Redis) -> None:
    with pytest.raises(LockNotOwnedError), make_lock(client, timeout=10, blocking=False):
        other = give_to_another(client)
    assert other.owned()
    other.release()


def test_context_manager_raises_when_the_block_released_the_lock(client: redis.Redis) -> None:
    with pytest.raises(LockError), make_lock(client, timeout=10) as lock:
        lock.release()


@pytest.mark.parametrize("how", ["runs out", "is released"])
def test_context_manager_may_log_that_the_lock_is_gone(
    client: redis.Redis, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with make_lock(client, timeout=0.05, raise_on_release_error=False) as lock:
        if how == "is released":
            lock.release()
        else:
            wait_until(lambda: not lock.owned())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_error_of_the_block_comes_through(client: redis.Redis) -> None:
    with pytest.raises(KeyError), make_lock(client):
        raise KeyError
    assert_gone(client)


# --- release


def test_releasing_an_unlocked_lock_is_an_error(client: redis.Redis) -> None:
    with pytest.raises(LockError) as caught:
        make_lock(client).release()
    assert not isinstance(caught.value, LockNotOwnedError)
    assert caught.value.lock_name == "job"


def test_releasing_a_lock_that_another_owns_is_an_error(client: redis.Redis) -> None:
    lock = make_lock(client)
    lock.acquire(blocking=False)
    other = give_to_another(client)
    with pytest.raises(LockNotOwnedError) as caught:
        lock.release()
    assert caught.value.lock_name == "job"
    assert lock.local.token is None
    assert other.owned()
    other.release()


# --- extend


@pytest.mark.parametrize("seconds", [10, 10.5])
def test_extend(client: redis.Redis, seconds: float) -> None:
    lock = make_lock(client, timeout=seconds)
    assert lock.acquire(blocking=False)
    before = client.pttl("job")
    assert lock.extend(seconds) is True
    assert before + seconds * 1000 - 1500 < client.pttl("job") <= before + seconds * 1000
    lock.release()


def test_extend_with_a_new_time_to_live(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(60, replace_ttl=True) is True
    assert 58_000 < client.pttl("job") <= 60_000
    assert lock.extend(10, replace_ttl=True) is True
    assert 8000 < client.pttl("job") <= 10_000
    lock.release()


def test_extend_by_less_than_nothing_shortens(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=20)
    assert lock.acquire(blocking=False)
    assert lock.extend(-10) is True
    assert 8000 < client.pttl("job") <= 10_000
    lock.release()


def test_extend_to_nothing_ends_the_hold(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(-60) is True
    assert_gone(client)
    assert not lock.owned()


def test_extending_an_unlocked_lock_is_an_error(client: redis.Redis) -> None:
    with pytest.raises(LockError) as caught:
        make_lock(client, timeout=10).extend(10)
    assert not isinstance(caught.value, LockNotOwnedError)


def test_extending_a_lock_without_timeout_is_an_error(client: redis.Redis) -> None:
    lock = make_lock(client)
    assert lock.acquire(blocking=False)
    with pytest.raises(LockError) as caught:
        lock.extend(10)
    assert not isinstance(caught.value, LockNotOwnedError)
    lock.release()


@pytest.mark.parametrize("replace_ttl", [False, True])
def test_extending_a_lock_that_another_owns_is_an_error(client: redis.Redis, replace_ttl: bool) -> None:
    lock = make_lock(client, timeout=10)
    assert lock.acquire(blocking=False)
    other = give_to_another(client)
    with pytest.raises(LockNotOwnedError) as caught:
        lock.extend(10, replace_ttl)
    assert caught.value.lock_name == "job"
    assert client.pttl("job") <= 10_000
    other.release()


# --- reacquire


def test_reacquire(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert lock.acquire(blocking=False)
    assert lock.extend(5, replace_ttl=True)
    assert client.pttl("job") <= 5000
    assert lock.reacquire() is True
    assert 8000 < client.pttl("job") <= 10_000
    lock.release()


def test_reacquiring_an_unlocked_lock_is_an_error(client: redis.Redis) -> None:
    with pytest.raises(LockError) as caught:
        make_lock(client, timeout=10).reacquire()
    assert not isinstance(caught.value, LockNotOwnedError)


def test_reacquiring_a_lock_without_timeout_is_an_error(client: redis.Redis) -> None:
    with make_lock(client, timeout=None, blocking=False) as lock:
        with pytest.raises(LockError) as caught:
            lock.reacquire()
        assert not isinstance(caught.value, LockNotOwnedError)


def test_reacquiring_a_lock_that_another_owns_is_an_error(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=10)
    assert lock.acquire(blocking=False)
    other = give_to_another(client)
    with pytest.raises(LockNotOwnedError) as caught:
        lock.reacquire()
    assert caught.value.lock_name == "job"
    other.release()


# --- lock_class


def test_lock_class(client: redis.Redis) -> None:
    assert type(make_lock(client)) is slock_client.drop_in.Lock
    assert isinstance(make_lock(client), redis.lock.Lock)
