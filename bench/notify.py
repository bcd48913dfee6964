"""What waiting by NOTIFY costs: hand-offs beside BLPOP and LPUSH, and a waiter where a million wait.

Each contender releases what it holds, and asks for it again when the release has been answered. By NOTIFY
all share one RESP3 connection, over which replies, messages and the commands of all travel together. By BLPOP
each has a connection: one item goes round in each list, and whoever has it pushes it and then waits for it
again. Either client is one thread that waits for its sockets by epoll and has ready what it sends.

With several locks the connection carries several hand-offs at a time. With one lock there is one hand-off
at a time, and server and client sleep in between: that alone costs what a PING costs, which is shown beside.
Client and server share one core, unless --cores all: else the figures depend on where the scheduler puts
them, and on what it costs on this machine to wake another core.
"""

from __future__ import annotations

import os
import re
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable

from common import (
    RawConnection,
    Report,
    Server,
    ServerClock,
    arguments,
    batches,
    encode_command,
    private_server,
    spread,
    wait_until,
)

CPU_LIMIT, RATE_LIMIT = 0.7, 1.6
# With one hand-off at a time: what has been reached, with room for noise.
LONE_CPU_LIMIT, LONE_RATE_LIMIT = 1.2, 0.9
BYTES_LIMIT, GRANT_LIMIT = 400, 1.5
TTL_MS = 3_600_000
FEW = 10
CHANNEL = "bench:notify"
ITEM = b"item\r\n"
PING = encode_command("PING")
MESSAGE = re.compile(rb"\d t(\d{7})\r\n")
RELEASED = (b":1\r\n", b"_\r\n:1\r\n")  # after the request before, which is in the queue


# --- two ways of handing on


