"""The longest command and the longest turn of the event loop, where very many hold, wait or have expired.

How it measures. A command's time is the server's own (`INFO commandstats`, or SLOWLOG for one among many). A
turn is seen by a prober, a process of its own: it sends PING every 0.2 ms and takes the longest time to a
reply. The time in which its own or the server's thread was ready to run and had no processor is subtracted
(/proc/PID/schedstat), so that other processes of the machine count little; run by root, the prober has the
priority that it needs to miss no turn. What is sent in pipelines makes turns as long as one likes, so there
is no prober then. Each scenario runs three times, each time on a new server, and the median counts; of a
command among many it is the median of the same command of each run. The prober on an idle server tells the
noise. 8,000 clients that are woken are set beside the server's own way to wake them, in turn; the two are so
close that the limit leaves a tenth for noise.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import select
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from common import (
    Pipe,
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
from harness.settings import free_port

LIMIT_MS = 5.0
MANY_KEYS_LIMIT_MS = 10.0
WAKE_LIMIT = 1.1

TTL_MS = 3_600_000
RUNS = 3
PROBE_EVERY_S = 0.0002
SLOW_US = 300  # what SLOWLOG keeps
AFTERWARDS_S = 0.15  # how long turns are watched after a command
SETTLE_S = 5.0  # after which a server has given back the buffers of clients that are idle

HOLDS = 100_000
READERS = 200_000
READERS_LIVE_MS = 8000
SWAPS, SWAP_WAITERS = 5000, 1000
IDLE_WAITERS, IDLE_S = 8000, 5.0
WOKEN, WAKE_ROUNDS = 8000, 9
REQUESTS, KEYS = 1000, 64

Command = tuple[object, ...]
Figures = dict[str, float]


# --- the prober


def probe(port: int, pid: int, orders: Connection) -> None:
    """Between two orders: the longest time to a reply, in milliseconds, without waits for a processor."""
    gc.disable()
    with contextlib.suppress(PermissionError):  # else a turn may pass while this process is not woken
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connection = RawConnection(port)
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


# --- what the scenarios share


@dataclass
class Bench:
    """One run of a scenario on a new server."""

    server: Server
    prober: Prober
    control: RawConnection
    # In milliseconds, with a limit.
    longest: Figures = field(default_factory=dict)
    # Figures without a limit, with their unit.
    other: Figures = field(default_factory=dict)
    # The slow ones among many commands, by what tells them apart.
    slow: dict[str, Figures] = field(default_factory=dict)

    def info(self, section: str) -> dict[str, str]:
        text = self.control.ok("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def memory(self) -> int:
        return int(self.info("memory")["used_memory"])

    def command(self, *command: object) -> float:
        """Runs one command; milliseconds that it took the server by its own account."""
        self.control.ok("CONFIG", "RESETSTAT")
        self.control.ok(*command)
        return self.taken_by(str(command[0]))

    def taken_by(self, command: str) -> float:
        """Milliseconds that the server has spent in this command since its statistics were reset."""
        stats = self.info("commandstats")[f"cmdstat_{command.lower()}"]
        return int(dict(part.split("=") for part in stats.split(","))["usec"]) / 1000

    def watched(self, what: str, *command: object) -> None:
        """The command, and the longest turn while it runs and after it."""
        with self.prober.watch() as turns:
            took = self.command(*command)
            time.sleep(AFTERWARDS_S)
        self.longest[f"{what}: command"] = took
        self.longest[f"{what}: turn"] = turns.longest_ms

    def connect(self, count: int) -> list[RawConnection]:
        return [self.server.raw() for _ in range(count)]

    def wait_blocked(self, count: int) -> None:
        wait_until(lambda: int(self.info("clients")["blocked_clients"]) == count, 60, f"{count} to wait")

    def wait_for(self, connections: list[RawConnection], commands: list[bytes]) -> None:
        for connection, command in zip(connections, commands, strict=True):
            connection.send_bytes(command)
        self.wait_blocked(len(connections))

    def hold(self, commands: list[bytes]) -> Pipe:
        """Takes locks through pipelines, all of which are free."""
        pipe = Pipe(self.server)
        for batch in batches(commands, 1000):
            if b":0\r\n" in pipe.exchange(batch):
                raise SystemExit("a lock was refused")
        return pipe


def many(name: str, keys: list[str], *rest: object) -> bytes:
    return encode_command(f"SLOCK.{name}", len(keys), *keys, *rest)


# --- the scenarios


def idle(bench: Bench) -> None:
    with bench.prober.watch() as turns:
        time.sleep(2)
    bench.longest["longest turn"] = turns.longest_ms


def closing(bench: Bench) -> None:
    """A connection closes to which very many holds are bound."""
    lock = ("SLOCK.LOCK", "hold:{0}", "token:{0}", TTL_MS, "EPHEMERAL")
    words = [[str(word).format(number) for word in lock] for number in range(HOLDS)]
    pipe = bench.hold([encode_command(*command) for command in words])
    with bench.prober.watch() as turns:
        start = time.perf_counter()
        pipe.close()
        wait_until(lambda: bench.control.ok("DBSIZE") == 0, 60, "the holds to end")
        took = time.perf_counter() - start
    bench.longest["longest turn"] = turns.longest_ms
    bench.other["until all have ended, ms"] = took * 1000


AMONG_EXPIRED: list[tuple[str, Command]] = [
    ("INFO", ("SLOCK.INFO", "<key>")),
    ("INFO FULL COUNT 1", ("SLOCK.INFO", "<key>", "FULL", "COUNT", 1)),
    ("EXTEND", ("SLOCK.EXTEND", "<key>", "alive", TTL_MS)),
    ("RLOCK of a new reader", ("SLOCK.RLOCK", "<key>", "new", TTL_MS)),
    ("RUNLOCK", ("SLOCK.RUNLOCK", "<key>", "alive too")),
    ("LOCK refused", ("SLOCK.LOCK", "<key>", "new", TTL_MS)),
]
ALL_EXPIRED: list[tuple[str, Command]] = [
    ("LOCK by a new writer", ("SLOCK.LOCK", "<key>", "new", TTL_MS)),
    ("DEL", ("DEL", "<key>")),
]


def expired(bench: Bench) -> None:
    """Readers of one lock that have expired. Each command has a copy of the lock for itself."""
    control = bench.control
    control.ok("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US, "slowlog-max-len", READERS)
    due = time.time() + READERS_LIVE_MS / 1000
    for token in ("alive", "alive too"):
        control.ok("SLOCK.RLOCK", "crowd", token, TTL_MS)
    pipe = Pipe(bench.server)
    for numbers in batches(list(range(READERS)), 1000):
        left_ms = int((due - time.time()) * 1000)
        pipe.exchange(
            [encode_command("SLOCK.RLOCK", "crowd", f"r{n}", max(1, left_ms - n % 500)) for n in numbers]
        )
    slow = control.ok("SLOWLOG", "GET", -1)
    bench.slow["RLOCK while they join"] = {
        words[2].decode(): microseconds / 1000
        for _, _, microseconds, words, *_ in slow
        if words[0] == b"SLOCK.RLOCK"
    }
    control.ok("CONFIG", "SET", "slowlog-log-slower-than", -1)

    for what, _ in AMONG_EXPIRED:
        control.ok("COPY", "crowd", what)
    for token in ("alive", "alive too"):
        control.ok("SLOCK.RUNLOCK", "crowd", token)
    for what, _ in ALL_EXPIRED:  # their keys stay, and no holder is alive
        control.ok("COPY", "crowd", what)
        control.ok("PERSIST", what)
    if time.time() > due - 0.6:
        raise SystemExit("the readers joined too slowly: some had expired before all were there")

    keys = control.ok("DBSIZE")
    with bench.prober.watch() as turns:
        wait_until(lambda: control.ok("DBSIZE") == keys - 1, 60, "the server to collect the expired key")
    bench.longest["the server collects the key: turn"] = turns.longest_ms
    for what, command in AMONG_EXPIRED + ALL_EXPIRED:
        bench.watched(what, *[what if word == "<key>" else word for word in command])


def swapping(bench: Bench) -> None:
    """Databases that are swapped again and again in one script, while many wait."""
    control = bench.control
    script = f"for i = 1, {SWAPS} do redis.call('SWAPDB', 0, 1) end"
    status = Path(f"/proc/{bench.server.pid}/status")

    def resident(which: str) -> float:
        line = next(line for line in status.read_text().splitlines() if line.startswith(which))
        return int(line.split()[1]) / 1024

    def run() -> tuple[float, float, float, float]:
        before = resident("VmRSS")
        control.ok("CONFIG", "RESETSTAT")
        with bench.prober.watch() as during:
            control.ok("EVAL", script, 0)
        with bench.prober.watch() as after:
            took = bench.taken_by("EVAL")
            time.sleep(AFTERWARDS_S)
        return took, during.longest_ms, after.longest_ms, resident("VmHWM") - before

    names = range(SWAP_WAITERS)
    bench.hold([encode_command("SLOCK.LOCK", f"k:{n}", "holder", TTL_MS) for n in names])
    run()
    alone = run()
    commands = [encode_command("SLOCK.LOCK", f"k:{n}", f"w{n}", TTL_MS, "WAIT", 0) for n in names]
    bench.wait_for(bench.connect(SWAP_WAITERS), commands)
    waited = run()
    bench.other["the script alone, ms"] = alone[0]
    bench.longest["the script: added by waiters"] = waited[0] - alone[0]
    bench.longest["its turn: added by waiters"] = waited[1] - alone[1]
    bench.longest["later turns"] = waited[2]
    bench.other["greatest resident memory, MB more than before"] = waited[3]


def idle_cluster(bench: Bench) -> None:
    """Many keys of a cluster are waited for, and nothing happens."""
    bench.control.ok("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until(lambda: b"cluster_state:ok" in bench.control.ok("CLUSTER", "INFO"), 30, "the cluster")
    names, clock = range(IDLE_WAITERS), ServerClock(bench.server)

    def watch() -> tuple[float, float]:
        start = clock.read()
        with bench.prober.watch() as turns:
            time.sleep(IDLE_S)
        return turns.longest_ms, (clock.read() - start) / 1000 / IDLE_S

    connections = bench.connect(IDLE_WAITERS)
    bench.hold([encode_command("SLOCK.LOCK", f"k:{n}", "holder", TTL_MS) for n in names])
    alone = watch()
    commands = [encode_command("SLOCK.LOCK", f"k:{n}", f"w{n}", TTL_MS, "WAIT", 0) for n in names]
    bench.wait_for(connections, commands)
    waited = watch()
    bench.longest["longest turn"] = waited[0]
    bench.other["longest turn when the clients do not wait, ms"] = alone[0]
    bench.other["CPU a second, ms"] = waited[1]
    bench.other["CPU a second when the clients do not wait, ms"] = alone[1]


def many_keys(bench: Bench) -> None:
    """Very many requests for the same many keys, with different tokens and with the same."""
    keys = [f"{{k}}:{number:02}" for number in range(KEYS)]
    for tokens, what in ((1, "one token"), (2, "two tokens"), (REQUESTS, "a token each")):
        bench.control.send_bytes(many("MLOCK", keys, "holder", TTL_MS))
        bench.control.read()
        connections = bench.connect(REQUESTS)
        *first, last = [
            many("MLOCK", keys, f"w{number % tokens}", TTL_MS, "WAIT", 0) for number in range(REQUESTS)
        ]
        bench.wait_for(connections[:-1], first)
        with bench.prober.watch() as turns:
            connections[-1].send_bytes(last)
            bench.wait_blocked(REQUESTS)
        bench.longest[f"{what}: to enqueue the last, turn"] = turns.longest_ms

        replies = select.epoll()
        for connection in connections:
            replies.register(connection.socket, select.EPOLLIN)
        bench.control.ok("CONFIG", "RESETSTAT")
        with bench.prober.watch() as turns:
            start = time.perf_counter()
            bench.control.send_bytes(many("MUNLOCK", keys, "holder"))
            replies.poll(30)
            bench.longest[f"{what}: until the first grant is told"] = (time.perf_counter() - start) * 1000
            bench.control.read()
            bench.longest[f"{what}: MUNLOCK"] = bench.taken_by("SLOCK.MUNLOCK")
            time.sleep(AFTERWARDS_S)
        bench.other[f"{what}: longest turn, ms"] = turns.longest_ms
        replies.close()
        for connection in connections:
            connection.close()
        bench.wait_blocked(0)
        bench.control.ok("FLUSHALL")


def memory_of_many_keys(bench: Bench) -> None:
    """What a request for many keys takes more than one for a single key. The server keeps the words of a
    command that waits: what they take is measured with a command of its own that has as many."""
    key = "{k}:00"
    keys = [f"{{k}}:{number:02}" for number in range(KEYS)]
    bench.control.send_bytes(many("MLOCK", keys, "holder", TTL_MS))
    bench.control.read()

    def memory_of(command: Callable[[int], bytes]) -> float:
        connections = bench.connect(REQUESTS)
        time.sleep(SETTLE_S)
        before = bench.memory()
        bench.wait_for(connections, [command(number) for number in range(REQUESTS)])
        time.sleep(SETTLE_S)
        taken = (bench.memory() - before) / REQUESTS
        for connection in connections:
            connection.close()
        bench.wait_blocked(0)
        return taken

    def lock(names: list[str]) -> float:
        return memory_of(lambda number: many("MLOCK", names, f"w{number:03}", TTL_MS, "WAIT", 0))

    one = lock([key])
    words = memory_of(lambda _: encode_command("BLPOP", *["{l}:00"] * KEYS, 0)) - memory_of(
        lambda _: encode_command("BLPOP", "{l}:00", 0)
    )
    bench.other["bytes a request for one key, blocked client and all"] = one
    bench.other[f"bytes more for {KEYS} keys, without the words of the command"] = lock(keys) - one - words


@dataclass(frozen=True)
class Scenario:
    what: str
    run: Callable[[Bench], None]
    limit_ms: float = LIMIT_MS
    runs: int = RUNS
    settings: dict[str, object] = field(default_factory=dict)


SCENARIOS = {
    "noise": Scenario("an idle server, which is the noise of this measurement", idle),
    "closing": Scenario(f"a connection with {HOLDS} EPHEMERAL holds closes", closing),
    "expired": Scenario(f"{READERS} readers of one lock have expired", expired),
    "swapping": Scenario(f"{SWAP_WAITERS} waiters, {SWAPS} SWAPDB in one script", swapping),
    "cluster": Scenario(
        f"{IDLE_WAITERS} waiting keys in an idle cluster node",
        idle_cluster,
        settings={"cluster_enabled": True},
    ),
    "requests": Scenario(f"{REQUESTS} requests of {KEYS} keys each wait", many_keys, MANY_KEYS_LIMIT_MS),
    "memory": Scenario("memory of a request that waits", memory_of_many_keys, runs=1),
}


def play(name: str, report: Report) -> None:
    scenario = SCENARIOS[name]
    benches: list[Bench] = []
    for _ in range(scenario.runs):
        ports = {"cluster_port": free_port()} if "cluster_enabled" in scenario.settings else {}
        with private_server(maxclients=20_000, **scenario.settings, **ports) as server:
            if not benches:
                report.server(server)
            bench = Bench(server, Prober(server), server.raw())
            scenario.run(bench)
            bench.prober.close()
            benches.append(bench)

    print(f"{scenario.what} (median and range of {scenario.runs}):")
    for what in benches[0].slow:
        runs = [bench.slow[what] for bench in benches]
        medians = [
            statistics.median(run.get(one, SLOW_US / 1000) for run in runs) for one in set().union(*runs)
        ]
        report.limit(f"  {what}, ms", max(medians, default=SLOW_US / 1000), scenario.limit_ms)
    for what in benches[0].longest:
        values = [bench.longest[what] for bench in benches]
        ends = f"({min(values):.2f} to {max(values):.2f})"
        report.limit(f"  {what}, ms {ends}", statistics.median(values), scenario.limit_ms)
    for what in benches[0].other:
        print(f"  {what}: {spread([bench.other[what] for bench in benches])}")


# --- many clients that are woken at once


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
    parser = arguments(__doc__)
    names = [*SCENARIOS, "waking"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="scenarios")
    options = parser.parse_args()

    report = Report(options)
    for name in options.only:
        if name == "waking":
            waking(report)
        else:
            play(name, report)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
