# SPDX-License-Identifier: MIT OR Apache-2.0

"""Over a client of redis-py or valkey-py, synchronous or asyncio.

All commands go through duplicates of the program's client, made by public means: no command of the program can keep
them busy, they have time limits of their own, and each event loop has some. So has each node of a cluster, because the
library's own clients of a cluster let all nodes wait for one that is silent. Where the library has coroutines in one
half and functions in the other, `settled` takes either.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from slock_client._clock import now
from slock_client._listener import key_slot
from slock_client._transport import Command, NoReply, Runtime, ServerError, Transport

TIME_LIMIT = 0.8  # seconds for a read, a write or a connection. Without a reply the command is sent again.
_TICK = 0.05  # seconds until a listening connection takes up a new channel
_PAUSE = 0.2  # seconds after a subscription that the server has not confirmed
_CHECK = 1.0  # seconds for which a primary counts that Sentinel has named
_PROBE = 0.2  # seconds between two calls to a node of a cluster that is silent, so that others have their turn
_REDIRECTIONS = 5  # of one call in a cluster
# After these replies the primary may be another one.
_DEMOTED = ("READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING", "MISCONF")

# Where a connection leads: to a node of a cluster, to the Sentinel with this number, or else to the primary.
Place = tuple[str, int] | int | None

_SET: dict[str, Any] = {
    "socket_timeout": TIME_LIMIT,
    "protocol": 2,
    "decode_responses": False,
    "encoding": "utf-8",
    "encoding_errors": "surrogateescape",
    "health_check_interval": 0,
}
# What two clients must not share, and what a client adds by itself.
_LEFT_OUT = {
    *("retry", "retry_on_error", "retry_on_timeout", "max_connections", "cache", "cache_config", "connection_pool"),
    *("maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"),
    *("event_dispatcher", "himport_registry", "parser_class", "response_callbacks", "connection_class"),
    *("legacy_responses", "orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout"),
}
# The errors whose text lacks the code of the server's reply.
_CODES = {
    **{"ReadOnlyError": "READONLY", "NoPermissionError": "NOPERM", "BusyLoadingError": "LOADING"},
    **{"MasterDownError": "MASTERDOWN", "ClusterDownError": "CLUSTERDOWN", "TryAgainError": "TRYAGAIN"},
    **{"ClusterCrossSlotError": "CROSSSLOT", "OutOfMemoryError": "OOM", "MovedError": "MOVED", "AskError": "ASK"},
    **{"AuthenticationError": "WRONGPASS", "AuthorizationError": "NOAUTH"},
}
_LOGIN = ("WRONGPASS", "NOAUTH")


class Packer:
    """Codes commands. That of hiredis crashes the process if a signal handler raises an exception meanwhile."""

    def pack(self, *words: Any) -> list[bytes]:
        words = (*words[0].split(), *words[1:])  # of "CLUSTER SLOTS" each is one
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            coded = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
            parts.append(b"$%d\r\n%b\r\n" % (len(coded), coded))
        return [b"".join(parts)]


class Quiet:
    """In place of a duplicate's own dispatcher of events. That would have a provider of credentials renew those of the
    duplicate, and no longer those of the program's client."""

    def dispatch(self, _: object) -> None: ...

    async def dispatch_async(self, _: object) -> None: ...


