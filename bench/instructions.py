"""How many instructions and system calls the server needs for an operation, whatever else the machine does.

Each case is played twice, once longer, on a new server each time; the difference counts, so that start and
end do not. Work that goes by time is taken off (see counts.py). What remains of chance, some 1.5 % either
way, is above all the seed of the server's hashes, by which more or fewer names have to be compared: of a
few rounds the least counts.

instructions.json keeps the counts, for each version of a server: --compare fails when a case takes 2 %
more, --write keeps new ones, each the middle one of five rounds. Builds of the module are compared by
naming them: `--module old.so new.so`.
--where shows which functions take most, and what module and server call of each other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from pathlib import Path

from cases import CONTESTS, Contest
from common import Report, arguments, name_of, private_server
from counts import CALLGRIND, STRACE, calls, difference, functions, run_under, system_calls
from harness.settings import module_path
from load import Case, play_once

TABLE = Path(__file__).with_suffix(".json")
MORE = 1.02
ROUNDS_KEPT = 5
SHORT, LONG = 500, 2500
# BLPOP of Valkey 9 where thousands wait takes so long.
SLOW_S, SLOW_COUNT = 0.001, 20
READS, WRITES = ("read", "readv", "recvfrom"), ("write", "writev", "sendto")
Counted = dict[tuple[str, str], float]


def callgrind(module: str, case: Case, contest: Contest) -> tuple[list[str], list[str]]:
    few, many = (run_under(CALLGRIND, module, case, n, contest.settings) for n in (SHORT, LONG))
    return few, many


def instructions(module: str, case: Case, contest: Contest) -> Counted:
    few, many = (functions(lines) for lines in callgrind(module, case, contest))
    return difference(few, many, LONG - SHORT)


def is_countable(case: Case, contest: Contest) -> bool:
    """False where an operation is so slow that it would take minutes under callgrind."""
    with private_server(**contest.settings) as server:
        return play_once(server, case, SLOW_COUNT)["seconds"] / SLOW_COUNT < SLOW_S


def in_order(module: str, case: Case, contest: Contest, rounds: int) -> list[Counted]:
    """What the rounds counted, the least first."""
    return sorted((instructions(module, case, contest) for _ in range(rounds)), key=total)


def least(module: str, case: Case, contest: Contest, rounds: int) -> Counted:
    return in_order(module, case, contest, max(rounds, contest.rounds))[0]


def total(counted: Counted) -> float:
    return sum(counted.values())


def own(counted: Counted) -> float:
    """Those of the module itself."""
    return sum(count for (file, _), count in counted.items() if file.startswith("libslock"))


def tell_where(module: str, case: Case, contest: Contest, most: int) -> None:
    """Instructions by file, and of the functions that take most, each without what it calls.

    Then what the module calls of the server, and the server of the module, with all that this calls.
    """
    lines = callgrind(module, case, contest)
    counted = difference(functions(lines[0]), functions(lines[1]), LONG - SHORT)
    few, many = (calls(file, Path(module).name) for file in lines)
    between = difference(few, many, LONG - SHORT)
    files: Counter[str] = Counter()
    for (file, _), count in counted.items():
        files[file] += count
    print(f"{case.name}: {total(counted):,.0f} instructions")
    for file, count in files.most_common():
        if round(count):
            print(f"  {count:10,.0f} {file}")
    for title, those in ("alone", counted), ("with what it calls", between):
        print(f"  {title}:")
        for (file, name), count in Counter(those).most_common(most):
            print(f"    {count:8,.0f} {file} {name}")


def count_calls(report: Report, module: str, name: str, contest: Contest, cases: list[Case]) -> None:
    """System calls of a hand-off."""
    rows = []
    for case in cases:
        few, many = (
            system_calls(run_under(STRACE, module, case, n, contest.settings)) for n in (SHORT, LONG)
        )
        calls = difference(few, many, LONG - SHORT)
        row = {"reads": READS, "writes": WRITES, "sleeps": ("epoll_wait", "epoll_pwait")}
        rows.append(
            {"case": case.name}
            | {what: f"{sum(calls.get(n, 0) for n in names):.2f}" for what, names in row.items()}
        )
    report.table(f"system calls of {contest.what}", name, rows)


def kept() -> dict[str, dict[str, dict[str, int]]]:
    """Instructions by server, contest and case."""
    return json.loads(TABLE.read_text()) if TABLE.exists() else {}


class Count:
    """Counts the cases of contests on one server, beside what is kept of it."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.options, self.report = options, report
        with private_server() as server:
            report.server(server)
            self.server = name_of(server.client().info("server"))
            self.of_server = kept().get(self.server, {})
            cases = [case for contest in CONTESTS.values() for case in contest.cases]
            self.known = {case.name for case in cases if case.is_known_to(server)}
        self.exceeded: list[str] = []

    def cases(self, contest: Contest) -> list[Case]:
        """Those that this server knows, and that do not take minutes."""
        asked = [case for case in contest.cases if case.is_own or not self.options.own]
        known = [case for case in asked if case.name in self.known]
        return [case for case in known if case.way == "pairs" or is_countable(case, contest)]

    def contest(self, name: str) -> None:
        contest, (module, *others) = CONTESTS[name], self.options.module
        cases, before = self.cases(contest), self.of_server.setdefault(name, {})
        counted = {case.name: self.case(module, case, contest, before.get(case.name)) for case in cases}
        counts = {case: total(functions) for case, functions in counted.items()}
        first = counts.get(contest.cases[0].name)
        rows = []
        for case in cases:
            count, was = counts[case.name], before.get(case.name)
            row = {"case": case.name, "instructions": f"{count:,.0f}"}
            row["in the module"] = f"{own(counted[case.name]):,.0f}"
            row["ratio to the first"] = f"{count / first:.2f}" if first else ""
            if self.options.compare:
                row["more than kept"] = f"{count / was - 1:+.1%}" if was else "not kept"
            for other in others:
                row[Path(other).name] = f"{total(least(other, case, contest, self.options.rounds)):,.0f}"
            rows.append(row)
        self.report.table(contest.what, name, rows)
        for ratio in contest.ratios:
            if {ratio.own.name, ratio.other.name} <= counts.keys():
                what = f"  instructions, {ratio.own.name} / {ratio.other.name}"
                self.report.limit(what, counts[ratio.own.name] / counts[ratio.other.name], ratio.limit)
        if contest.cases[0].way == "ring" and shutil.which("strace") and not self.options.compare:
            count_calls(self.report, module, name, contest, cases)
        before.update({case: round(count) for case, count in counts.items()})

    def case(self, module: str, case: Case, contest: Contest, was: int | None) -> Counted:
        if self.options.write:
            return in_order(module, case, contest, ROUNDS_KEPT)[ROUNDS_KEPT // 2]
        counted = least(module, case, contest, self.options.rounds)
        if self.options.compare and was and total(counted) > MORE * was:
            counted = least(module, case, contest, 3)  # one round may have been by chance
            if total(counted) > MORE * was:
                self.exceeded.append(f"{contest.what}: {case.name}")
        return counted


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--module", nargs="+", default=[str(module_path())], help="builds of the module")
    parser.add_argument("--only", nargs="+", choices=CONTESTS, default=list(CONTESTS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--own", action="store_true", help="without the competitors")
    parser.add_argument("--compare", action="store_true", help="fail when a case takes more than is kept")
    parser.add_argument("--write", action="store_true", help="keep what was counted")
    parser.add_argument("--where", type=int, default=0, help="show as many functions instead")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("valgrind is not installed: nothing is counted")
        return 0
    report = Report(options)
    count = Count(options, report)
    for name in options.only:
        if options.where:
            for case in count.cases(CONTESTS[name]):
                tell_where(options.module[0], case, CONTESTS[name], options.where)
        else:
            count.contest(name)
    if options.write:
        TABLE.write_text(
            json.dumps(kept() | {count.server: count.of_server}, indent=1, sort_keys=True) + "\n"
        )
        print("docs/scale.md is computed from this: run bench/scale.py")
    for what in count.exceeded:
        print(f"{what}: more instructions than {TABLE.name} allows; if that is meant, --own --write")
    return 1 if count.exceeded else report.status()


if __name__ == "__main__":
    sys.exit(main())
