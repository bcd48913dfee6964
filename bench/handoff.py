"""How soon a waiter has its lock after whatever freed it, and what a grant costs when very many wait.

Latencies are client to client on this machine: from just before the command that frees the lock is sent, or
from the deadline, to the arrival of the waiter's reply. They are set beside a PING and beside BLPOP, which is
how the server itself wakes a client.
"""

from __future__ import annotations

import argparse
import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from common import (
    Pipe,
    RawConnection,
    Report,
    RespError,
    Server,
    ServerClock,
    arguments,
    batches,
    encode_command,
    percentile,
    private_server,
    spread,
    wait_until,
)

CPU_LIMIT = 2.0
TTL_MS = 600_000
DEADLINE_MS = 30
LOCK_DB, OTHER_DB = 2, 3
KEY = "lock"

Command = tuple[object, ...]


# --- one waiter: each cause in turn


@dataclass(frozen=True)
class Cause:
    """What frees a lock: how it is held, how the waiter asks, and what is sent then."""

    name: str
    free: tuple[Command, ...] = ()
    hold: tuple[Command, ...] = (("SLOCK.LOCK", KEY, "holder", TTL_MS),)
    ask: Command = ("SLOCK.LOCK", KEY, "waiter", TTL_MS, "WAIT", 0)
    afterwards: tuple[Command, ...] = ()
    expect_error: str = ""


ASK_TO_READ: Command = ("SLOCK.RLOCK", KEY, "waiter", TTL_MS, "WAIT", 0)
HOLD_TO_READ: tuple[Command, ...] = (("SLOCK.RLOCK", KEY, "holder", TTL_MS),)