class ByNotify:
    """Names with waiters behind a holder each, all asked for over one connection."""

    def __init__(self, server: Server, names: int, waiters: int) -> None:
        self.connection = server.raw()
        self.connection.hello(3)
        self.connection.ok("SSUBSCRIBE", CHANNEL)
        self.socket = self.connection.socket
        self.socket.settimeout(None)
        self.poll = polling([self.socket])
        # Of each name the numbers of those who stand there, from the holder on.
        self.lines = [range(name, names * (waiters // names + 1), names) for name in range(names)]
        self._places = [0] * names
        self._first = 0
        self._to_ask = b""  # the request of whoever released last
        # At each lock: who has been told and has not released yet, and who released last.
        self._holders = list(range(names))
        self._released: dict[int, int] = {}

    def fill(self, control: RawConnection) -> int:
        """All take their places; returns by how many bytes those who wait make `used_memory` grow."""
        numbers = list(range(len(self.lines) * len(self.lines[0])))
        self._ask(numbers[: len(self.lines)])
        before = used_memory(control)
        for some in batches(numbers[len(self.lines) :], 1000):
            self._ask(some)
        return used_memory(control) - before

    def _ask(self, numbers: list[int]) -> None:
        self.socket.sendall(b"".join(map(self.request, numbers)))
        for number in numbers:
            reply = self.connection.read()
            if (reply is None) != (number >= len(self.lines)):
                raise SystemExit(f"the request of {number} was answered {reply!r}")

    def key(self, number: int) -> str:
        return f"name:{number % len(self.lines)}"

    def request(self, number: int) -> bytes:
        request = ("SLOCK.LOCK", self.key(number), f"token:{number}", TTL_MS)
        return encode_command(*request, "WAIT", 0, "NOTIFY", CHANNEL, f"t{number:07}")

    def release(self, number: int) -> bytes:
        return encode_command("SLOCK.UNLOCK", self.key(number), f"token:{number}")

    def prepare(self, count: int) -> list[tuple[bytes, bytes]]:
        """What the next hand-offs send, and the end of what they read. The names take turns."""
        steps = []
        for _ in range(count):
            name = self._first
            line, place = self.lines[name], self._places[name]
            self._places[name] = following = (place + 1) % len(line)
            self._first = (name + 1) % len(self.lines)
            steps.append((self._to_ask + self.release(line[place]), b" t%07d\r\n" % line[following]))
            self._to_ask = self.request(line[place])
        return steps

    def one_by_one(self, count: int) -> Callable[[], None]:
        """So many hand-offs, one after the other."""
        steps = self.prepare(count)

        def go() -> None:
            poll, connection = self.poll.poll, self.socket
            for sent, end in steps:
                connection.sendall(sent)
                got = b""
                while not got.endswith(end):
                    poll()
                    got += connection.recv(4096)
                    if not got.startswith(RELEASED):
                        raise SystemExit(f"a hand-off was answered {got!r}")

        return go

    def run(self, count: int) -> Callable[[], None]:
        """About so many hand-offs, at all locks at once."""
        numbers = [number for line in self.lines for number in line]
        releases = {number: self.release(number) for number in numbers}
        requests = {number: self.request(number) for number in numbers}
        locks = len(self.lines)

        def go() -> None:
            connection, handed_on, got = self.socket, 0, b""
            while handed_on < count:
                sent = b""
                for number in self._holders:
                    # By now its release has been answered: whoever held before asks again.
                    before = self._released.get(number % locks)
                    sent += requests[before] if before is not None else b""
                    sent += releases[number]
                    self._released[number % locks] = number
                handed_on += len(self._holders)
                if sent:
                    connection.sendall(sent)
                self.poll.poll()
                got += connection.recv(65536)
                told = list(MESSAGE.finditer(got))
                self._holders = [int(message[1]) for message in told]
                got = got[told[-1].end() :] if told else got
                if b"-" in got:
                    raise SystemExit(f"a hand-off was answered {got!r}")

        return go


class ByPop:
    """Connections of which as many have an item as there are lists, and the others wait for them."""

    def __init__(self, server: Server, lists: int, contenders: int) -> None:
        self.poll = select.epoll()
        self._commands: dict[int, tuple[socket.socket, bytes, bytes]] = {}
        for number in range(contenders):
            name, connection = f"list:{number % lists}", server.raw().socket
            pop, push = encode_command("BLPOP", name, 0), encode_command("LPUSH", name, "item")
            self._commands[connection.fileno()] = connection, pop, push
            self.poll.register(connection.fileno(), select.EPOLLIN)
            connection.settimeout(None)
            connection.sendall(pop)
            wait_for(server, "clients", "blocked_clients", number + 1)
        for number in range(lists):
            server.raw().ok("LPUSH", f"list:{number}", "item")

    def run(self, count: int) -> Callable[[], None]:
        """About so many hand-offs, of all lists at once."""

        def go() -> None:
            poll, commands, handed_on = self.poll.poll, self._commands, 0
            while handed_on < count:
                for descriptor, _ in poll():
                    connection, pop, push = commands[descriptor]
                    if connection.recv(4096).endswith(ITEM):
                        connection.sendall(push)
                        handed_on += 1
                    else:  # that it was pushed
                        connection.sendall(pop)

        return go


class Ping:
    """What it costs to be asked and to answer."""

    def __init__(self, server: Server) -> None:
        self._socket = server.raw().socket

    def run(self, count: int) -> Callable[[], None]:
        def go() -> None:
            for _ in range(count):
                self._socket.sendall(PING)
                self._socket.recv(4096)

        return go


def polling(sockets: list[socket.socket]) -> select.epoll:
    poll = select.epoll()
    for connection in sockets:
        poll.register(connection.fileno(), select.EPOLLIN)
    return poll


def info(control: RawConnection, section: str) -> dict[str, str]:
    text = control.ok("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def used_memory(control: RawConnection) -> int:
    return int(info(control, "memory")["used_memory"])


def wait_for(server: Server, section: str, field: str, value: int) -> None:
    with server.raw() as control:
        wait_until(lambda: info(control, section)[field] == str(value), 60, f"{field} to be {value}")


def time_of(go: Callable[[], None], clock: ServerClock, count: int) -> tuple[float, float]:
    """Microseconds of the server's CPU, and of wall time, that each hand-off took."""
    cpu, start = clock.read(), time.perf_counter()
    go()
    wall = (time.perf_counter() - start) * 1e6
    return (clock.read() - cpu) / count, wall / count


# --- what is measured


def measure_handoffs(report: Report, contenders: int, locks: int, rounds: int, count: int) -> None:
    with private_server() as server:
        report.server(server)
        clock = ServerClock(server)
        notify = ByNotify(server, locks, contenders - locks)
        notify.fill(server.raw())
        rings = {
            "LOCK … NOTIFY": notify.run if locks > 1 else notify.one_by_one,
            "BLPOP and LPUSH": ByPop(server, locks, contenders).run,
            "(PING alone)": Ping(server).run,
        }
        cpu: dict[str, list[float]] = {what: [] for what in rings}
        wall: dict[str, list[float]] = {what: [] for what in rings}
        for number in range(-1, rounds):
            for what, prepare in rings.items():
                costs = time_of(prepare(count), clock, count)
                if number >= 0:  # the first round is to warm up
                    cpu[what].append(costs[0])
                    wall[what].append(costs[1])
    print(f"{contenders} contenders, {locks} lock{'s' * (locks > 1)} ({rounds} rounds of {count} hand-offs):")
    for what in rings:
        rates = [1e6 / microseconds for microseconds in wall[what]]
        print(f"  {what:16} server CPU, microseconds: {spread(cpu[what])}")
        print(f"  {'':16} a second: {spread(rates)}")
    mine, other, _ = rings
    costs = [low / high for low, high in zip(cpu[mine], cpu[other], strict=True)]
    rates = [high / low for low, high in zip(wall[mine], wall[other], strict=True)]
    most, least = (CPU_LIMIT, RATE_LIMIT) if locks > 1 else (LONE_CPU_LIMIT, LONE_RATE_LIMIT)
    report.limit("  CPU a hand-off, NOTIFY / BLPOP and LPUSH", statistics.median(costs), most)
    report.at_least("  hand-offs a second, NOTIFY / BLPOP and LPUSH", statistics.median(rates), least)


def measure_crowd(report: Report, waiters: int, names: int, rounds: int, count: int) -> None:
    with private_server(slock_max_waiters=waiters + 1) as crowded, private_server() as idle:
        control = crowded.raw()
        crowd, few = ByNotify(crowded, names, waiters), ByNotify(idle, 1, FEW)
        start = time.perf_counter()
        grown = crowd.fill(control)
        print(f"{waiters} waiters on {names} names over one connection:")
        print(f"  they have asked in {time.perf_counter() - start:.1f} s")
        wait_for(crowded, "slock", "slock_waiters", waiters)
        few.fill(idle.raw())
        report.limit("  bytes a waiter", grown / waiters, BYTES_LIMIT)
        clocks = {crowd: ServerClock(crowded), few: ServerClock(idle)}
        costs: dict[ByNotify, list[tuple[float, float]]] = {crowd: [], few: []}
        for _ in range(rounds):
            for ring, clock in clocks.items():
                costs[ring].append(time_of(ring.one_by_one(count), clock, count))
        for place, what in enumerate(("server CPU a grant", "time of a grant")):
            many, small = ([cost[place] for cost in costs[ring]] for ring in (crowd, few))
            print(f"  {what}, microseconds: {spread(many)}; where {FEW} wait: {spread(small)}")
            ratios = [high / low for low, high in zip(small, many, strict=True)]
            report.limit(f"  {what}, {waiters} waiting / {FEW}", statistics.median(ratios), GRANT_LIMIT)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--contenders", type=int, default=64)
    parser.add_argument("--locks", type=int, default=8)
    parser.add_argument("--cores", choices=("one", "all"), default="one", help="where client and server run")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--handoffs", type=int, default=10_000, help="in a round")
    parser.add_argument("--waiters", type=int, default=1_000_000, help="on a thousandth of as many names")
    options = parser.parse_args()

    report = Report(options)
    if options.cores == "one":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of the servers too, which are started later
    for locks in (options.locks, 1):
        measure_handoffs(report, options.contenders, locks, options.rounds, options.handoffs)
    names = max(1, options.waiters // 1000)
    measure_crowd(report, options.waiters, names, options.rounds, options.handoffs)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
