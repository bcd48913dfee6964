"""Two processes of each library and three Sentinels, while the primary is killed or without its replica."""

from __future__ import annotations

import time

import pytest
from driver.failovers import contend, open_by_sentinels
from driver.fixtures import StartAgent
from driver.languages import each_language
from driver.sentinel import Sentinels

from harness import RawConnection, RespError, wait_until

LONGEST_SEARCH_SECONDS = 6.0


@pytest.mark.parametrize("name", each_language("test_the_primary_is_killed"))
def test_the_primary_is_killed(name: str, start_agent: StartAgent, sentinels: Sentinels) -> None:
    """It takes with it what its replica has not received, so that there may be overlaps. They are printed."""
    contend(name, start_agent, sentinels, sentinels.fail_over)


@pytest.mark.parametrize("name", each_language("test_a_primary_without_replicas_is_left"))
def test_a_primary_without_replicas_is_left(name: str, start_agent: StartAgent, sentinels: Sentinels) -> None:
    """While it says NOREPLICAS, the library asks where the primary is."""
    agent, former = start_agent(name), sentinels.primary
    open_by_sentinels(agent, sentinels)
    agent.ask("acquire", locks="l", hold="before", keys=["before"], mode="write")
    agent.ask("release", hold="before")
    with RawConnection(former.port) as connection:
        connection.ok("CONFIG", "SET", "min-replicas-to-write", 1)
    sentinels.ask_for_failover()

    def refuses() -> bool:
        with RawConnection(former.port) as connection:
            reply = connection.call("SET", "probe", "")
        return isinstance(reply, RespError) and reply.prefix == "NOREPLICAS"

    wait_until(refuses, 20, "the former primary to refuse writes")
    waits = agent.start("acquire", locks="l", hold="h", keys=["job"], mode="write")
    sentinels.wait_until_switched()
    named = time.monotonic()
    waits.result(30)
    took = time.monotonic() - named
    print(f"{name}: granted {took:.1f} s after Sentinel had named the new primary")
    assert took < LONGEST_SEARCH_SECONDS
    agent.ask("release", hold="h")
