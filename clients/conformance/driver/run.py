"""Plays scenarios in threads: most of their time is waiting, and they need not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait

from driver.agent import Agent
from driver.languages import Language
from driver.play import Play
from driver.scenario import Scenario
from driver.world import Worlds

# Threads for each language.
LANES = 2


class LanguageRun:
    """All scenarios with one language."""

    def __init__(self, language: Language, scenarios: Iterable[Scenario]) -> None:
        self._language = language
        self._lanes: list[_Lane] = []
        self._local = threading.local()
        # Servers and agents end with the thread that started them.
        self._pool = ThreadPoolExecutor(LANES)
        self._outcomes = {one.name: self._pool.submit(self._play, one) for one in scenarios}

    def outcome(self, scenario: Scenario) -> None:
        """Waits until the scenario has been played. What has failed is raised."""
        self._outcomes[scenario.name].result()

    def close(self) -> None:
        running = [outcome for outcome in self._outcomes.values() if not outcome.cancel()]
        assert not wait(running, 60).not_done, "a scenario does not end"
        for lane in self._lanes:
            lane.close()
        self._pool.shutdown()

    def _play(self, scenario: Scenario) -> None:
        if not hasattr(self._local, "lane"):
            self._local.lane = _Lane(self._language)
            self._lanes.append(self._local.lane)
        self._local.lane.play(scenario)


class _Lane:
    """The servers and the agent of one thread."""

    def __init__(self, language: Language) -> None:
        self._language, self._worlds = language, Worlds()
        self._agent: Agent | None = None

    def close(self) -> None:
        self._stop_agent()
        self._worlds.close()

    def play(self, scenario: Scenario) -> None:
        world = self._worlds.get(scenario.world, scenario.counts_calls())
        try:
            if scenario.own_agent:
                self._stop_agent()
            self._agent = self._agent or self._language.agent()
            Play(scenario, world, self._agent).run()
            if scenario.own_agent:
                self._stop_agent()
        except BaseException as problem:
            texts = [str(problem), f"stderr of {self._agent}:\n{self._agent.stderr() if self._agent else ''}"]
            texts += [f"log of {server}:\n{server.log()[-3000:]}" for server in world.servers.values()]
            self._stop_agent()
            self._worlds.forget(world)
            raise AssertionError("\n\n".join(texts)) from problem
        finally:
            self._worlds.recover()

    def _stop_agent(self) -> None:
        if self._agent:
            self._agent.stop()
        self._agent = None
