"""Two processes of a library contend while the primary is replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from driver.agent import Agent
from driver.fixtures import StartAgent
from driver.sections import Place, Section, Sections, longest_gap, overlaps
from driver.sentinel import SERVICE, Sentinels
from driver.world import RETRY_FOR_MS
from harness import rounds

# What a hold leaves on the new primary if its release reached the former one. A gap is at least so long.
TTL_MS = 5000
# From the new primary's start to the next grant, beside the ttl.
LONGEST_GAP_SECONDS = 20.0
# A hold may go with its primary, and its release may have no reply.
ERRORS = ("release: Lost", "release: NoAnswer", "acquire: NoAnswer")


def open_by_sentinels(agent: Agent, sentinels: Sentinels, locks: str = "l") -> None:
    nodes = [f"127.0.0.1:{port}" for port in sentinels.ports]
    # Longer than a failover takes, so that a call outlasts one.
    agent.ask("open", locks=locks, kind="sentinel", service=SERVICE, nodes=nodes, retry_for_ms=RETRY_FOR_MS)


def contend(
    name: str, start_agent: StartAgent, sentinels: Sentinels, fail_over: Callable[[], None]
) -> list[tuple[Section, Section]]:
    """The overlaps while the primary is replaced again and again."""
    options = {"ttl_ms": TTL_MS}
    first, second = start_agent(name), start_agent(name)
    places = [Place(first, options), Place(second, options)]
    for agent in (first, second):
        open_by_sentinels(agent, sentinels)
    short, held = Sections(places, ["job"], 2, 0.02), Sections(places, ["held"], 1, 2.0)
    every = [short, held]
    with short, held:
        for number in range(rounds(1, 20)):
            short.go_on()
            fail_over()
            # A client that connects now reaches the new primary. For some ten seconds the former one goes on
            # serving those that are connected, until Sentinel makes it a replica.
            open_by_sentinels(second, sentinels, f"new-{number}")
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
