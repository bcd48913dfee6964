"""All languages at work on the same locks while connections are cut, a primary fails, or slots move."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
from driver.agent import Agent
from driver.languages import LANGUAGES
from driver.sections import Judge, Place, Sections
from driver.sentinel import SERVICE, Sentinels
from driver.world import World

from harness import Cluster, Server, key_slot, rounds, wait_until

TASKS = 4
TTL_MS = 15_000


@pytest.fixture
def judge() -> Iterator[Judge]:
    server = Server(name="judge").start()
    yield Judge(server)
    server.stop()
    server.discard()


@pytest.fixture
def places(available: list[str], start_agent: Callable[[str], Agent]) -> Callable[..., list[Place]]:
    """Opens servers in an agent of each language."""

    def open_in_each(operation: str = "open", *, fields: dict, **options: object) -> list[Place]:
        opened = []
        for name in available:
            agent = start_agent(name)
            agent.ask(operation, locks="l", **fields)
            opened.append(Place(agent, "l", {"ttl_ms": TTL_MS, **options}))
        return opened

    return open_in_each


def _judge(sections: Sections, judge: Judge, errors: tuple[str, ...] = ()) -> None:
    print(f"{judge.count('writes')} writes, errors: {dict(sections.errors)}")
    assert not sections.unreported
    assert set(sections.errors) <= set(errors), sections.errors
    assert judge.count("refused") == judge.count("overlaps") == 0


def test_connections_are_cut(
    places: Callable[..., list[Place]], judge: Judge, get_world: Callable[[str], World]
) -> None:
    world = get_world("shared")
    with Sections(places(fields=world.open_fields(True)[1]), judge, ["job"], TASKS) as sections:
        for _ in range(rounds(15, 200)):
            sections.all_go_on(1)
            world.proxy.cut()
        sections.all_go_on()
    _judge(sections, judge)
    for place in sections.places:
        place.agent.ask("close", locks="l")
    world.wait_until_nothing_is_left()


@pytest.mark.skipif(
    "SLOCK_THOROUGH" not in os.environ, reason="it needs a machine of its own: make histories"
)
def test_twenty_contenders_for_a_quorum(
    places: Callable[..., list[Place]], judge: Judge, get_world: Callable[[str], World]
) -> None:
    world = get_world("quorum")
    operation, fields = world.open_fields()
    fields["poll"] = {"kind": "exponential", "pause_ms": 5, "most_ms": 50}
    opened = places(operation, fields=fields)
    with Sections(opened, judge, ["job"], -(-20 // len(opened))) as sections:
        sections.each_language_goes_on(rounds(3, 100))
        world.servers["n1"].kill9()
        sections.each_language_goes_on(rounds(3, 100))
    # Who held the lock on three nodes, and one of them died, cannot know whether the release counts.
    _judge(sections, judge, ("release: QuorumMissed",))
    for place in sections.places:
        place.agent.ask("close", locks="l")
    world.wait_until_nothing_is_left()


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    sentinels = Sentinels()
    try:
        yield sentinels.start()
    finally:
        sentinels.discard()


@pytest.mark.parametrize("replicas", [0, 1], ids=["asynchronous", "with a replica"])
def test_a_primary_fails(
    replicas: int, places: Callable[..., list[Place]], judge: Judge, sentinels: Sentinels
) -> None:
    nodes = [f"127.0.0.1:{port}" for port in sentinels.ports]
    options = {"min_replicas": 1, "replica_timeout_ms": 1000} if replicas else {}
    # Longer than a failover takes, so that a release outlasts one.
    fields = {"kind": "sentinel", "service": SERVICE, "nodes": nodes, "retry_for_ms": TTL_MS}
    opened = places(fields=fields, **options)
    with Sections(opened, judge, ["a", "b"], TASKS) as sections:
        for _ in range(rounds(1, 5)):
            sections.all_go_on()
            sentinels.fail_over()
        sections.all_go_on()
    # A hold that the replica had not received is lost with the primary. Its writes are refused, and its
    # owner is told; where the replica had each hold, that never happens.
    assert not sections.unreported or not replicas, sections.unreported
    # A primary that ends after the grant says nothing of its replicas. `replica_timeout` limits that.
    errors = {"acquire: TooFewReplicas", "acquire: TimedOut"} if replicas else set()
    assert set(sections.errors) <= errors, sections.errors
    if replicas:
        assert judge.count("refused") == judge.count("overlaps") == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster().start()
    yield cluster
    for node in cluster.nodes:
        node.stop()
    cluster.discard()


def test_slots_move(places: Callable[..., list[Place]], judge: Judge, cluster: Cluster) -> None:
    source, target = cluster.nodes[1], cluster.nodes[2]
    names = (f"busy{number}" for number in range(10**6))
    keys = list(islice((name for name in names if cluster.node_of(name) is source), 3))
    nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    with Sections(places(fields={"kind": "cluster", "nodes": nodes}), judge, keys, TASKS) as sections:
        for there, back in rounds(1, 5) * [(source, target)]:
            sections.all_go_on()
            _move(cluster, keys, there, back)
            sections.all_go_on()
            _move(cluster, keys, back, there)
        sections.all_go_on()
    _judge(sections, judge)
    for place in sections.places:
        place.agent.ask("close", locks="l")
    for node in cluster.nodes:
        client = node.client()
        wait_until(lambda client=client: client.info("slock")["slock_waiters"] == 0)
        assert client.dbsize() == 0


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("where", ["here", "there"])
def test_a_hold_in_doubt_is_released_while_its_slot_moves(
    name: str, where: str, start_agent: Callable[[str], Agent], cluster: Cluster
) -> None:
    """The key is still here: what follows its release would be redirected. Or there: all is redirected."""
    agent, source, target = start_agent(name), cluster.nodes[0], cluster.nodes[1]
    keys = (f"{name}{where}{number}" for number in range(1000))
    key = next(key for key in keys if cluster.node_of(key) is source)
    nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    agent.ask("open", locks="l", kind="cluster", nodes=nodes, waiting="block")
    client = source.client()
    assert client.execute_command("SLOCK.LOCK", key, "other", TTL_MS) > 0
    waits = agent.start("acquire", locks="l", hold="h", keys=[key], mode="write", ttl_ms=TTL_MS)
    # The request has no answer, and is sent once more.
    blocked = wait_until(lambda: [one for one in client.client_list() if "b" in one["flags"]])
    former = blocked[0]["id"]
    client.client_kill_filter(_id=former)
    wait_until(lambda: any("b" in one["flags"] and one["id"] != former for one in client.client_list()))
    assert client.execute_command("SLOCK.UNLOCK", key, "other") == 1
    waits.result()
    slot = key_slot(source, key)
    cluster.begin_move(slot, source, target)
    if where == "there":
        assert cluster.move_keys(slot, source, target)
    try:
        assert agent.ask("release", hold="h") == {"released": True}
        assert client.dbsize() == target.client().dbsize() == 0
    finally:
        cluster.end_move(slot, source, target)
    agent.ask("close", locks="l")


def _move(cluster: Cluster, keys: list[str], source: Server, target: Server) -> None:
    """Moves the slots of the keys one by one, as `redis-cli --cluster reshard` does."""
    for key in keys:
        slot = key_slot(source, key)
        cluster.begin_move(slot, source, target)
        time.sleep(0.05)  # so that some commands meet a slot that is moving
        while cluster.move_keys(slot, source, target):
            pass
        cluster.end_move(slot, source, target)
