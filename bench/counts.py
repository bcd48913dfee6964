"""Counts by a tool that the server runs under: instructions by callgrind, system calls by strace."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from pathlib import Path

from common import private_server, wait_until
from harness.settings import server_binary
from load import Case, play_once

SERVER = server_binary()
# Work that goes by time counts too much in a server that runs fifty times slower: the server's cron, and
# that the module reads INFO.
BY_TIME = ("serverCron", "RM_GetServerInfo", "VM_GetServerInfo")
# A name in callgrind's file: what it names, its number, and, where it stands for the first time, the name.
NAME = re.compile(r"(fn|ob|cfn|cob)=(\(\d+\))(?: (.+))?")

CALLGRIND = "valgrind --tool=callgrind --trace-children=yes --callgrind-out-file={out}"
# The server is the child, and strace a process beside it, which writes when the server has ended.
STRACE = "strace -D -f -c -o {out}"


def run_under(tool: str, module: str, case: Case, count: int, settings: dict[str, object]) -> list[str]:
    """Plays the case on a new server under a tool; the lines of the file that the tool wrote."""
    with tempfile.TemporaryDirectory(prefix="slock-counts-") as folder:
        out, server = Path(folder, "out"), Path(folder, "server")
        server.write_text(f'#!/bin/sh\nexec {tool.format(out=out)} {SERVER} "$@"\n')
        server.chmod(0o755)
        os.environ |= {"SERVER": str(server), "SLOCK_MODULE": module}
        try:
            with private_server(**{"hz": 1, **settings}) as running:
                play_once(running, case, count)
        finally:
            os.environ["SERVER"] = SERVER
        wait_until(lambda: out.exists() and "total" in out.read_text(), what="the tool to write its file")
        return out.read_text().splitlines()


def functions(lines: list[str]) -> Counter[tuple[str, str]]:
    """Instructions of each function by itself, by file and name; those of work by time are left out."""
    names: dict[tuple[str, str], str] = {}
    alone: Counter[tuple[str, str]] = Counter()
    by_time = 0
    here, obj, called = "", "", False

    for line in lines:
        if name := NAME.match(line):
            kind, number, text = name.groups()
            text = names.setdefault((kind[-2:], number), text or "")
            if kind == "fn":
                here = text
            elif kind == "ob":
                obj = Path(text).name
        elif line.startswith("calls="):
            called = True
        elif line[:1] in "0123456789+-*" and line:
            cost = int(line.split()[1])
            if called:
                # What a called function took with all that it called; its own is counted where it stands.
                by_time += cost * (here in BY_TIME)
            else:
                alone[obj, here] += cost
            called = False
    alone["work by time", ""] = -by_time
    for obj, name in [at for at in alone if at[1] in BY_TIME]:
        del alone[obj, name]
    return alone


def system_calls(lines: list[str]) -> Counter[str]:
    """How often each system call was made."""
    rows = [line.split() for line in lines if not line.endswith(" total")]
    return Counter({row[-1]: int(row[3]) for row in rows if len(row) > 4 and row[3].isdigit()})


def difference(few: Counter, many: Counter, operations: int) -> dict:
    """What one operation takes: a long play less a short one, so that start and end do not count."""
    return {what: (many[what] - few[what]) / operations for what in {*few, *many}}
