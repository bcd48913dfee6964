"""What servers and clusters carry, computed from counts of this repository: the tables of docs/scale.md.

The counts are in bench/instructions.json, docs/benchmarks/tables.md (system calls) and docs/operating.md
(bytes). --measure measures what an instruction and a system call take. --run plays pairs on a server and on
the three shards of a cluster, which take turns. Both keep what they find in bench/scale.json.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path

from common import Pipe, Server, ServerClock, encode_command, private_server, require
from harness.cluster import SLOTS, Cluster, key_slot
from harness.settings import module_path
from page import machine

ROOT = Path(__file__).resolve().parents[1]
PAGE, KEPT = ROOT / "docs/scale.md", ROOT / "bench/scale.json"
TABLES, OPERATING = ROOT / "docs/benchmarks/tables.md", ROOT / "docs/operating.md"
SERVER = "Redis 7.0.15"
SHARDS = (1, 3, 30, 300)
# What the page counts on: a part of a core's time, and of a server's memory.
LOAD, MEMORY = 0.5, 10e9
# The greatest value of slock.max-waiters.
MOST_WAITERS = 10_000_000
TTL_MS = 3_600_000
# Of a run: rounds, and pairs in each.
ROUNDS, PAIRS, IN_A_PIPELINE = 15, 4000, 200


# --- what is known


def instructions() -> dict[str, int]:
    counted = json.loads((ROOT / "bench/instructions.json").read_text())[SERVER]
    without_log = [cases for contest, cases in counted.items() if not contest.endswith("-aof")]
    return {case: number for cases in without_log for case, number in cases.items()}


def system_calls() -> dict[str, float]:
    """Reads of an operation by case; there are as many writes."""
    found = {}
    text = TABLES.read_text()
    for table in re.split(r"^### ", text, flags=re.MULTILINE):
        if table.startswith("System calls") and "append-only" not in table.split("\n")[0]:
            for case, reads in re.findall(r"^\| (hand-off[^|]*) \| ([\d.]+) \|", table, re.MULTILINE):
                found[case] = float(reads)
    return found


def bytes_of() -> dict[str, int]:
    """Bytes by what takes them, as docs/operating.md has them."""
    text = " ".join(OPERATING.read_text().split())
    patterns = {
        "lock": r"A held lock with short names takes about (\d+) bytes",
        "reader": r"each further reader of many about (\d+)\.",
        "waiter": r"\| all wait for one lock \| (\d+) bytes \|",
        "connection": r"A request without `NOTIFY` takes (\d+) kB more",
    }
    found = {name: int(re.search(pattern, text)[1]) for name, pattern in patterns.items()}
    return {**found, "connection": found["connection"] * 1000}


# --- what follows


class Model:
    """The server's time for each operation, in microseconds."""

    def __init__(self) -> None:
        kept = json.loads(KEPT.read_text())
        self.machine, self.run = kept["machine"], kept.get("run", [])
        self.instruction = kept["ns_per_instruction"] / 1000
        self.trip = kept["us_per_read_and_write"]
        counted, reads = instructions(), system_calls()

        def operation(case: str, trips: float) -> tuple[int, float, float]:
            return counted[case], trips, counted[case] * self.instruction + trips * self.trip

        self.operations = {
            "take and release a free lock, in a pipeline": operation("LOCK, UNLOCK", 0),
            "take and release a free lock, one command at a time": operation("LOCK, UNLOCK", 2),
            "take and release a read lock, one command at a time": operation("RLOCK, RUNLOCK", 2),
            "take and release ten keys, one command at a time": operation("MLOCK, MUNLOCK of 10 keys", 2),
            **{
                name: operation(case, reads[case])
                for name, case in {
                    "hand over one lock that 64 clients want, `NOTIFY`": "hand-off, NOTIFY, 64",
                    "hand over one lock that 2,000 clients want, `NOTIFY`": "hand-off, NOTIFY, 2,000",
                    "hand over each of 8 locks at once, `NOTIFY`": "hand-off, NOTIFY, 64 on 8 locks",
                    "hand over one lock that 64 clients want, `WAIT`": "hand-off, blocked clients, 64",
                }.items()
            },
        }

    def rate(self, operation: str) -> float:
        """Operations a second of one core."""
        return 1e6 / self.operations[operation][2]


