"""To which server a command goes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import redis.asyncio
import redis.exceptions as base

from slock._answers import is_lost_connection
from slock._commands import Command, Key
from slock._recipe import Recipe, recipe, recipe_of
from slock._slots import MOST_REDIRECTIONS, Address, SlotTable, hash_tag, redirection, slot_of
from slock.asyncio._connection import Answer, Connection


class Route(Protocol):
    """The servers behind one client."""

    def ask(self, key: Key, *commands: Command) -> Coroutine[Any, Any, list[Answer]]:
        """The answers of the server that serves `key`, errors among them. A lost connection is raised."""

    async def ask_each(self, commands: Sequence[tuple[Key, Command]]) -> list[Answer]:
        """The answer to each command, for keys of any servers. A lost connection is an answer here."""

    def reset(self) -> None:
        """Opens new connections for what is asked from now on. What has no answer gets an error."""

    async def server_of(self, key: Key) -> tuple[object, Recipe]:
        """The server that serves `key` now: something that identifies it, and how to connect to it."""

    def hash_tag(self, key: Key) -> bytes | None:
        """The hash tag that a channel needs for `key`; None outside a cluster."""

    async def redirected(self, key: Key, answer: object) -> bool:
        """Whether an answer that came by another way sends the caller to another node, which is noted."""

    def suspect(self) -> None:
        """A connection was lost: perhaps other servers serve by now."""

    async def close(self) -> None:
        """Ends the connections."""


class SingleRoute:
    """One server, or the primary that the Sentinels name."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._recipe = recipe_of(
            client.connection_pool, redis.asyncio.Connection, redis.asyncio.SSLConnection
        )
        self._connection = Connection(self._recipe)

    async def ask(self, key: Key, *commands: Command) -> list[Answer]:
        return await self._connection.ask(*commands)

    async def ask_each(self, commands: Sequence[tuple[Key, Command]]) -> list[Answer]:
        return [await future for future in self._connection.hand_over(*(command for _, command in commands))]

    def reset(self) -> None:
        self._connection.fail(base.TimeoutError("no answer within the time"))

    async def server_of(self, key: Key) -> tuple[object, Recipe]:
        return None, self._recipe

    def hash_tag(self, key: Key) -> bytes | None:
        return None

    async def redirected(self, key: Key, answer: object) -> bool:
        return False

    def suspect(self) -> None:
        pass  # a connection to a server that is no longer the primary ends by itself

    async def close(self) -> None:
        await self._connection.close()


class ClusterRoute:
    """The nodes of a cluster, with one connection to each that is needed."""

    def __init__(self, client: redis.asyncio.RedisCluster) -> None:
        self._client = client
        self._slots = SlotTable()
        self._connections: dict[Address, Connection] = {}
        self._recipe: Recipe | None = None
        self._loading = asyncio.Lock()
        self._suspected = True

    async def ask(self, key: Key, *commands: Command) -> list[Answer]:
        address = await self._owner(key)
        asking = False
        for _ in range(MOST_REDIRECTIONS):
            connection = self._connection(address)
            try:
                if asking:
                    pairs = [part for command in commands for part in (("ASKING",), command)]
                    answers = (await connection.ask(*pairs))[1::2]
                else:
                    answers = await connection.ask(*commands)
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

    async def ask_each(self, commands: Sequence[tuple[Key, Command]]) -> list[Answer]:
        answers: list[Answer] = [None] * len(commands)
        sent: list[tuple[int, Address, asyncio.Future[Answer]]] = []
        for number, (key, command) in enumerate(commands):
            try:
                address = await self._owner(key)
            except (base.RedisError, OSError) as error:
                answers[number] = error
            else:
                sent.append((number, address, self._connection(address).hand_over(command)[0]))
        for number, address, future in sent:
            answers[number] = await future
            if is_lost_connection(answers[number]):
                self.suspect()
            elif redirection(answers[number], address) is not None:
                key, command = commands[number]
                try:
                    [answers[number]] = await self.ask(key, command)
                except (base.RedisError, OSError) as error:
                    answers[number] = error
        return answers

    def reset(self) -> None:
        self.suspect()
        for connection in self._connections.values():
            connection.fail(base.TimeoutError("no answer within the time"))

    async def server_of(self, key: Key) -> tuple[object, Recipe]:
        address = await self._owner(key)
        return address, self._recipe_of(address)

    def hash_tag(self, key: Key) -> bytes | None:
        return hash_tag(key)

    async def redirected(self, key: Key, answer: object) -> bool:
        target = redirection(answer, await self._owner(key))
        if target is None:
            return False
        if target.kind == "MOVED":
            self._slots.moved(target.slot, self._remap(target.host, target.port))
        return True

    def suspect(self) -> None:
        self._suspected = True

    async def close(self) -> None:
        for connection in list(self._connections.values()):
            await connection.close()

    async def _owner(self, key: Key) -> Address:
        slot = slot_of(key)
        if self._suspected:
            async with self._loading:
                if self._suspected:
                    await self._load()
        address = self._slots.owner(slot)
        if address is None:
            self.suspect()
            raise base.ClusterDownError(f"no node serves slot {slot}")
        return address

    async def _load(self) -> None:
        if self._recipe is None:
            await self._client.initialize()
            node = self._client.get_nodes()[0]
            self._recipe = recipe(node.connection_class, node.connection_kwargs)
        known = {(str(node.host), int(node.port)) for node in self._client.get_nodes()}
        problem: BaseException = base.ConnectionError("no node of the cluster is known")
        for address in self._slots.addresses() | known:
            try:
                [reply] = await self._connection(address).ask(("CLUSTER", "SLOTS"))
            except (base.ConnectionError, base.TimeoutError, OSError) as error:
                problem = error
                continue
            if isinstance(reply, BaseException):
                problem = reply
                continue
            self._slots.load(reply, address)
            self._suspected = False
            return
        raise problem

    def _connection(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(self._recipe_of(address))
        return self._connections[address]

    def _recipe_of(self, address: Address) -> Recipe:
        assert self._recipe is not None
        host, port = address
        return self._recipe._replace(arguments={**self._recipe.arguments, "host": host, "port": port})

    def _remap(self, host: str, port: int) -> Address:
        remap: Any = getattr(self._client.nodes_manager, "remap_host_port", None)
        if remap is not None:
            host, port = remap(host, port)
        return host, int(port)


def route_of(client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> Route:
    """The route for a client of redis-py."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return ClusterRoute(client)
    if isinstance(client, redis.asyncio.Redis):
        return SingleRoute(client)
    raise TypeError(f"Locks needs a client of redis.asyncio, not {type(client).__name__}")
