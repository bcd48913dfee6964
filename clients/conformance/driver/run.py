"""Plays scenarios in threads: most of their time is waiting, and they need not wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future

from driver.agent import Agent
from driver.languages import Language
from driver.play import Play
from driver.scenario import Scenario
from driver.world import Worlds

Part = tuple[Scenario, "Future[None]"]

# Threads for each language.
LANES = 2


class LanguageRun:
    """All scenarios with one language."""

    def __init__(self, language: Language, scenarios: Iterable[Scenario]) -> None:
        parts = [(scenario, Future()) for scenario in scenarios]
        self._outcomes = {scenario.name: outcome for scenario, outcome in parts}
        self._lanes = [_Lane(language, parts[start::LANES]) for start in range(LANES)]

    def outcome(self, scenario: Scenario) -> None:
        """Waits until the scenario has been played. What has failed is raised."""
        self._outcomes[scenario.name].result()

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One thread. It lives until `close`, because its servers and agents end with it."""

    def __init__(self, language: Language, parts: list[Part]) -> None:
        self._language, self._parts = language, parts
        self._worlds, self._agents = Worlds(), []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "a scenario does not end"

    def _run(self) -> None:
        for part in self._parts:
            if not self._closing.is_set():
                self._play(*part)
        self._closing.wait()
        self._stop_agents()
        self._worlds.close()

    def _play(self, scenario: Scenario, outcome: Future[None]) -> None:
        try:
            world = self._worlds.get(scenario.world)
            agent = self._agent(scenario.own_agent)
            try:
                Play(scenario, world, agent).run()
            except BaseException as problem:
                logs = [f"log of {server}:\n{server.log()[-3000:]}" for server in world.servers.values()]
                text = "\n\n".join([str(problem), f"stderr of {agent}:\n{agent.stderr()}", *logs])
                self._stop_agents()
                self._worlds.forget(world)
                raise AssertionError(text) from problem
            if scenario.own_agent:
                self._stop_agents()
            self._worlds.recover()
        except BaseException as problem:
            outcome.set_exception(problem)
            self._worlds.recover()
        else:
            outcome.set_result(None)

    def _agent(self, own: bool) -> Agent:
        if own:
            self._stop_agents()
        if not self._agents:
            self._agents.append(self._language.agent())
        return self._agents[-1]

    def _stop_agents(self) -> None:
        while self._agents:
            self._agents.pop().stop()
