"""The servers of a quorum."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

import redis.asyncio
import redis.exceptions as base

from slock._answers import is_lost_connection, is_temporary
from slock._commands import Command
from slock._pauses import retry_pauses
from slock._quorum import Tally, node_names
from slock._recipe import address_of, recipe_of
from slock.asyncio._connection import Answer, Connection
from slock.asyncio._tasks import start

_log = logging.getLogger("slock")


class Node:
    """One server, with one connection."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        recipe = recipe_of(client.connection_pool, redis.asyncio.Connection, redis.asyncio.SSLConnection)
        self.name = address_of(recipe)
        self.connection = Connection(recipe)

    async def ask(self, command: Command, end: float, wanted: Callable[[], bool]) -> Answer:
        """The answer, or the error. The connection may have ended while it was idle: then one more attempt.

        `wanted` is asked before each: when it says no, nothing is sent.
        """
        answer: Answer = base.TimeoutError("no answer within the time")
        for _ in range(2):
            if not wanted():
                break
            [future] = self.connection.hand_over(command)
            await asyncio.wait([future], timeout=max(0.0, end - time.monotonic()))
            if not future.done():
                return base.TimeoutError("no answer within the time")
            answer = future.result()
            if not is_lost_connection(answer):
                break
        return answer


class Nodes:
    """All servers of a quorum."""

    def __init__(self, clients: Sequence[redis.asyncio.Redis], retry_for: float) -> None:
        self._nodes = [Node(client) for client in clients]
        for node, name in zip(self._nodes, node_names(self.names), strict=True):
            node.name = name
        self._retry_for = retry_for
        self._releases: set[asyncio.Task[Answer]] = set()

    @property
    def names(self) -> list[str]:
        return [node.name for node in self._nodes]

    async def ask(
        self,
        command: Command,
        timeout: float,
        *,
        only: Sequence[str] | None = None,
        fail_fast: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Tally:
        """What the nodes answer within `timeout` seconds. `only`: these are asked, not all."""
        tally = Tally(self.names)
        nodes = [node for node in self._nodes if only is None or node.name in only]
        random.shuffle(nodes)
        end = time.monotonic() + timeout
        asked = {asyncio.create_task(node.ask(command, end, wanted)): node for node in nodes}
        waiting = set(asked)
        try:
            while waiting and not (fail_fast and tally.is_hopeless):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tally.add(asked[task].name, task.result())
        finally:
            for task in waiting:
                task.cancel()
        return tally

    async def release(self, command: Command, timeout: float, *, all_nodes: bool = False) -> Tally:
        """Releases on all nodes.

        It returns when the majority has released, or cannot have, or after `timeout` seconds. With
        `all_nodes` it waits for every node. What has no answer then goes on without the caller.

        The release stands behind the request on the same connection, so it cannot come before it.
        """
        tally = Tally(self.names)
        tasks = {start(self._release(node, command), "slock release"): node for node in self._nodes}
        self._releases.update(tasks)
        for task in tasks:
            task.add_done_callback(self._releases.discard)
        end, waiting = time.monotonic() + timeout, set(tasks)
        while waiting and (all_nodes or not (tally.has_majority or tally.is_hopeless)):
            left = max(0.0, end - time.monotonic())
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                for task in waiting:
                    tally.add(tasks[task].name, base.TimeoutError("no answer within the time"))
                break
            for task in done:
                tally.add(tasks[task].name, task.result())
        return tally

    async def close(self) -> None:
        """Waits for releases, and ends the connections."""
        if self._releases:
            await asyncio.wait(self._releases)
        for node in self._nodes:
            await node.connection.close()

    async def _release(self, node: Node, command: Command) -> Answer:
        end = time.monotonic() + self._retry_for
        [future] = node.connection.hand_over(command)
        for pause in retry_pauses():
            answer = await _uncancelled(future)
            if not isinstance(answer, BaseException):
                return answer
            if not is_temporary(answer) or time.monotonic() + pause >= end:
                _log.info("%s could not be released at %s: %s", command[2], node.name, answer)
                return answer
            try:
                await asyncio.sleep(pause)
            except asyncio.CancelledError:
                end = 0.0  # the loop ends: one more attempt
            [future] = node.connection.hand_over(command)
        raise AssertionError("unreachable")


async def _uncancelled(future: asyncio.Future[Answer]) -> Answer:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue  # the loop ends; the answer comes within the time of the connection
    return future.result()
