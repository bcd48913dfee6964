"""Failovers by Sentinel under two processes that contend for a lock: how often two held it, and the gaps.

Each round replaces the primary, by SENTINEL FAILOVER or by killing it. The libraries of --languages and
bsm/redislock, which polls every 5 ms, contend for locks of their own on the same servers in the same run. A
hold counts as long as its library calls it valid; one of bsm/redislock for its ttl.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from common import arguments

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "clients/conformance"))

from driver.agent import Agent
from driver.languages import LANGUAGES
from driver.sections import Place, Sections, longest_gap, overlaps
from driver.sentinel import SERVICE, Sentinels

REDISLOCK = Path(__file__).resolve().parent / "redislock"
TTL_MS = 5000


def redislock_agents(directory: str) -> list[Agent]:
    program = str(Path(directory) / "agent")
    build = ["go", "build", "-o", program, "./agent"]
    if subprocess.run(build, cwd=REDISLOCK).returncode:
        raise SystemExit("bsm/redislock cannot be built")
    return [Agent("bsm/redislock", [program], {}) for _ in range(2)]


def play(how: str, rounds: int, contenders: dict[str, list[Agent]]) -> None:
    sentinels = Sentinels()
    try:
        sentinels.start()
        nodes = [f"127.0.0.1:{port}" for port in sentinels.ports]
        fields = {
            "locks": how,
            "kind": "sentinel",
            "service": SERVICE,
            "nodes": nodes,
            "retry_for_ms": 15_000,
        }
        running: dict[str, tuple[Sections, Sections]] = {}
        with redirect_stdout(sys.stderr), ExitStack() as stack:
            for name, agents in contenders.items():
                for agent in agents:
                    agent.ask("open", **fields)
                places = [Place(agent, {"ttl_ms": TTL_MS}, how) for agent in agents]
                short = Sections(places, [f"short:{name}"], 2, 0.02)
                held = Sections(places, [f"held:{name}"], 1, 2.0)
                running[name] = (stack.enter_context(short), stack.enter_context(held))
            for number in range(rounds):
                for short, _ in running.values():
                    short.go_on()
                sentinels.switch() if how == "planned" else sentinels.fail_over()
                for short, _ in running.values():
                    short.go_on()
                sentinels.wait_until_replicated()
                print(f"{how} {number + 1}/{rounds}")
        for name, (short, held) in running.items():
            sections = short.all + held.all
            print(
                f"{how:8} {name:16} {rounds} failovers, {len(sections)} holds: {len(overlaps(sections))}"
                f" overlaps, longest time without a grant {longest_gap(short.all):.1f} s;"
                f" errors {dict(short.errors + held.errors)}"
            )
        for agents in contenders.values():
            for agent in agents:
                agent.ask("close", locks=how)
    finally:
        sentinels.discard()


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--how", nargs="+", default=["planned", "killed"], choices=["planned", "killed"])
    parser.add_argument("--languages", nargs="+", default=["go"], choices=list(LANGUAGES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        contenders = {name: [LANGUAGES[name].agent() for _ in range(2)] for name in options.languages}
        contenders["bsm/redislock"] = redislock_agents(directory)
        try:
            for how in options.how:
                play(how, options.rounds, contenders)
        finally:
            for agents in contenders.values():
                for agent in agents:
                    agent.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
