"""Commands, subscriptions and failovers over duplicates of a client of redis-py or valkey-py.

Where the library has coroutines in one half and functions in the other, `settled` takes either.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from slock_client._clock import now
from slock_client._transport import Command, NoReply, Runtime, ServerError

TIME_LIMIT = 0.8  # seconds for a read, a write or a connection. Without a reply the command is sent again.
_TICK = 0.05  # seconds until a listening connection takes up a new channel
_SOON, _LATER = 0.01, 0.2  # seconds before a lost one is replaced, and one that could not be made
_CHECK = 1.0  # seconds for which a primary counts that Sentinel has named
# After these replies the primary may be another one.
_DEMOTED = ("READONLY", "NOREPLICAS", "MASTERDOWN", "LOADING", "MISCONF")


async def settled(value: Any) -> Any:
    """What a function or a coroutine of the library gives."""
    return await value if inspect.isawaitable(value) else value


class RedisLink:
    """Duplicates of the program's client, for one process or event loop. Each has one command or batch at a time."""

    def __init__(self, transport: Any, io: Runtime, switched: Callable[[], None]) -> None:
        self._of, self._io, self._switched = transport, io, switched
        self.batch, self.lanes = (1, 16) if transport.is_cluster else (500, 2)
        self._idle: deque[Any] = deque()  # duplicates that are free
        self._lost: deque[Any] = deque()  # those that have to be closed
        self._buried: deque[Any] = deque(maxlen=128)
        # By the node or the Sentinel: the channels, and what is called for them.
        self._wanted: dict[Any, dict[str, tuple[Callable[[str], None], Callable[[], None]]]] = {}
        self._readers: dict[Any, object] = {}  # those of `_wanted` that have a connection
        self._followed: set[Any] = set()  # the Sentinels that tell of another primary
        self._is_closed = False
        self._address: Any = None  # of the primary that Sentinel named
        self._generation = 0  # counts the primaries
        self._checked = float("-inf")
        self._is_doubtful = False  # the primary may be another one
        self._manager: Any = None
        self._sentinels: list[Any] = []
        if transport.has_failover:
            self._manager = copy.copy(transport.pool.sentinel_manager)
            self._sentinels = [("Sentinel", number) for number in range(len(self._manager.sentinels))]
            self._manager.sentinels = [transport.sentinel(number) for number in range(len(self._manager.sentinels))]

    # --- commands

    @property
    def limit(self) -> float:
        return TIME_LIMIT if self._idle and not self._of.has_failover else 3 * TIME_LIMIT  # it may have to connect

    async def send(self, key: str | None, commands: list[Command]) -> list[Any]:
        if self._of.has_failover and (self._is_doubtful or (not self._followed and now() - self._checked > _CHECK)):
            await self._io.apart(self._check)
        generation, client, is_whole, replies = self._generation, None, False, list[Any]()
        try:
            client = await self._take()
            replies = await self._exchange(client, key, commands)
            is_whole = True
        except self._of.failures as error:
            replies = [self._of.error(error)]
            is_whole = isinstance(replies[0], ServerError)
        finally:
            if is_whole and client is not None and generation == self._generation and not self._is_closed:
                self._idle.append(client)
            else:  # what it has received is not known, and the idle ones may have ended with it
                self._is_doubtful = True
                self._give_up(client)
        if isinstance(replies[0], ServerError) and replies[0].code in _DEMOTED:
            self._is_doubtful = True
        if isinstance(replies[0], NoReply):
            raise replies[0]
        if generation != self._generation:
            raise NoReply("Sentinel has named another primary")
        return replies

    async def _take(self) -> Any:
        """A duplicate for one caller."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return await self._io.apart(self._make)

    async def _make(self) -> Any:
        return await settled(self._of.duplicate(self._manager))

    def _give_up(self, *clients: Any) -> None:
        """Has the connections closed, and all that are idle."""
        self._lost.extend(clients)
        with contextlib.suppress(IndexError):  # another thread takes them, too
            while self._idle:
                self._lost.append(self._idle.pop())
        self._io.spawn(self._bury)

    async def _bury(self) -> None:
        """Closes duplicates, and keeps them for a while. Their finalizers would run in a thread that still refers to
        them, and an exception of a signal handler would get lost there."""
        while self._lost:
            client = self._lost.popleft()
            await self._discard(client)
            self._buried.append(client)

    async def _exchange(self, client: Any, key: str | None, commands: list[Command]) -> list[Any]:
        options = {}
        if self._of.is_cluster:
            options["target_nodes"] = client.get_primaries() if key is None else [client.get_node_from_key(key)]
        if len(commands) == 1:
            reply = client.execute_command(*commands[0], **options)
            if self._of.is_async:
                reply = await reply
            if key is None and self._of.is_cluster:
                reply = list(reply.values()) if isinstance(reply, dict) else [reply]
            return [reply]
        if self._of.is_cluster:
            [node] = options["target_nodes"]
            client = self._of.of_node(node.host, node.port)
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies = await settled(pipeline.execute(raise_on_error=False))
        if self._of.is_cluster:
            await self._discard(client)
        replies = [self._of.error(reply) if isinstance(reply, Exception) else reply for reply in replies]
        for reply in replies:
            if isinstance(reply, NoReply):
                raise reply
        return replies

    async def _discard(self, client: Any) -> None:
        if client is None:
            return
        try:
            await settled(getattr(client, "aclose", client.close)())
            if hasattr(client, "connection_pool"):
                await settled(client.connection_pool.disconnect())
        except self._of.failures:
            pass

    async def close(self) -> None:
        self._is_closed = True
        self._wanted.clear()
        self._lost.extend(self._idle)
        self._idle.clear()
        await self._io.apart(self._bury)

    # --- subscriptions

    async def listen(self, channel: str, heard: Callable[[str], None], changed: Callable[[], None]) -> None:
        try:
            where = None
            if self._of.is_cluster:
                client = await self._take()
                node = client.get_node_from_key(channel)
                where = (node.host, node.port)
                self._idle.append(client)
        except self._of.failures as error:
            raise self._of.error(error) from error
        self._want(where, channel, heard, changed)

    def leave(self, channel: str) -> None:
        for names in list(self._wanted.values()):
            names.pop(channel, None)

    def _want(self, where: Any, channel: str, heard: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._wanted.setdefault(where, {})[channel] = (heard, changed)
        if where not in self._readers:
            self._io.start(lambda: self._read(where))

    async def _read(self, where: Any) -> None:
        """Has a connection as long as channels of a node or Sentinel are wanted."""
        names, me, pause = self._wanted.get(where, {}), object(), 0.0
        if self._readers.setdefault(where, me) is not me:
            return  # another one has begun
        while names and not self._is_closed:
            await self._io.pause(pause)
            confirmed: set[str] = set()
            try:
                await self._subscribe(where, names, confirmed)
            except (*self._of.failures, NoReply):
                pass
            pause = _SOON if confirmed else _LATER
            self._followed.discard(where)
            if names and self._of.is_cluster:  # the slot may have another node by now
                self._give_up()
                for name, functions in list(names.items()):
                    names.pop(name)
                    self._io.spawn(partial(self._listen_again, name, *functions))
        self._readers.pop(where)
        if names and not self._is_closed:  # somebody has come in the meantime
            channel, functions = names.popitem()
            self._want(where, channel, *functions)

    async def _listen_again(self, name: str, heard: Callable[[str], None], changed: Callable[[], None]) -> None:
        try:
            await self.listen(name, heard, changed)
        except NoReply:
            changed()  # its requests are sent again, and find no subscriber

    async def _subscribe(self, where: Any, names: dict[str, Any], confirmed: set[str]) -> None:
        """Reads the messages of channels, until none is wanted, the connection is lost, or the primary is another."""
        generation, sent, verb = self._generation, set[str](), "SUBSCRIBE" if where in self._sentinels else "SSUBSCRIBE"
        client = self._of.listener(where, self._manager)
        pubsub = client.pubsub()
        try:
            while names and not self._is_closed and (where in self._sentinels or generation == self._generation):
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
                    names[name][1]()
        finally:
            await settled(getattr(pubsub, "aclose", pubsub.close)())
            await self._discard(client)

    # --- Sentinel

    def follow(self, is_wanted: bool) -> None:
        for where in self._sentinels:
            if not is_wanted:
                self._wanted.get(where, {}).clear()
            elif not self._wanted.get(where):
                self._want(where, "+switch-master", lambda _: self._io.spawn(self._check), partial(self._heed, where))

    def _heed(self, where: Any) -> None:
        self._followed.add(where)
        self._io.spawn(self._check)

    async def _check(self) -> None:
        """Asks the Sentinels for the primary. If it is another one, nothing goes to the former any more."""
        if not self._of.has_failover:
            return
        self._checked, self._is_doubtful = now(), False
        self._manager = copy.copy(self._manager)
        self._manager.sentinels = list(self._manager.sentinels)  # one caller at a time may change their order
        try:
            address = await settled(self._manager.discover_master(self._of.name))
        except self._of.failures:
            return  # the connections go on
        before, self._address = self._address, address
        if before not in (None, address):
            self._generation += 1
            self._give_up()
            self._switched()
