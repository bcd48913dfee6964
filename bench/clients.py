"""What the client libraries cost: a lock and unlock through each, and the same two by its base library.

The agents of clients/conformance measure, in turns of 100 pairs on one warm connection, each with a hold that
is not renewed. A language whose agent cannot be built here is skipped.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from common import Report, arguments, private_server, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/conformance"))

from driver.agent import Agent
from driver.languages import LANGUAGES, Unavailable

LIMIT = 1.15
SAMPLE_SECONDS = 300.0


def measure(report: Report, agent: Agent, port: int, samples: int, pairs: int) -> None:
    """Some samples of the two medians; the ratio is taken in each."""
    agent.ask("open", locks="l", kind="single", nodes=[f"127.0.0.1:{port}"])
    agent.start("cost", locks="l", rounds=pairs).result(SAMPLE_SECONDS)  # to warm up
    costs = [agent.start("cost", locks="l", rounds=pairs).result(SAMPLE_SECONDS) for _ in range(samples)]
    agent.ask("close", locks="l")
    client = [cost["client_us"] for cost in costs]
    raw = [cost["raw_us"] for cost in costs]
    print(f"{agent.name}: a lock and unlock, microseconds ({samples} samples of {pairs} pairs):")
    print(f"  by the library {spread(client)}; by its base library {spread(raw)}")
    ratios = [high / low for low, high in zip(raw, client, strict=True)]
    report.limit(f"  library / base library {spread(ratios)}", statistics.median(ratios), LIMIT)


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=2000, help="in a sample")
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES), choices=list(LANGUAGES))
    options = parser.parse_args()

    report = Report(options)
    with private_server() as server:
        report.server(server)
        for name in options.languages:
            try:
                agent = LANGUAGES[name].agent(optimized=True)
            except Unavailable as reason:
                print(f"{name}: skipped, {reason}")
                continue
            try:
                measure(report, agent, server.port, options.samples, options.pairs)
            finally:
                agent.stop()
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
