"""Faults that were found in earlier versions: each test failed there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis
import redis.asyncio
import redis.sentinel

import slock_client
import slock_client.asyncio.drop_in
import slock_client.drop_in
from harness import MakeServer, Server, wait_until
from test_interrupt import SOURCE, waiters

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def calls(server: Server, command: str) -> int:
    return int(server.client().info("commandstats").get(f"cmdstat_slock.{command}", {}).get("calls", 0))


def test_less_time_than_the_client_gives_an_answer(server: Server, client: redis.Redis) -> None:
    """With hiredis a connection could not be opened then."""
    with slock_client.Locks(redis.Redis(port=server.port, socket_timeout=60), retry_for=SECOND) as locks:
        hold = locks.write("job").try_acquire()
        assert hold is not None
        with pytest.raises(slock_client.TimedOutError):
            locks.write("job", wait=SECOND / 10).acquire()
        assert hold.release()


class Sentinel:
    """Tells the address of a primary, which the test changes."""

    def __init__(self, port: int) -> None:
        self.primary = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(4096):
                for _ in range(data.count(b"*")):
                    port = str(self.primary).encode()
                    tells = b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port)
                    hello = b"%1\r\n$5\r\nproto\r\n:3\r\n" if b"HELLO" in data.upper() else b"+OK\r\n"
                    client.sendall(tells if b"GET-MASTER" in data.upper() else hello)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def sentinel(make_server: MakeServer) -> Iterator[tuple[Sentinel, Server, Server]]:
    old, new = make_server(), make_server()
    one = Sentinel(old.port)
    yield one, old, new
    one.close()


def test_a_failover_leaves_no_connection_to_the_old_primary(
    sentinel: tuple[Sentinel, Server, Server],
) -> None:
    """Idle connections to the old primary, which did not know yet, were used beside those to the new one."""
    told, old, new = sentinel
    client = redis.sentinel.Sentinel([("127.0.0.1", told.port)]).master_for("main")
    with slock_client.Locks(client, ttl=MINUTE, renew=False) as locks:

        def four_at_once(name: str) -> None:
            old.client().execute_command("CLIENT", "PAUSE", 200, "WRITE")
            new.client().execute_command("CLIENT", "PAUSE", 200, "WRITE")
            work = [threading.Thread(target=locks.write(f"{name}{n}").try_acquire) for n in range(4)]
            for thread in work:
                thread.start()
            for thread in work:
                thread.join(30)

        four_at_once("a")
        hold = locks.write("job").acquire()
        told.primary = new.port
        latest = max(old.client().client_list(), key=lambda one: (one["cmd"] == "slock.lock", int(one["id"])))
        old.client().client_kill_filter(_id=latest["id"])
        old.client().execute_command("REPLICAOF", "127.0.0.1", str(new.port))
        assert locks.write("other").acquire().release()
        old.client().execute_command("REPLICAOF", "NO", "ONE")
        taken = calls(old, "lock")
        four_at_once("b")
        assert not hold.release(), "the new primary does not know it"
        assert hold.reason == "gone"
        assert calls(old, "lock") == taken
        assert calls(new, "lock") == 5


def test_the_drop_in_of_asyncio_loses_no_cancellation(server: Server) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis(port=server.port) as client:
            holder = client.lock("job", timeout=60, lock_class=slock_client.asyncio.drop_in.Lock)
            assert await holder.acquire()
            for steps in range(60):
                waiter = client.lock("job", timeout=60, lock_class=slock_client.asyncio.drop_in.Lock)
                task = asyncio.ensure_future(waiter.acquire())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=20)
                assert done and task.cancelled(), f"lost after {steps} steps"
            await holder.release()

    asyncio.run(main())


def test_idle_waiters_cost_nothing(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 600_000)
    locks = slock_client.Locks(redis.Redis(port=server.port))

    def wait() -> None:
        with contextlib.suppress(slock_client.ClosedError):
            locks.write("job").acquire()

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(50)]
    for thread in threads:
        thread.start()
    wait_until(lambda: waiters(client) == 50, 30, "50 waiters")
    time.sleep(4)  # they look up less and less often
    before = time.process_time()
    time.sleep(3)
    assert time.process_time() - before < 0.045, "1.5 % of a core"
    locks.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_what_cannot_be_released_is_not_taken(server: Server, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "half", "on", "nopass", "~*", "&*", "+@all", "-slock.unlock")
    one = ("+@connection", "+slock.lock", "+slock.unlock", "+slock.munlock", "+slock.extend", "+slock.cancel")
    client.execute_command("ACL", "SETUSER", "one", "on", "nopass", "~*", "resetchannels", *one)
    half = redis.Redis(port=server.port, username="half", password="x")
    with slock_client.Locks(half) as locks, pytest.raises(redis.exceptions.NoPermissionError):
        locks.write("job").acquire()
    assert not client.exists("job")
    with slock_client.Locks(redis.Redis(port=server.port, username="one", password="x")) as locks:
        assert locks.write("job").acquire().release()


def test_errors_say_what_happened(server: Server, client: redis.Redis) -> None:
    client.set("job", "of redis-py")
    with slock_client.Locks(redis.Redis(port=server.port), metadata="of all") as locks:
        with pytest.raises(redis.ResponseError, match=r"WRONGTYPE.*job.*redis-py"):
            locks.write("job").acquire()
        hold = locks.write("other").acquire()
        assert locks.info("other").holders[0].metadata == "of all"
        client.delete("other")
        assert not hold.release()
        with pytest.raises(slock_client.LostError, match="other is lost: gone: the server says"):
            hold.check()
    lock = client.lock("fenced", lock_class=slock_client.drop_in.Lock)
    assert lock.fence is None
    with lock:
        assert lock.fence and lock.fence > 10**15


def test_a_silent_node_neither_delays_a_quorum_nor_loses_its_holds(make_server: MakeServer) -> None:
    servers = [make_server() for _ in range(3)]
    clients = [redis.Redis(port=server.port) for server in servers]
    with slock_client.Quorum(clients, node_timeout=timedelta(seconds=5)) as quorum:
        quorum.write("warm").acquire().release()
        servers[0].pause()
        began = time.monotonic()
        hold = quorum.write("job", ttl=timedelta(seconds=20)).acquire()
        assert time.monotonic() - began < 3
        assert hold.release()
        short = quorum.write("short", ttl=timedelta(seconds=1)).acquire()
        assert not short.wait_lost(timedelta(seconds=4))
        assert short.release()
        servers[0].resume()


CLOSED_BY_A_SIGNAL = """
import datetime, redis, signal, slock_client, sys
half_a_minute = datetime.timedelta(seconds=30)  # so long it would wait for itself
locks = slock_client.Locks(redis.Redis(port=int(sys.argv[1])), retry_for=half_a_minute)
signal.signal(signal.SIGUSR1, lambda number, frame: locks.close())
print("ready", flush=True)
try:
    locks.write("job").acquire()
