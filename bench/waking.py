"""Very many clients that are woken at once, beside the server's own way to wake as many.

8,000 clients that wait by RLOCK and are let in by one UNLOCK, and 8,000 that wait by XREAD and are woken by
one XADD, in turn; the two are so close that the limit leaves a tenth for noise.
"""

from __future__ import annotations

import select
import statistics
import sys
import time

from common import Report, Server, ServerClock, arguments, encode_command, private_server, spread, wait_until
from scenario import TTL_MS, Command

WAKE_LIMIT = 1.1
WOKEN, WAKE_ROUNDS = 8000, 9


class Crowd:
    """Clients that wait together and are woken together."""

    def __init__(self, server: Server) -> None:
        self.server, self.control, self.clock = server, server.raw(), ServerClock(server)
        self.connections = [server.raw() for _ in range(WOKEN)]
        self.poll = select.epoll()
        for connection in self.connections:
            self.poll.register(connection.socket, select.EPOLLIN | select.EPOLLET)

    def _blocked(self) -> int:
        lines = self.control.ok("INFO", "clients").splitlines()
        return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"blocked_clients:"))

    def wake(self, wait: list[bytes], wake: Command) -> tuple[float, float]:
        """Milliseconds until the last has its answer, and milliseconds of the server's CPU."""
        for connection, command in zip(self.connections, wait, strict=True):
            connection.send_bytes(command)
        wait_until(lambda: self._blocked() == WOKEN, 60, "all to wait")
        if self.poll.poll(0):
            raise SystemExit("somebody was answered too early")
        answered: set[int] = set()
        used = self.clock.read()
        start = time.perf_counter()
        self.control.send(*wake)
        while len(answered) < WOKEN:
            arrived = self.poll.poll(30, WOKEN)
            if not arrived:
                raise SystemExit(f"only {len(answered)} of {WOKEN} were answered")
            answered.update(descriptor for descriptor, _ in arrived)
        took = (time.perf_counter() - start) * 1000
        used = (self.clock.read() - used) / 1000
        self.control.read()
        for connection in self.connections:
            if isinstance(connection.read(), Exception):
                raise SystemExit("a waiter was answered by an error")
        return took, used


def waking(report: Report) -> None:
    lock = [encode_command("SLOCK.RLOCK", "k", f"r{n}", TTL_MS, "WAIT", 0) for n in range(WOKEN)]
    read = [encode_command("XREAD", "BLOCK", 0, "STREAMS", "s", "$")] * WOKEN
    taken: dict[str, list[tuple[float, float]]] = {"UNLOCK": [], "XADD": []}
    with private_server(maxclients=WOKEN + 100) as server:
        report.server(server)
        crowd = Crowd(server)
        for _ in range(WAKE_ROUNDS):
            crowd.control.ok("SLOCK.LOCK", "k", "writer", TTL_MS)
            taken["UNLOCK"].append(crowd.wake(lock, ("SLOCK.UNLOCK", "k", "writer")))
            crowd.control.ok("DEL", "k")
            taken["XADD"].append(crowd.wake(read, ("XADD", "s", "*", "field", "value")))
    print(f"{WOKEN} clients woken at once, {WAKE_ROUNDS} rounds:")
    for at, what in enumerate(("until the last is answered, ms", "server CPU, ms")):
        by_us, by_server = ([figures[at] for figures in taken[name]] for name in ("UNLOCK", "XADD"))
        print(f"  {what}: UNLOCK {spread(by_us)}, XADD {spread(by_server)}")
        ratios = [ours / theirs for ours, theirs in zip(by_us, by_server, strict=True)]
        report.limit(f"  {what.split(',')[0]}, UNLOCK / XADD", statistics.median(ratios), WAKE_LIMIT)


def main() -> int:
    options = arguments(__doc__).parse_args()
    report = Report(options)
    waking(report)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
