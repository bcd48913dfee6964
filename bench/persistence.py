"""What it costs to save, load, rewrite and replay very many locks, beside as many string keys with a ttl.

Locks and strings take turns, each on a new server in each round. Times are CPU times of the process that does
the work, so that neither the disk nor other programs count much. `--instructions` counts those of SAVE
for a key instead, in all and in the module.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

from cases import TTL_MS
from common import Report, Server, ServerClock, arguments, private_server, ratio_spread, wait_until
from counts import CALLGRIND, difference, functions, run_under
from harness.settings import module_path
from load import Case, play_once

# A million keys take longer than a test's.
START_LIMIT_S = 300.0
# By what is measured.
LIMITS = {"CPU time": 1.3, "bytes": 1.2, "bytes of memory": 1.25}
FILLED = ("--pipeline", 1000)
KINDS = {
    "strings": Case("strings", f"SET {{key}} {{token}} NX PX {TTL_MS}", options=FILLED),
    "locks": Case("locks", f"SLOCK.LOCK {{key}} {{token}} {TTL_MS}", options=FILLED),
}
# By operation and what was measured: seconds of CPU, or bytes.
Figures = dict[tuple[str, str], float]


class Run:
    """One kind of keys on a new server."""

    def __init__(self, server: Server, kind: Case, keys: int) -> None:
        self.server, self.keys = server, keys
        self.figures: Figures = {}
        before = server.client().info("memory")["used_memory"]
        play_once(server, kind, keys)
        self.figures["held", "bytes of memory"] = server.client().info("memory")["used_memory"] - before

    def note(self, what: str, cpu_s: float, files: str = "") -> None:
        self.figures[what, "CPU time"] = cpu_s
        if files:
            found = self.server.directory.glob(files)
            self.figures[what, "bytes"] = sum(path.stat().st_size for path in found)

    def save(self) -> None:
        clock = ServerClock(self.server)
        before = clock.read()
        self.server.client().save()
        self.note("SAVE", (clock.read() - before) / 1e6, "dump.rdb")

    def rewrite(self, what: str, preamble: str) -> None:
        """The child process writes the log anew."""
        control = self.server.client()
        control.config_set("aof-use-rdb-preamble", preamble)

        def of_children() -> float:
            cpu = control.info("cpu")
            return cpu["used_cpu_user_children"] + cpu["used_cpu_sys_children"]

        def is_written() -> bool:
            return of_children() > before and not control.info("persistence")["aof_rewrite_in_progress"]

        before = of_children()
        control.bgrewriteaof()
        wait_until(is_written, START_LIMIT_S, "the log to be written anew")
        self.note(what, of_children() - before, "appendonlydir/*.base.*")

    def start(self, what: str, files: str = "", **settings: object) -> None:
        """The server begins anew and loads its data."""
        self.server.restart(**settings)
        if (found := self.server.client().dbsize()) != self.keys:
            raise SystemExit(f"{found} of {self.keys} keys were loaded")
        self.note(what, ServerClock(self.server).read() / 1e6, files)


def play(kind: Case, keys: int) -> Figures:
    with private_server(appendonly=True, auto_aof_rewrite_percentage=0) as server:
        run = Run(server, kind, keys)
        run.save()
        run.start("replay of the log", "appendonlydir/*.incr.*")
        run.rewrite("rewrite, RDB preamble", "yes")
        run.rewrite("rewrite, commands", "no")
        run.start("replay of the rewritten commands")
        run.start("load", appendonly=False)
        return run.figures


def save(server: Server, times: int) -> None:
    for _ in range(times):
        server.client().save()


def count_saves(keys: int) -> None:
    """Of three times SAVE less those of one."""
    for kind, case in KINDS.items():
        few, many = (
            run_under(CALLGRIND, str(module_path()), case, keys, {}, partial(save, times=times))
            for times in (1, 3)
        )
        counted = difference(functions(few), functions(many), 2 * keys)
        own = sum(count for (file, _), count in counted.items() if file.startswith("libslock"))
        print(f"SAVE of {kind}: {sum(counted.values()):,.0f} instructions a key, {own:,.0f} in the module")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--instructions", action="store_true", help="count those of SAVE by callgrind, and end"
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.instructions:
        count_saves(min(options.keys, 20_000))
        return 0
    report = Report(options)
    Server.start_limit_s = START_LIMIT_S
    with private_server() as server:
        report.server(server)
    rounds = [{kind: play(case, options.keys) for kind, case in KINDS.items()} for _ in range(options.rounds)]
    ratios = {at: [r["locks"][at] / r["strings"][at] for r in rounds] for at in rounds[0]["locks"]}
    rows = [
        {"locks / strings": what, "of": measure, "ratio": ratio_spread(values)}
        for (what, measure), values in ratios.items()
    ]
    report.table(f"{options.keys:,} locks beside as many strings", "", rows)
    for (what, measure), values in ratios.items():
        report.limit(f"  {measure}, {what}", statistics.median(values), LIMITS[measure])
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