except slock_client.ClosedError:
    print("closed", flush=True)
"""


def test_close_in_a_signal_handler(server: Server, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 600_000)
    program = subprocess.Popen(
        [sys.executable, "-c", CLOSED_BY_A_SIGNAL, str(server.port)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    try:
        wait_until(lambda: client.execute_command("SLOCK.QUEUES"), 30, "it to wait")
        began = time.monotonic()
        program.send_signal(signal.SIGUSR1)
        assert program.communicate(timeout=60)[0] == "ready\nclosed\n"
        assert time.monotonic() - began < 20, "it waited for its own stack"
    finally:
        program.kill()
        program.communicate()


def test_each_task_has_its_own_guard(server: Server, client: redis.Redis) -> None:
    """Of two tasks that worked under one hold the wrong one was left without."""

    async def main() -> None:
        async with slock_client.asyncio.Locks(redis.asyncio.Redis(port=server.port)) as locks:
            hold = await locks.write("job", ttl=SECOND).acquire()
            first_is_in, second_is_in = asyncio.Event(), asyncio.Event()

            async def first() -> None:
                with pytest.raises(slock_client.LostError):
                    async with hold:
                        first_is_in.set()
                        await asyncio.Event().wait()

            async def second() -> None:
                await first_is_in.wait()
                with contextlib.suppress(ZeroDivisionError):
                    async with hold:
                        second_is_in.set()
                        # The block of this task ends first. It must not take the guard of the other.
                        raise ZeroDivisionError

            tasks = [asyncio.ensure_future(first()), asyncio.ensure_future(second())]
            await second_is_in.wait()
            await tasks[1]
            assert list(hold._guards) == [tasks[0]]
            tasks[0].cancel()
            with contextlib.suppress(BaseException):
                await tasks[0]

    asyncio.run(main())


def test_a_connection_that_ended_while_it_was_idle_leaves_no_doubt(
    server: Server, client: redis.Redis
) -> None:
    with slock_client.Locks(redis.Redis(port=server.port, client_name="idle")) as locks:
        assert locks.write("job").acquire().release()
        client.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.6)  # it counts as idle
        before = calls(server, "cancel")
        assert locks.write("job").acquire().release()
        assert calls(server, "cancel") == before


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="there is no such clock")
def test_the_clock_goes_on_while_the_machine_sleeps(server: Server) -> None:
    assert abs(slock_client.now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1
    with slock_client.Locks(redis.Redis(port=server.port)) as locks, locks.write("job") as hold:
        assert 9 < hold.valid_until - time.clock_gettime(time.CLOCK_BOOTTIME) < 10


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols(server: Server, protocol: int) -> None:
    with slock_client.Locks(redis.Redis(port=server.port, protocol=protocol)) as locks, locks.read("job"):
        assert locks.info("job").readers == 1

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port, protocol=protocol)
        async with slock_client.asyncio.Locks(client) as locks, locks.read("job"):
            assert (await locks.info("job")).readers == 1
        await client.aclose()

    asyncio.run(main())
