"""Renewals: one task or thread for all holds, and none for holds that are not renewed."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from datetime import timedelta

import pytest
import redis
import redis.asyncio

import slock_client
import slock_client.asyncio
from harness import MakeServer, Server, wait_until
from slock_client._threads import Workers

MANY = 1000


# The watchdog, and those that send what is due.
FEW = 6


def extensions(server: Server) -> int:
    return int(server.client().info("commandstats").get("cmdstat_slock.extend", {}).get("calls", 0))


def test_one_task_renews_all_holds(server: Server) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(client, ttl=timedelta(seconds=6)) as locks:
            before = len(asyncio.all_tasks())
            holds = [await locks.write(f"job:{number}").acquire() for number in range(MANY)]
            assert len(asyncio.all_tasks()) <= before + FEW
            ends = [hold.valid_until for hold in holds]
            while any(hold.valid_until == end for hold, end in zip(holds, ends, strict=True)):
                await asyncio.sleep(0.01)
            assert not any(hold.lost for hold in holds)
            for hold in holds:
                assert await hold.release()
            asked = extensions(server)
            await asyncio.sleep(2.1)  # a third of the ttl: a renewal of any of them would be due
            assert extensions(server) == asked
        await client.aclose()

    asyncio.run(main())


def test_one_thread_renews_all_holds(server: Server) -> None:
    before = threading.active_count()
    with slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(seconds=6)) as locks:
        holds = [locks.write(f"job:{number}").acquire() for number in range(MANY)]
        assert threading.active_count() <= before + FEW
        ends = [hold.valid_until for hold in holds]
        wait_until(lambda: all(h.valid_until > end for h, end in zip(holds, ends, strict=True)), 30)
        wait_until(lambda: threading.active_count() <= before + FEW, 30, "helper threads to end")
        assert all(hold.release() for hold in holds)
    wait_until(lambda: threading.active_count() <= before, 30, "the threads to end")


def test_a_program_that_exits_in_on_lost_does_not_end_the_thread(server: Server, client: redis.Redis) -> None:
    ttl = timedelta(seconds=1.5)
    with slock_client.Locks(redis.Redis(port=server.port), ttl=ttl) as locks:
        lost = [locks.write(f"lost:{n}", on_lost=lambda _: sys.exit(1)).acquire() for n in range(3)]
        holds = [locks.write(f"job:{n}").acquire() for n in range(3)]
        client.delete("lost:0", "lost:1", "job:2")
        wait_until(lambda: [hold.lost for hold in lost] == [True, True, False])
        wait_until(lambda: holds[2].reason == "gone")
        for hold in holds[:2]:
            end = hold.valid_until
            wait_until(lambda hold=hold, end=end: hold.valid_until > end + ttl.total_seconds())
        assert [hold.lost for hold in holds] == [False, False, True]
        assert [hold.release() for hold in [*lost, *holds]] == [False, False, True, True, True, False]


def test_a_hold_that_is_not_renewed_costs_no_task_and_no_thread(server: Server) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with slock_client.asyncio.Locks(client, renew=False) as locks:
            hold = await locks.write("job").acquire()
            names = {task.get_name() for task in asyncio.all_tasks() - {asyncio.current_task()}}
            assert names == {"slock connection"}
            await hold.release()
        await client.aclose()

    asyncio.run(main())
    before = set(threading.enumerate())  # some of earlier tests may not have ended yet
    with slock_client.Locks(redis.Redis(port=server.port), renew=False) as locks, locks.write("job"):
        assert "slock watchdog" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_a_thread_is_told_of_the_loss(server: Server) -> None:
    told: list[tuple[str, str | None]] = []
    with slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(milliseconds=300)) as locks:
        request = locks.write("job", on_lost=lambda hold: told.append((hold.label, hold.reason)))
        with pytest.raises(slock_client.LostError), request as hold:
            server.client().delete("job")
            assert hold.wait_lost(timedelta(seconds=10))
            assert hold.lost and hold.time_left == timedelta(0)
        assert told == [("job", "gone")]


def test_on_lost_may_release(server: Server) -> None:
    with slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(milliseconds=300)) as locks:
        hold = locks.write("job", on_lost=lambda hold: hold.release()).acquire()
        server.client().delete("job")
        assert hold.wait_lost(timedelta(seconds=10))


def test_a_silent_server_does_not_keep_the_loss_back(make_server: MakeServer) -> None:
    server = make_server()
    with slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(milliseconds=500)) as locks:
        hold = locks.write("job").acquire()
        told = threading.Event()
        other = locks.write("other", on_lost=lambda _: told.set()).acquire()
        server.pause()
        assert told.wait(10)
        assert time.monotonic() >= other.valid_until
        assert hold.wait_lost(timedelta(seconds=10)) and hold.reason == "expired"
        server.resume()


def test_the_cause_of_a_loss_is_rather_no_time_out(make_server: MakeServer) -> None:
    server = make_server()
    failed: list[BaseException] = []
    hooks = slock_client.Hooks(renewal_failed=lambda label, error: failed.append(error))
    client = redis.Redis(port=server.port)
    with slock_client.Locks(client, ttl=timedelta(seconds=3), hooks=hooks) as locks:
        hold = locks.write("job").acquire()
        server.client().config_set("min-replicas-to-write", 1)
        wait_until(lambda: failed)
        server.pause()
        wait_until(lambda: hold.lost)
        assert isinstance(failed[-1], redis.TimeoutError)
        with pytest.raises(slock_client.LostError) as caught:
            hold.check()
        assert "NOREPLICAS" in str(caught.value.__cause__)
        server.resume()


def test_renewals_go_on_after_a_restart(make_server: MakeServer) -> None:
    server = make_server(appendonly=True)

    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        locks = slock_client.asyncio.Locks(client, ttl=timedelta(seconds=6))
        async with locks, locks.write("job") as hold:
            server.restart()
            end = hold.valid_until
            while hold.valid_until == end:
                await asyncio.sleep(0.01)
        await client.aclose()

    asyncio.run(main())


def test_an_extension_sets_the_ttl_for_renewals_too(server: Server) -> None:
    locks = slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(milliseconds=600))
    with locks, locks.write("job") as hold:
        hold.extend(timedelta(seconds=2))
        end = hold.valid_until
        wait_until(lambda: hold.valid_until > end, 30, "a renewal")
        assert server.client().execute_command("SLOCK.PTTL", "job", hold.token) > 1000
        hold.extend(timedelta(milliseconds=100))
        assert hold.time_left > timedelta(milliseconds=600), "an extension never shortens"


def test_a_moment_without_threads_does_not_end_the_watchdog(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    def no_thread(self: threading.Thread) -> None:
        nonlocal refused
        refused += 1
        raise RuntimeError("can't start new thread")

    ttl = timedelta(seconds=1.5)
    with slock_client.Locks(redis.Redis(port=server.port), ttl=ttl) as locks:
        hold = locks.write("job").acquire()
        end = hold.valid_until
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread)
            wait_until(lambda: refused)
        wait_until(lambda: hold.valid_until > end + ttl.total_seconds())
        assert hold.release()


def test_a_watchdog_that_cannot_start_leaves_no_hold(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def no_watchdog(self: threading.Thread) -> None:
        if any(frame.name == "add" for frame in traceback.extract_stack()):
            raise RuntimeError("can't start new thread")
        start(self)

    with slock_client.Locks(redis.Redis(port=server.port), ttl=timedelta(seconds=1.5)) as locks:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_watchdog)
            with pytest.raises(RuntimeError, match="new thread"):
                locks.write("job").acquire()
        assert not server.client().exists("job")
        hold = locks.write("job").acquire()
        end = hold.valid_until
        wait_until(lambda: hold.valid_until > end)
        assert hold.release()


def test_threads_that_did_not_start_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    workers, done = Workers(1), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError):
            workers.do(lambda: None)
    workers.do(done.set)
    assert done.wait(30)
