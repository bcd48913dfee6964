"""To which server a command goes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

import redis.asyncio
import redis.exceptions as base

from slock._answers import is_lost_connection
from slock._commands import Command, Key
from slock._recipe import Recipe, recipe, recipe_of
from slock._slots import MOST_REDIRECTIONS, Address, SlotTable, hash_tag, redirection, slot_of
from slock.asyncio._connection import Answer, Connection
from slock.asyncio._until import until

# A server that has not answered renewals for so long, in seconds, gets a new connection.
SILENCE = 1.0


class Route(Protocol):
    """The servers behind one client."""

    def ask(self, key: Key, *commands: Command) -> Coroutine[Any, Any, list[Answer]]:
        """The answers of the server that serves `key`, errors among them. A lost connection is raised."""

    async def ask_each(self, commands: Sequence[tuple[Key, Command]], end: float) -> list[Answer]:
        """The answer to each command, for keys of any servers. A lost connection is an answer here.

        What has no answer at `end`, on the monotonic clock, gets `TimeoutError` of redis-py. A server that
        was silent for long gets a new connection.
        """

    async def server_of(self, key: Key) -> tuple[object, Recipe]:
        """The server that serves `key` now: something that identifies it, and how to connect to it."""

    def hash_tag(self, key: Key) -> bytes | None:
        """The hash tag that a channel needs for `key`; None outside a cluster."""

    async def redirected(self, key: Key, answer: object) -> bool:
        """Whether an answer that came by another way sends the caller to another node, which is noted."""

    def importer(self, answer: object) -> tuple[object, Recipe] | None:
        """The node that an answer ASK names, as `server_of`. ASKING must come before the command there."""

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

    async def ask_each(self, commands: Sequence[tuple[Key, Command]], end: float) -> list[Answer]:
        return await _ask_until(end, self._connection, [command for _, command in commands])

    async def server_of(self, key: Key) -> tuple[object, Recipe]:
        return None, self._recipe

    def hash_tag(self, key: Key) -> bytes | None:
        return None

    async def redirected(self, key: Key, answer: object) -> bool:
        return False

    def importer(self, answer: object) -> tuple[object, Recipe] | None:
        return None

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

    async def ask_each(self, commands: Sequence[tuple[Key, Command]], end: float) -> list[Answer]:
        answers: list[Answer] = [None] * len(commands)
        with contextlib.suppress(base.RedisError, OSError):
            now = time.monotonic()
            await until(now + (end - now) / 2, self._look_up())  # else those known until now
        nodes: dict[Address, list[int]] = {}
        for number, (key, _) in enumerate(commands):
            address = self._slots.owner(slot_of(key))
            if address is None:
                answers[number] = base.ClusterDownError(f"no node serves slot {slot_of(key)}")
                self.suspect()
            else:
                nodes.setdefault(address, []).append(number)
        await asyncio.gather(
            *(self._ask_node(address, commands, numbers, answers, end) for address, numbers in nodes.items())
        )
        if any(is_lost_connection(answer) for answer in answers):
            self.suspect()
        return answers

    async def _ask_node(
        self,
        address: Address,
        commands: Sequence[tuple[Key, Command]],
        numbers: Sequence[int],
        answers: list[Answer],
        end: float,
    ) -> None:
        """Puts the answers to the commands with these numbers in their places."""
        asked = [commands[number][1] for number in numbers]
        found = await _ask_until(end, self._connection(address), asked)
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
            if redirection(answer, address) is not None:
                key, command = commands[number]
                try:
                    [answers[number]] = await until(end, self.ask(key, command))
                except (base.RedisError, OSError) as error:
                    answers[number] = error

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

    def importer(self, answer: object) -> tuple[object, Recipe] | None:
        target = redirection(answer, ("", 0))
        if target is None or target.kind != "ASK" or not target.host:
            return None
        address = self._remap(target.host, target.port)
        return address, self._recipe_of(address)

    def suspect(self) -> None:
        self._suspected = True

    async def close(self) -> None:
        for connection in list(self._connections.values()):
            await connection.close()

    async def _owner(self, key: Key) -> Address:
        await self._look_up()
        slot = slot_of(key)
        address = self._slots.owner(slot)
        if address is None:
            self.suspect()
            raise base.ClusterDownError(f"no node serves slot {slot}")
        return address

    async def _look_up(self) -> None:
        if self._suspected:
            async with self._loading:
                if self._suspected:
                    await self._load()

    async def _load(self) -> None:
        """Asks all nodes at once and takes the first answer: a silent node must not delay the others."""
        if self._recipe is None:
            await self._client.initialize()
            node = self._client.get_nodes()[0]
            self._recipe = recipe(node.connection_class, node.connection_kwargs)
        known = {(str(node.host), int(node.port)) for node in self._client.get_nodes()}
        asked = {
            self._connection(address).hand_over(("CLUSTER", "SLOTS"))[0]: address
            for address in self._slots.addresses() | known
        }
        problem: BaseException = base.ConnectionError("no node of the cluster is known")
        waiting = set(asked)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                reply = future.result()
                if isinstance(reply, BaseException):
                    problem = reply
                    continue
                self._slots.load(reply, asked[future])
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


async def _ask_until(end: float, connection: Connection, commands: Sequence[Command]) -> list[Answer]:
    """The answers that come until `end`, and errors. A silent connection is ended."""
    if not commands:
        return []
    began = time.monotonic()
    futures = connection.hand_over(*commands)
    done, _ = await asyncio.wait(futures, timeout=max(0.0, end - began))
    late = base.TimeoutError("no answer within the time")
    answers = [future.result() if future in done else late for future in futures]
    if not done and time.monotonic() - began >= SILENCE:
        connection.fail(late)
    return answers


def route_of(client: redis.asyncio.Redis | redis.asyncio.RedisCluster) -> Route:
    """The route for a client of redis-py."""
    if isinstance(client, redis.asyncio.RedisCluster):
        return ClusterRoute(client)
    if isinstance(client, redis.asyncio.Redis):
        return SingleRoute(client)
    raise TypeError(f"Locks needs a client of redis.asyncio, not {type(client).__name__}")
