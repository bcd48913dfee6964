# Made from asyncio/_servers.py by scripts/synchronous.py: change it there.
"""How a command reaches the right server: one server, the primary that Sentinels name, or a node of a
cluster.

It knows the servers and the errors of connections, and nothing of locks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import redis
import redis.exceptions as base

from slock_client import _threads as io
from slock_client._answers import Answer, is_lost_connection, is_wrong_server, problem_in, unsent
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client._fork import track
from slock_client._recipe import Recipe, recipe, recipe_of
from slock_client._slots import Address, Redirection, SlotTable, hash_tag, redirection, slot_of
from slock_client._thread_link import Link, connections_of, nodes_of

# A command may be sent on this often before its redirection is an error.
MOST_REDIRECTIONS = 8

# How long the servers may take to tell who serves, in seconds, whatever time is left to a call.
LOOK_UP_FOR = 2.0


Look = Callable[[], float]


class Place(NamedTuple):
    """Where a command goes."""

    link: Link
    before: tuple[Command, ...] = ()
    """What must come before each command there: ASKING, while a slot is being moved."""


class Servers(Protocol):
    """The servers behind one client of redis-py."""

    name: str
    """Where they are, for people to read."""

    def place_of(self, key: Key, end: float) -> Place:
        """The server that serves `key` now."""

    def redirected(self, key: Key, answer: Answer) -> Place | None:
        """The place that a redirection among the answers names; None for any other answer."""

    def channel_tag(self, key: Key) -> bytes | None:
        """The hash tag that a channel needs for `key`; None outside a cluster."""

    def suspect(self) -> None:
        """A connection was lost, or a server serves no more: perhaps others serve by now."""

    def links(self) -> Sequence[Link]:
        """All that are open."""


def ask(servers: Servers, key: Key, *commands: Command, end: float, look: Look | None = None) -> list[Answer]:
    """The answers of the server that serves `key`, errors of the server among them.

    A lost connection is raised. With `look` the commands may block a connection until `end`: see `Link.wait`.
    """
    place = servers.place_of(key, end)
    for _ in range(MOST_REDIRECTIONS):
        sent: Sequence[Command] = commands
        if place.before:
            sent = [part for command in commands for part in (*place.before, command)]
        try:
            answers = place.link.ask(sent, end) if look is None else place.link.wait(sent, end, look)
        except Exception as error:
            if is_lost_connection(error):
                servers.suspect()
            raise
        answers = answers[len(place.before) :: len(place.before) + 1]
        if problem_in(answers) is None:
            return answers
        moved = next((found for found in (servers.redirected(key, one) for one in answers) if found), None)
        if moved is None:
            if any(is_wrong_server(answer) for answer in answers):
                servers.suspect()
            return answers
        place = moved
    raise base.ClusterError(f"too many redirections for {key!r}")


class OneServer:
    """One server that keeps its address."""

    def __init__(self, recipe: Recipe) -> None:
        self._link = Link(recipe)
        self._place = Place(self._link)
        self.name = recipe.address

    def place_of(self, key: Key, end: float) -> Place:
        return self._place

    def redirected(self, key: Key, answer: Answer) -> Place | None:
        return None

    def channel_tag(self, key: Key) -> bytes | None:
        return None

    def suspect(self) -> None:
        self._link.drop()

    def links(self) -> Sequence[Link]:
        return [self._link]


class _LookUp:
    """Finds out who serves: once for all that want to know at the same time."""

    def __init__(self) -> None:
        self.needed = True
        self._changing = io.Mutex()
        self._under_way: io.Event | None = None
        track(self)

    def after_fork(self) -> None:
        self._changing, self._under_way = io.Mutex(), None

    def until_known(self, find: Any, end: float) -> None:
        """Returns when `find(end)` has succeeded.

        Its errors are raised, as errors before which nothing was sent.
        """
        while self.needed:
            with self._changing:
                other, mine = self._under_way, None
                if other is None:
                    self._under_way = mine = io.Event()
            if other is not None:
                if not other.wait(end):
                    raise unsent(base.TimeoutError("it is not known yet which server serves"))
                continue
            assert mine is not None
            try:
                find(min(end, now() + LOOK_UP_FOR))
                self.needed = False
            except Exception as error:
                unsent(error)
                raise
            finally:
                self._under_way = None
                mine.set()


class SentinelServers:
    """The primary that the Sentinels name: one address for all that is sent, until it changes."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._sentinels = [Link(sentinel) for sentinel in recipe.sentinels]
        self._primary: tuple[Address, Link] | None = None
        self._look_up = _LookUp()
        self.name = recipe.service

    def place_of(self, key: Key, end: float) -> Place:
        self._look_up.until_known(self._find, end)
        assert self._primary is not None
        return Place(self._primary[1])

    def _find(self, end: float) -> None:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._recipe.service)
        works = [lambda link=link: link.ask([question], end) for link in self._sentinels]
        problems = []
        for _, answers in io.each(works):
            told = answers if isinstance(answers, BaseException) else answers[0]
            if isinstance(told, BaseException) or told is None:
                problems.append(str(told or "the service is not known"))
                continue
            address = told[0].decode(), int(told[1])
            old = self._primary
            if old is None or old[0] != address:
                self._primary = address, Link(self._recipe.at(*address))
                if old is not None:  # nothing more goes to a server that is no longer the primary
                    old[1].interrupt()
                    old[1].close()
            return
        raise base.ConnectionError(f"no Sentinel names the primary of {self.name}: {', '.join(problems)}")

    def redirected(self, key: Key, answer: Answer) -> Place | None:
        return None

    def channel_tag(self, key: Key) -> bytes | None:
        return None

    def suspect(self) -> None:
        self._look_up.needed = True
        if self._primary is not None:
            self._primary[1].drop()

    def links(self) -> Sequence[Link]:
        return [*self._sentinels, *([self._primary[1]] if self._primary else [])]


