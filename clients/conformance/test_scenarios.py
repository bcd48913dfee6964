"""Plays the table of scenarios with each library, the languages beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from driver import known
from driver.languages import LANGUAGES, require
from driver.run import LanguageRun
from driver.scenario import Scenario, scenarios


def _parameters() -> Iterator[object]:
    in_memory = [one.in_memory() for one in scenarios() if one.runs_in_memory()]
    for name, language in LANGUAGES.items():
        for scenario in scenarios() + in_memory * (not language.shares_memory):
            marks = known.marks(name, scenario.name)
            yield pytest.param(name, scenario, id=f"{name}: {scenario.name}", marks=marks)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Callable[[str], LanguageRun]]:
    """The run of each language with all scenarios that have been selected. They begin together."""
    selected = defaultdict(list)
    for item in request.session.items:
        if item.function is test_scenario:
            selected[item.callspec.params["name"]].append(item.callspec.params["scenario"])
    started: dict[str, LanguageRun] = {}

    def get(name: str) -> LanguageRun:
        language = require(name)
        if not started:
            for other in selected:
                if LANGUAGES[other].is_available():
                    started[other] = LanguageRun(LANGUAGES[other], selected[other])
        assert language.name in started
        return started[name]

    yield get
    for run in started.values():
        run.close()


@pytest.mark.parametrize(("name", "scenario"), list(_parameters()))
def test_scenario(name: str, scenario: Scenario, runs: Callable[[str], LanguageRun]) -> None:
    runs(name).outcome(scenario)
