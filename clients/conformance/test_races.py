"""What happens at the moment of a grant: the waiter is cancelled, or its connections are cut."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from driver.agent import Agent, AgentError
from driver.fixtures import GetWorld, StartAgent
from driver.languages import each_language
from driver.world import World

from harness import rounds, wait_until

HOUR = 3_600_000
# Acquisitions that are under way together.
AT_ONCE = 50


class Handover:
    """Rounds in which a plain client hands the lock to a waiter of the agent."""

    def __init__(self, agent: Agent, world: World, through_proxy: bool) -> None:
        self.agent, self.world = agent, world
        operation, servers = world.open_fields(through_proxy)
        agent.ask(operation, locks="l", **servers)
        # From now on the watchdog is there. A thread of Python that is cancelled while it starts another one
        # may pass its cancellation on to that one, which Ctrl-C does not.
        agent.ask("acquire", locks="l", hold="first", keys=["first"], mode="write")
        agent.ask("release", hold="first")

    def begin(self) -> None:
        """Takes the lock, which nobody may have, and lets the agent wait for it."""
        # A hold that was left behind would be in the way for an hour.
        assert self.world.call("main", "SLOCK.LOCK", "job", "other", HOUR, "WAIT", 10_000) > 0, self.left()
        self.hold = self.agent.new_name("h")
        options = {"locks": "l", "hold": self.hold, "keys": ["job"], "mode": "write", "ttl_ms": HOUR}
        self.waiting = self.agent.start("acquire", **options)
        wait_until(lambda: self.waiters() == 1 or self.waiting.is_done(), 10, "the agent to wait")

    def waiters(self) -> int:
        info = self.world.call("main", "SLOCK.INFO", "job")
        return dict(zip(info[::2], info[1::2], strict=True))["waiters"] if info else 0

    def left(self) -> str:
        return f"left behind: {self.world.call('main', 'SLOCK.INFO', 'job', 'FULL')}"

    def in_any_order(self, dice: random.Random, other: Callable[[], object]) -> None:
        """Hands the lock over, and does the other thing just before or after."""
        steps = [lambda: self.world.call("main", "SLOCK.UNLOCK", "job", "other"), other]
        dice.shuffle(steps)
        steps[0]()
        time.sleep(dice.choice([0, 0.0002, 0.0005, 0.001]))
        steps[1]()

    def release(self) -> None:
        """The agent has the lock, with the fence that the server gave."""
        answer = self.waiting.result()
        info = self.world.call("main", "SLOCK.INFO", "job")
        fields = dict(zip(info[::2], info[1::2], strict=True))
        assert (fields["fence"], fields["waiters"]) == (answer["fence"], 0)
        assert self.agent.ask("release", hold=self.hold) == {}

    def end(self) -> None:
        self.agent.ask("close", locks="l")
        self.world.wait_until_nothing_is_left()


@pytest.mark.parametrize("name", each_language("test_cancelled_at_the_moment_of_the_grant"))
def test_cancelled_at_the_moment_of_the_grant(
    name: str, start_agent: StartAgent, get_world: GetWorld
) -> None:
    handover = Handover(start_agent(name), get_world("shared"), False)
    dice, granted = random.Random(1), 0
    # A thread of Python that waits checks about once a second whether it is cancelled.
    for _ in range(rounds(4, 100) if name == "python-sync" else rounds(60, 2000)):
        handover.begin()
        handover.in_any_order(dice, handover.waiting.cancel)
        try:
            handover.release()
            granted += 1
        except AgentError as error:
            assert error.name == "Cancelled", error
    print(f"{granted} were granted all the same")
    handover.end()


@pytest.mark.parametrize("name", each_language("test_cut_at_the_moment_of_the_grant"))
def test_cut_at_the_moment_of_the_grant(name: str, start_agent: StartAgent, get_world: GetWorld) -> None:
    world = get_world("shared")
    handover = Handover(start_agent(name), world, True)
    dice = random.Random(1)
    for _ in range(rounds(20, 500)):
        handover.begin()
        handover.in_any_order(dice, world.proxy.cut)
        handover.release()
    handover.end()


@pytest.mark.parametrize("name", each_language("test_many_cancelled_acquisitions_leave_nothing"))
def test_many_cancelled_acquisitions_leave_nothing(
    name: str, start_agent: StartAgent, get_world: GetWorld
) -> None:
    agent, world, dice = start_agent(name), get_world("shared"), random.Random(1)
    operation, servers = world.open_fields()
    agent.ask(operation, locks="l", **servers)
    count = rounds(100, 1000) if name == "python-sync" else rounds(500, 10_000)
    assert world.call("main", "SLOCK.LOCK", "busy", "other", HOUR) > 0
    options = {"locks": "l", "mode": "write", "ttl_ms": HOUR}

    def cancel_one(number: int) -> None:
        keys, hold = dice.choice([["busy"], ["free"], ["busy", "free"]]), f"h{number}"
        call = agent.start("acquire", hold=hold, keys=keys, **options)
        time.sleep(dice.choice([0, 0.0005, 0.002, 0.01]))
        call.cancel()
        try:
            call.result()
            agent.ask("release", hold=hold)
        except AgentError as error:
            assert error.name == "Cancelled", error

    cancel_one(0)
    tasks = agent.ask("tasks")["count"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(cancel_one, range(1, count)))
    assert world.call("main", "SLOCK.UNLOCK", "busy", "other") == 1
    # A library may keep what so many calls at once needed, but nothing for each that was cancelled.
    wait_until(lambda: agent.ask("tasks")["count"] <= tasks + AT_ONCE, 30, f"about {tasks} tasks to be left")
    wait_until(lambda: len(world.call("main", "PUBSUB", "SHARDCHANNELS")) <= 2, 30, "a channel for each key")
    agent.ask("close", locks="l")
    world.wait_until_nothing_is_left()
    assert world.call("main", "PUBSUB", "SHARDCHANNELS") == []
