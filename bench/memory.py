"""Whether millions of lock and unlock calls on random keys leave anything behind in the server's memory.

A window of locks is held at any time, for write and for read, with and without metadata, with deadlines in no
order. In the end all are released, and `used_memory` must be where it began.
"""

from __future__ import annotations

import sys
import time

from common import Report, Server, arguments, private_server
from load import Case, play_once

WINDOW = 2000
BATCH = 200
TOLERANCE_BYTES = 100_000
SETTLE_SECONDS = 15.0

PARTS = 9
KINDS = {
    "writers": "SLOCK.LOCK lock:{random} {token} {ttl} / SLOCK.UNLOCK lock:{random} {token}",
    "readers": "SLOCK.RLOCK lock:{random} {random} {ttl} / SLOCK.RUNLOCK lock:{random} {random}",
    "metadata": "SLOCK.LOCK {random} {token}{random} {ttl} META {key}:{random}:{token} / "
    "SLOCK.UNLOCK {random} {token}{random}",
}


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


def run(server: Server, gauge: Gauge, locks: int) -> list[int]:
    """Takes and releases so many locks; returns the memory in use after each part of them."""
    samples = []
    options = ("--held", WINDOW, "--pipeline", BATCH)
    for part in range(PARTS):
        for kind, commands in KINDS.items():
            play_once(
                server,
                Case(kind, commands, options=(*options, "--from", part * locks)),
                locks // PARTS // len(KINDS),
            )
        samples.append(gauge.read())
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
    print(f"{options.calls} calls in {seconds:.0f} s, {WINDOW} locks held at once")
    print(f"used_memory after each part: {', '.join(f'{sample:,}' for sample in samples)}")
    print(f"used_memory before {before:,}, after {after:,}; keys left: {keys}")
    report.limit("grown by, in units of the tolerance of 1 % or 100 kB", (after - before) / tolerance, 1.0)
    report.limit("keys left", keys, 0)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
