"""Two processes of each library and three Sentinels, while the primary is replaced or killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from driver.agent import Agent
from driver.fixtures import StartAgent
from driver.languages import each_language
from driver.sections import Place, Section, Sections, longest_gap, overlaps
from driver.sentinel import SERVICE, Sentinels

from harness import RawConnection, RespError, rounds, wait_until

# What a hold leaves on the new primary if its release reached the former one. A gap is at least so long.
TTL_MS = 5000
# From the new primary's start to the next grant, beside the ttl.
LONGEST_GAP_SECONDS = 20.0
LONGEST_SEARCH_SECONDS = 6.0
# A hold may go with its primary, and its release may have no reply.
ERRORS = ("release: Lost", "release: NoAnswer", "acquire: NoAnswer")


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    sentinels = Sentinels()
    try:
        yield sentinels.start()
    finally:
        sentinels.discard()


def _open(agent: Agent, sentinels: Sentinels, locks: str = "l") -> None:
    nodes = [f"127.0.0.1:{port}" for port in sentinels.ports]
    # Longer than a failover takes, so that a call outlasts one.
    agent.ask("open", locks=locks, kind="sentinel", service=SERVICE, nodes=nodes, retry_for_ms=15_000)


@pytest.mark.parametrize("name", each_language("test_a_planned_failover"))
def test_a_planned_failover(name: str, start_agent: StartAgent, sentinels: Sentinels) -> None:
    found = _contend(name, start_agent, sentinels, sentinels.switch)
    assert not found, found[:3]


@pytest.mark.parametrize("name", each_language("test_the_primary_is_killed"))
def test_the_primary_is_killed(name: str, start_agent: StartAgent, sentinels: Sentinels) -> None:
    """It takes with it what its replica has not received, so that there may be overlaps. They are printed."""
    _contend(name, start_agent, sentinels, sentinels.fail_over)


def _contend(
    name: str, start_agent: StartAgent, sentinels: Sentinels, fail_over: Callable[[], None]
) -> list[tuple[Section, Section]]:
    """The overlaps while the primary is replaced again and again."""
    options = {"ttl_ms": TTL_MS}
    first, second = start_agent(name), start_agent(name)
    places = [Place(first, options), Place(second, options)]
    for agent in (first, second):
        _open(agent, sentinels)
    short, held = Sections(places, ["job"], 2, 0.02), Sections(places, ["held"], 1, 2.0)
    every = [short, held]
    with short, held:
        for number in range(rounds(1, 20)):
            short.go_on()
            fail_over()
            # A client that connects now reaches the new primary. For some ten seconds the former one goes on
            # serving those that are connected, until Sentinel makes it a replica.
            _open(second, sentinels, f"new-{number}")
            late = Sections([Place(second, options, f"new-{number}")], ["job", "held"], 2, 0.02)
            every.append(late)
            with late:
                short.go_on()
                sentinels.wait_until_replicated()
            second.ask("close", locks=f"new-{number}")
        held.go_on(1)
        short.go_on()
    sections = [section for one in every for section in one.all]
    errors = sum((one.errors for one in every), Counter())
    found, gap = overlaps(sections), longest_gap(one for one in sections if one.key == "job")
    print(
        f"{name}, {fail_over.__name__}: {len(sections)} sections, {len(found)} overlaps, gap {gap:.1f} s, "
        f"errors {dict(errors)}"
    )
    assert {*errors} <= {*ERRORS}
    assert gap < LONGEST_GAP_SECONDS
    return found


@pytest.mark.parametrize("name", each_language("test_a_primary_without_replicas_is_left"))
def test_a_primary_without_replicas_is_left(name: str, start_agent: StartAgent, sentinels: Sentinels) -> None:
    """While it says NOREPLICAS, the library asks where the primary is."""
    agent, former = start_agent(name), sentinels.primary
    _open(agent, sentinels)
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