CAUSES = [
    Cause("UNLOCK", (("SLOCK.UNLOCK", KEY, "holder"),)),
    Cause("RUNLOCK of the last reader", (("SLOCK.RUNLOCK", KEY, "holder"),), HOLD_TO_READ),
    Cause("DOWNGRADE", (("SLOCK.DOWNGRADE", KEY, "holder", TTL_MS),), ask=ASK_TO_READ),
    Cause("deadline of a writer", hold=(("SLOCK.LOCK", KEY, "holder", DEADLINE_MS),)),
    Cause(
        "deadline of the last reader",
        hold=(("SLOCK.RLOCK", KEY, "r1", DEADLINE_MS // 2), ("SLOCK.RLOCK", KEY, "r2", DEADLINE_MS)),
    ),
    Cause("DEL", (("DEL", KEY),)),
    Cause("UNLINK", (("UNLINK", KEY),)),
    Cause("RENAME away", (("RENAME", KEY, "away"),)),
    Cause("MOVE", (("MOVE", KEY, OTHER_DB),)),
    Cause("SET over the key", (("SET", KEY, "text"),), expect_error="WRONGTYPE"),
    Cause("EXPIRE 0", (("EXPIRE", KEY, 0),)),
    Cause(
        "the key's own expiry", hold=(("SLOCK.LOCK", KEY, "holder", TTL_MS), ("PEXPIRE", KEY, DEADLINE_MS))
    ),
    Cause(
        "RESTORE REPLACE of a read lock",
        (("RESTORE", KEY, 0, "<payload>", "REPLACE"),),
        hold=(("SLOCK.RLOCK", "other", "reader", TTL_MS), ("SLOCK.LOCK", KEY, "holder", TTL_MS)),
        ask=ASK_TO_READ,
    ),
    Cause("SWAPDB", (("SWAPDB", LOCK_DB, OTHER_DB),)),
    Cause("FLUSHDB", (("FLUSHDB",),)),
    Cause(
        "eviction",
        (("CONFIG", "SET", "maxmemory-policy", "volatile-ttl", "maxmemory", 1),),
        hold=(("SLOCK.LOCK", KEY, "holder", 10_000),),  # the first to go, also among other keys
        afterwards=(("CONFIG", "SET", "maxmemory", 0),),
    ),
    Cause("FLUSHALL ASYNC", (("FLUSHALL", "ASYNC"),)),
]


def time_cause(cause: Cause, control: RawConnection, waiter: RawConnection) -> float:
    """Milliseconds until the waiter has its reply."""
    for command in cause.hold:
        control.ok(*command)
    deadline_ms = 0 if cause.free else control.ok("PEXPIRETIME", KEY)
    payload = control.ok("DUMP", "other")
    free = [tuple(payload if arg == "<payload>" else arg for arg in command) for command in cause.free]
    waiter.send(*cause.ask)
    if cause.free:
        wait_until(lambda: waiters_of(control, KEY) == 1, what="the waiter to queue")

    start = time.perf_counter()
    control.send_bytes(b"".join(encode_command(*command) for command in free))
    try:
        reply = waiter.read()
    except TimeoutError:
        raise SystemExit(f"{cause.name}: the waiter was never woken") from None
    late_ms = (time.perf_counter() - start) * 1000 if free else time.time() * 1000 - deadline_ms

    granted = isinstance(reply, int) and reply > 0
    refused = isinstance(reply, RespError) and reply.prefix == cause.expect_error
    if not (refused if cause.expect_error else granted):
        raise SystemExit(f"{cause.name}: the waiter was answered {reply!r}")
    for _ in free:
        control.read()
    for command in cause.afterwards:
        control.ok(*command)
    for database in (OTHER_DB, LOCK_DB):
        control.ok("SELECT", database)
        control.ok("DEL", KEY, "away", "other")
    return late_ms


def time_ping(control: RawConnection) -> float:
    start = time.perf_counter()
    control.call("PING")
    return (time.perf_counter() - start) * 1000


def time_blpop(control: RawConnection, waiter: RawConnection) -> float:
    waiter.send("BLPOP", "list", 0)
    wait_until(lambda: b"blocked_clients:1\r\n" in control.ok("INFO", "clients"), what="BLPOP to block")
    start = time.perf_counter()
    control.send("RPUSH", "list", "item")
    waiter.read()
    late_ms = (time.perf_counter() - start) * 1000
    control.read()
    return late_ms


def waiters_of(control: RawConnection, key: str) -> int:
    info = control.ok("SLOCK.INFO", key)
    return info[info.index(b"waiters") + 1] if info else 0


def tell_causes(server: Server, samples: int) -> None:
    control, waiter = server.raw(), server.raw()
    for connection in (control, waiter):
        connection.ok("SELECT", LOCK_DB)
    tell_latency("PING and its reply", [time_ping(control) for _ in range(samples)])
    tell_latency("RPUSH wakes BLPOP", [time_blpop(control, waiter) for _ in range(samples)])
    for cause in CAUSES:
        tell_latency(cause.name, [time_cause(cause, control, waiter) for _ in range(samples)])


def tell_latency(what: str, values: list[float]) -> None:
    middle, late = statistics.median(values), percentile(values, 99)
    print(f"  {what:34} median {middle:8.3f} ms   p99 {late:8.3f} ms   max {max(values):8.3f} ms")


# --- many waiters: who releases goes to the end of the queue


class Ring:
    """Connections that hand one lock around: one holds it and all others wait."""

    def __init__(self, server: Server, key: str, waiters: int) -> None:
        self.key = key
        self.connections = [server.raw() for _ in range(waiters + 1)]
        self.poll = select.epoll()
        self.by_descriptor = {}
        for number, connection in enumerate(self.connections):
            self.by_descriptor[connection.socket.fileno()] = number
            self.poll.register(connection.socket.fileno(), select.EPOLLIN)
        for number, connection in enumerate(self.connections):
            connection.send_bytes(self.ask(number))
        control = server.raw()
        wait_until(lambda: waiters_of(control, key) == waiters, 60, f"{waiters} waiters to queue")
        self.holder, _ = self._next_grant()

    def token(self, number: int) -> str:
        """Of this ring only: one token in two rings would be a deadlock."""
        return f"{self.key}-{number}"

    def ask(self, number: int) -> bytes:
        return encode_command("SLOCK.LOCK", self.key, self.token(number), TTL_MS, "WAIT", 0)

    def _next_grant(self) -> tuple[int, float]:
        """Who is granted the lock next, and when the reply came."""
        ready = self.poll.poll(15, 1)
        arrived = time.perf_counter()
        if not ready:
            raise SystemExit("nobody was granted the lock")
        number = self.by_descriptor[ready[0][0]]
        fence = self.connections[number].read()
        if not isinstance(fence, int) or fence <= 0:
            raise SystemExit(f"a waiter was answered {fence!r}")
        return number, arrived

    def hand_on(self) -> float:
        """The holder releases and queues again, in one write; milliseconds until the next has the lock."""
        holder = self.connections[self.holder]
        self.poll.unregister(holder.socket.fileno())
        release = encode_command("SLOCK.UNLOCK", self.key, self.token(self.holder))
        start = time.perf_counter()
        holder.send_bytes(release + self.ask(self.holder))
        granted, arrived = self._next_grant()
        if holder.read() != 1:
            raise SystemExit("the holder's release failed")
        self.poll.register(holder.socket.fileno(), select.EPOLLIN)
        self.holder = granted
        return (arrived - start) * 1000


def tell_rings(server: Server, report: Report, many: int, rounds: int, grants: int) -> None:
    rings = {1: Ring(server, "ring:few", 1), many: Ring(server, "ring:many", many)}
    clock = ServerClock(server)
    latencies: dict[int, list[float]] = {waiters: [] for waiters in rings}
    costs: dict[int, list[float]] = {waiters: [] for waiters in rings}
    for _ in range(rounds):
        for waiters, ring in rings.items():
            start = clock.read()
            latencies[waiters] += [ring.hand_on() for _ in range(grants)]
            costs[waiters].append((clock.read() - start) / grants)
    for waiters in rings:
        tell_latency(f"UNLOCK with {waiters} waiting", latencies[waiters])
    for waiters in rings:
        print(f"  server CPU per grant with {waiters:6} waiting: {spread(costs[waiters])} microseconds")
    ratios = [high / low for low, high in zip(costs[1], costs[many], strict=True)]
    report.limit(f"CPU per grant, {many} waiting / 1 waiting", statistics.median(ratios), CPU_LIMIT)


# --- the settings


def add_expiring_keys(server: Server, count: int) -> None:
    """Keys of other people's that expire all the time, in database 0."""
    pipe = Pipe(server)
    for numbers in batches(list(range(count)), 1000):
        pipe.exchange(
            [encode_command("SET", f"other:{n}", "x", "PX", 20_000 + n * 7919 % 600_000) for n in numbers]
        )
    pipe.close()


def settings(options: argparse.Namespace) -> Iterator[tuple[str, int, int, Callable[[Server, Report], None]]]:
    """What is measured with which `hz` and how many other keys."""

    def causes(server: Server, _: Report) -> None:
        tell_causes(server, options.samples)

    def rings(server: Server, report: Report) -> None:
        tell_rings(server, report, options.waiters, options.rounds, options.grants)

    yield "one waiter, by cause", 10, 0, causes
    yield "one waiter, by cause", 1, options.keys, causes
    yield "many waiters", 10, 0, rings
    yield "many waiters", 1, options.keys, rings


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=100, help="of each cause")
    parser.add_argument("--waiters", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--grants", type=int, default=500, help="in a round")
    parser.add_argument("--keys", type=int, default=1_000_000, help="other keys, which expire")
    options = parser.parse_args()

    report = Report(options)
    for what, hz, keys, measure in settings(options):
        with private_server(hz=hz, dynamic_hz=False, maxclients=options.waiters + 100) as server:
            report.server(server)
            add_expiring_keys(server, keys)
            print(f"{what}, with {keys} other keys:")
            measure(server, report)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