class Base:
    """What is known of a client of redis-py or valkey-py. Raises `TypeError` if it is none."""

    def __init__(self, client: Any, is_async: bool) -> None:
        # The client itself is not kept: the Locks of drop-ins last as long as it, or its pool.
        self.is_async = is_async
        self.package, self.half = _find(client, is_async)  # `redis` and `redis.asyncio`, or of valkey
        errors = vars(self.package.exceptions)
        of_clusters = errors.get("RedisClusterException") or errors["ValkeyClusterException"]
        self.failures: tuple[type[Exception], ...] = (self.package.RedisError, of_clusters)
        if is_async:
            self.failures += (OSError,)
        self.is_cluster, self.has_failover = not hasattr(client, "connection_pool"), False
        # The class of the duplicates, and that of the library.
        self.kinds: list[Any] = [self.half.Redis if self.is_cluster else type(client), self.half.Redis]
        if is_async:  # the library's own finalizer fails if the event loop has been closed
            self.kinds = [type(kind.__name__, (kind,), {"__del__": lambda _: None}) for kind in self.kinds]
        if self.is_cluster:
            self.kwargs, on_connect = dict(client.get_connection_kwargs()), f"{self.package.__name__}_connect_func"
            self.kwargs.pop(on_connect, None)
            of_program = getattr(client, "user_on_connect_func", None)
            if of_program:
                self.kwargs[on_connect] = lambda connection: (connection.on_connect(), of_program(connection))
            self.connection_class = self.kwargs.get("connection_class")
            self.address_remap = client.nodes_manager.address_remap or (lambda address: address)
            known = [*client.get_nodes(), *client.nodes_manager.startup_nodes.values()]
            self.nodes: dict[Place, None] = dict.fromkeys(((node.host, node.port) for node in known), None)
            self.name = ", ".join(dict.fromkeys(f"{node.host}:{node.port}" for node in known))
            return
        self.pool = client.connection_pool
        self.kwargs, self.connection_class = self.pool.connection_kwargs, self.pool.connection_class
        self.name = ":".join(str(self.kwargs[name]) for name in ("path", "host", "port") if name in self.kwargs)
        if hasattr(self.pool, "sentinel_manager"):
            self.has_failover, self.name = True, self.pool.service_name
            if not self.pool.is_master:
                raise TypeError("Locks takes a client of the primary (master_for), not of replicas (slave_for)")

    # --- duplicates

    def _options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The options of a client for a duplicate. It repeats no command by itself, so that each copy is known."""
        kept = {name: value for name, value in kwargs.items() if name not in _LEFT_OUT}
        of_half = {} if self.is_async else {"command_packer": Packer()}
        of_tcp = {} if "path" in kwargs else {"socket_connect_timeout": TIME_LIMIT}
        return {
            **kept,
            **of_half,
            **of_tcp,
            **_SET,
            "retry": self.half.retry.Retry(self.package.backoff.NoBackoff(), 0),
        }

    def _made(self, kinds: list[Any], pool: Any, **more: Any) -> Any:
        if "event_dispatcher" in inspect.signature(kinds[-1].__init__).parameters:
            more["event_dispatcher"] = Quiet()
        made = _constructed(kinds, connection_pool=pool, **more)
        return made if made.connection_pool is pool else kinds[-1](connection_pool=pool, **more)

    def _pool(self, kwargs: dict[str, Any], kind: Any, **more: Any) -> Any:
        options = {**self._options(kwargs), **more}
        if options.pop("ssl", False):
            kind = self.half.connection.SSLConnection
        return self.half.ConnectionPool(connection_class=kind or self.half.Connection, **options)

    def _pool_of(self, place: Place, manager: Any, **more: Any) -> Any:
        """A pool for one server. `manager` has the Sentinels, if there are some."""
        kwargs, kind = self.kwargs, self.connection_class
        if isinstance(place, int):
            pool = self.pool.sentinel_manager.sentinels[place].connection_pool
            kwargs, kind = pool.connection_kwargs, pool.connection_class
        elif place:
            more |= {"host": place[0], "port": place[1]}
        elif self.has_failover:
            return type(self.pool)(self.name, manager, **{**self._options(kwargs), "connection_class": kind, **more})
        return self._pool(kwargs, kind, **more)

    def duplicate(self, place: Place, manager: Any) -> Any:
        """A client for commands. It has one connection."""
        # In asyncio each call has a limit of time as a whole, which costs less than one for each read and write.
        limit = {"socket_timeout": None} if self.is_async and not self.is_cluster else {}
        return self._made(self.kinds, self._pool_of(place, manager, **limit), single_connection_client=True)

    def client(self, place: Place, manager: Any, **more: Any) -> Any:
        """A client of the program's class, or of one server."""
        kinds = self.kinds if place is None else [self.half.Redis]
        return self._made(kinds, self._pool_of(place, manager, **more))

    # --- errors

    def error(self, error: Exception) -> ServerError | NoReply:
        """What an error of the library means. A wrong argument is raised."""
        if isinstance(error, self.package.DataError):
            raise error
        code, text = _CODES.get(type(error).__name__, ""), str(error)
        is_reply = isinstance(error, self.package.ResponseError) or code in ("LOADING", *_LOGIN)
        known: ServerError | NoReply = NoReply(text)
        if is_reply and not (code in _LOGIN and self.kwargs.get("credential_provider")):
            known = ServerError(text if not code or text.startswith(code) else f"{code} {text}")
        known.__cause__ = error
        return known


