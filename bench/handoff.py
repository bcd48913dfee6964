"""How soon a waiter has its lock after whatever freed it.

Latencies are client to client on this machine: from just before the command that frees the lock is sent, or
from the deadline, to the arrival of the waiter's reply. They are set beside a PING and beside BLPOP, which is
how the server itself wakes a client.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass

from common import (
    Pipe,
    RawConnection,
    Report,
    RespError,
    Server,
    arguments,
    batches,
    encode_command,
    percentile,
    private_server,
    wait_until,
)

TTL_MS = 600_000
DEADLINE_MS = 30
LOCK_DB, OTHER_DB = 2, 3
KEY = "lock"

Command = tuple[object, ...]


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


# --- beside other keys


def add_expiring_keys(server: Server, count: int) -> None:
    """Keys of other people's that expire all the time, in database 0."""
    pipe = Pipe(server)
    for numbers in batches(list(range(count)), 1000):
        pipe.exchange(
            [encode_command("SET", f"other:{n}", "x", "PX", 20_000 + n * 7919 % 600_000) for n in numbers]
        )
    pipe.close()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=100, help="of each cause")
    parser.add_argument("--keys", type=int, default=1_000_000, help="other keys, which expire, with hz 1")
    options = parser.parse_args()

    report = Report(options)
    for hz, keys in ((10, 0), (1, options.keys)):
        with private_server(hz=hz, dynamic_hz=False) as server:
            report.server(server)
            add_expiring_keys(server, keys)
            print(f"one waiter, by cause, with {keys} other keys:")
            tell_causes(server, options.samples)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
