"""The server's CPU time for a fresh lock, against SET NX PX and a script that compares and deletes.

All contestants take turns, round by round, on one server; what counts is the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import sys

from common import (
    COMPARE_AND_DELETE,
    Pipe,
    Report,
    Server,
    ServerClock,
    arguments,
    batches,
    encode_command,
    private_server,
    spread,
)

LIMIT = 0.8
PIPELINE = 16
TOKEN = "0123456789abcdef0123456789abcdef"
TTL_MS = 30000

BASELINE = "SET NX PX + EVALSHA"

Commands = list[bytes]


def contestants(server: Server) -> dict[str, tuple[list, list]]:
    """By name: how to take a key and how to release it, with None in the key's place."""
    digest = server.raw().ok("SCRIPT", "LOAD", COMPARE_AND_DELETE)
    return {
        BASELINE: (["SET", None, TOKEN, "NX", "PX", TTL_MS], ["EVALSHA", digest, 1, None, TOKEN]),
        "LOCK + UNLOCK": (["SLOCK.LOCK", None, TOKEN, TTL_MS], ["SLOCK.UNLOCK", None, TOKEN]),
        "RLOCK + RUNLOCK": (["SLOCK.RLOCK", None, TOKEN, TTL_MS], ["SLOCK.RUNLOCK", None, TOKEN]),
    }


def encode_with(template: list, keys: list[str]) -> Commands:
    return [encode_command(*(key if arg is None else arg for arg in template)) for key in keys]


def exchange(pipes: list[Pipe], chunks: list[Commands]) -> list[bytes]:
    """One chunk a connection, all sent before any reply is read: the server does not sleep in between."""
    for pipe, chunk in zip(pipes, chunks, strict=False):
        pipe.send(chunk)
    return [pipe.receive(len(chunk)) for pipe, chunk in zip(pipes, chunks, strict=False)]


def play(pipes: list[Pipe], take: Commands, release: Commands) -> None:
    taking, releasing = list(batches(take, PIPELINE)), list(batches(release, PIPELINE))
    for start in range(0, len(taking), len(pipes)):
        for taken in exchange(pipes, taking[start : start + len(pipes)]):
            if b":0\r\n" in taken or b"$-1" in taken:
                raise SystemExit(f"not taken: {taken!r}")
        for released in exchange(pipes, releasing[start : start + len(pipes)]):
            if released.replace(b":1\r\n", b""):
                raise SystemExit(f"not released: {released!r}")


def measure(server: Server, rounds: int, pairs: int, connections: int) -> dict[str, list[float]]:
    """Microseconds of server CPU per pair of commands, by contestant and round."""
    pipes = [Pipe(server) for _ in range(connections)]
    clock, teams = ServerClock(server), contestants(server)
    costs: dict[str, list[float]] = {name: [] for name in teams}
    for number in range(-1, rounds):
        for place, (name, (take, release)) in enumerate(teams.items()):
            keys = [f"lock:{number + 1:06}:{place}:{key:08}" for key in range(pairs)]
            encoded = encode_with(take, keys), encode_with(release, keys)
            start = clock.read()
            play(pipes, *encoded)
            if number >= 0:  # the round before the first is a warm-up
                costs[name].append((clock.read() - start) / pairs)
    for pipe in pipes:
        pipe.close()
    return costs


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--pairs", type=int, default=16000, help="fresh keys a round and contestant")
    parser.add_argument(
        "--connections",
        type=int,
        default=16,
        help="with 1 it is mostly waking up that is measured",
    )
    parser.add_argument("--appendonly", action="store_true", help="with an append-only file (appendfsync no)")
    options = parser.parse_args()

    report = Report(options)
    with private_server(appendonly=options.appendonly, appendfsync="no") as server:
        report.server(server)
        costs = measure(server, options.rounds, options.pairs, options.connections)
    print(
        f"server CPU per fresh key taken and released, pipelined by {PIPELINE} on "
        f"{options.connections} connections, in microseconds:"
    )
    for name, values in costs.items():
        print(f"  {name:20} {spread(values)}")
    for name in costs:
        if name != BASELINE:
            ratios = [own / base for own, base in zip(costs[name], costs[BASELINE], strict=True)]
            report.limit(f"{name} / {BASELINE}", statistics.median(ratios), LIMIT)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
