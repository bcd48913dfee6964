"""The drop-ins do what the locks of redis-py and valkey-py do: the cases of redis-py's own tests, by both halves."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

import slock_client
from harness import Cluster, Server, wait_until

SOURCE = str(Path(slock_client.__file__).parents[1])


class Half:
    """A client, and locks of it whose coroutines are completed."""

    def __init__(self, library: str, half: str, port: int) -> None:
        package = importlib.import_module(library + half)
        prefix = "" if library == "redis" else "valkey_"
        self.errors = importlib.import_module(f"{library}.exceptions")
        self.lock_class = importlib.import_module(f"slock_client{half}.{prefix}drop_in").Lock
        self.loop = asyncio.new_event_loop()
        self.client = package.Redis(port=port)
        self.block = ("__aenter__", "__aexit__") if half else ("__enter__", "__exit__")

    def lock(self, name: Any = "job", **options: Any) -> Completed:
        return Completed(self, self.client.lock(name, lock_class=self.lock_class, **options))

    def complete(self, value: Any) -> Any:
        return self.loop.run_until_complete(value) if inspect.isawaitable(value) else value

    def close(self) -> None:
        self.complete(getattr(self.client, "aclose", self.client.close)())
        self.loop.run_until_complete(asyncio.sleep(0))
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()


class Completed:
    def __init__(self, half: Half, lock: Any) -> None:
        self._half, self.lock = half, lock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.lock, name)
        return (lambda *a, **k: self._half.complete(value(*a, **k))) if callable(value) else value

    def __enter__(self) -> Completed:
        self._half.complete(getattr(type(self.lock), self._half.block[0])(self.lock))
        return self

    def __exit__(self, *error: Any) -> None:
        self._half.complete(getattr(type(self.lock), self._half.block[1])(self.lock, *error))


@pytest.fixture(params=[("redis", ""), ("redis", ".asyncio"), ("valkey", ""), ("valkey", ".asyncio")], ids="".join)
def half(request: pytest.FixtureRequest, server: Server) -> Iterator[Half]:
    pytest.importorskip(request.param[0])
    half = Half(*request.param, server.port)
    yield half
    half.close()


def test_acquire_and_release(half: Half, client: redis.Redis) -> None:
    lock = half.lock()
    assert lock.acquire(blocking=False) is True and lock.locked() and lock.owned()
    assert isinstance(lock.local.token, bytes) and lock.fence > 0
    assert half.lock().acquire(blocking=False) is False and not half.lock().owned()
    lock.release()
    assert client.exists("job") == 0 and lock.local.token is None and not lock.locked() and lock.fence is None
    with pytest.raises(half.errors.LockError) as caught:
        lock.release()
    assert not isinstance(caught.value, half.errors.LockNotOwnedError)


@pytest.mark.parametrize("token", ["test", b"test"])
@pytest.mark.parametrize("thread_local", [True, False])
def test_a_token(half: Half, token: str | bytes, thread_local: bool) -> None:
    lock = half.lock(b"caf\xe9", thread_local=thread_local)
    assert lock.acquire(token=token) and lock.local.token == b"test" and lock.owned()
    other = half.lock(b"caf\xe9", timeout=10)
    other.local.token = lock.local.token
    assert other.owned() and other.reacquire()
    other.release()
    assert not lock.owned()


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.2}, {"blocking_timeout": 0}])
def test_a_lock_that_another_has(half: Half, options: dict[str, Any]) -> None:
    with half.lock():
        assert half.lock(**options).acquire() is False
        with pytest.raises(half.errors.LockError), half.lock(**options):
            pass


def test_a_lock_that_is_gone(half: Half, client: redis.Redis) -> None:
    lock = half.lock(timeout=10)
    lock.acquire()
    client.delete("job")
    assert half.lock(timeout=10).acquire(blocking=False)
    for use in (lambda: lock.extend(5), lock.reacquire, lock.release):
        with pytest.raises(half.errors.LockNotOwnedError):
            use()
    with pytest.raises(half.errors.LockNotOwnedError), half.lock("other"):
        client.delete("other")


@pytest.mark.parametrize("use, replied", [("release", "_end"), ("extend", "_left")])
def test_an_object_that_others_use(half: Half, client: redis.Redis, use: str, replied: str) -> None:
    """The next one acquires by it before the reply to a release or an extension of the former has come."""
    lock = half.lock(timeout=10, thread_local=False)
    before = getattr(lock.lock, replied)

    async def replies_late(*arguments: Any) -> Any:
        reply = await before(*arguments)
        client.delete("job")
        await lock.lock._acquire(None, None, "next")
        return reply

    lock.acquire()
    setattr(lock.lock, replied, replies_late)
    if use == "release":
        lock.release()
    else:
        with pytest.raises(half.errors.LockNotOwnedError):
            lock.extend(60)
    assert lock.owned() and lock.fence and 5000 < client.pttl("job") <= 10_000
    setattr(lock.lock, replied, before)
    lock.release()
    assert client.exists("job") == 0


def test_extend_and_reacquire(half: Half, client: redis.Redis) -> None:
    lock, forever = half.lock(timeout=10), half.lock("other")
    with pytest.raises(half.errors.LockError):
        lock.extend(10)
    assert lock.acquire() and forever.acquire()
    with pytest.raises(half.errors.LockError):
        forever.extend(10)
    with pytest.raises(TypeError, match="redbeat"):
        lock.lock.lua_extend = lambda **_: True
    forever.release()
    for change, least, most in [
        (lambda: lock.extend(10), 19, 20),
        (lambda: lock.extend(5, replace_ttl=True), 4, 5),
        (lambda: lock.reacquire(), 9, 10),
    ]:
        assert change() is True
        assert least * 1000 <= client.pttl("job") <= most * 1000
    assert lock.extend(-60) is True  # it comes to nothing
    assert client.exists("job") == 0


def test_a_lock_without_a_timeout_is_renewed(half: Half, client: redis.Redis) -> None:
    half.lock_class = type("Short", (half.lock_class,), {"watchdog_ttl": 3})
    lock = half.lock()
    lock.acquire()
    first = client.pexpiretime("job")

    def expiry() -> int:
        half.loop.run_until_complete(asyncio.sleep(0.02))
        return client.pexpiretime("job")

    wait_until(lambda: expiry() > first, 10, "the lock to be renewed")
    assert lock.owned()
    lock.lock = None  # nobody can release it any more
    gc.collect()
    wait_until(lambda: expiry() < 0, 10, "the lock to end")


def test_each_thread_has_its_own(server: Server, client: redis.Redis) -> None:
    half = Half("redis", "", server.port)
    half.lock_class = type("Short", (half.lock_class,), {"watchdog_ttl": 0.6})
    lock = half.client.lock("job", lock_class=half.lock_class)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: (lock.owned(), lock.acquire(blocking=False))).result(10) == (False, True)
    assert lock.local.token is None and not lock.owned()
    wait_until(lambda: client.exists("job") == 0, 5, "the lock of a thread that has ended to end")
    half.close()


def test_clients_of_one_pool(half: Half, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that makes a client for each request: they share a Locks, which goes with the pool."""
    monkeypatch.setattr("slock_client._watchdog._IDLE", 0.01)
    monkeypatch.setattr("slock_client._threads._IDLE_SECONDS", 0.5)
    pool, made, before = half.client.connection_pool, weakref.WeakSet[Any](), len(client.client_list())
    for number in range(20):
        lock = type(half.client)(connection_pool=pool).lock(f"job:{number}", timeout=10, lock_class=half.lock_class)
        assert half.complete(lock.acquire(blocking=False))
        made.add(lock._locks())
        half.complete(lock.release())
    assert len(made) == 1 and len(client.client_list()) < before + 10
    half.complete(pool.disconnect())
    half.client = lock = pool = type(half.client)()

    def is_collected() -> bool:
        half.loop.run_until_complete(asyncio.sleep(0.01))
        gc.collect()
        return not made

    wait_until(is_collected, 20, "the Locks to be collected")


