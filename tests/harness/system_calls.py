"""What a server asks of the system, by strace: when it writes and syncs the log, when it sends."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from harness.server import Server


class Call(NamedTuple):
    """A system call of the server, with the moments of its begin and end in seconds."""

    begun: float
    ended: float
    name: str
    fd: int
    path: str
    data: str
    result: int


SYNCS = ("fsync", "fdatasync")
CALLS = ("write", "writev", "pwrite64", "sendto", "sendmsg", *SYNCS)
AOF = "appendonlydir"
CALL = re.compile(r"^([\d.]+) (\w+)\((\d+)(?:<([^>]*)>)?(.*) = (-?\d+)(?: .*)? <([\d.]+)>$")


def _calls(trace: str) -> Iterator[Call]:
    for line in trace.splitlines():
        if found := CALL.match(line):
            begun, name, fd, path, data, result, seconds = found.groups()
            ended = float(begun) + float(seconds)
            yield Call(float(begun), ended, name, int(fd), path or "", data, int(result))


@contextmanager
def traced(server: Server) -> Iterator[list[Call]]:
    """The list is filled when the block has ended, in the order of time."""
    calls: list[Call] = []
    trace = server.directory / "trace"
    # A file for each thread, so that no line is torn by another thread's.
    options = ["-ff", "-ttt", "-T", "-y", "-s", "2048", "-e", "trace=" + ",".join(CALLS)]
    command = ["strace", *options, "-p", str(server.pid), "-o", str(trace)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
        assert strace.stderr
        said = strace.stderr.readline()
        if "attached" not in said:
            strace.wait()
            pytest.skip(f"strace cannot attach to a process here: {said}")
        try:
            yield calls
        finally:
            strace.send_signal(signal.SIGINT)
            strace.wait()
    for file in server.directory.glob("trace.*"):
        calls += _calls(file.read_text(errors="replace"))
        file.unlink()
    calls.sort()
