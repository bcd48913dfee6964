"""Fixtures: agents of the languages that are to be had here, and servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from driver.agent import Agent
from driver.languages import LANGUAGES, require
from driver.sentinel import Sentinels
from driver.world import World, Worlds

from harness import Server, stalls


def pytest_configure(config: pytest.Config) -> None:
    stalls.watch(config)


@pytest.fixture(scope="session")
def _worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()


@pytest.fixture
def get_world(_worlds: Worlds) -> Iterator[Callable[[str], World]]:
    """Servers by the name of their arrangement, shared between tests but for `own`, which is new."""
    yield _worlds.get
    _worlds.recover()


@pytest.fixture
def available() -> list[str]:
    """The languages whose agents are to be had here."""
    found = [name for name, one in LANGUAGES.items() if one.is_available()]
    return found or pytest.skip("no agent can be built here")


@pytest.fixture
def start_agent(get_world: object) -> Iterator[Callable[[str], Agent]]:
    """Starts agents that end with the test, and before the servers are used again."""
    agents: list[Agent] = []

    def start(name: str) -> Agent:
        agents.append(require(name).agent())
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop()


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    sentinels = Sentinels()
    try:
        yield sentinels.start()
    finally:
        sentinels.discard()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    for server in Server.every:
        server.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows what its agents and servers have said."""
    report = yield
    if report.failed and "start_agent" in item.fixturenames:
        for agent in Agent.every:
            if text := agent.stderr():
                report.sections.append((f"stderr of {agent}", text))
        for server in Server.every:
            if text := server.log_excerpt():
                report.sections.append((f"log of {server}", text))
    return report
