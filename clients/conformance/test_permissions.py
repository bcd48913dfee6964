"""The user of redis.conf.example for the libraries: it has all that they need, and nothing else."""

from __future__ import annotations

import pytest
from driver.agent import Agent, AgentError
from driver.fixtures import GetWorld, StartAgent
from driver.languages import each_language
from driver.world import World

from harness import wait_until
from harness.acl_lines import example_lines, given

USER, PASSWORD = "library", "secret"
HOUR = 3_600_000

# Sent where a connection has long been silent, a channel is of no more use, or an upgrade is cancelled.
SELDOM = {"ping", "sunsubscribe", "slock.cancel"}

# What the base libraries try at the start of a connection, and do without. Redis 7.0 has not got it.
OPTIONAL = {"client|setinfo", "client|info"}


def _uses_everything(agent: Agent, world: World) -> None:
    operation, servers = world.open_fields()
    agent.ask(operation, locks="l", user=USER, password=PASSWORD, **servers)

    def acquire(hold: str, *keys: str, **options: object) -> None:
        agent.ask("acquire", locks="l", hold=hold, keys=keys, **{"mode": "write", **options})

    # One key: a wait, an extension, and a release.
    assert world.call("main", "SLOCK.LOCK", "lock:1", "other", HOUR) > 0
    waits = agent.start("acquire", locks="l", hold="waited", keys=["lock:1"], mode="write")
    wait_until(lambda: agent.ask("queues", locks="l")["names"] == ["lock:1"], 10, "it to wait")
    assert agent.ask("info", locks="l", key="lock:1")["waiters"] == 1
    assert world.call("main", "SLOCK.UNLOCK", "lock:1", "other") == 1
    waits.result()
    agent.ask("extend", hold="waited", ttl_ms=20_000)
    # A wait that is given up.
    with pytest.raises(AgentError, match="TimedOut"):
        acquire("late", "lock:1", wait_ms=50)
    agent.ask("release", hold="waited")
    # Both modes, and what another process goes on with.
    acquire("read", "lock:1", mode="read")
    assert world.call("main", "SLOCK.RLOCK", "lock:1", "other", HOUR) > 0
    with pytest.raises(AgentError, match="TimedOut"):
        agent.ask("upgrade", hold="read", wait_ms=50)
    assert world.call("main", "SLOCK.RUNLOCK", "lock:1", "other") == 1
    agent.ask("upgrade", hold="read")
    agent.ask("downgrade", hold="read")
    agent.ask("detach", hold="read")
    token = agent.ask("state", hold="read")["token"]
    agent.ask("adopt", locks="l", hold="adopted", keys=["lock:1"], token=token, mode="read")
    agent.ask("release", hold="adopted")
    # Several keys, and a hold that a replica has.
    for mode in ("write", "read"):
        acquire("several", "lock:1", "lock:2", mode=mode, min_replicas=1, replica_timeout_ms=5000)
        agent.ask("extend", hold="several", ttl_ms=20_000)
        agent.ask("release", hold="several")
    agent.ask("close", locks="l")


@pytest.mark.parametrize("name", each_language("test_a_library_can_do_everything_as_its_user"))
def test_a_library_can_do_everything_as_its_user(
    name: str, start_agent: StartAgent, get_world: GetWorld
) -> None:
    agent, world = start_agent(name), get_world("replica")
    assert world.call("main", "ACL", "SETUSER", USER, *example_lines()[USER].split()) == "OK"
    world.call("main", "ACL", "LOG", "RESET")
    world.call("main", "CONFIG", "RESETSTAT")
    _uses_everything(agent, world)
    log = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in world.call("main", "ACL", "LOG")]
    assert {entry["object"] for entry in log} <= OPTIONAL, "what was refused"
    used = world.call("main", "INFO", "commandstats")
    unused = {command for command in given(USER) if f"cmdstat_{command}:" not in used}
    assert unused <= SELDOM
    world.wait_until_nothing_is_left()
