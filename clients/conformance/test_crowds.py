"""Many waiters and many holds in one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from driver.agent import Agent
from driver.fixtures import GetWorld, StartAgent
from driver.languages import each_language
from driver.world import World

from harness import rounds, stays, wait_until

HOUR = 3_600_000


def _open(agent: Agent, world: World) -> str:
    operation, servers = world.open_fields()
    locks = agent.new_name("l")
    agent.ask(operation, locks=locks, **servers)
    return locks


def _slock(world: World, field: str) -> int:
    lines = world.call("main", "INFO", "slock").splitlines()
    return int(next(line.split(":")[1] for line in lines if line.startswith(f"{field}:")))


@pytest.mark.parametrize("name", each_language("test_waiters_share_connections"))
def test_waiters_share_connections(name: str, start_agent: StartAgent, get_world: GetWorld) -> None:
    agent, world = start_agent(name), get_world("own")
    server, tasks = world.servers["main"], rounds(300, 5000)
    world.call("main", "SLOCK.LOCK", "job", "other", HOUR)
    before = set(server.connections())
    locks = _open(agent, world)
    waiting = agent.start("wait_many", locks=locks, key="job", tasks=tasks, ttl_ms=60_000)

    def all_wait() -> bool:
        """By one channel, which has a subscriber."""
        assert not waiting.is_done(), waiting.outcome()
        info = world.call("main", "SLOCK.INFO", "job", "FULL", "COUNT", 0)
        queue = [dict(zip(one[::2], one[1::2], strict=True)) for one in info[-1]]
        channels = list({one["channel"] for one in queue})
        return len(queue) == tasks and world.call("main", "PUBSUB", "SHARDCHANNELS") == channels

    wait_until(all_wait, 60, f"{tasks} tasks to wait")
    own = [fields for port, fields in server.connections().items() if port not in before]
    agents = [fields for fields in own if fields["cmd"] != "client|list"]
    assert 1 <= len(agents) <= 10, agents  # a base library may open more when it is busy, but not one a task
    assert world.call("main", "CLIENT", "KILL", "TYPE", "PUBSUB") == 1
    wait_until(all_wait, 60, f"{tasks} tasks to wait again")
    assert world.call("main", "SLOCK.UNLOCK", "job", "other") == 1
    assert waiting.result(120) == {"done": tasks}
    agent.ask("close", locks=locks)
    world.wait_until_nothing_is_left()


AT_ONCE = 50


def test_many_holds_are_renewed_by_one_task(
    available: list[str], start_agent: StartAgent, get_world: GetWorld
) -> None:
    count, ttl = rounds(400, 10_000), rounds(6000, 15_000)
    names = [str(number) for number in range(count)]
    held: list[tuple[Agent, World, str, int]] = []
    for name in available:
        agent, world = start_agent(name), get_world("own")
        locks = _open(agent, world)
        options = {"locks": locks, "mode": "write", "ttl_ms": ttl}
        agent.ask("acquire", hold="first", keys=["first"], **options)
        tasks = agent.ask("tasks")["count"]
        for some in batched(names, AT_ONCE):
            calls = [agent.start("acquire", hold=one, keys=[f"held:{one}"], **options) for one in some]
            for call in calls:
                call.result()
        held.append((agent, world, locks, tasks))

    def lost() -> dict[str, int]:
        locks = {agent.name: _slock(world, "slock_locks") for agent, world, _, _ in held}
        return {name: there for name, there in locks.items() if there != count + 1}

    try:
        stays(lambda: not lost(), 1.2 * ttl / 1000)
    except AssertionError:
        raise AssertionError(f"not all holds are renewed: {lost()}") from None
    for agent, world, locks, tasks in held:
        # A library may keep what so many calls at once needed, and have a task for each renewal that is sent.
        few = partial(_has_tasks, agent, tasks + AT_ONCE)
        wait_until(few, 20, f"few tasks of {agent}")
        releases = [agent.start("release", hold=one) for one in ("first", *names)]
        assert all(release.result(60) == {} for release in releases)
        agent.ask("close", locks=locks)
        world.wait_until_nothing_is_left()


def _has_tasks(agent: Agent, most: int) -> bool:
    return bool(agent.ask("tasks")["count"] <= most)


def batched(items: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
