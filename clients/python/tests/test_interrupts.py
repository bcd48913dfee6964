"""An exception of a signal handler at any moment reaches the program, and leaves nothing that is renewed.

`SLOCK_THOROUGH=1` does it 10,000 times each. redis-py from 7.1 on catches `Exception` in its metrics, so there an
`Exception` may get lost in redis-py itself; those are counted by where the handler was called.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import time
import timeit
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

import slock_client
import slock_client.drop_in
from harness import Server, rounds, wait_until

SOURCE = str(Path(slock_client.__file__).parent)
TTL = 3.0


class AnException(Exception):
    pass


class ABaseException(BaseException):
    pass


KINDS = [AnException, ABaseException]
Block = Callable[[str], None]


@pytest.fixture(params=["block", "decorator", "hold", "drop-in"])
def block(request: pytest.FixtureRequest, server: Server) -> Block:
    """Takes the lock of a key for a block, and does nothing in it."""
    client = redis.Redis(port=server.port)
    locks = slock_client.Locks(client, ttl=TTL)
    lock_class = type("Lock", (slock_client.drop_in.Lock,), {"watchdog_ttl": TTL})
    if request.param == "decorator":
        return lambda key: locks.write(key)(lambda: None)()
    contexts: dict[str, Callable[[str], Any]] = {
        "block": locks.write,
        "hold": lambda key: locks.write(key).acquire(),
        "drop-in": lambda key: client.lock(key, lock_class=lock_class),
    }
    context = contexts[request.param]

    def block(key: str) -> None:
        with context(key):
            pass

    return block


def nothing_is_renewed(server: Server) -> None:
    """All that is left ends by its ttl, at the latest."""
    client = server.client()
    wait_until(lambda: client.dbsize() == 0, TTL + 2, "all holds to end by their ttl")
    assert client.info("slock")["slock_waiters"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_timer(server: Server, block: Block, kind: type[BaseException]) -> None:
    raised, came, where = 0, 0, []

    def handler(*_: object) -> None:
        nonlocal came
        came += 1
        where[:] = traceback.extract_stack()
        raise kind

    gc.disable()  # the finalizer of a client that the threads of an earlier test leave could swallow an exception
    for _ in range(20):
        block("warm")
    usual = timeit.timeit(lambda: block("warm"), number=50) / 50
    former = signal.signal(signal.SIGALRM, handler)
    try:
        for number in range(rounds(300, 10_000)):
            before = came
            try:
                signal.setitimer(signal.ITIMER_REAL, max(2e-6, random.random() * usual * 1.3))
                block(f"job:{number}")
                while came == before:
                    time.sleep(0.0001)
            except kind:
                raised += 1
            else:  # only redis-py's metrics may have caught it
                assert kind is AnException and any("/observability/" in frame.filename for frame in where), where
                raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        gc.enable()
    assert raised == came
    nothing_is_renewed(server)
    block("afterwards")


@pytest.mark.parametrize("kind", KINDS)
def test_a_line(server: Server, block: Block, kind: type[BaseException]) -> None:
    """At each line of the library in turn, or at random ones."""
    for _ in range(3):
        block("warm")
    most = traced(lambda: block("warm"))
    lines = random.choices(range(1, most + 1), k=10_000) if rounds(0, 1) else range(1, most + 1, 3)
    for number, line in enumerate(lines):
        with pytest.raises(kind) if line <= most - 40 else contextlib.suppress(kind):
            traced(lambda number=number: block(f"job:{number}"), line, kind)
    nothing_is_renewed(server)
    block("afterwards")


def traced(work: Callable[[], None], line: int = 0, kind: type[BaseException] = AnException) -> int:
    """How many lines of the library are executed. Raises an exception at the one with this number."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line" and frame.f_code.co_filename.startswith(SOURCE):
            lines += 1
            if lines == line:
                raise kind
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    assert not 0 < line <= lines, "the exception got lost"
    return lines


def test_the_first_line_of_the_end_of_a_block(server: Server, client: redis.Redis) -> None:
    """It is caught in the same function, which goes on. So only the interpreter knows that the block is over."""
    locks = slock_client.Locks(redis.Redis(port=server.port), ttl=TTL)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call" and frame.f_code.co_name in ("__exit__", "_called", "_left", "_leave"):
            raise ABaseException
        return trace

    hold = None
    try:
        with locks.write("job") as hold:
            sys.settrace(trace)
    except ABaseException:
        sys.settrace(None)
    wait_until(lambda: client.exists("job") == 0, TTL + 1, "the hold to end")
    assert hold is not None
    with pytest.raises(slock_client.SlockError):
        hold.check()
    locks.close()