class ClusterClient:
    """What the servers need of a client of a cluster."""

    def __init__(self, client: redis.RedisCluster, *, weak: bool) -> None:
        """`weak`: the client may be collected nevertheless."""
        self._get: Callable[[], Any] = weakref.ref(client) if weak else lambda: client
        self._recipe: Recipe | None = None

    @property
    def _client(self) -> Any:
        client = self._get()
        if client is None:
            raise base.ConnectionError("the client of the cluster is gone")
        return client

    def recipe(self) -> Recipe:
        """Connections like those to its nodes, whatever their address."""
        if self._recipe is None:
            self._recipe = recipe(*connections_of(self._client))
        return self._recipe

    def nodes(self) -> list[Address]:
        """The nodes that it knows."""
        return [(str(node.host), int(node.port)) for node in nodes_of(self._client)]

    def remap(self, host: str, port: int) -> Address:
        """The address at which a node that tells this address is reached."""
        host, port = self._client.nodes_manager.remap_host_port(host, port)
        return str(host), int(port)


class ClusterServers:
    """The nodes of a cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._slots = SlotTable()
        self._links: dict[Address, Link] = {}
        self._look_up = _LookUp()
        self.name = "cluster"

    def place_of(self, key: Key, end: float) -> Place:
        self._look_up.until_known(self._find, end)
        address = self._slots.owner(slot_of(key))
        if address is None:
            self.suspect()
            raise base.ClusterDownError(f"no node serves slot {slot_of(key)}")
        return Place(self._link(address))

    def _find(self, end: float) -> None:
        """Asks all nodes at once and takes the first answer: a silent node must not delay the others."""
        asked = list(self._slots.addresses() | set(self._client.nodes()))
        links = [self._link(address) for address in asked]
        works = [lambda link=link: link.ask([("CLUSTER", "SLOTS")], end) for link in links]
        problem: BaseException = base.ConnectionError("no node of the cluster is known")
        for number, answers in io.each(works):
            reply = answers if isinstance(answers, BaseException) else answers[0]
            if not isinstance(reply, BaseException):
                self._slots.load(reply, asked[number], self._client.remap)
                return
            problem = reply
        raise problem

    def redirected(self, key: Key, answer: Answer) -> Place | None:
        target = redirection(answer)
        if target is None:
            return None
        address = self._address_in(target, key)
        if target.kind == "ASK":
            return Place(self._link(address), (("ASKING",),))
        self._slots.moved(target.slot, address)
        return Place(self._link(address))

    def _address_in(self, target: Redirection, key: Key) -> Address:
        if target.host:
            return self._client.remap(target.host, target.port)
        known = self._slots.owner(slot_of(key))  # no host: that of the node which was asked
        return (known[0] if known else "localhost", target.port)

    def channel_tag(self, key: Key) -> bytes | None:
        return hash_tag(key)

    def suspect(self) -> None:
        self._look_up.needed = True

    def links(self) -> Sequence[Link]:
        return list(self._links.values())

    def _link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links.setdefault(address, Link(self._client.recipe().at(*address)))
        return link


def servers_of(client: Any, *, weak: bool = False) -> Servers:
    """The servers behind a client of redis-py. `weak`: the client may be collected nevertheless."""
    if isinstance(client, redis.RedisCluster):
        return ClusterServers(ClusterClient(client, weak=weak))
    if not isinstance(client, redis.Redis):
        raise TypeError(f"Locks needs a client of `redis`, not {type(client).__name__}")
    found = recipe_of(client.connection_pool, redis.Connection, redis.SSLConnection)
    return SentinelServers(found) if found.sentinels else OneServer(found)
