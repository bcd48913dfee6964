"""Plays the table of scenarios with each library, the languages beside each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from driver.languages import LANGUAGES, require
from driver.run import LanguageRun
from driver.scenario import Scenario, scenarios


def _parameters() -> list[object]:
    return [
        pytest.param(name, scenario, waiting, id=": ".join(filter(None, (name, scenario.name, waiting))))
        for name, language in LANGUAGES.items()
        for scenario in scenarios()
        for waiting in scenario.waitings
        if waiting is None or waiting in language.waitings
    ]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Iterator[Callable[[str], LanguageRun]]:
    """The run of each language with all scenarios that have been selected. They begin together."""
    selected = defaultdict(list)
    for item in request.session.items:
        if item.function is test_scenario:
            parameters = item.callspec.params
            selected[parameters["name"]].append((parameters["scenario"], parameters["waiting"]))
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


@pytest.mark.parametrize(("name", "scenario", "waiting"), _parameters())
def test_scenario(
    name: str, scenario: Scenario, waiting: str | None, runs: Callable[[str], LanguageRun]
) -> None:
    runs(name).outcome(scenario, waiting)
