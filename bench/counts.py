"""Counts by a tool that the server runs under: instructions by callgrind, system calls by strace."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from common import Server, private_server, wait_until
from harness.settings import server_binary
from load import Case, play_once

SERVER = server_binary()
# Work that goes by time counts too much in a server that runs fifty times slower. In the server's cron
# nothing is counted; and what the module takes to read INFO elsewhere, now and then, is taken off.
BY_TIME = ("RM_GetServerInfo", "VM_GetServerInfo")
# A name in callgrind's file: what it names, its number, and, where it stands for the first time, the name.
NAME = re.compile(r"(fn|ob|cfn|cob)=(\(\d+\))(?: (.+))?")

CALLGRIND = (
    "valgrind --tool=callgrind --trace-children=yes --toggle-collect=serverCron --collect-atstart=yes"
    " --callgrind-out-file={out}"
)
# The server is the child, and strace a process beside it, which writes when the server has ended.
STRACE = "strace -D -f -c -o {out}"


def run_under(
    tool: str,
    module: str,
    case: Case,
    count: int,
    settings: dict[str, object],
    then: Callable[[Server], object] = lambda server: None,
) -> list[str]:
    """Plays the case on a new server under a tool, and does `then`. Gives the lines that the tool wrote."""
    with tempfile.TemporaryDirectory(prefix="slock-counts-") as folder:
        out, server = Path(folder, "out"), Path(folder, "server")
        server.write_text(f'#!/bin/sh\nexec {tool.format(out=out)} {SERVER} "$@"\n')
        server.chmod(0o755)
        os.environ |= {"SERVER": str(server), "SLOCK_MODULE": module}
        try:
            with private_server(**{"hz": 1, **case.settings, **settings}) as running:
                play_once(running, case, count)
                then(running)
        finally:
            os.environ["SERVER"] = SERVER
        wait_until(lambda: out.exists() and "total" in out.read_text(), what="the tool to write its file")
        return out.read_text().splitlines()


@dataclass(frozen=True)
class Cost:
    """What callgrind counted of a function: by itself, or in all calls of another from one place of it."""

    file: str
    name: str
    count: int
    # The file and the name of what was called, if the count is that of calls.
    called: tuple[str, str] | None = None


def costs(lines: list[str]) -> Iterator[Cost]:
    names: dict[tuple[str, str], str] = {}
    now = {"fn": "", "ob": "", "cfn": "", "cob": ""}
    is_call = False
    for line in lines:
        if name := NAME.match(line):
            kind, number, text = name.groups()
            text = names.setdefault((kind[-2:], number), text or "")
            now[kind] = Path(text).name if kind.endswith("ob") else text
            if kind == "ob":
                now["cob"] = now["ob"]
        elif line.startswith("calls="):
            is_call = True
        elif line[:1] in "0123456789+-*" and line:
            called = (now["cob"], now["cfn"]) if is_call else None
            yield Cost(now["ob"], now["fn"], int(line.split()[1]), called)
            if is_call:  # what is called is in the same file, unless the next one says otherwise
                is_call, now["cob"] = False, now["ob"]


def functions(lines: list[str]) -> Counter[tuple[str, str]]:
    """Instructions of each function by itself, by file and name; those of work by time are left out."""
    alone: Counter[tuple[str, str]] = Counter()
    by_time = 0
    for cost in costs(lines):
        if not cost.called:
            alone[cost.file, cost.name] += cost.count
        elif cost.name in BY_TIME:
            # What a called function took with all that it called; its own is counted where it stands.
            by_time += cost.count
    alone["work by time", ""] = -by_time
    for file, name in [at for at in alone if at[1] in BY_TIME]:
        del alone[file, name]
    return alone


def calls(lines: list[str], of_module: str) -> Counter[tuple[str, str]]:
    """What the module calls in other files, and what these call in it, each with all that it calls itself."""
    between: Counter[tuple[str, str]] = Counter()
    for cost in costs(lines):
        if cost.called and (cost.file == of_module) != (cost.called[0] == of_module):
            between[cost.called] += cost.count
    return between


def system_calls(lines: list[str]) -> Counter[str]:
    """How often each system call was made."""
    rows = [line.split() for line in lines if not line.endswith(" total")]
    return Counter({row[-1]: int(row[3]) for row in rows if len(row) > 4 and row[3].isdigit()})


def difference(few: Counter, many: Counter, operations: int) -> dict:
    """What one operation takes: a long play less a short one, so that start and end do not count."""
    return {what: (many[what] - few[what]) / operations for what in {*few, *many}}
