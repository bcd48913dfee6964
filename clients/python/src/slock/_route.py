"""To which server a command goes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import redis
import redis.exceptions as base

from slock._commands import Command, Key
from slock._connection import Answer, Connection
from slock._fork import track
from slock._recipe import Recipe, recipe, recipe_of
from slock._slots import MOST_REDIRECTIONS, Address, SlotTable, redirection, slot_of

# So many connections to a server are kept for the next commands and waits.
SPARE_CONNECTIONS = 8


class Pool:
    """Connections to one server that no thread uses now."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self._spare: list[Connection] = []
        track(self)

    def take(self) -> Connection:
        """A connection for the caller alone, which gives it back or closes it."""
        try:
            return self._spare.pop()
        except IndexError:
            return Connection(self.recipe)

    def after_fork(self) -> None:
        """The connections are the parent's."""
        self._spare = []

    def give_back(self, connection: Connection) -> None:
        """Keeps a connection, if all has been answered and there are not too many."""
        if connection.unanswered or len(self._spare) >= SPARE_CONNECTIONS:
            connection.close()
        else:
            self._spare.append(connection)

    def ask(self, *commands: Command, end: float | None = None) -> list[Answer]:
        """The answers of the server. After an error all connections are closed: others are no better."""
        connection = self.take()
        try:
            answers = connection.ask(*commands, end=end)
        except BaseException:
            connection.close()
            self.close()
            raise
        self.give_back(connection)
        return answers

    def close(self) -> None:
        """Closes the connections that no thread uses."""
        spare, self._spare = self._spare, []
        for connection in spare:
            connection.close()


class Route(Protocol):
    """The servers behind one client."""

    def ask(self, key: Key, *commands: Command, end: float | None = None) -> list[Answer]:
        """The answers of the server that serves `key`, errors among them. A lost connection is raised.

        `TimeoutError` of redis-py when they do not come until `end`, on the monotonic clock.
        """

    def pool_of(self, key: Key, end: float | None = None) -> Pool:
        """The connections to the server that serves `key` now."""

    def groups(self, keys: Sequence[Key], end: float) -> list[tuple[Recipe, list[int]]]:
        """The servers of many keys, each with the positions of its keys. Some keys may have no server.

        It returns before `end`, on the monotonic clock.
        """

    def redirected(self, key: Key, answer: object) -> bool:
        """Whether an answer that came by another way sends the caller to another node, which is noted."""

    def importer(self, answer: object) -> Pool | None:
        """The connections to the node that an answer ASK names. ASKING must come before the command there."""

    def suspect(self) -> None:
        """A connection was lost: perhaps other servers serve by now."""

    def close(self) -> None:
        """Closes the connections that no thread uses."""


