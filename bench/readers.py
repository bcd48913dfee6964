"""The server's CPU time for one more reader, on a lock with few readers and on a lock with very many.

Rounds on the two locks alternate on one server. Every reader has a deadline of its own, in no order.
"""

from __future__ import annotations

import random
import statistics
import sys

from common import Pipe, Report, ServerClock, arguments, batches, encode_command, private_server, spread

LIMIT = 3.0
PIPELINE = 16


def random_ttl() -> int:
    return random.randrange(3_600_000, 7_200_000)


def fill(pipe: Pipe, key: str, readers: int) -> None:
    for numbers in batches(list(range(readers)), 1000):
        pipe.exchange(
            [encode_command("SLOCK.RLOCK", key, f"resident-{number}", random_ttl()) for number in numbers]
        )


def visit(pipe: Pipe, clock: ServerClock, key: str, visitors: list[str]) -> float:
    """Microseconds of server CPU for one visitor who comes and goes."""
    steps = [
        (
            [encode_command("SLOCK.RLOCK", key, token, random_ttl()) for token in tokens],
            [encode_command("SLOCK.RUNLOCK", key, token) for token in tokens],
        )
        for tokens in batches(visitors, PIPELINE)
    ]
    start = clock.read()
    for come, go in steps:
        pipe.exchange(come)
        if pipe.exchange(go) != b":1\r\n" * len(go):
            raise SystemExit("a reader was lost")
    return (clock.read() - start) / len(visitors)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--few", type=int, default=10)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--visitors", type=int, default=8000, help="readers that come and go in a round")
    options = parser.parse_args()

    report = Report(options)
    with private_server() as server:
        report.server(server)
        pipe, clock = Pipe(server), ServerClock(server)
        residents = {"few": options.few, "many": options.many}
        costs: dict[str, list[float]] = {key: [] for key in residents}
        for key, readers in residents.items():
            fill(pipe, key, readers)
        for number in range(options.rounds):
            for key in residents:
                visitors = [f"visitor-{number}-{visitor}" for visitor in range(options.visitors)]
                costs[key].append(visit(pipe, clock, key, visitors))
        pipe.close()
    print(f"server CPU per RLOCK + RUNLOCK, pipelined by {PIPELINE}, in microseconds:")
    for key, readers in residents.items():
        print(f"  with {readers:7} readers  {spread(costs[key])}")
    ratios = [many / few for many, few in zip(costs["many"], costs["few"], strict=True)]
    report.limit(f"{options.many} readers / {options.few} readers", statistics.median(ratios), LIMIT)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
