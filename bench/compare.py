"""The server's CPU time for locks and for what programs do without them, and how long a hand-off takes.

What is compared takes turns, round by round, on one server; a ratio is taken in each round, and its median
is what counts. The load generator plays, so no other program of the client is in a figure. Client and server
share one core, unless --cores all: else the figures depend on where the scheduler puts them.

`--before old.so` compares two builds of the module instead, by the module's own cases.
"""

from __future__ import annotations

import os
import statistics
import sys
from contextlib import ExitStack

from cases import CONTESTS, TTL_MS, Contest, blocked, pop
from common import Report, Server, ServerClock, arguments, private_server, ratio_spread
from harness.settings import module_path
from load import Case, Player, play_once

CONNECTIONS = 16
MANY_READERS, FEW_READERS = 100_000, 10
CROWD, FEW = 1_000_000, 10
CROWD_NAMES = 1000
ASK = f"SLOCK.LOCK {{key}} t{{number}} {TTL_MS} WAIT 0 NOTIFY bench {{number}}"
RELEASE = "SLOCK.UNLOCK {key} t{number}"
# An operation that takes longer is slow: BLPOP of Valkey 9 where thousands wait. So many are played then.
SLOW_S, SLOW_COUNT = 0.001, 20
# Beside one waiter or few readers; bytes of a waiter; CPU and time of a grant in a crowd.
MORE_WAITERS_LIMIT, MORE_READERS_LIMIT, BYTES_LIMIT, GRANT_LIMIT = 1.3, 1.3, 400, 1.5
# Of the module as it was.
BEFORE_LIMIT = 1.03

MEASURES = {"cpu_us": "server CPU", "p50_us": "p50", "p99_us": "p99", "wall_us": "time"}
Figures = dict[str, list[float]]


def play(players: dict[str, tuple[Server, Player]], count: int, rounds: int) -> dict[str, Figures]:
    """Microseconds an operation, by case, measure and round. A first round is to warm up; of what turns out
    to be very slow, fewer operations are played.
    """
    clocks = {name: ServerClock(server) for name, (server, _) in players.items()}
    figures: dict[str, Figures] = {name: {measure: [] for measure in MEASURES} for name in players}
    counts = {name: min(count, number_of_slow(player)) for name, (_, player) in players.items()}
    for number in range(-1, rounds):
        for name, (_, player) in players.items():
            before = clocks[name].read()
            told = player.play(counts[name])
            told["cpu_us"] = (clocks[name].read() - before) / told["count"]
            told["wall_us"] = told["seconds"] / told["count"] * 1e6
            for measure in MEASURES if number >= 0 else ():
                figures[name][measure].append(told[measure])
    for _, player in players.values():
        player.close()
    return figures


def number_of_slow(player: Player) -> int:
    """How many operations take a tenth of a second or so, if each is slow; else very many."""
    a_few = player.play(SLOW_COUNT)["seconds"] / SLOW_COUNT
    return SLOW_COUNT if a_few > SLOW_S else sys.maxsize


def ratios(own: Figures, other: Figures, measure: str) -> list[float]:
    return [mine / theirs for mine, theirs in zip(own[measure], other[measure], strict=True)]


def tell(
    report: Report, what: str, only: str, figures: dict[str, Figures], measures: tuple[str, ...]
) -> None:
    """A table with the ratios to the first case."""
    first = next(iter(figures.values()))
    rows = []
    for name, own in figures.items():
        print(f"  {name}: {statistics.median(own['cpu_us']):.2f} microseconds of server CPU")
        spreads = {
            MEASURES[m]: ratio_spread(ratios(own, first, m)) if own is not first else "1" for m in measures
        }
        rows.append({"case": name, **spreads})
    report.table(what, only, rows)


def player(server: Server, case: Case) -> Player:
    several = ("--connections", CONNECTIONS) if case.way == "pairs" else ()
    return Player(server, case.with_options(*several))


def contest(report: Report, name: str, of: Contest, rounds: int) -> None:
    servers: dict[str, Server] = {}
    players: dict[str, tuple[Server, Player]] = {}
    with ExitStack() as stack:
        for case in of.cases:
            if case.beside not in servers:
                settings = {**case.settings, **of.settings}
                servers[case.beside] = stack.enter_context(private_server(**settings))
            server = servers[case.beside]
            if case.is_known_to(server):
                players[case.name] = server, player(server, case)
        report.server(server)
        figures = play(players, of.count, rounds)
    lone = of.cases[0].way == "ring" and len(of.cases) == 3
    tell(report, of.what, name, figures, ("cpu_us", "p50_us", "p99_us") if lone else ("cpu_us", "wall_us"))
    for ratio in of.ratios:
        if ratio.other.name in figures:
            values = ratios(figures[ratio.own.name], figures[ratio.other.name], "cpu_us")
            what = f"server CPU, {ratio.own.name} / {ratio.other.name}"
            if of.cpu_more is None:
                print(f"  {what}: {ratio_spread(values)}")
            else:
                report.limit(f"  {what}", statistics.median(values), round(ratio.limit + of.cpu_more, 2))


