"""Whether millions of lock and unlock calls on random keys leave anything behind in the server's memory.

A window of locks is held at any time; half of the calls take a lock on a random key, the other half release
one of the window, in random order. In the end all are released, and `used_memory` must be where it began.
"""

from __future__ import annotations

import random
import sys
import time

from common import Pipe, Report, Server, arguments, encode_command, private_server

WINDOW = 2000
BATCH = 200
TOLERANCE_BYTES = 100_000
SETTLE_SECONDS = 15.0

Held = tuple[str, str, str]


class Gauge:
    """Reads `used_memory` over one connection, which is there from the first reading to the last."""

    def __init__(self, server: Server) -> None:
        self._connection = server.raw()
        self.read()

    def read(self) -> int:
        lines = self._connection.ok("INFO", "memory").splitlines()
        return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"used_memory:"))

    def settled(self, wanted: int) -> int:
        """The memory once it is at most `wanted`, or once the server had time to shrink its buffers."""
        end = time.monotonic() + SETTLE_SECONDS
        while (now := self.read()) > wanted and time.monotonic() < end:
            time.sleep(0.2)
        return now


def some_lock() -> tuple[Held, bytes]:
    """A lock to take, on a random key: for write or for read, with or without metadata."""
    key, token = f"lock:{random.getrandbits(60):x}", f"{random.getrandbits(random.randrange(8, 200)):x}"
    reads = random.random() < 0.25
    meta = ["META", "m" * random.randrange(100)] if random.random() < 0.25 else []
    take = encode_command("SLOCK.RLOCK" if reads else "SLOCK.LOCK", key, token, 600_000, *meta)
    return ("SLOCK.RUNLOCK" if reads else "SLOCK.UNLOCK", key, token), take


def take_random(held: list[Held]) -> Held:
    place = random.randrange(len(held))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def run(server: Server, gauge: Gauge, locks: int) -> list[int]:
    """Takes and releases so many locks; returns the memory in use under way, with the window full."""
    pipe, held, samples = Pipe(server), [], []
    taken = released = 0
    while released < locks:
        if taken < locks and len(held) < WINDOW:
            fresh = [some_lock() for _ in range(min(BATCH, locks - taken))]
            if b":0\r\n" in pipe.exchange([take for _, take in fresh]):
                raise SystemExit("a fresh key was refused")
            held += [lock for lock, _ in fresh]
            taken += len(fresh)
        else:
            if len(samples) < 9 and taken >= (len(samples) + 1) * locks // 10:
                samples.append(gauge.read())
            going = [take_random(held) for _ in range(min(BATCH, len(held)))]
            if pipe.exchange([encode_command(*lock) for lock in going]) != b":1\r\n" * len(going):
                raise SystemExit("a lock was lost")
            released += len(going)
    pipe.close()
    return samples


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--calls", type=int, default=10_000_000, help="lock and unlock calls together")
    options = parser.parse_args()

    report = Report(options)
    with private_server() as server:
        report.server(server)
        gauge = Gauge(server)
        before = gauge.read()
        start = time.monotonic()
        samples = run(server, gauge, options.calls // 2)
        seconds = time.monotonic() - start
        tolerance = max(TOLERANCE_BYTES, before // 100)
        after = gauge.settled(before + tolerance)
        keys = server.client().dbsize()
    print(f"{options.calls} calls in {seconds:.0f} s, at most {WINDOW + BATCH} locks held at once")
    print(f"used_memory under way: {', '.join(f'{sample:,}' for sample in samples)}")
    print(f"used_memory before {before:,}, after {after:,}; keys left: {keys}")
    report.limit("grown by, in units of the tolerance of 1 % or 100 kB", (after - before) / tolerance, 1.0)
    report.limit("keys left", keys, 0)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
