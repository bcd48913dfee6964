"""The drop-in where it is better: the server's queue, interrupts, lost connections, a cluster."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import LockError

import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import Cluster, MakeServer, Server, key_slot, wait_until

SOURCE = Path(slock_client.__file__).resolve().parents[1]


class ShortLock(slock_client.drop_in.Lock):
    """A lock whose watchdog has to renew it soon."""

    watchdog_ttl = timedelta(seconds=2)


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        yield client


def make_lock(client: redis.Redis | redis.RedisCluster, **options: Any) -> slock_client.drop_in.Lock:
    return client.lock("job", lock_class=slock_client.drop_in.Lock, **options)


def queue(server: Server) -> list[dict[bytes, Any]]:
    """Who waits for the lock, in order."""
    info = server.client(protocol=3).execute_command("SLOCK.INFO", "job", "FULL")
    return info[b"queue"] if info else []


def wait_for_waiters(server: Server, count: int) -> None:
    wait_until(lambda: len(queue(server)) == count, what=f"{count} to wait")


def extensions(client: redis.Redis) -> int:
    """How often this server has been asked to extend a hold."""
    calls = client.info("commandstats").get("cmdstat_slock.extend", {})
    return int(calls.get("calls", 0))


class Worker(threading.Thread):
    """Runs something in a thread. `result` gives what it returned or raises what it raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(20)
        assert not self.is_alive(), "it still runs"
        if self._error:
            raise self._error
        return self._result


class FirstReplyLost(redis.Connection):
    """A connection that closes after it sent `command`, when the server has answered. It does so once."""

    command: str | None = None

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        super().send_packed_command(command, check_health)
        if FirstReplyLost.command and FirstReplyLost.command.encode() in b"".join(command):
            FirstReplyLost.command = None
            super().read_response()
            self.disconnect()
            raise redis.ConnectionError("the reply is lost")


@pytest.fixture
def lossy(server: Server) -> Iterator[redis.Redis]:
    """A client that loses the reply to the command that the test names."""
    pool = redis.ConnectionPool(connection_class=FirstReplyLost, port=server.port)
    with redis.Redis.from_pool(pool) as client:
        yield client
    assert FirstReplyLost.command is None, "the command was not sent"


# --- the queue


def test_those_who_wait_are_served_in_order(server: Server, client: redis.Redis) -> None:
    order: list[int] = []

    def take_a_turn(number: int) -> None:
        with make_lock(client, timeout=10):
            order.append(number)

    with make_lock(client, timeout=60):
        workers = []
        for number in range(5):
            workers.append(Worker(lambda number=number: take_a_turn(number)))
            wait_for_waiters(server, number + 1)
        assert make_lock(client).acquire(blocking=False) is False
    for worker in workers:
        worker.result()
    assert order == [0, 1, 2, 3, 4]


