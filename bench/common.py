"""What the benchmarks share: a private server, its CPU time, a fast pipe to it, and how figures are told.

The servers come from the test suite's harness. Nothing here measures the client: figures are the server's
CPU time, or a latency that is set beside another latency of the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import socket
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness import RawConnection, RespError, Server, encode_command, wait_until

__all__ = ["RawConnection", "RespError", "Server", "encode_command", "wait_until"]

# What clients use to release a lock that is a plain key.
COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end"
)


@contextlib.contextmanager
def private_server(**settings: object) -> Iterator[Server]:
    """A server with the module, on a free port of this machine, without a log and without snapshots."""
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
    """Prints the figures of one benchmark with the command that repeats them, and remembers passed limits."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._checks = options.check
        self._failed = False
        words = ["python", *sys.argv]
        server = os.environ.get("SERVER")
        if server and server != "redis-server":
            words.insert(0, "SERVER=...")
        print(f"repeat with: {' '.join(words)}")

    def server(self, server: Server) -> None:
        info = server.client().info("server")
        name = info.get("server_name", "redis")
        version = info.get(f"{name}_version", info["redis_version"])
        print(f"server: {name} {version}, hz {info['configured_hz']}, {os.cpu_count()} cores")

    def limit(self, what: str, value: float, limit: float) -> None:
        """A figure with a bound that it must not pass."""
        kept = value <= limit
        self._failed |= not kept
        print(f"{what}: {value:.2f}  (limit {limit:g}: {'kept' if kept else 'EXCEEDED'})")

    def at_least(self, what: str, value: float, limit: float) -> None:
        """A figure that must reach a bound."""
        kept = value >= limit
        self._failed |= not kept
        print(f"{what}: {value:.2f}  (at least {limit:g}: {'kept' if kept else 'MISSED'})")

    def status(self) -> int:
        return 1 if self._checks and self._failed else 0


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="end with status 1 when a limit is passed")
    return parser


def spread(values: list[float]) -> str:
    """Median and range, for a figure that was taken in many rounds."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
