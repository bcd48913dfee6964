"""Three primaries with all slots: enough to move a slot and to be asked for a key that lives elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from harness.raw import RespError
from harness.replication import wait_synced
from harness.server import MakeServer, Server
from harness.settings import free_port
from harness.wait import wait_until

SLOTS = 16384


def key_slot(server: Server, key: str | bytes) -> int:
    return server.client().execute_command("CLUSTER KEYSLOT", key)


def cluster_info(node: Server) -> dict[str, str]:
    """CLUSTER INFO; redis-py makes a dictionary of it or does not, by its version."""
    with node.raw() as raw:
        return dict(line.split(":", 1) for line in raw.ok("CLUSTER", "INFO").decode().split())


def cluster_state(node: Server) -> str:
    return cluster_info(node)["cluster_state"]


def one_node(make_server: MakeServer, **settings: object) -> Server:
    """A cluster of one node, which has all slots."""
    node = make_server(cluster_enabled=True, cluster_port=free_port(), **settings)
    node.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
    wait_until(lambda: cluster_state(node) == "ok", what="the cluster")
    return node


def node_and_replica(make_server: MakeServer) -> tuple[Server, Server]:
    """A node that owns all slots, and the replica that may take its place by CLUSTER FAILOVER."""
    node = one_node(make_server)
    replica = make_server(cluster_enabled=True, cluster_port=free_port())
    node_id: bytes = node.client().execute_command("CLUSTER MYID")
    replica.client().execute_command("CLUSTER MEET", "127.0.0.1", node.port, node.bus_port)
    with replica.raw() as raw:
        wait_until(lambda: raw.call("CLUSTER", "REPLICATE", node_id) == b"OK", 30, "it to know its primary")
    wait_synced(node, replica)
    for each in (node, replica):
        with each.raw() as raw:
            knows_both = lambda raw=raw: b"slave " + node_id in raw.ok("CLUSTER", "NODES")  # noqa: E731
            wait_until(knows_both, 30, f"{each} to know both")
        wait_until(lambda each=each: cluster_state(each) == "ok", 30, "the cluster to be up")
    return node, replica


class Cluster:
    """A running cluster. `nodes[0]` owns the first third of the slots, and so on, until a test moves some."""

    def __init__(self, size: int = 3, **settings: object) -> None:
        settings = {"cluster_node_timeout": 5000, **settings}
        self.nodes = [
            Server(name=f"node{number}", cluster_enabled=True, cluster_port=free_port(), **settings)
            for number in range(size)
        ]

    def start(self) -> Cluster:
        for node in self.nodes:
            node.start()
        bounds = [SLOTS * number // len(self.nodes) for number in range(len(self.nodes) + 1)]
        for number, node in enumerate(self.nodes):
            client = node.client()
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for node in self.nodes:
            for other in self.nodes[self.nodes.index(node) + 1 :]:
                node.client().execute_command("CLUSTER MEET", "127.0.0.1", other.port, other.bus_port)
        for node in self.nodes:
            wait_until(lambda node=node: self._sees_all(node), 30, f"{node} to see the whole cluster")
        return self

    def _sees_all(self, node: Server) -> bool:
        info = cluster_info(node)
        size = str(len(self.nodes))
        return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == info["cluster_size"] == size

    def node_of(self, key: str | bytes) -> Server:
        """The node that serves `key` now: the one that does not redirect."""
        for node in self.nodes:
            try:
                node.client().exists(key)
            except redis.ResponseError:
                continue
            return node
        raise AssertionError(f"no node serves {key!r}")

    def node_id(self, node: Server) -> str:
        return node.client().execute_command("CLUSTER MYID").decode()

    def other_than(self, node: Server) -> Server:
        return next(other for other in self.nodes if other is not node)

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        """The slot is MIGRATING at the source and IMPORTING at the target; its keys have not moved."""
        target.client().execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.client().execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.node_id(target))

    def move_keys(self, slot: int, source: Server, target: Server) -> list[bytes]:
        """Moves the slot's keys with MIGRATE and returns their names."""
        with source.raw() as raw:  # redis-py would make text of the keys' names
            keys = raw.ok("CLUSTER", "GETKEYSINSLOT", slot, 1000)
            if keys:
                raw.ok("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        return keys

    def end_move(self, slot: int, source: Server, target: Server) -> None:
        """The target owns the slot, and every node has been told."""
        target_id = self.node_id(target)
        others = [node for node in self.nodes if node not in (source, target)]
        for node in [target, source, *others]:
            node.client().execute_command("CLUSTER SETSLOT", slot, "NODE", target_id)

    def move_by_keys(self, slots: list[int], source: Server, target: Server) -> None:
        """As `redis-cli --cluster reshard` does it."""
        for slot in slots:
            self.begin_move(slot, source, target)
            while self.move_keys(slot, source, target):
                pass
            self.end_move(slot, source, target)

    def move_at_a_stroke(self, slots: list[int], source: Server, target: Server) -> None:
        """As newer servers do it: the slots are replicated, and change hands in one instant."""
        client = source.client()
        if b"MIGRATESLOTS" not in b" ".join(client.execute_command("CLUSTER HELP")):
            pytest.skip("this server moves slots key by key")
        target_id = self.node_id(target)
        ranges = [word for slot in slots for word in ("SLOTSRANGE", slot, slot, "NODE", target_id)]
        client.execute_command("CLUSTER MIGRATESLOTS", *ranges)
        wait_until(lambda: not set(slots) & set(self.slots_of(source)), 30, "the slots to have moved")

    def slots_of(self, node: Server) -> list[int]:
        with node.raw() as raw:
            owned = [
                (first, last)
                for first, last, owner, *_ in raw.ok("CLUSTER", "SLOTS")
                if owner[1] == node.port
            ]
        return sorted(slot for first, last in owned for slot in range(first, last + 1))

    def discard(self) -> None:
        for node in self.nodes:
            node.discard()


class Slot:
    """The slot of a key, between its owner and a node to which it moves, or does not.

    It keeps two connections, so that it can be opened and closed very often.
    """

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.source = cluster.node_of(key)
        self.target = cluster.other_than(self.source)
        self.number = key_slot(self.source, key)
        self.at_source, self.at_target = self.source.raw(), self.target.raw()
        self._source_id, self._target_id = cluster.node_id(self.source), cluster.node_id(self.target)

    def open(self) -> None:
        self.at_target.ok("CLUSTER", "SETSLOT", self.number, "IMPORTING", self._source_id)
        self.at_source.ok("CLUSTER", "SETSLOT", self.number, "MIGRATING", self._target_id)

    def close(self) -> None:
        for node in (self.at_source, self.at_target):
            node.ok("CLUSTER", "SETSLOT", self.number, "STABLE")

    def move_keys(self, count: int) -> None:
        keys = self.at_source.ok("CLUSTER", "GETKEYSINSLOT", self.number, count)
        if keys:
            self.at_source.ok("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)

    def ask_everywhere(self, commands: list[tuple]) -> list[list[Any]]:
        """What the source and the target answer to each, without the answers of a node that has not the key.

        The slot is open. Each node gets all commands in one write.
        """
        at_target = self.at_target.pipeline([part for one in commands for part in (("ASKING",), one)])[1::2]
        both = zip(self.at_source.pipeline(commands), at_target, strict=True)
        return [[reply for reply in replies if not _is_redirection(reply)] for replies in both]


def _is_redirection(reply: Any) -> bool:
    return isinstance(reply, RespError) and reply.prefix in ("ASK", "MOVED")