def test_a_release_wakes_at_once_whatever_sleep_is(server: Server, client: redis.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert holder.acquire()
    waiter = Worker(lambda: make_lock(client, timeout=10, sleep=3600).acquire())
    wait_for_waiters(server, 1)
    holder.release()
    assert waiter.result() is True


def test_the_time_out_of_the_client_does_not_cut_a_wait(server: Server, client: redis.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert holder.acquire()
    with redis.Redis(port=server.port, socket_timeout=0.1) as impatient:
        waiter = Worker(lambda: make_lock(impatient, timeout=10).acquire())
        wait_until(lambda: [one for one in queue(server) if one[b"waiting-ms"] > 500])
        assert len(queue(server)) == 1
        holder.release()
        assert waiter.result() is True


def test_a_wait_takes_no_connection_of_the_pool(server: Server) -> None:
    with redis.Redis(port=server.port, max_connections=1) as client:
        holder = make_lock(client, timeout=60)
        assert holder.acquire()
        waiters = [Worker(lambda: make_lock(client, timeout=10).acquire()) for _ in range(3)]
        wait_for_waiters(server, 3)
        assert holder.extend(10)
        holder.release()
        wait_for_waiters(server, 2)
        client.delete("job")
        wait_for_waiters(server, 1)
        client.delete("job")
        assert [waiter.result() for waiter in waiters] == [True, True, True]


def test_a_wait_leaves_no_connection_of_its_own_blocked(server: Server, client: redis.Redis) -> None:
    with make_lock(client, timeout=60):
        assert make_lock(client).acquire(blocking_timeout=0.05) is False
        assert queue(server) == []


def test_a_wait_uses_the_database_of_the_client(server: Server) -> None:
    with redis.Redis(port=server.port, db=3) as client:
        holder = make_lock(client, timeout=60)
        assert holder.acquire()
        waiter = Worker(lambda: make_lock(client, timeout=10).acquire())
        wait_until(lambda: client.execute_command("SLOCK.QUEUES"))
        holder.release()
        assert waiter.result() is True
        assert client.exists("job")


# --- one lock in several threads


def test_each_thread_sees_its_own_token(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=60)
    assert lock.acquire()

    def in_another_thread() -> None:
        assert lock.local.token is None
        assert lock.owned() is False
        with pytest.raises(LockError):
            lock.release()

    Worker(in_another_thread).result()
    assert lock.owned()
    lock.release()


def test_a_lock_that_is_not_thread_local_may_be_released_elsewhere(client: redis.Redis) -> None:
    lock = make_lock(client, thread_local=False)
    assert lock.acquire()
    Worker(lock.release).result()
    assert not lock.locked()


# --- lost connections


def test_a_lost_reply_to_acquire(server: Server, lossy: redis.Redis) -> None:
    lock = make_lock(lossy, timeout=60)
    FirstReplyLost.command = "SLOCK.LOCK"
    assert lock.acquire(blocking=False) is True
    assert lock.owned()
    lock.release()
    assert not lock.locked()


def test_a_lost_reply_to_release(lossy: redis.Redis) -> None:
    lock = make_lock(lossy, timeout=60)
    assert lock.acquire()
    FirstReplyLost.command = "SLOCK.UNLOCK"
    lock.release()
    assert not lock.locked()


def test_a_lost_reply_to_extend_adds_the_time_once(lossy: redis.Redis) -> None:
    lock = make_lock(lossy, timeout=60)
    assert lock.acquire()
    FirstReplyLost.command = "SLOCK.EXTEND"
    assert lock.extend(60)
    assert 100_000 < lossy.pttl("job") <= 120_000
    lock.release()


def test_a_wait_whose_connection_is_killed_goes_on(server: Server, client: redis.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert holder.acquire()
    waiter = Worker(lambda: make_lock(client, timeout=10).acquire())
    wait_for_waiters(server, 1)
    (first,) = queue(server)
    client.client_kill_filter(_id=first[b"client"])
    wait_until(lambda: [one for one in queue(server) if one[b"client"] != first[b"client"]])
    (second,) = queue(server)
    assert second[b"token"] == first[b"token"]
    holder.release()
    assert waiter.result() is True


def test_a_wait_over_a_restart_goes_on(make_server: MakeServer) -> None:
    server = make_server(save="")
    with redis.Redis(port=server.port) as client:
        assert make_lock(client, timeout=60).acquire()
        holder = make_lock(client, timeout=10)
        waiter = Worker(holder.acquire)
        wait_for_waiters(server, 1)
        server.restart(kill=True)  # which forgets the hold
        assert waiter.result() is True
        assert client.exists("job")


def test_unblocked_by_an_operator(server: Server, client: redis.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert holder.acquire()
    waiter = Worker(lambda: make_lock(client, timeout=10).acquire())
    wait_for_waiters(server, 1)
    client.execute_command("CLIENT UNBLOCK", queue(server)[0][b"client"], "ERROR")
    holder.release()
    assert waiter.result() is True


# --- errors


def test_a_key_of_another_type_is_an_error(client: redis.Redis) -> None:
    client.set("job", "something else")
    lock = make_lock(client)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        lock.acquire()
    assert lock.local.token is None
    assert client.get("job") == b"something else"


def test_a_server_without_the_module(make_server: MakeServer) -> None:
    server = make_server(module=False)
    with redis.Redis(port=server.port) as client, pytest.raises(slock_client.ModuleNotLoadedError):
        make_lock(client).acquire()


def test_an_extension_that_the_server_refuses_changes_nothing(client: redis.Redis) -> None:
    lock = make_lock(client, timeout=60)
    assert lock.acquire()
    with pytest.raises(redis.ResponseError):
        lock.extend(1e9)
    assert client.pttl("job") <= 60_000 and lock.owned()
    lock.release()


# --- Ctrl-C

WAIT_FOR_LOCK = """
import redis, signal, slock_client.drop_in, sys

def interrupt(*_):
    if busy:
        raise KeyboardInterrupt

busy = False
signal.signal(signal.SIGINT, interrupt)
client = redis.Redis(port=int(sys.argv[1]))
lock = client.lock("job", lock_class=slock_client.drop_in.Lock)
for line in sys.stdin:
    how = "interrupted"
    try:
        busy = True
        lock.acquire()
        busy = False
        lock.release()
        how = "had it"
    except KeyboardInterrupt:
        busy = False
        if lock.local.token:  # the interrupt came after the lock was acquired
            lock.release()
    print(how, flush=True)
"""


def die_with_parent() -> None:
    """In the child, before exec: the kernel kills it when the test ends. Linux only."""
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def child(server: Server) -> Iterator[subprocess.Popen[str]]:
    """A process that takes the lock once for each line that it is sent, and says how that ended."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT_FOR_LOCK, str(server.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        preexec_fn=die_with_parent,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("go\n")
    process.stdin.flush()


def outcome(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def test_an_interrupt_ends_a_wait_and_leaves_nothing(server: Server, client: redis.Redis) -> None:
    holder = make_lock(client, timeout=60)
    assert holder.acquire()
    with child(server) as process:
        begin(process)
        wait_for_waiters(server, 1)
        process.send_signal(signal.SIGINT)
        assert outcome(process) == "interrupted"
        assert queue(server) == []
        holder.release()
        assert not client.exists("job")


def test_an_interrupt_at_the_grant_leaves_nothing(server: Server, client: redis.Redis) -> None:
    outcomes = set()
    with child(server) as process:
        for number in range(12):
            holder = make_lock(client, timeout=60)
            assert holder.acquire()
            begin(process)
            wait_for_waiters(server, 1)
            if number % 2:
                holder.release()
                process.send_signal(signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
                holder.release()
            outcomes.add(outcome(process))
            assert process.poll() is None
            wait_until(lambda: not client.exists("job") and queue(server) == [], what="nothing to be left")
    assert outcomes <= {"interrupted", "had it"} and "interrupted" in outcomes


# --- a cluster


def test_in_a_cluster(cluster: Cluster) -> None:
    for name in ("a", "b", "c", "d"):
        where = cluster.node_of(name)
        with redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client:
            lock = client.lock(name, lock_class=slock_client.drop_in.Lock, timeout=10)
            with lock:
                assert lock.owned() and lock.locked() and lock.extend(10) and lock.reacquire()
                other = client.lock(name, lock_class=slock_client.drop_in.Lock, timeout=10)
                assert other.acquire(blocking=False) is False
                assert other.acquire(blocking_timeout=0.05) is False
                waiter = Worker(other.acquire)
                wait_until(lambda where=where: where.client().execute_command("SLOCK.QUEUES"))
            assert waiter.result() is True


def test_in_a_cluster_whose_slot_moves(cluster: Cluster) -> None:
    source = cluster.node_of("moving")
    target = cluster.other_than(source)
    slot = key_slot(source, "moving")
    with redis.RedisCluster(host="127.0.0.1", port=cluster.nodes[0].port) as client:
        holder = client.lock("moving", lock_class=ShortLock)
        assert holder.acquire()
        waiting = client.lock("moving", lock_class=slock_client.drop_in.Lock, timeout=10, thread_local=False)
        waiter = Worker(waiting.acquire)
        wait_until(lambda: source.client().execute_command("SLOCK.QUEUES"))
        cluster.begin_move(slot, source, target)
        cluster.move_keys(slot, source, target)
        cluster.end_move(slot, source, target)
        wait_until(lambda: target.client().execute_command("SLOCK.QUEUES"))
        observer = target.client()
        observer.config_resetstat()
        wait_until(lambda: extensions(observer) >= 4, what="renewals at the new node for longer than a ttl")
        assert holder.owned()
        holder.release()
        assert waiter.result() is True
        assert waiting.owned()
        waiting.release()
