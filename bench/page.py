"""Writes docs/benchmarks.md, its charts and docs/benchmarks/tables.md from the figures kept in target/bench.

The page has the results, the other file all tables. Tables of different servers stand beside each other.
A chart shows the first figure of a table.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

from common import KEPT

PAGE = Path(__file__).resolve().parents[1] / "docs/benchmarks.md"
CHARTS = PAGE.with_suffix("")
TABLES = CHARTS / "tables.md"
CHARTED = ("pairs", "hand-off-64", "hand-off-2000")
PROGRAMS = {
    "instructions": (
        "Instructions and system calls",
        "What the server carries out for one operation, counted by callgrind and strace: other load does not "
        "change it. The kernel's instructions are not in it. What would take minutes under callgrind is left "
        "out.",
    ),
    "compare": (
        "CPU time and latency",
        "Ratios to the first line of each table, which took turns with the others on one server: the median "
        "of the rounds and their range. CPU time is the server's, the kernel's share included. The time of "
        "BLPOP on Valkey 9 grows with the square of the number that wait, without this module too: with 64 "
        "it is more than on Redis 7.0 already.",
    ),
    "persistence": (
        "Persistence and memory",
        "Ratios of locks to string keys with a ttl: the median of the rounds and their range. Times are CPU "
        "times of the process that does the work.",
    ),
}
CPU = "server CPU, "
# What the page quotes of the figures with a limit, by their table and what was measured.
RESULTS = {
    ("a fresh key taken and released", CPU + "LOCK, UNLOCK / SET NX PX, EVALSHA"): (
        "take and release a free lock, beside `SET NX PX` and a script that compares and deletes"
    ),
    ("a fresh key taken and released", CPU + "LOCK, UNLOCK / SET NX PX, DEL"): (
        "the same, beside `SET NX PX` and `DEL` without a comparison"
    ),
    ("a fresh key taken and released, append-only file", CPU + "LOCK, UNLOCK / SET NX PX, EVALSHA"): (
        "take and release a free lock, beside the script, with an append-only file"
    ),
    ("a read lock taken and released", CPU + "RLOCK, RUNLOCK / read lock in Lua"): (
        "take and release a read lock, beside a script"
    ),
    ("10 keys taken and released", CPU + "MLOCK, MUNLOCK of 10 keys / 10 keys in Lua"): (
        "take and release ten keys at once, beside a script"
    ),
    (
        "a hand-off, 8 locks at once, 64 contenders",
        CPU + "hand-off, NOTIFY, 64 on 8 locks / hand-off, BLPOP, LPUSH, 64 on 8 locks",
    ): "hand a lock to the next of 64 clients, beside a list with `BLPOP`, 8 locks at once",
    ("a hand-off between blocked clients", "p50, 10,000 waiting / 1 waiting"): (
        "the time of a hand-off with 10,000 waiting, beside 1 waiting"
    ),
    ("a hand-off by NOTIFY", CPU + "1,000,000 waiting / 10 waiting"): (
        "a hand-off with 1,000,000 waiting by NOTIFY, beside 10 waiting"
    ),
    ("1,000,000 locks beside as many strings", "bytes of memory, held"): (
        "memory of a million locks, beside as many strings with a ttl"
    ),
    ("1,000,000 locks beside as many strings", "CPU time, load"): (
        "load a snapshot of a million locks, beside as many strings"
    ),
}
COLOURS = ("#4878a8", "#d08a3c", "#6a9f58")
BAR, LABEL, WIDTH = 14, 260, 720

Kept = dict[str, dict]


def machine() -> str:
    cpu = next(
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")
    )
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (
        f"{os.cpu_count()} cores of {cpu.split(':')[1].strip()}, {pages >> 30} GB, Linux {platform.release()}"
    )


def said_by(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def paragraph(text: str) -> list[str]:
    return [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]


def markdown(rows: list[list[str]]) -> list[str]:
    head, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *rest, ""]


def tables(kept: Kept) -> list[dict]:
    """The tables of a program, each with its rows by server."""
    found: dict[str, dict] = {}
    for server, figures in kept.items():
        for table in figures["tables"]:
            of = found.setdefault(
                table["what"], {"what": table["what"], "only": table["only"], "servers": {}}
            )
            of["servers"][server] = table["rows"]
    return list(found.values())


def beside(servers: dict[str, list[dict[str, str]]]) -> list[list[str]]:
    """A table with the columns of all servers; the first columns that are words name the row."""
    names = list(next(iter(servers.values()))[0])
    words = [name for name in names if name in ("case", "locks / strings", "of")]
    figures = [name for name in names if name not in words]
    head = [*words, *(f"{figure}, {server}" for figure in figures for server in servers)]
    rows: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    for server, of_server in servers.items():
        for row in of_server:
            at = rows.setdefault(tuple(row[word] for word in words), {})
            at |= {(figure, server): row[figure] for figure in figures}
    return [head] + [
        [*key, *(row.get((figure, server), "") for figure in figures for server in servers)]
        for key, row in rows.items()
    ]


def chart(what: str, servers: dict[str, list[dict[str, str]]]) -> str:
    """Bars of the first figure, a bar for each server."""
    values: dict[str, list[tuple[str, str]]] = {}
    for colour, rows in zip(COLOURS, servers.values(), strict=False):
        for row in rows:
            case, figure = list(row.values())[:2]
            values.setdefault(case, []).append((colour, figure.split()[0]))
    most = max(float(text.replace(",", "")) for bars in values.values() for _, text in bars)
    parts, y = [], 34
    measure = list(next(iter(servers.values()))[0])[1]
    legend = "   ".join(f'<tspan fill="{c}">■ {s}</tspan>' for c, s in zip(COLOURS, servers, strict=False))
    parts.append(f'<text x="8" y="18" font-weight="bold">{what}: {measure}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="18" text-anchor="end">{legend}</text>')
    for case, bars in values.items():
        middle = y + len(bars) * BAR / 2 + 4
        parts.append(f'<text x="{LABEL - 8}" y="{middle:.0f}" text-anchor="end">{case}</text>')
        for colour, text in bars:
            width = float(text.replace(",", "")) / most * (WIDTH - LABEL - 70)
            bar = f'x="{LABEL}" y="{y}" width="{width:.0f}" height="{BAR - 2}"'
            parts.append(f'<rect {bar} fill="{colour}"/>')
            parts.append(f'<text x="{LABEL + width + 5:.0f}" y="{y + BAR - 4}">{text}</text>')
            y += BAR
        y += 6
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" font-family="sans-serif"'
    return "\n".join(
        [f'{head} font-size="12">', '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"]
    )


def command(program: str, only: str = "") -> str:
    return f"`.venv/bin/python bench/{program}.py{' --only ' + only if only else ''}`"


def section(program: str, kept: Kept) -> list[str]:
    title, intro = PROGRAMS[program]
    lines = [f"## {title}", "", *paragraph(intro)]
    for table in tables(kept):
        what = table["what"][0].upper() + table["what"][1:]
        lines += [f"### {what}" if table["only"] else f"{what}.", "", command(program, table["only"]), ""]
        if table["only"] in CHARTED and not table["what"].startswith("system calls"):
            file = CHARTS / f"{program}-{table['only']}.svg"
            file.write_text(chart(what, table["servers"]))
            lines += [f"![{what}]({file.name})", ""]
        lines += markdown(beside(table["servers"]))
    return lines


Bounds = dict[tuple[str, str, str, str], dict[str, str]]


def bounds(kept: dict[str, Kept]) -> tuple[list[str], Bounds]:
    """The servers, and by program, table, what was measured and limit its value on each of them."""
    rows: Bounds = {}
    servers: list[str] = []
    for program, of_program in kept.items():
        for server, figures in of_program.items():
            servers += [server] * (server not in servers)
            for limit in figures["limits"]:
                at = program, limit["table"], limit["what"], limit["bound"]
                rows.setdefault(at, {})[server] = limit["value"] if limit["kept"] else f"**{limit['value']}**"
    return servers, rows


def limits(servers: list[str], rows: Bounds) -> list[str]:
    return [
        "## Limits",
        "",
        "Each figure with a limit. In bold what does not keep it.",
        "",
        *markdown(
            [
                ["command", "of", "figure", "limit", *servers],
                *[
                    [command(program), table, what, bound, *(values.get(server, "") for server in servers)]
                    for (program, table, what, bound), values in rows.items()
                ],
            ]
        ),
    ]


def results(servers: list[str], rows: Bounds, about: list[list[str]]) -> list[str]:
    """The page. In bold what does not keep its limit; instructions are on the page of the tables only."""
    quoted = [
        [RESULTS[table, what], *(values.get(server, "") for server in servers)]
        for (program, table, what, _), values in rows.items()
        if program != "instructions" and (table, what) in RESULTS
    ]
    return [
        "# Benchmarks",
        "",
        *paragraph(
            "For those who ask what SLOCK costs. Written by `make bench`, which fails when a limit is "
            "passed. Only ratios mean anything on another machine. [All tables](benchmarks/tables.md) have"
            " the command that repeats each; [bench](../bench/README.md) says how to read them."
        ),
        *markdown([["", ""], *about]),
        "## Ratios",
        "",
        *paragraph(
            "The CPU time of the server for SLOCK, divided by that for the other way, unless a row says "
            "otherwise. Below 1, SLOCK costs less. In bold: the project's own limit is not kept."
        ),
        *markdown([["what", *servers], *quoted]),
        "![A fresh key taken and released](benchmarks/compare-pairs.svg)",
        "",
        "![A hand-off, one lock, 64 contenders](benchmarks/compare-hand-off-64.svg)",
        "",
        "## Turns",
        "",
        *paragraph(
            "48 clients want one lock, hold it for 10 ms and want it again, for 10 seconds "
            "(`bench/turns.py`, Redis 7.0.15). Each client of SLOCK had the lock 16 or 17 times. Of "
            "clients that polled with `SET NX PX` each 100 ms, the unluckiest never had it, and the "
            "luckiest 156 times."
        ),
        "![Turns of each client](pictures/turns.svg)",
        "",
    ]


def main() -> int:
    kept: dict[str, Kept] = {}
    files = sorted(KEPT.glob("*.json"))
    for file in files:
        figures = json.loads(file.read_text())
        kept.setdefault(figures["program"], {})[figures["server"]] = figures
    if missing := PROGRAMS.keys() - kept.keys():
        print(f"no figures of {', '.join(sorted(missing))}: the page stays as it is", file=sys.stderr)
        return 1
    CHARTS.mkdir(exist_ok=True)
    ordered = {program: kept.pop(program) for program in PROGRAMS} | kept
    date = datetime.date.fromtimestamp(max(file.stat().st_mtime for file in files))
    about = [
        ["date", str(date)],
        ["commit", said_by("git", "rev-parse", "--short", "HEAD")],
        ["servers", ", ".join(kept_server for kept_server in ordered["compare"])],
        ["machine", machine()],
        ["built and counted by", f"{said_by('rustc', '--version')}; {said_by('valgrind', '--version')}"],
    ]
    servers, rows = bounds(ordered)
    lines = [
        "# All tables",
        "",
        *paragraph(
            "For maintainers. Written by `make bench`; [benchmarks](../benchmarks.md) has the results. The"
            " command beside a table repeats it, with `SERVER=path` on another server; "
            "[bench](../../bench/README.md) says how to read it."
        ),
        *markdown([["", ""], *about]),
    ]
    for program in PROGRAMS:
        lines += section(program, ordered[program])
    lines += limits(servers, rows)
    write(TABLES, lines)
    write(PAGE, results(servers, rows, about))
    return 0


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines).rstrip("\n") + "\n")


if __name__ == "__main__":
    sys.exit(main())
