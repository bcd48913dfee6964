"""What happens at the moment of a grant: the waiter is cancelled, or its connections are cut."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import pytest
from driver.agent import Agent, AgentError
from driver.languages import CLIENTS, LANGUAGES
from driver.world import World

from harness import rounds, wait_until

HOUR = 3_600_000
WAYS = [
    pytest.param(language.name, waiting, id=f"{language.name}: {waiting}")
    for language in LANGUAGES.values()
    for waiting in language.waitings
]

# The agent of Python, interrupted once when the library has returned a hold and nobody has been told of it.
INTERRUPTED_AGENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
import conformance_agent as agent

granted = agent.granted

def interrupted(hold):
    agent.granted = granted
    raise agent.Cancelled

agent.granted = interrupted
asyncio.run(agent.Agent().run())
"""


class Handover:
    """Rounds in which a plain client hands the lock to a waiter of the agent."""

    def __init__(self, agent: Agent, world: World, waiting: str, through_proxy: bool) -> None:
        self.agent, self.world = agent, world
        operation, servers = world.open_fields(through_proxy)
        self.locks = agent.new_name("l")
        agent.ask(operation, locks=self.locks, waiting=waiting, **servers)
        # From now on the watchdog is there. A thread of Python that is cancelled while it starts another one
        # may pass its cancellation on to that one, which Ctrl-C does not.
        agent.ask("acquire", locks=self.locks, hold="first", keys=["first"], mode="write")
        agent.ask("release", hold="first")

    def begin(self) -> None:
        """Takes the lock, which nobody may have, and lets the agent wait for it."""
        # A hold that was left behind would be in the way for an hour.
        assert self.world.call("main", "SLOCK.LOCK", "job", "other", HOUR, "WAIT", 10_000) > 0, self.left()
        self.hold = self.agent.new_name("h")
        options = {"locks": self.locks, "hold": self.hold, "keys": ["job"], "mode": "write", "ttl_ms": HOUR}
        self.waiting = self.agent.start("acquire", **options)
        wait_until(lambda: self.waiters() == 1 or self.waiting.is_done(), 10, "the agent to wait")

    def waiters(self) -> int:
        info = self.world.call("main", "SLOCK.INFO", "job")
        return dict(zip(info[::2], info[1::2], strict=True))["waiters"] if info else 0

    def left(self) -> str:
        return f"left behind: {self.world.call('main', 'SLOCK.INFO', 'job', 'FULL')}"

    def hand_over(self) -> None:
        assert self.world.call("main", "SLOCK.UNLOCK", "job", "other") == 1

    def release(self) -> None:
        """The agent has the lock, with the fence that the server gave."""
        answer = self.waiting.result()
        info = self.world.call("main", "SLOCK.INFO", "job")
        fields = dict(zip(info[::2], info[1::2], strict=True))
        assert (fields["fence"], fields["waiters"]) == (answer["fence"], 0)
        assert self.agent.ask("release", hold=self.hold) == {"released": True}

    def end(self) -> None:
        self.agent.ask("close", locks=self.locks)
        self.world.wait_until_nothing_is_left()


@pytest.mark.parametrize(("name", "waiting"), WAYS)
def test_cancelled_at_the_moment_of_the_grant(
    name: str, waiting: str, start_agent: Callable[[str], Agent], get_world: Callable[[str], World]
) -> None:
    handover = Handover(start_agent(name), get_world("shared"), waiting, False)
    dice, granted = random.Random(1), 0
    # A thread of Python that waits looks about once a second whether it is cancelled.
    for _ in range(rounds(4, 100) if name == "python-sync" else rounds(60, 2000)):
        handover.begin()
        steps = [handover.hand_over, handover.waiting.cancel]
        dice.shuffle(steps)
        steps[0]()
        time.sleep(dice.choice([0, 0.0002, 0.0005, 0.001]))
        steps[1]()
        try:
            handover.release()
            granted += 1
        except AgentError as error:
            assert error.name == "Cancelled", error
    print(f"{granted} were granted all the same")
    handover.end()


@pytest.mark.parametrize(("name", "waiting"), WAYS)
def test_cut_at_the_moment_of_the_grant(
    name: str, waiting: str, start_agent: Callable[[str], Agent], get_world: Callable[[str], World]
) -> None:
    world = get_world("shared")
    handover = Handover(start_agent(name), world, waiting, True)
    dice = random.Random(1)
    for _ in range(rounds(20, 500)):
        handover.begin()
        steps = [handover.hand_over, world.proxy.cut]
        dice.shuffle(steps)
        steps[0]()
        time.sleep(dice.choice([0, 0.0002, 0.0005, 0.001]))
        steps[1]()
        handover.release()
    handover.end()


def test_a_thread_of_python_that_is_cancelled_with_a_hold_answers_with_it(
    get_world: Callable[[str], World],
) -> None:
    world = get_world("shared")
    operation, servers = world.open_fields(False)
    command = [sys.executable, "-c", INTERRUPTED_AGENT, str(CLIENTS / "python")]
    agent = Agent("python-sync, interrupted", command, {"api": "sync"})
    try:
        agent.ask(operation, locks="l", **servers)
        agent.ask("acquire", locks="l", hold="h", keys=["job"], mode="write", ttl_ms=HOUR)
        assert agent.ask("release", hold="h") == {"released": True}
        agent.ask("close", locks="l")
        world.wait_until_nothing_is_left()
    finally:
        agent.stop()
