"""Two processes of each library and three Sentinels, while the primary is replaced by plan.

A file of its own, so that it runs beside the other failovers: both mostly wait.
"""

from __future__ import annotations

import pytest
from driver.failovers import contend
from driver.fixtures import StartAgent
from driver.languages import each_language
from driver.sentinel import Sentinels


@pytest.mark.parametrize("name", each_language("test_a_planned_failover"))
def test_a_planned_failover(name: str, start_agent: StartAgent, sentinels: Sentinels) -> None:
    found = contend(name, start_agent, sentinels, sentinels.switch)
    assert not found, found[:3]
