"""Three primaries with all slots: enough to move a slot and to be asked for a key that lives elsewhere."""

from __future__ import annotations

import redis

from harness.server import Server
from harness.settings import free_port
from harness.wait import wait_until

SLOTS = 16384


def key_slot(server: Server, key: str | bytes) -> int:
    return server.client().execute_command("CLUSTER KEYSLOT", key)


class Cluster:
    """A running cluster. `nodes[0]` owns the first third of the slots, and so on, until a test moves some."""

    def __init__(self, size: int = 3, **settings: object) -> None:
        self.nodes = [
            Server(
                name=f"node{number}",
                cluster_enabled=True,
                cluster_port=free_port(),
                cluster_node_timeout=5000,
                **settings,
            )
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
        info = node.client().execute_command("CLUSTER INFO")
        text = (
            info
            if isinstance(info, dict)
            else dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        )
        return (
            text["cluster_state"] == "ok"
            and int(text["cluster_known_nodes"]) == len(self.nodes)
            and int(text["cluster_size"]) == len(self.nodes)
        )

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

    def discard(self) -> None:
        for node in self.nodes:
            node.discard()
