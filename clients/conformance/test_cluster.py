"""Each library in a cluster: while slots move, and with a prefix."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import pytest
from driver.agent import Agent, AgentError
from driver.fixtures import StartAgent
from driver.languages import each_language
from driver.sections import Place, Sections
from driver.world import RETRY_FOR_MS

from harness import Cluster, Server, key_slot, rounds, wait_until

TTL_MS = 15_000
# Of a task, while another one has three. In order it has some 40; who polls is overtaken again and again.
MOST_TURNS = 700


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(cluster_node_timeout=60_000).start()  # so that it is up while nodes are silent
    yield cluster
    for node in cluster.nodes:
        node.stop()
    cluster.discard()


def _fields(cluster: Cluster) -> dict[str, object]:
    nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    return {"locks": "l", "kind": "cluster", "nodes": nodes, "retry_for_ms": RETRY_FOR_MS}


def _keys(cluster: Cluster, node: Server, prefix: str) -> Iterator[str]:
    names = (f"{prefix}{number}" for number in range(10**6))
    return (name for name in names if cluster.node_of(name) is node)


def _nothing_is_left(cluster: Cluster, agents: list[Agent]) -> None:
    for agent in agents:
        agent.ask("close", locks="l")
    for node in cluster.nodes:
        client = node.client()
        wait_until(lambda client=client: client.info("slock")["slock_waiters"] == client.dbsize() == 0)


def test_slots_move(available: list[str], start_agent: StartAgent, cluster: Cluster) -> None:
    source, target = cluster.nodes[1], cluster.nodes[2]
    keys = list(islice(_keys(cluster, source, "busy"), 3))
    agents = [start_agent(name) for name in available]
    for agent in agents:
        agent.ask("open", **_fields(cluster))
    with Sections([Place(agent, {"ttl_ms": TTL_MS}) for agent in agents], keys, 4) as sections:
        for there, back in rounds(1, 5) * [(source, target)]:
            sections.go_on(most=MOST_TURNS)
            _move(cluster, keys, there, back)
            sections.go_on(most=MOST_TURNS)
            _move(cluster, keys, back, there)
        sections.go_on(most=MOST_TURNS)
    sections.judge()
    _nothing_is_left(cluster, agents)


def _move(cluster: Cluster, keys: list[str], source: Server, target: Server) -> None:
    """Moves the slots of the keys one by one, as `redis-cli --cluster reshard` does."""
    for key in keys:
        slot = key_slot(source, key)
        cluster.begin_move(slot, source, target)
        time.sleep(0.05)  # so that some commands meet a slot that is moving
        while cluster.move_keys(slot, source, target):
            pass
        cluster.end_move(slot, source, target)


@pytest.mark.parametrize("name", each_language("test_calls_at_once_ask_for_the_slots_together"))
def test_calls_at_once_ask_for_the_slots_together(
    name: str, start_agent: StartAgent, cluster: Cluster
) -> None:
    """A client for each call, or for each error, costs so much that a hundred calls end without a reply."""
    agent, clients = start_agent(name), [node.client() for node in cluster.nodes]
    agent.ask("open", **_fields(cluster))
    options = {"locks": "l", "mode": "write", "ttl_ms": TTL_MS}
    agent.ask("acquire", hold="h", keys=[name], **options)
    assert agent.ask("release", hold="h") == {}
    for client in clients:
        client.config_resetstat()
    calls = [agent.start("acquire", hold=f"h{n}", keys=[f"{name}{n}"], **options) for n in range(100)]
    for call in calls:
        call.result()
    stats = [client.info("commandstats") for client in clients]
    asked = [of[name]["calls"] for of in stats for name in of if name.startswith("cmdstat_cluster|s")]
    assert sum(asked) <= 12, stats
    connections = [client.info("stats")["total_connections_received"] for client in clients]
    with _silence(cluster.nodes):
        calls = [agent.start("release", hold=f"h{n}") for n in range(100)]
        time.sleep(1.5)  # so that all have tried in vain
    assert [call.result() for call in calls] == 100 * [{}]
    for client, before in zip(clients, connections, strict=True):
        assert client.info("stats")["total_connections_received"] <= before + 50
    agent.ask("close", locks="l")


@contextmanager
def _silence(nodes: list[Server]) -> Iterator[None]:
    try:
        for node in nodes:
            node.pause()
        yield
    finally:
        for node in nodes:
            node.resume()


@pytest.mark.parametrize("name", each_language("test_a_silent_node_stops_only_its_own_locks"))
def test_a_silent_node_stops_only_its_own_locks(name: str, start_agent: StartAgent, cluster: Cluster) -> None:
    agent = start_agent(name)
    agent.ask("open", **{**_fields(cluster), "retry_for_ms": 5000})
    options = {"locks": "l", "mode": "write", "ttl_ms": TTL_MS}
    silent, *others = (next(_keys(cluster, node, name)) for node in cluster.nodes)
    for key in (silent, *others):
        agent.ask("acquire", hold=key, keys=[key], **options)
    for key in others:
        assert agent.ask("release", hold=key) == {}
    with _silence(cluster.nodes[:1]):
        calls = [agent.start("release", hold=silent)]
        calls += [agent.start("acquire", hold=f"w{n}", keys=[silent], **options) for n in range(3)]
        while not all(call.is_done() for call in calls):
            for key in others:
                agent.ask("acquire", hold=key, keys=[key], **options)
                assert agent.ask("release", hold=key) == {}
        assert [str(call.outcome()) for call in calls if "NoAnswer" not in str(call.outcome())] == []
    agent.ask("close", locks="l")


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize("name", each_language("test_a_hold_is_released_while_its_slot_moves"))
def test_a_hold_is_released_while_its_slot_moves(
    name: str, where: str, start_agent: StartAgent, cluster: Cluster
) -> None:
    """The key is still here, and its release is not redirected; or it has moved already."""
    agent, source, target = start_agent(name), cluster.nodes[0], cluster.nodes[1]
    key = next(_keys(cluster, source, f"{name}{where}"))
    agent.ask("open", **_fields(cluster))
    client = source.client()
    assert client.execute_command("SLOCK.LOCK", key, "other", TTL_MS) > 0
    waits = agent.start("acquire", locks="l", hold="h", keys=[key], mode="write", ttl_ms=TTL_MS)

    def is_waiting() -> bool:
        assert not waits.is_done(), waits.outcome()
        return client.info("slock")["slock_waiters"] == 1

    wait_until(is_waiting, 30, "the agent to wait")
    assert client.execute_command("SLOCK.UNLOCK", key, "other") == 1
    waits.result()
    slot = key_slot(source, key)
    cluster.begin_move(slot, source, target)
    if where == "there":
        assert cluster.move_keys(slot, source, target)
    try:
        assert agent.ask("release", hold="h") == {}
        assert client.keys(key) == target.client().keys(key) == []
    finally:
        cluster.end_move(slot, source, target)
    agent.ask("close", locks="l")


@pytest.mark.parametrize("name", each_language("test_a_prefix_in_a_cluster"))
def test_a_prefix_in_a_cluster(name: str, start_agent: StartAgent, cluster: Cluster) -> None:
    """The hash tag is in the key, or in the prefix: then all locks are on one node."""
    for prefix, keys in (("app:", ["{job}:a", "{job}:b"]), ("{app}:", ["a", "b"])):
        agent = start_agent(name)
        agent.ask("open", prefix=prefix, **_fields(cluster))
        client = cluster.node_of(f"{prefix}{keys[0]}").client()
        options = {"locks": "l", "keys": keys, "mode": "write", "ttl_ms": TTL_MS}
        agent.ask("acquire", hold="h", **options)
        assert sorted(client.keys()) == [f"{prefix}{key}".encode() for key in keys]
        waits = agent.start("acquire", hold="w", **options)
        wait_until(lambda client=client: client.info("slock")["slock_waiters"] > 0, 10, "it to wait")
        assert agent.ask("info", locks="l", key=keys[1])["waiters"] == 1
        assert sorted(agent.ask("queues", locks="l")["names"]) == keys
        assert agent.ask("release", hold="h") == {}
        waits.result()
        assert agent.ask("release", hold="w") == {}
        _nothing_is_left(cluster, [agent])


@pytest.mark.parametrize("name", each_language("test_a_node_without_replicas"))
def test_a_node_without_replicas(name: str, start_agent: StartAgent, cluster: Cluster) -> None:
    """They are waited for longer than for a reply."""
    agent = start_agent(name)
    agent.ask("open", **_fields(cluster))
    options = {"locks": "l", "mode": "write", "ttl_ms": TTL_MS, "min_replicas": 1, "replica_timeout_ms": 1500}
    outcome = agent.start("acquire", hold="h", keys=[name], **options).outcome()
    assert isinstance(outcome, AgentError)
    assert outcome.name == "TooFewReplicas", outcome
    _nothing_is_left(cluster, [agent])
