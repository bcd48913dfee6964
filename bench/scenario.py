"""Scenarios in which a crowd waits, holds or expires: what they measure, and how they are run and told.

A command's time is the server's own (`INFO commandstats`, or SLOWLOG for one among many); the length of turns
is the prober's (`prober.py`). Each scenario runs several times, each time on a new server, and the median
counts; of a command among many it is the median of the same command of each run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from common import (
    Pipe,
    RawConnection,
    Report,
    Server,
    arguments,
    batches,
    encode_command,
    private_server,
    spread,
    wait_until,
)
from harness.settings import free_port
from prober import Prober

LIMIT_MS = 5.0
TTL_MS = 3_600_000
RUNS = 3
SLOW_US = 300  # what SLOWLOG keeps
COMMAND_LIMIT_S = 60.0  # after which a command counts as one that does not end
AFTERWARDS_S = 0.15  # how long turns are watched after a command

Command = tuple[object, ...]
Figures = dict[str, float]


@dataclass
class Bench:
    """One run of a scenario on a new server."""

    server: Server
    prober: Prober
    control: RawConnection
    # In milliseconds, with a limit.
    longest: Figures = field(default_factory=dict)
    # With a limit of its own: what was measured, and the limit.
    limited: dict[str, tuple[float, float]] = field(default_factory=dict)
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


@dataclass(frozen=True)
class Scenario:
    what: str
    run: Callable[[Bench], None]
    limit_ms: float = LIMIT_MS
    runs: int = RUNS
    settings: dict[str, object] = field(default_factory=dict)


def play(scenario: Scenario, report: Report) -> None:
    print(f"{scenario.what} (median and range of {scenario.runs}):", flush=True)
    benches: list[Bench] = []
    for _ in range(scenario.runs):
        try:
            benches.append(run_once(scenario))
        except (OSError, AssertionError) as problem:
            print(f"  {str(problem).splitlines()[0]}")
            report.limit("  ended only by the time limit, runs", 1, 0)
            return
    for what in benches[0].slow:
        runs = [bench.slow[what] for bench in benches]
        medians = [
            statistics.median(run.get(one, SLOW_US / 1000) for run in runs) for one in set().union(*runs)
        ]
        report.limit(f"  {what}, ms", max(medians, default=SLOW_US / 1000), scenario.limit_ms)
    for what in benches[0].longest:
        tell(report, f"{what}, ms", [bench.longest[what] for bench in benches], scenario.limit_ms)
    for what, (_, limit) in benches[0].limited.items():
        tell(report, what, [bench.limited[what][0] for bench in benches], limit)
    for what in benches[0].other:
        print(f"  {what}: {spread([bench.other[what] for bench in benches])}")


def run_once(scenario: Scenario) -> Bench:
    ports = {"cluster_port": free_port()} if "cluster_enabled" in scenario.settings else {}
    with private_server(maxclients=20_000, **scenario.settings, **ports) as server:
        bench = Bench(server, Prober(server), server.raw())
        bench.control.socket.settimeout(COMMAND_LIMIT_S)
        try:
            scenario.run(bench)
        finally:
            bench.prober.close()
        return bench


def tell(report: Report, what: str, values: list[float], limit: float) -> None:
    ends = f"({min(values):.2f} to {max(values):.2f})"
    report.limit(f"  {what} {ends}", statistics.median(values), limit)


def run(description: str | None, scenarios: dict[str, Scenario]) -> int:
    """The program: all scenarios, or those that are named."""
    parser = arguments(description)
    parser.add_argument("--only", nargs="+", choices=scenarios, default=list(scenarios), help="scenarios")
    options = parser.parse_args()
    report = Report(options)
    with private_server() as server:
        report.server(server)
    for name in options.only:
        play(scenarios[name], report)
    return report.status()
