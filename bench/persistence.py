"""What it costs to save, load, rewrite and replay very many locks, beside as many string keys with a ttl.

Locks and strings take turns, each on a new server in each round. Times are CPU times of the process that does
the work, so that neither the disk nor other programs count much.
"""

from __future__ import annotations

import statistics
import sys

from cases import TTL_MS
from common import Report, Server, ServerClock, arguments, private_server, ratio_spread, wait_until
from load import Case, play_once

LIMIT_TIME, LIMIT_BYTES = 1.3, 1.2
FILLED = ("--pipeline", 1000)
KINDS = {
    "strings": Case("strings", f"SET {{key}} {{token}} NX PX {TTL_MS}", options=FILLED),
    "locks": Case("locks", f"SLOCK.LOCK {{key}} {{token}} {TTL_MS}", options=FILLED),
}
# By operation: seconds of CPU, and bytes where a file was written.
Figures = dict[str, tuple[float, int]]


def size(server: Server, names: str) -> int:
    return sum(path.stat().st_size for path in server.directory.glob(names))


def rewrite(server: Server, preamble: str) -> tuple[float, int]:
    """The CPU time of the child that writes the log anew, and how long the log is then."""
    control = server.client()
    control.config_set("aof-use-rdb-preamble", preamble)

    def of_children() -> float:
        cpu = control.info("cpu")
        return cpu["used_cpu_user_children"] + cpu["used_cpu_sys_children"]

    before = of_children()
    control.bgrewriteaof()
    wait_until(lambda: of_children() > before, 120, "the log to be written anew")
    wait_until(lambda: not control.info("persistence")["aof_rewrite_in_progress"], 120, "the rewrite to end")
    return of_children() - before, size(server, "appendonlydir/*.base.*")


def started(server: Server, keys: int) -> float:
    """The CPU time of a server that has just loaded its data."""
    if server.client().dbsize() != keys:
        raise SystemExit(f"{server.client().dbsize()} of {keys} keys were loaded")
    return ServerClock(server).read() / 1e6


def play(kind: Case, keys: int) -> Figures:
    settings = {"appendonly": True, "auto_aof_rewrite_percentage": 0}
    with private_server(**settings) as server:
        play_once(server, kind, keys)
        figures: Figures = {}
        clock = ServerClock(server)
        before = clock.read()
        server.client().save()
        figures["SAVE"] = (clock.read() - before) / 1e6, size(server, "dump.rdb")
        written = size(server, "appendonlydir/*.incr.*")
        server.restart()
        figures["replay of the log"] = started(server, keys), written
        figures["rewrite, RDB preamble"] = rewrite(server, "yes")
        figures["rewrite, commands"] = rewrite(server, "no")
        server.restart()
        figures["replay of the rewritten commands"] = started(server, keys), 0
        server.restart(appendonly=False)
        figures["load"] = started(server, keys), 0
        return figures


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report = Report(options)
    with private_server() as server:
        report.server(server)
    rounds = [{kind: play(case, options.keys) for kind, case in KINDS.items()} for _ in range(options.rounds)]
    rows, medians = [], []
    for what, (_, wrote) in rounds[0]["locks"].items():
        ratios = [
            [figures["locks"][what][at] / figures["strings"][what][at] for figures in rounds]
            for at in ((0, 1) if wrote else (0,))
        ]
        medians.append((what, *map(statistics.median, ratios)))
        told = [ratio_spread(values) for values in ratios]
        rows.append({"locks / strings": what, "CPU time": told[0], "bytes": told[1] if wrote else ""})
    report.table(f"{options.keys:,} keys", "", rows)
    for what, time, *sizes in medians:
        report.limit(f"  CPU time, {what}", time, LIMIT_TIME)
        for bytes_ in sizes:
            report.limit(f"  bytes, {what}", bytes_, LIMIT_BYTES)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