PAIR = "take and release a free lock, one command at a time"
READ = "take and release a read lock, one command at a time"
ONE, MANY = "hand over one lock that 64 clients want, `NOTIFY`", "hand over each of 8 locks at once, `NOTIFY`"


def rounded(number: float) -> str:
    """Two digits; more would claim too much."""
    digits = len(str(int(number))) - 2
    number = round(number, -digits) if digits > 0 else number
    for unit, name in ((1e9, " billion"), (1e6, " million")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return f"{number:,.0f}"


def core(model: Model) -> list[list[str]]:
    rows = [["one operation", "instructions", "reads and writes", "microseconds", "a second, one core"]]
    for name, (count, trips, time_us) in model.operations.items():
        rows.append([name, f"{count:,}", f"{trips:.2g}", f"{time_us:.1f}", rounded(model.rate(name))])
    return rows


def shards(model: Model) -> list[list[str]]:
    sizes = bytes_of()
    rows = [["what", *(f"{count} {'shard' if count == 1 else 'shards'}" for count in SHARDS)]]
    memory = {
        "locks held": sizes["lock"],
        "readers of locks": sizes["reader"],
        "requests that wait, `NOTIFY`": sizes["waiter"],
        "requests that wait, a connection each": sizes["waiter"] + sizes["connection"],
    }
    for what, size in memory.items():
        each = min(MEMORY / size, MOST_WAITERS if "wait" in what else math.inf)
        rows.append([what, *(rounded(count * each) for count in SHARDS)])
    times = {
        "locks taken and released, a second": PAIR,
        "read locks taken and released, a second": READ,
        "hand-offs of many locks, a second": MANY,
    }
    for what, operation in times.items():
        rows.append([what, *(rounded(count * LOAD * model.rate(operation)) for count in SHARDS)])
    rows.append(["hand-offs of one lock, a second", *[rounded(LOAD * model.rate(ONE))] * len(SHARDS)])
    return rows


def failover(model: Model) -> list[list[str]]:
    waiting = 100_000
    again = model.operations[ONE][2] * waiting / 1e6
    rows = [["of a failover of one shard", *(f"{count} shards" for count in SHARDS[1:])]]
    rows.append(["part of the locks that it concerns", *(f"{100 / count:.2g} %" for count in SHARDS[1:])])
    each = [rounded(waiting / count) for count in SHARDS[1:]]
    rows.append([f"of {waiting:,} waiting requests, sent again", *each])
    rows.append(
        ["time of the new primary for these, at most", *(f"{1000 * again / n:,.0f} ms" for n in SHARDS[1:])]
    )
    return rows


def checked(model: Model) -> list[list[str]]:
    """What a pair was computed to take beside what it took, in microseconds."""
    rows = [["a pair, microseconds of the server's core", "in a pipeline", "one command at a time"]]
    computed = [model.operations[name][2] for name in list(model.operations)[:2]]
    names = ["computed", "one server", "shard 1 of 3", "shard 2 of 3", "shard 3 of 3"]
    for name, times in zip(names, [computed, *model.run], strict=True):
        rows.append([name, *(f"{time_us:.1f}" for time_us in times)])
    together, alone = sum(1 / single for _, single in model.run[1:]), 1 / model.run[0][1]
    return [*rows, ["three shards, each with a core, carry", "", f"{together / alone:.1f} times one server"]]


def markdown(rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def with_tables(text: str) -> str:
    """The page with its tables as they are computed."""
    model = Model()
    parts = {
        "core": markdown(core(model)),
        "shards": markdown(shards(model)),
        "failover": markdown(failover(model)),
        "checked": markdown(checked(model)),
        "rates": f"An instruction took {model.instruction * 1000:.2f} ns, and a read and a write together "
        f"{model.trip:.1f} microseconds,\non {model.machine}.",
    }
    for name, part in parts.items():
        begin, end = f"<!-- {name} -->", "<!-- end -->"
        pattern = re.compile(f"({re.escape(begin)}\n).*?({re.escape(end)})", re.DOTALL)
        text, count = pattern.subn(lambda found, part=part: f"{found[1]}{part}\n{found[2]}", text)
        if count != 1:
            sys.exit(f"{PAGE.name} has no place for {name}")
    return text


# --- what a server takes


def in_slots(server: Server, first: int, last: int) -> str:
    """A hash tag of these slots."""
    return next(tag for n in range(10**6) if first <= key_slot(server, tag := f"{{{n}}}") <= last)


class Player:
    """Plays on one server, and says how much of its CPU time an operation took, in microseconds."""

    def __init__(self, server: Server, tag: str) -> None:
        self.pipe, self.clock, self.rates = Pipe(server), ServerClock(server), {}
        keys = [f"{tag}:{number}" for number in range(PAIRS)]
        takes = [encode_command("SLOCK.LOCK", key, "owner", TTL_MS) for key in keys]
        releases = [encode_command("SLOCK.UNLOCK", key, "owner") for key in keys]
        self.commands = [command for pair in zip(takes, releases, strict=True) for command in pair]

    def play(self, at_once: int) -> float:
        start = self.clock.read()
        for begin in range(0, len(self.commands), at_once):
            self.pipe.exchange(self.commands[begin : begin + at_once])
        return (self.clock.read() - start) / PAIRS

    def close(self) -> None:
        self.pipe.close()


def turns(players: list[Player]) -> list[tuple[float, float]]:
    """Each player's times of a pair, the least of the rounds: in a pipeline, and one command at a time."""
    measured: list[list[tuple[float, float]]] = [[] for _ in players]
    for _ in range(ROUNDS):
        for player, times in zip(players, measured, strict=True):
            times.append((player.play(2 * IN_A_PIPELINE), player.play(1)))
    return [tuple(min(column) for column in zip(*times, strict=True)) for times in measured]


def measure() -> None:
    with private_server() as server:
        ((pipelined, single),) = turns([Player(server, "key")])
    keep(
        machine=machine(),
        ns_per_instruction=round(pipelined * 1000 / instructions()["LOCK, UNLOCK"], 3),
        us_per_read_and_write=round((single - pipelined) / 2, 2),
    )
    print(KEPT.read_text(), end="")


def keep(**figures: object) -> None:
    before = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    KEPT.write_text(json.dumps({**before, **figures}) + "\n")


def run() -> None:
    """A server and the three shards of a cluster, each with the same load, in turns."""
    require(module_path(), "make module")
    cluster = Cluster(3)
    try:
        cluster.start()
        with private_server() as server:
            thirds = [(SLOTS * n // 3, SLOTS * (n + 1) // 3 - 1) for n in range(3)]
            tags = [in_slots(cluster.nodes[0], *third) for third in thirds]
            players = [Player(server, "key"), *map(Player, cluster.nodes, tags)]
            times = turns(players)
    finally:
        for node in cluster.nodes:
            node.discard()
    keep(run=[[round(time_us, 1) for time_us in times_of] for times_of in times])
    for row in checked(Model()):
        print("  ".join(f"{cell:<24}" for cell in row))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true", help="measure what an instruction and a call take")
    parser.add_argument("--run", action="store_true", help="compare with one server and with three shards")
    options = parser.parse_args()
    if options.measure:
        measure()
    if options.run:
        run()
    PAGE.write_text(with_tables(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
