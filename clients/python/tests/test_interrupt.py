"""Ctrl-C in a process of its own: it leaves neither a hold nor a request in the queue."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from harness import Server, wait_until

SOURCE = Path(__file__).parents[1] / "src"

SYNCHRONOUS = """
import redis, slock_client, sys, time
from datetime import timedelta
locks = slock_client.Locks(redis.Redis(port=int(sys.argv[1])), ttl=timedelta(minutes=1))
try:
    with locks.write("job"):
        print("inside", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""

ASYNCIO = """
import asyncio, redis.asyncio, slock_client.asyncio, sys
from datetime import timedelta
async def work(locks):
    async with locks.write("job"):
        print("inside", flush=True)
        await asyncio.sleep(60)
async def main():
    client = redis.asyncio.Redis(port=int(sys.argv[1]))
    locks = slock_client.asyncio.Locks(client, ttl=timedelta(minutes=1), waiting=sys.argv[2])
    tasks = [asyncio.create_task(work(locks)) for _ in range(3)]
    await asyncio.wait(tasks)
try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


class Program:
    """A program that ends with the test."""

    def __init__(self, code: str, *arguments: object) -> None:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)}
        )

    def interrupt(self) -> str:
        """Ctrl-C; what it says until it ends."""
        self.process.send_signal(signal.SIGINT)
        said, _ = self.process.communicate(timeout=30)
        return said


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.process.kill()
        program.process.wait()
        if program.process.stdout is not None:
            program.process.stdout.close()


def waiters(client: redis.Redis) -> int:
    info = client.execute_command("SLOCK.INFO", "job")
    fields = info if isinstance(info, dict) else dict(zip(info[::2], info[1::2], strict=True))
    return int(fields[b"waiters"])


@pytest.mark.parametrize(
    ("code", "arguments", "requests"),
    [(SYNCHRONOUS, (), 1), (ASYNCIO, ("notify",), 3), (ASYNCIO, ("block",), 3)],
    ids=["synchronous", "asyncio", "asyncio, block"],
)
def test_ctrl_c_while_it_waits(
    server: Server,
    client: redis.Redis,
    programs: list[Program],
    code: str,
    arguments: tuple[str, ...],
    requests: int,
) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000)
    program = Program(code, server.port, *arguments)
    programs.append(program)
    wait_until(lambda: waiters(client) == requests)
    assert program.interrupt() == "interrupted\n"
    assert waiters(client) == 0
    client.execute_command("SLOCK.UNLOCK", "job", "other")
    assert not client.exists("job")


@pytest.mark.parametrize(
    ("code", "arguments"),
    [(SYNCHRONOUS, ()), (ASYNCIO, ("notify",)), (ASYNCIO, ("block",))],
    ids=["synchronous", "asyncio", "asyncio, block"],
)
def test_ctrl_c_while_it_works(
    server: Server, client: redis.Redis, programs: list[Program], code: str, arguments: tuple[str, ...]
) -> None:
    program = Program(code, server.port, *arguments)
    programs.append(program)
    assert program.process.stdout is not None
    assert program.process.stdout.readline() == "inside\n"
    if code is ASYNCIO:
        wait_until(lambda: waiters(client) == 2)
    assert program.interrupt() == "interrupted\n"
    assert not client.exists("job")


FORK = """
import os, redis, slock_client, sys, time
from datetime import timedelta
port = int(sys.argv[1])
locks = slock_client.Locks(redis.Redis(port=port), ttl=timedelta(milliseconds=300))
hold = locks.write("parent").acquire()
child = os.fork()
if child == 0:
    with locks.write("child") as own:
        time.sleep(1)
        own.check()
    os._exit(0)
_, status = os.waitpid(child, 0)
hold.check()
print(status, hold.release())
"""


def test_a_forked_process_has_connections_and_renewals_of_its_own(
    server: Server, programs: list[Program]
) -> None:
    program = Program(FORK, server.port)
    programs.append(program)
    said, _ = program.process.communicate(timeout=60)
    assert said == "0 True\n"
