"""What the benchmarks share: a private server, its CPU time, a fast pipe to it, and how figures are told.

The servers come from the test suite's harness. Nothing here measures the client: figures are the server's
CPU time, or a latency that is set beside another latency of the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

try:
    from harness import RawConnection, RespError, Server, encode_command, wait_until
    from harness.settings import module_path
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}: run `make deps`, and this with .venv/bin/python")

__all__ = ["RawConnection", "RespError", "Server", "encode_command", "wait_until"]

# Where figures are kept for the page.
KEPT = Path(__file__).resolve().parents[1] / "target/bench"


def require(path: Path, command: str) -> Path:
    """Says how to build what is missing."""
    if not path.exists():
        sys.exit(f"{path} is missing: run `{command}`")
    return path


@contextlib.contextmanager
def private_server(**settings: object) -> Iterator[Server]:
    """A server with the module, on a free port of this machine, without a log and without snapshots."""
    require(module_path(), "make module")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server(name="bench", **settings)
    try:
        yield server.start()
        server.stop()
    finally:
        server.discard()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class ServerClock:
    """The CPU time that the server's process has used, in microseconds, user and system together."""

    def __init__(self, server: Server) -> None:
        self._connection = server.raw()

    def read(self) -> float:
        text = self._connection.ok("INFO", "cpu").decode()
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return (float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])) * 1e6


class Pipe:
    """A socket for commands that answer in one line each; the commands come encoded."""

    def __init__(self, server: Server) -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, commands: list[bytes]) -> bytes:
        """Sends all commands in one piece and returns their replies, whole; an error reply ends the run."""
        self.send(commands)
        return self.receive(len(commands))

    def send(self, commands: list[bytes]) -> None:
        self.socket.sendall(b"".join(commands))

    def receive(self, count: int) -> bytes:
        """So many replies, whole; an error reply ends the run."""
        replies = self.socket.recv(1 << 16)
        while replies.count(b"\r\n") < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise SystemExit("the server closed the connection")
            replies += more
        errors = [line for line in replies.split(b"\r\n") if line.startswith(b"-")]
        if errors:
            raise SystemExit(f"an error reply: {errors[0]!r}")
        return replies

    def close(self) -> None:
        self.socket.close()


def batches(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Report:
    """Prints the figures of one benchmark with the command that repeats them, remembers passed limits, and
    keeps all of it for the page (`page.py`) where limits are checked.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self._checks = options.check
        self._failed = False
        self._server = ""
        self._tables: list[dict[str, object]] = []
        self._limits: list[dict[str, object]] = []
        words = ["python", *sys.argv]
        server = os.environ.get("SERVER")
        if server and server != "redis-server":
            words.insert(0, "SERVER=...")
        print(f"repeat with: {' '.join(words)}")

    def server(self, server: Server) -> None:
        info = server.client().info("server")
        self._server = name_of(info)
        print(f"server: {self._server}, hz {info['configured_hz']}, {os.cpu_count()} cores", flush=True)

    def table(self, what: str, only: str, rows: list[dict[str, str]]) -> None:
        """Figures of cases that were measured beside each other; `only` are the options that choose them."""
        print(f"{what}:")
        lines = [{name: name for name in rows[0]}, *rows]
        widths = {name: max(len(line[name]) for line in lines) for name in rows[0]}
        for row in lines:
            print("  " + "  ".join(f"{text:<{widths[name]}}" for name, text in row.items()))
        sys.stdout.flush()
        self._tables.append({"what": what, "only": only, "rows": rows})

    def limit(self, what: str, value: float, limit: float) -> None:
        """A figure with a bound that it must not pass."""
        self._judge(what, value, value <= limit, f"limit {limit:g}", "EXCEEDED")

    def at_least(self, what: str, value: float, limit: float) -> None:
        """A figure that must reach a bound."""
        self._judge(what, value, value >= limit, f"at least {limit:g}", "MISSED")

    def _judge(self, what: str, value: float, kept: bool, bound: str, otherwise: str) -> None:
        self._failed |= not kept
        print(f"{what}: {value:.2f}  ({bound}: {'kept' if kept else otherwise})", flush=True)
        table = self._tables[-1]["what"] if self._tables else ""
        limit = {"table": table, "what": what.strip(), "value": f"{value:.2f}", "bound": bound, "kept": kept}
        self._limits.append(limit)

    def status(self) -> int:
        if self._checks:
            self._keep()
        return 1 if self._checks and self._failed else 0

    def _keep(self) -> None:
        program = Path(sys.argv[0]).stem
        kept = {"program": program, "server": self._server, "tables": self._tables, "limits": self._limits}
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{program} {self._server}.json").write_text(json.dumps(kept, indent=1))


def name_of(info: dict[str, object]) -> str:
    """Name and version of a server, from what its INFO says."""
    name = str(info.get("server_name", "redis"))
    return f"{name.title()} {info.get(f'{name}_version', info['redis_version'])}"


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="end with status 1 when a limit is passed, and keep the figures for the page",
    )
    return parser


def spread(values: list[float]) -> str:
    """Median and range, for a figure that was taken in many rounds."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def ratio_spread(values: list[float]) -> str:
    """Median and range of the ratios of rounds, in short."""
    digits = 2 if min(values) >= 0.1 else 4
    median, least, most = (
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"{median} ({least} to {most})"


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
