"""All languages at work on the same locks while connections are cut, or a node of a quorum fails."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from driver.fixtures import GetWorld, StartAgent
from driver.sections import Place, Sections
from driver.world import World

from harness import rounds

TASKS = 4
TTL_MS = 15_000


@pytest.fixture
def places(available: list[str], start_agent: StartAgent) -> Callable[..., list[Place]]:
    """Opens servers in an agent of each language."""

    def open_in_each(operation: str, fields: dict[str, object]) -> list[Place]:
        opened = []
        for name in available:
            agent = start_agent(name)
            agent.ask(operation, locks="l", **fields)
            opened.append(Place(agent, {"ttl_ms": TTL_MS}))
        return opened

    return open_in_each


def _end(places: list[Place], world: World) -> None:
    for place in places:
        place.agent.ask("close", locks="l")
    world.wait_until_nothing_is_left()


def test_connections_are_cut(places: Callable[..., list[Place]], get_world: GetWorld) -> None:
    world = get_world("shared")
    operation, fields = world.open_fields(True)
    with Sections(places(operation, fields), ["job"], TASKS) as sections:
        for _ in range(rounds(15, 200)):
            sections.go_on(1)
            world.proxy.cut()
        sections.go_on()
    sections.judge()
    _end(sections.places, world)


@pytest.mark.skipif(
    "SLOCK_THOROUGH" not in os.environ, reason="it needs a machine of its own: make histories"
)
def test_twenty_contenders_for_a_quorum(places: Callable[..., list[Place]], get_world: GetWorld) -> None:
    world = get_world("quorum")
    operation, fields = world.open_fields()
    fields["poll"] = {"kind": "exponential", "pause_ms": 5, "most_ms": 50}
    opened = places(operation, fields)
    with Sections(opened, ["job"], -(-20 // len(opened))) as sections:
        sections.go_on(rounds(3, 100), by_place=True)
        world.servers["n1"].kill9()
        sections.go_on(rounds(3, 100), by_place=True)
    # The owner of a lock on three nodes, one of which died, cannot know whether the release counts.
    sections.judge("release: QuorumMissed")
    _end(opened, world)
