# Made from asyncio/_servers.py by scripts/synchronous.py: change it there.
"""How a command reaches the right server: one server, the primary that Sentinels name, or a node of a
cluster.

It knows the servers and the errors of connections, and nothing of locks.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import redis
import redis.exceptions as base

from slock_client import _answers
from slock_client import _threads as io
from slock_client._answers import Answer, problem_in, unsent
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client._endpoint import Endpoint, endpoint_of_pool, endpoint_with
from slock_client._fork import track
from slock_client._slots import Address, hash_tag, owners_of, slot_of
from slock_client._sync._node import Look, Node
from slock_client._thread_connection import connections_of, nodes_of
from slock_client.hooks import log

# A command may be sent on this often before its redirection is an error.
MOST_REDIRECTIONS = 8

# What `SentinelServers` calls the node to which commands go.
PRIMARY = "primary"

# How long the servers may take to tell who serves, in seconds, whatever time is left to a call.
LOOK_UP_FOR = 2.0

# For so long, in seconds, no server answers before that is logged: a connection may be lost at any time.
SILENT_FOR = 1.0


class Place(NamedTuple):
    """Where a command goes."""

    node: Node
    before: tuple[Command, ...] = ()
    """What must come before each command there: ASKING, while a slot is being moved."""


class Servers:
    """The servers behind one client of redis-py."""

    name: str
    """Where they are, for people to read."""

    def __init__(self) -> None:
        self._nodes: dict[Any, Node] = {}
        self._known = False
        self._changing = io.Mutex()
        self._looking_up: io.Event | None = None
        self._silent_since: float | None = None
        track(self)

    def after_fork(self) -> None:
        self._changing, self._looking_up = io.Mutex(), None

    def place_of(self, key: Key, end: float) -> Place:
        """The server that serves `key` now."""
        raise NotImplementedError

    def redirected(self, key: Key, answer: Answer) -> Place | None:
        """The place that a redirection among the answers names; None for any other answer."""
        return None

    def channel_tag(self, key: Key) -> bytes | None:
        """The hash tag that a channel needs for `key`; None outside a cluster."""
        return None

    def others(self, key: Key) -> list[Any]:
        """The addresses of the primaries but that of `key`, as far as they are known. `place_of` takes them
        too.
        """
        return []

    def suspect(self) -> None:
        """A connection was lost, or a server serves no more: perhaps others serve by now."""
        self._known = False

    def note(self, problem: BaseException | None) -> None:
        """Whether a server has answered. When none has for some time an operator is told, once."""
        if problem is None:
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now()
        elif now() - self._silent_since > SILENT_FOR:
            self._silent_since = math.inf
            log.warning("%s is out of reach: %s", self.name, problem)

    def nodes(self) -> Sequence[Node]:
        """All that are open."""
        return list(self._nodes.values())

    def _find(self, end: float) -> None:
        """Finds out who serves."""
        raise NotImplementedError

    def _until_known(self, end: float) -> None:
        """Returns when it is known who serves: `_find` is called once for all that want to know.

        Its errors are raised, as errors before which nothing was sent.
        """
        while not self._known:
            with self._changing:
                other, mine = self._looking_up, io.Event()
                if other is None:
                    self._looking_up = mine
            if other is not None:
                if not other.wait(end):
                    raise unsent(base.TimeoutError("it is not known yet which server serves"))
                continue
            try:
                self._find(min(end, now() + LOOK_UP_FOR))
                self._known = True
            except Exception as error:
                raise unsent(error)  # noqa: B904 # the same error
            finally:
                self._looking_up = None
                mine.set()


def ask(servers: Servers, key: Key, *commands: Command, end: float, look: Look | None = None) -> list[Answer]:
    """The answers of the server that serves `key`, errors of the server among them.

    A lost connection is raised. `look`: see `Node.ask`.
    """
    moved: Place | None = None
    for _ in range(MOST_REDIRECTIONS):
        try:
            place = moved or servers.place_of(key, end)
            sent: Sequence[Command] = commands
            if place.before:
                sent = [part for command in commands for part in (*place.before, command)]
            answers = place.node.ask(sent, end, look)
        except Exception as error:
            if _answers.is_lost_connection(error):
                servers.suspect()
                servers.note(error)
            if _answers.may_be_executed(error):  # it was connected
                place.node.drop()
            raise
        servers.note(None)
        answers = answers[len(place.before) :: len(place.before) + 1]
        if problem_in(answers) is None:
            return answers
        moved = next(filter(None, (servers.redirected(key, one) for one in answers)), None)
        if moved is None:
            if problem_in(answers, _answers.is_wrong_server) is not None:
                servers.suspect()
                place.node.drop()
            return answers
    raise unsent(base.ConnectionError(f"too many redirections for {key!r}"))


class OneServer(Servers):
    """One server that keeps its address."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.name = endpoint.address
        self._place = Place(self._nodes.setdefault(None, Node(endpoint)))

    def place_of(self, key: Key, end: float) -> Place:
        return self._place