class SingleRoute:
    """One server, or the primary that the Sentinels name."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = Pool(recipe_of(client.connection_pool, redis.Connection, redis.SSLConnection))

    def ask(self, key: Key, *commands: Command, end: float | None = None) -> list[Answer]:
        return self._pool.ask(*commands, end=end)

    def pool_of(self, key: Key, end: float | None = None) -> Pool:
        return self._pool

    def groups(self, keys: Sequence[Key], end: float) -> list[tuple[Recipe, list[int]]]:
        return [(self._pool.recipe, list(range(len(keys))))]

    def redirected(self, key: Key, answer: object) -> bool:
        return False

    def importer(self, answer: object) -> Pool | None:
        return None

    def suspect(self) -> None:
        self._pool.close()

    def close(self) -> None:
        self._pool.close()


class ClusterRoute:
    """The nodes of a cluster."""

    def __init__(self, client: redis.RedisCluster) -> None:
        self._client = client
        self._slots = SlotTable()
        self._pools: dict[Address, Pool] = {}
        self._recipe: Recipe | None = None
        self._loading = threading.Condition()
        self._asked: set[Address] = set()
        """The nodes that are asked for the slots now."""
        self._problem: BaseException = base.ConnectionError("no node of the cluster is known")
        self._suspected = True
        track(self)

    def after_fork(self) -> None:
        """What is being asked is the parent's."""
        self._loading, self._asked = threading.Condition(), set()

    def ask(self, key: Key, *commands: Command, end: float | None = None) -> list[Answer]:
        address = self._owner(key, end)
        asking = False
        for _ in range(MOST_REDIRECTIONS):
            try:
                if asking:
                    pairs = [part for command in commands for part in (("ASKING",), command)]
                    answers = self._pool(address).ask(*pairs, end=end)[1::2]
                else:
                    answers = self._pool(address).ask(*commands, end=end)
            except (base.ConnectionError, base.TimeoutError, OSError):
                self.suspect()
                raise
            target = next((found for found in (redirection(one, address) for one in answers) if found), None)
            if target is None:
                return answers
            address, asking = self._remap(target.host, target.port), target.kind == "ASK"
            if target.kind == "MOVED":
                self._slots.moved(target.slot, address)
        raise base.ClusterError(f"too many redirections for {key!r}")

    def pool_of(self, key: Key, end: float | None = None) -> Pool:
        return self._pool(self._owner(key, end))

    def groups(self, keys: Sequence[Key], end: float) -> list[tuple[Recipe, list[int]]]:
        with contextlib.suppress(base.RedisError, OSError):
            now = time.monotonic()
            self._look_up(now + (end - now) / 2)  # else those known until now
        groups: dict[Address, list[int]] = {}
        for position, key in enumerate(keys):
            address = self._slots.owner(slot_of(key))
            if address is None:
                self.suspect()
            else:
                groups.setdefault(address, []).append(position)
        return [(self._recipe_of(address), positions) for address, positions in groups.items()]

    def redirected(self, key: Key, answer: object) -> bool:
        target = redirection(answer, ("", 0))
        if target is None:
            return False
        if target.kind == "MOVED":
            host = target.host or self._owner(key)[0]
            self._slots.moved(target.slot, self._remap(host, target.port))
        return True

    def importer(self, answer: object) -> Pool | None:
        target = redirection(answer, ("", 0))
        if target is None or target.kind != "ASK" or not target.host:
            return None
        return self._pool(self._remap(target.host, target.port))

    def suspect(self) -> None:
        self._suspected = True

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()

    def _owner(self, key: Key, end: float | None = None) -> Address:
        self._look_up(end)
        slot = slot_of(key)
        address = self._slots.owner(slot)
        if address is None:
            self.suspect()
            raise base.ClusterDownError(f"no node serves slot {slot}")
        return address

    def _look_up(self, end: float | None) -> None:
        """Asks all nodes at once and takes the first answer: a silent node must not delay the others."""
        if not self._suspected:
            return
        with self._loading:
            for address in self._addresses() - self._asked:
                threading.Thread(
                    target=self._ask_slots, args=(address,), name="slock cluster", daemon=True
                ).start()
                self._asked.add(address)
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._loading.wait_for(lambda: not self._suspected or not self._asked, left):
                raise base.TimeoutError("the nodes of the cluster are not known yet")
            if self._suspected:
                raise self._problem

    def _addresses(self) -> set[Address]:
        nodes: list[Any] = self._client.get_nodes()  # type: ignore[no-untyped-call]
        if self._recipe is None:
            pool = self._client.get_redis_connection(nodes[0]).connection_pool
            self._recipe = recipe(pool.connection_class, pool.connection_kwargs)
        return self._slots.addresses() | {(str(node.host), int(node.port)) for node in nodes}

    def _ask_slots(self, address: Address) -> None:
        connection = Connection(self._recipe_of(address))
        try:
            [reply] = connection.ask(("CLUSTER", "SLOTS"))
        except Exception as error:
            reply = error
        connection.close()
        with self._loading:
            self._asked.discard(address)
            if isinstance(reply, BaseException):
                self._problem = reply
            elif self._suspected:  # else another node was faster
                self._slots.load(reply, address)
                self._suspected = False
            self._loading.notify_all()

    def _pool(self, address: Address) -> Pool:
        if address not in self._pools:
            self._pools[address] = Pool(self._recipe_of(address))
        return self._pools[address]

    def _recipe_of(self, address: Address) -> Recipe:
        assert self._recipe is not None
        host, port = address
        return self._recipe._replace(arguments={**self._recipe.arguments, "host": host, "port": port})

    def _remap(self, host: str, port: int) -> Address:
        remap: Any = getattr(self._client.nodes_manager, "remap_host_port", None)
        if remap is not None:
            host, port = remap(host, port)
        return host, int(port)


def route_of(client: redis.Redis | redis.RedisCluster) -> Route:
    """The route for a client of redis-py."""
    if isinstance(client, redis.RedisCluster):
        return ClusterRoute(client)
    if isinstance(client, redis.Redis):
        return SingleRoute(client)
    raise TypeError(f"Locks needs a synchronous client of redis-py, not {type(client).__name__}")
