"""The longest turn of a server's event loop.

A turn is seen by a prober, a process of its own: it sends PING every 0.2 ms and takes the longest time to a
reply. The time in which its own or the server's thread was ready to run and had no processor is subtracted
(/proc/PID/schedstat), so that other processes of the machine count little; run by root, the prober has the
priority that it needs to miss no turn. What is sent in pipelines makes turns as long as one likes, so there
is no prober then.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from common import RawConnection, Server

PROBE_EVERY_S = 0.0002
REPLY_LIMIT_S = 120.0


def probe(port: int, pid: int, orders: Connection) -> None:
    """Between two orders: the longest time to a reply, in milliseconds, without waits for a processor."""
    gc.disable()
    with contextlib.suppress(PermissionError):  # else a turn may pass while this process is not woken
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connection = RawConnection(port, timeout=REPLY_LIMIT_S)
    threads = [os.open(f"/proc/{process}/schedstat", os.O_RDONLY) for process in (pid, os.getpid())]

    def delayed() -> int:
        return sum(int(os.pread(thread, 100, 0).split()[1]) for thread in threads)

    while orders.recv():
        connection.ok("PING")
        orders.send(0.0)
        longest = 0
        while not orders.poll():
            before, start = delayed(), time.perf_counter_ns()
            connection.ok("PING")
            took = time.perf_counter_ns() - start
            if took > longest:
                longest = max(longest, took - (delayed() - before))
            time.sleep(PROBE_EVERY_S)
        orders.recv()
        orders.send(longest / 1e6)


@dataclass
class Turns:
    longest_ms: float = 0.0


class Prober:
    """The process that watches one server. It is spawned: a fork would keep our sockets open."""

    def __init__(self, server: Server) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._orders, theirs = spawn.Pipe()
        self._process = spawn.Process(target=probe, args=(server.port, server.pid, theirs), daemon=True)
        self._process.start()

    @contextlib.contextmanager
    def watch(self) -> Iterator[Turns]:
        """Watches while the block runs; the figure is there when it has ended."""
        turns = Turns()
        self._order(True)
        yield turns
        turns.longest_ms = self._order(True)

    def _order(self, order: bool) -> float:
        self._orders.send(order)
        return self._orders.recv()

    def close(self) -> None:
        self._orders.send(False)
        self._process.join()
