"""What the client libraries cost, beside the same commands by their base libraries.

Three cases, each with holds that are not renewed: one lock and unlock after the other; many tasks with a lock
each; many tasks that hand one lock on, against a plain WAIT with a connection each. The agents of
clients/conformance measure, in turns. A language whose agent cannot be built here is skipped.

With --beside, the libraries of Go, Rust, Node and Python are also measured beside those of another checkout,
sample by sample in turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Report, arguments, private_server, spread

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/conformance"))

from driver.agent import Agent
from driver.languages import LANGUAGES, Unavailable

REDISLOCK = Path(__file__).resolve().parent / "redislock"
PAIRS_TASKS, HANDOFF_TASKS = 16, 64
# The time of one pair by the library, against that by the base library.
LONGEST_PAIR = 1.15
# Pairs and hand-offs a second by the library, against those without it.
LEAST_PAIRS, LEAST_HANDOFFS = 0.95, 1.0
# The base libraries of Node send what many tasks ask at once together, in a few microseconds a command. In
# Python a library's own functions cost as much as a command does. These limits notice that this has grown.
LONGEST_OF = {"python-sync": 1.7, "python-asyncio": 1.5}
LEAST_OF = {
    **{"node-redis": (0.45, 0.5), "ioredis": (0.55, 0.6)},
    **{"python-sync": (0.45, 0.4), "python-asyncio": (0.9, 0.5)},
}
SAMPLE_SECONDS = 300.0
BESIDE = ("go", "rust", "node-redis", "ioredis", "python-asyncio", "python-sync")


def single(report: Report, agent: Agent, samples: int, pairs: int) -> None:
    """Some samples of the two medians; the ratio is taken in each."""
    costs = sample(agent, samples, "cost", rounds=pairs)
    client = [cost["client_us"] for cost in costs]
    raw = [cost["raw_us"] for cost in costs]
    print(f"{agent.name}: a lock and unlock, microseconds ({samples} samples of {pairs} pairs):")
    print(f"  by the library {spread(client)}; by its base library {spread(raw)}")
    ratios = [high / low for low, high in zip(raw, client, strict=True)]
    report.limit(
        f"  library / base library {spread(ratios)}",
        statistics.median(ratios),
        LONGEST_OF.get(agent.name, LONGEST_PAIR),
    )


def many(
    report: Report, agent: Agent, what: str, tasks: int, samples: int, rounds: int, least: float
) -> float:
    """Returns how many a second the library did."""
    fields = {"key": "handed-on"} if what == "handoffs" else {}
    costs = sample(agent, samples, what, tasks=tasks, rounds=rounds, **fields)
    library, raw = (
        [tasks * rounds / cost[name] * 1e6 for cost in costs] for name in ("library_us", "raw_us")
    )
    print(f"{agent.name}: {what} a second by {tasks} tasks ({samples} samples of {tasks * rounds}):")
    print(f"  by the library {spread(library)}; without it {spread(raw)}")
    ratios = [one / other for one, other in zip(library, raw, strict=True)]
    report.at_least(f"  library / without {spread(ratios)}", statistics.median(ratios), least)
    return statistics.median(library)


def sample(agent: Agent, samples: int, op: str, **fields: object) -> list[dict[str, float]]:
    """The answers, but for a first one, to warm up."""
    answers = [agent.start(op, locks="l", **fields).result(SAMPLE_SECONDS) for _ in range(samples + 1)]
    return answers[1:]


def beside(agent: Agent, other: Agent, what: str, samples: int, field: str, **fields: object) -> None:
    """The times of two agents in turns: how many times as fast this one is."""
    ratios = []
    for number in range(samples + 1):
        ours, theirs = (
            one.start(what, locks="l", **fields).result(SAMPLE_SECONDS)[field] for one in (agent, other)
        )
        if number:  # the first is to warm up
            ratios.append(theirs / ours)
    print(f"{what}: this library / the other {spread(ratios)}")


def agent_of(name: str, checkout: Path, directory: str) -> Agent:
    """The agent of the library of Go, Rust, Node or Python in another checkout."""
    if name == "rust":
        subprocess.run(
            ["cargo", "build", "--release", "--example", "conformance_agent"], cwd=checkout, check=True
        )
        return Agent(f"rust of {checkout}", [str(checkout / "target/release/examples/conformance_agent")], {})
    if name.startswith("python"):
        program = str(checkout / "clients/python/conformance_agent.py")
        return Agent(f"{name} of {checkout}", [sys.executable, program], LANGUAGES[name].defaults)
    if name != "go":
        subprocess.run([checkout / "scripts/node-library"], check=True)
        program = str(checkout / "clients/node/conformance_agent.mjs")
        return Agent(f"{name} of {checkout}", ["node", program, name], {})
    package = "./internal/agent/goredis"
    if not (checkout / "clients/go" / package).exists():
        package = "./internal/agent"
    program = str(Path(directory) / "agent")
    subprocess.run(["go", "build", "-o", program, package], cwd=checkout / "clients/go", check=True)
    return Agent(f"go of {checkout}", [program], {})


def redislock(report: Report, port: int, ours: float, samples: int, rounds: int) -> None:
    """The pairs of the Go library against those of bsm/redislock, which it replaces."""
    with tempfile.TemporaryDirectory() as directory:
        program = str(Path(directory) / "redislock")
        build = ["go", "build", "-o", program, "."]
        if subprocess.run(build, cwd=REDISLOCK, capture_output=True).returncode:
            print("  bsm/redislock: skipped, it cannot be fetched")
            return
        run = [program, str(port), str(PAIRS_TASKS), str(rounds)]
        times = [float(subprocess.check_output(run)) for _ in range(samples)]
    theirs = [PAIRS_TASKS * rounds / time * 1e6 for time in times]
    print(f"  bsm/redislock {spread(theirs)}")
    report.at_least("  library / bsm/redislock", ours / statistics.median(theirs), 1.0)


def all_beside(agent: Agent, other: Agent, port: int, options: argparse.Namespace) -> None:
    print(f"{agent.name} beside {options.beside} (above 1 means that this one is faster):")
    try:
        other.ask("open", locks="l", kind="single", nodes=[f"127.0.0.1:{port}"])
        samples = options.samples
        if "single" in options.cases:
            beside(agent, other, "cost", samples, "client_us", rounds=options.pairs)
        if "pairs" in options.cases:
            tasks, rounds = PAIRS_TASKS, options.rounds
            beside(agent, other, "pairs", samples, "library_us", tasks=tasks, rounds=rounds)
        if "handoffs" in options.cases:
            tasks, rounds = HANDOFF_TASKS, options.handoffs
            fields = {"key": "handed-on", "tasks": tasks, "rounds": rounds}
            beside(agent, other, "handoffs", samples, "library_us", **fields)
    finally:
        other.stop()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=2000, help="in a sample of single pairs")
    parser.add_argument("--rounds", type=int, default=200, help="of each of the tasks that take pairs")
    parser.add_argument("--handoffs", type=int, default=20, help="of each of the tasks that hand on")
    parser.add_argument("--cases", nargs="+", default=["single", "pairs", "handoffs"])
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES), choices=list(LANGUAGES))
    parser.add_argument("--beside", type=Path, help="another checkout, whose library is measured too")
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
                agent.ask("open", locks="l", kind="single", nodes=[f"127.0.0.1:{server.port}"])
                samples, rounds = options.samples, options.rounds
                least_pairs, least_handoffs = LEAST_OF.get(name, (LEAST_PAIRS, LEAST_HANDOFFS))
                if "single" in options.cases:
                    single(report, agent, samples, options.pairs)
                if "pairs" in options.cases:
                    pairs = many(report, agent, "pairs", PAIRS_TASKS, samples, rounds, least_pairs)
                    if name == "go" and shutil.which("go"):
                        redislock(report, server.port, pairs, samples, rounds)
                if "handoffs" in options.cases:
                    many(report, agent, "handoffs", HANDOFF_TASKS, samples, options.handoffs, least_handoffs)
                if name in BESIDE and options.beside:
                    with tempfile.TemporaryDirectory() as directory:
                        all_beside(agent, agent_of(name, options.beside, directory), server.port, options)
                agent.ask("close", locks="l")
            finally:
                agent.stop()
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