class SentinelServers(Servers):
    """The primary that the Sentinels name: one address for all that is sent, until it changes."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__()
        self.name = endpoint.service
        self._endpoint = endpoint
        self._sentinels = [Node(sentinel) for sentinel in endpoint.sentinels]
        self._nodes = dict(enumerate(self._sentinels))

    def place_of(self, key: Key, end: float) -> Place:
        self._until_known(end)
        return Place(self._nodes[PRIMARY])

    def _find(self, end: float) -> None:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._endpoint.service)
        works = [functools.partial(node.ask, [question], end) for node in self._sentinels]
        problems = []
        for _, answers in io.each(works):
            told = answers if isinstance(answers, BaseException) else answers[0]
            if isinstance(told, BaseException) or told is None:
                problems.append(str(told or "the service is not known"))
                continue
            endpoint = self._endpoint.at(told[0].decode(), int(told[1]))
            old = self._nodes.get(PRIMARY)
            if old is None or old.endpoint != endpoint:
                self._nodes[PRIMARY] = Node(endpoint)
                if old is not None:  # nothing more goes to a server that is no longer the primary
                    old.interrupt()
                    old.close()
            return
        raise base.ConnectionError(f"no Sentinel names the primary of {self.name}: {', '.join(problems)}")


class ClusterServers(Servers):
    """The nodes of a cluster."""

    name = "cluster"

    def __init__(self, client: redis.RedisCluster, *, weak: bool) -> None:
        """`weak`: the client may be collected nevertheless."""
        super().__init__()
        self._get: Callable[[], Any] = weakref.ref(client) if weak else lambda: client
        self._endpoint: Endpoint | None = None
        self._owners: dict[int, Address] = {}  # of the slots, as far as they are known

    def place_of(self, key: Key | Address, end: float) -> Place:
        self._until_known(end)
        if isinstance(key, tuple):
            return Place(self._node(key))
        address = self._owners.get(slot_of(key))
        if address is None:
            self.suspect()
            raise base.ClusterDownError(f"no node serves slot {slot_of(key)}")
        return Place(self._node(address))

    def _find(self, end: float) -> None:
        """Asks all nodes at once and takes the first answer: a silent node must not delay the others."""
        known = {(str(node.host), int(node.port)) for node in nodes_of(self._client(), end)}
        asked = list(known | set(self._owners.values()))
        works = [functools.partial(self._node(one).ask, [("CLUSTER", "SLOTS")], end) for one in asked]
        problem: BaseException = base.ConnectionError("no node of the cluster is known")
        for number, answers in io.each(works):
            reply = answers if isinstance(answers, BaseException) else answers[0]
            if not isinstance(reply, BaseException):
                self._owners = owners_of(reply, asked[number], self._remap) or self._owners
                return
            problem = reply
        raise problem

    def redirected(self, key: Key, answer: Answer) -> Place | None:
        if not isinstance(answer, base.AskError):  # MOVED is one too
            return None
        if answer.host:
            address = self._remap(answer.host, answer.port)
        else:  # that of the node which was asked
            address = self._owners.get(slot_of(key), ("localhost", 0))[0], answer.port
        if not isinstance(answer, base.MovedError):
            return Place(self._node(address), (("ASKING",),))
        self._owners[answer.slot_id] = address
        return Place(self._node(address))

    def channel_tag(self, key: Key) -> bytes | None:
        return hash_tag(key)

    def others(self, key: Key) -> list[Any]:
        return list(set(self._owners.values()) - {self._owners.get(slot_of(key))})

    def _client(self) -> Any:
        client = self._get()
        if client is None:
            raise base.ConnectionError("the client of the cluster is gone")
        return client

    def _remap(self, host: str, port: int) -> Address:
        """The address at which a node that tells this address is reached."""
        host, port = self._client().nodes_manager.remap_host_port(host, port)
        return str(host), int(port)

    def _node(self, address: Address) -> Node:
        if self._endpoint is None:
            self._endpoint = endpoint_with(*connections_of(self._client()))
        node = self._nodes.get(address)
        return node or self._nodes.setdefault(address, Node(self._endpoint.at(*address)))


def servers_of(client: Any, *, weak: bool = False) -> Servers:
    """The servers behind a client of redis-py. `weak`: the client may be collected nevertheless."""
    if isinstance(client, redis.RedisCluster):
        return ClusterServers(client, weak=weak)
    if not isinstance(client, redis.Redis):
        raise TypeError(f"Locks needs a client of `redis`, not {type(client).__name__}")
    found = endpoint_of_pool(client.connection_pool, redis.Connection, redis.SSLConnection)
    return SentinelServers(found) if found.sentinels else OneServer(found)