def _find(client: Any, is_async: bool) -> tuple[Any, Any]:
    half = ".asyncio" if is_async else ""
    for package in filter(None, map(sys.modules.get, ("redis", "valkey"))):
        classes = package.asyncio if is_async else package
        if isinstance(client, (classes.Redis, classes.RedisCluster)):
            return package, classes
    takes = f"slock_client{half}.Locks takes a Redis or RedisCluster of redis{half} or valkey{half}"
    raise TypeError(f"{takes}, not {type(client).__module__}.{type(client).__qualname__}")


def _constructed(kinds: list[Any], **options: Any) -> Any:
    """A client of the program's class, or of the library's: the former may have a constructor of its own that does not
    accept the options."""
    try:
        return kinds[0](**options)
    except TypeError:
        return kinds[-1](**options)


async def settled(value: Any) -> Any:
    """What a function or a coroutine of the library gives."""
    return await value if inspect.isawaitable(value) else value


class RedisLink:
    """Duplicates of the program's client, for one process or event loop. Each has one command or batch at a time."""

    def __init__(self, base: Base, io: Runtime, switched: Callable[[], None]) -> None:
        self._base, self._io, self._switched = base, io, switched
        self.name, self.is_cluster, self.has_failover = base.name, base.is_cluster, base.has_failover
        self._idle: dict[Place, deque[Any]] = {}  # duplicates that are free
        self._slots: dict[int, Place] = {}  # of a cluster: which node has them, if that is known
        self._nodes: dict[Place, None] = dict(base.nodes) if base.is_cluster else {}  # that may know it
        self._silent: dict[Place, float] = {}  # the nodes that did not reply, and when a call went there last
        self._asking: Any = asyncio.Lock() if base.is_async else contextlib.nullcontext()
        self._lost: deque[Any] = deque()  # those that have to be closed
        self._buried: deque[Any] = deque(maxlen=128)
        # By the place: the channels, and what is called for them.
        self._wanted: dict[Place, dict[str, tuple[Callable[[str], None], Callable[[bool], None]]]] = {}
        self._readers: dict[Place, object] = {}  # those of `_wanted` that have a connection
        self._followed: set[int] = set()  # the Sentinels that tell of another primary
        self._is_closed = False
        self._address: Any = None  # of the primary that Sentinel named
        self._generation = 0  # counts the primaries
        self._checked = float("-inf")
        self._is_doubtful = False  # the primary may be another one
        self._manager: Any = None
        if base.has_failover:
            self._manager = copy.copy(base.pool.sentinel_manager)
            self._manager.sentinels = [base.client(n, None) for n in range(len(self._manager.sentinels))]

    # --- commands

    @property
    def limit(self) -> float:
        # It may have to connect, or to ask others for the node.
        return TIME_LIMIT if self._idle.get(None) and not self._has_to_check() else 3 * TIME_LIMIT

    async def send(self, key: str | None, commands: list[Command]) -> list[Any]:
        if not self.is_cluster:
            return await self._send_to(None, commands)
        if key is None:
            places = dict.fromkeys((await self._ask_for_slots()).values())
            replies = [(await self._send_to(place, commands))[0] for place in places]
            return [next((reply for reply in replies if isinstance(reply, ServerError)), replies)]
        slot, is_asking, replies = key_slot(key), False, list[Any]()
        place = await self._place_of(slot)
        for _ in range(_REDIRECTIONS):
            place = place or next(iter(self._nodes))
            sent = [part for command in commands for part in (("ASKING",), command)] if is_asking else commands
            replies = (await self._send_to(place, sent))[is_asking :: 1 + is_asking]
            moved = next((one for one in replies if getattr(one, "code", "") in ("MOVED", "ASK")), None)
            if moved is None:
                break
            host, _, port = str(moved).split()[2].rpartition(":")
            place, is_asking = self._node(host, int(port), place), moved.code == "ASK"
            if not is_asking:
                self._slots[slot] = place
                self._nodes = {**self._nodes, place: None}  # another thread may go through it
        return replies

    async def _place_of(self, slot: int) -> Place:
        """The node that has a slot, as far as that is known."""
        place = self._slots.get(slot)
        if place is None:
            async with self._asking:  # at first, or after an error, all calls need the same
                place = self._slots.get(slot) or (await self._ask_for_slots()).get(slot)
        return place

    async def _ask_for_slots(self) -> dict[int, Place]:
        """Asks a node which has which slots, of those that are silent last."""
        slots, last = dict[int, Place](), NoReply("no node of the cluster is known")
        for place in sorted(self._nodes, key=self._silent.__contains__):
            try:
                [rows] = await self._send_to(place, [("CLUSTER", "SLOTS")])
            except NoReply as error:
                last = error
                continue
            if isinstance(rows, ServerError):
                raise rows
            for start, end, (host, port, *_), *_ in rows:
                has = self._node((host or b"").decode(), port, place)
                slots.update(dict.fromkeys(range(start, end + 1), has))
            self._slots, self._nodes = slots, {**self._base.nodes, **dict.fromkeys(slots.values())}
            return slots
        raise last

    def _node(self, host: str, port: int, told_by: Any) -> Place:
        """A node by its address. The one that tells it may know only the port."""
        return self._base.address_remap((told_by[0] if host in ("", "?") else host, port))  # type: ignore[no-any-return]

    async def _send_to(self, place: Place, commands: list[Command]) -> list[Any]:
        if self._has_to_check():
            await self._io.apart(self._check)
        last = self._silent.get(place)
        if last is not None:
            if now() < last + _PROBE:
                raise NoReply("the node is silent")
            self._silent[place] = now()
        generation, client, is_whole, replies = self._generation, None, False, list[Any]()
        try:
            client = await self._take(place)
            replies = await self._exchange(client, commands)
            is_whole = True
            self._silent.pop(place, None)
        except self._base.failures as error:
            replies = [self._base.error(error)]
            is_whole = isinstance(replies[0], ServerError)
        finally:
            is_whole = is_whole and generation == self._generation and not self._is_closed
            self._is_doubtful = self._is_doubtful or not is_whole
            if is_whole:
                self._idle.setdefault(place, deque()).append(client)
            else:
                self._give_up(place, client)
        if isinstance(replies[0], ServerError) and replies[0].code in _DEMOTED:
            self._is_doubtful = True
        if isinstance(replies[0], NoReply):
            if place:
                self._silent[place] = float("-inf")
                self._slots = {}  # another one may have those of this node
            raise replies[0]
        if generation != self._generation:
            raise NoReply("Sentinel has named another primary")
        return replies

    def _has_to_check(self) -> bool:
        """Whether the Sentinels have to be asked for the primary first."""
        is_old = not self._followed and now() - self._checked > _CHECK
        return self.has_failover and (self._is_doubtful or is_old)

    async def _take(self, place: Place) -> Any:
        """A duplicate for one caller."""
        try:
            return self._idle[place].pop()
        except LookupError:
            return await self._io.apart(partial(self._make, place))

    async def _make(self, place: Place) -> Any:
        return self._base.duplicate(place, self._manager)

    def _give_up(self, place: Place, client: Any = None) -> None:
        """Has a connection closed, and those to this server that are idle, which may have ended with it."""
        self._lost.append(client)
        self._lost.extend(self._idle.pop(place, ()))
        self._io.spawn(self._bury)

    async def _bury(self) -> None:
        """Closes duplicates, and keeps them for a while. Their finalizers would run in a thread that still refers to
        them, and an exception of a signal handler would get lost there."""
        with contextlib.suppress(IndexError):  # until none is left
            while True:
                client = self._lost.popleft()
                await self._discard(client)
                self._buried.append(client)

    async def _exchange(self, client: Any, commands: list[Command]) -> list[Any]:
        if len(commands) == 1:
            return [await settled(client.execute_command(*commands[0]))]
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies = await settled(pipeline.execute(raise_on_error=False))
        return [self._base.error(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _discard(self, client: Any) -> None:
        if client is None:
            return
        try:
            await settled(getattr(client, "aclose", client.close)())
            if hasattr(client, "connection_pool"):
                await settled(client.connection_pool.disconnect())
        except self._base.failures:
            pass

    async def close(self) -> None:
        self._is_closed = True
        self._wanted.clear()
        for place in list(self._idle):
            self._lost.extend(self._idle.pop(place))
        await self._io.apart(self._bury)

    # --- subscriptions

    async def listen(self, channel: str, heard: Callable[[str], None], changed: Callable[[bool], None]) -> None:
        place: Place = None
        if self.is_cluster:
            place = await self._place_of(key_slot(channel))
            if place is None:
                raise NoReply("no node has the slot")
        self._want(place, channel, heard, changed)

    def leave(self, channel: str) -> None:
        for names in list(self._wanted.values()):
            names.pop(channel, None)

    def _want(self, place: Place, channel: str, heard: Callable[[str], None], changed: Callable[[bool], None]) -> None:
        names = self._wanted.setdefault(place, {})
        names[channel] = (heard, changed)
        if place not in self._readers:
            self._io.start(lambda: self._read(place))
        if self._wanted.get(place) is not names:  # the connection has ended meanwhile
            changed(False)

    async def _read(self, place: Place) -> None:
        """Has a connection as long as channels of a place are wanted, and it is not lost."""
        me, names = object(), self._wanted.setdefault(place, {})
        if self._readers.setdefault(place, me) is not me:
            return  # another one has begun
        confirmed: set[str] = set()
        try:
            with contextlib.suppress(*self._base.failures):
                await self._subscribe(place, names, confirmed)
            if names and not confirmed:
                await self._io.pause(_PAUSE)
        finally:
            self._wanted.pop(place, None)
            self._readers.pop(place)
            if names and self.is_cluster:  # the slot may have another node by now
                self._slots = {}
            for _, changed in list(names.values()):
                changed(False)

    async def _subscribe(self, place: Place, names: dict[str, Any], confirmed: set[str]) -> None:
        """Reads the messages of channels, until none is wanted, the connection is lost, or the primary is another."""
        is_sentinel = isinstance(place, int)
        generation, sent, verb = self._generation, set[str](), "SUBSCRIBE" if is_sentinel else "SSUBSCRIBE"
        # It sends PING now and then, so that a proxy does not take its connection for idle.
        client = self._base.client(place, self._manager, health_check_interval=5)
        pubsub = client.pubsub()
        try:
            while names and not self._is_closed and (is_sentinel or generation == self._generation):
                if sent != names.keys():
                    before, sent = sent, set(names)
                    for name in sent - before:
                        await settled(pubsub.execute_command(verb, name))
                    for name in before - sent:
                        await settled(pubsub.execute_command("SUNSUBSCRIBE", name))
                reply = await settled(pubsub.parse_response(block=False, timeout=_TICK))
                if not isinstance(reply, list):
                    continue
                kind, name = (bytes(word).decode("utf-8", "surrogateescape") for word in reply[:2])
                if name in names and kind.endswith("message"):
                    names[name][0](bytes(reply[2]).decode("utf-8", "replace"))
                elif name in names and kind.endswith("unsubscribe"):
                    return  # the slot has moved
                elif name in names:
                    confirmed.add(name)
                    names[name][1](True)
        finally:
            await settled(getattr(pubsub, "aclose", pubsub.close)())
            await self._discard(client)

    # --- Sentinel

    def follow(self, is_wanted: bool) -> None:
        for number in range(len(self._manager.sentinels) if self.has_failover else 0):
            if not is_wanted:
                self._wanted.get(number, {}).clear()
            elif not self._wanted.get(number):
                self._want(
                    number, "+switch-master", lambda _: self._io.spawn(self._check), partial(self._follows, number)
                )

    def _follows(self, number: int, is_open: bool) -> None:
        if is_open:
            self._followed.add(number)
            self._io.spawn(self._check)
        else:
            self._followed.discard(number)

    async def _check(self) -> None:
        """Asks the Sentinels for the primary. If it is another one, nothing goes to the former any more."""
        self._checked, self._is_doubtful = now(), False
        self._manager = copy.copy(self._manager)
        self._manager.sentinels = list(self._manager.sentinels)  # one caller at a time may change their order
        try:
            address = await settled(self._manager.discover_master(self._base.name))
        except self._base.failures:
            return  # the connections go on
        before, self._address = self._address, address
        if before not in (None, address):
            self._generation += 1
            self._give_up(None)
            self._switched()


def transport_of(client: Any, is_async: bool) -> Transport:
    """That of the client. `slock_client.testing` has one of its own."""
    make = getattr(client, "slock_transport", None)
    return partial(RedisLink, Base(client, is_async)) if make is None else make(is_async)