def test_a_cluster(half: Half, cluster: Cluster) -> None:
    kind = importlib.import_module(type(half.client).__module__.partition(".client")[0])
    half.complete(half.client.connection_pool.disconnect())
    half.client = kind.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port)
    with half.lock(timeout=10) as lock:
        assert lock.owned() and half.lock().lock._locks() is lock.lock._locks()


def test_a_server_that_is_away(half: Half) -> None:
    half.client.connection_pool.connection_kwargs["port"] = 1
    with pytest.raises(half.errors.ConnectionError):
        half.lock(blocking_timeout=0.2).acquire()


GEVENT = """
import redis, slock_client.drop_in
from gevent import monkey; monkey.patch_all()
import gevent
lock = redis.Redis(port={}).lock("job", timeout=10, lock_class=slock_client.drop_in.Lock)
lock.acquire()
print(lock.owned(), gevent.spawn(lock.owned).get())
"""


def test_each_greenlet_has_its_own(server: Server) -> None:
    """Also if gevent has patched after the import."""
    pytest.importorskip("gevent")
    run = [sys.executable, "-W", "ignore", "-c", GEVENT.format(server.port)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=40, env={**os.environ, "PYTHONPATH": SOURCE})
    assert done.stdout == "True False\n", done.stderr


def test_a_client_whose_locks_are_of_the_module(server: Server, client: redis.Redis) -> None:
    """For programs that give no `lock_class`, such as django-redis."""
    from slock_client.drop_in import Lock, Redis

    with Redis(port=server.port).lock("job", timeout=10) as lock:
        assert isinstance(lock, Lock) and client.type("job") == b"SLOCK-RWL"
