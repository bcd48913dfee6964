"""All languages at once, two processes of each: what the lock protects stays whole."""

from __future__ import annotations

import pytest
from driver.agent import Agent, Call
from driver.fixtures import GetWorld, StartAgent
from driver.world import World

from harness import rounds

TASKS = 100
PERMITS = 3


@pytest.fixture
def agents(available: list[str], start_agent: StartAgent) -> list[Agent]:
    return [start_agent(name) for name in available for _ in range(2)]


def _start(agents: list[Agent], world: World, **fields: object) -> list[Call]:
    operation, servers = world.open_fields()
    for agent in agents:
        agent.ask(operation, locks="l", **servers)
    return [agent.start("work", locks="l", tasks=TASKS, ttl_ms=20_000, **fields) for agent in agents]


def test_additions_under_the_write_lock(agents: list[Agent], get_world: GetWorld) -> None:
    world = get_world("shared")
    additions = rounds(1, 20)
    work = {"key": "lock", "counter": "counter", "mode": "write", "additions": additions}
    done = sum(call.result(300)["done"] for call in _start(agents, world, **work))
    assert done == len(agents) * TASKS * additions
    assert world.call("main", "GET", "counter") == str(done)
    _end(agents, world)


def test_a_limit_is_never_passed(agents: list[Agent], get_world: GetWorld) -> None:
    world = get_world("shared")
    additions = rounds(1, 20)
    work = {"key": "pool", "counter": "inside", "mode": "read", "limit": PERMITS, "additions": additions}
    answers = [call.result(300) for call in _start(agents, world, **work)]
    assert sum(answer["done"] for answer in answers) == len(agents) * TASKS * additions
    assert 1 <= max(answer["most"] for answer in answers) <= PERMITS
    assert world.call("main", "GET", "inside") == "0"
    _end(agents, world)


def _end(agents: list[Agent], world: World) -> None:
    for agent in agents:
        agent.ask("close", locks="l")
    world.wait_until_nothing_is_left()