def before(report: Report, of: Contest, rounds: int, module: str) -> None:
    """The module's own cases on servers with this build of it and with another, in turns."""
    builds, own = {"before": module, "now": str(module_path())}, [case for case in of.cases if case.is_own]
    players: dict[str, tuple[Server, Player]] = {}
    with ExitStack() as stack:
        for case in own:
            for build, path in builds.items():
                os.environ["SLOCK_MODULE"] = path
                server = stack.enter_context(private_server(**case.settings, **of.settings))
                players[f"{case.name}, {build}"] = server, player(server, case)
        os.environ["SLOCK_MODULE"] = builds["now"]
        figures = play(players, of.count, rounds)
    print(f"{of.what}:")
    for case in own:
        values = ratios(figures[f"{case.name}, now"], figures[f"{case.name}, before"], "cpu_us")
        report.limit(f"  server CPU, {case.name}, now / before", statistics.median(values), BEFORE_LIMIT)


def waiters(report: Report, rounds: int) -> None:
    """A hand-off where one waits, where a hundred do, and where ten thousand do.

    BLPOP, the server's own way, shows how much of that comes from the number of clients alone. Where many
    wait, its time grows with the square of their number, and says nothing.
    """
    cases = {f"{more:,} waiting": blocked(more + 1) for more in (1, 100, 10_000)}
    others = {f"BLPOP, {more:,} waiting": pop(more + 1) for more in (1, 100)}
    with private_server(maxclients=11_000) as server:
        report.server(server)
        players = {what: (server, Player(server, case)) for what, case in (cases | others).items()}
        figures = play(players, 2000, rounds)
    measures = ("cpu_us", "p50_us", "p99_us")
    own, theirs = ({what: figures[what] for what in some} for some in (cases, others))
    tell(report, "a hand-off between blocked clients", "waiters", own, measures)
    tell(report, "a hand-off by BLPOP", "waiters", theirs, measures)
    one, *more = own
    for what in more:
        for measure in measures:
            value = statistics.median(ratios(figures[what], figures[one], measure))
            report.limit(f"  {MEASURES[measure]}, {what} / {one}", value, MORE_WAITERS_LIMIT)


def readers(report: Report, rounds: int) -> None:
    """RLOCK and RUNLOCK of a lock with few readers, and of one with very many."""
    with private_server() as server:
        report.server(server)
        players = {}
        for count in (FEW_READERS, MANY_READERS):
            key = f"read-by-{count}"
            fill = Case("fill", f"SLOCK.RLOCK {key} resident-{{token}} {{ttl}}", options=("--pipeline", 1000))
            play_once(server, fill, count)
            visit = Case("visit", f"SLOCK.RLOCK {key} {{token}} {{ttl}} / SLOCK.RUNLOCK {key} {{token}}")
            players[f"{count:,} readers"] = server, Player(server, visit)
        figures = play(players, 8000, rounds)
    tell(report, "RLOCK and RUNLOCK", "readers", figures, ("cpu_us", "wall_us"))
    few, many = figures
    value = statistics.median(ratios(figures[many], figures[few], "cpu_us"))
    report.limit(f"  server CPU, {many} / {few}", value, MORE_READERS_LIMIT)


def crowd(report: Report, rounds: int) -> None:
    """Hand-offs by NOTIFY, over one connection, where a million wait, and where few wait."""
    players: dict[str, tuple[Server, Player]] = {}
    with ExitStack() as servers:
        for count, names in ((FEW, 1), (CROWD, CROWD_NAMES)):
            server = servers.enter_context(private_server(slock_max_waiters=2 * CROWD))
            before = server.client().info("memory")["used_memory"]
            ways = ("--contenders", count + names, "--locks", names)
            case = Case("crowd", f"{ASK} / {RELEASE}", "notify", ways)
            players[f"{count:,} waiting"] = server, Player(server, case)
            grown = server.client().info("memory")["used_memory"] - before
        report.server(server)
        figures = play(players, 5000, rounds)
    tell(report, "a hand-off by NOTIFY", "crowd", figures, ("cpu_us", "p50_us", "p99_us"))
    few, many = figures
    report.limit(f"  bytes a waiter, {many}", grown / CROWD, BYTES_LIMIT)
    for measure in ("cpu_us", "wall_us"):
        value = statistics.median(ratios(figures[many], figures[few], measure))
        report.limit(f"  {MEASURES[measure]}, {many} / {few}", value, GRANT_LIMIT)


MORE = {"waiters": waiters, "readers": readers, "crowd": crowd}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=[*CONTESTS, *MORE])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cores", choices=("one", "all"), default="one", help="where client and server run")
    parser.add_argument(
        "--before", metavar="old.so", help="another build of the module, to compare with this one"
    )
    options = parser.parse_args()
    names = options.only or [*CONTESTS, *([] if options.before else MORE)]
    if options.before and not CONTESTS.keys() >= set(names):
        parser.error(f"--before compares these: {', '.join(CONTESTS)}")
    report = Report(options)
    if options.cores == "one":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of those that are started later, too
    for name in names:
        if options.before:
            before(report, CONTESTS[name], options.rounds, options.before)
        elif name in MORE:
            MORE[name](report, options.rounds)
        else:
            contest(report, name, CONTESTS[name], options.rounds)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
