"""A proxy that cuts a connection at a chosen place, or delivers what goes through late or twice.

It reads the protocol, so that it can drop the reply to one command: the server has executed the command, and
the client never learns it. It is a process of its own: in one interpreter with the threads of the driver it
would be late.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from multiprocessing.managers import BaseManager
from typing import Any

from driver.frames import ARRAY, PUSH, end_of_value, is_message, words_of

# What a rule may be about. A library chooses among the commands that do the same.
_LOCK = ("SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.MLOCK", "SLOCK.MRLOCK")
COMMANDS = {
    "lock": _LOCK,
    "wait": _LOCK,  # those that may wait
    "release": ("SLOCK.UNLOCK", "SLOCK.RUNLOCK", "SLOCK.MUNLOCK"),
    "extend": ("SLOCK.EXTEND", "SLOCK.MEXTEND"),
    "upgrade": ("SLOCK.UPGRADE",),
    "downgrade": ("SLOCK.DOWNGRADE",),
    "cancel": ("SLOCK.CANCEL",),
    "replicas": ("WAIT",),
    "subscribe": ("SSUBSCRIBE",),
    "message": ("SMESSAGE",),
}
ACTIONS = ("cut_request", "hold_request", "late_request", "double", "cut_reply", "drop_reply", "hold_reply")
_SUBSCRIBING = ("SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "SUNSUBSCRIBE", "PUNSUBSCRIBE")


class Rule:
    """What the proxy does with the next `times` commands of a kind: see `Proxy.add`."""

    def __init__(self, action: str, of: str, times: int) -> None:
        self.action, self.of, self.times, self.left = action, of, times, times
        self.hits = 0
        self.go = asyncio.Event()

    def take(self, words: list[str]) -> bool:
        """Whether the rule is for this command; it counts then."""
        if self.left == 0 or words[0].upper() not in COMMANDS[self.of]:
            return False
        if self.of == "wait" and "WAIT" not in map(str.upper, words):
            return False
        self.left -= 1
        return True


class Proxy:
    """Listens on a port of its own and forwards to the server on `target`."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._rules: list[Rule] = []
        self._links: set[Link] = set()
        self._late: list[bytes] = []
        # How long each reply is kept back.
        self.delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))

    def port(self) -> int:
        return self._server.sockets[0].getsockname()[1]

    def add(self, action: str, of: str, times: int = 1) -> None:
        """Actions, for the next `times` commands of a kind:

        - `cut_request`: the connection is cut before the command reaches the server;
        - `cut_reply`: the server has executed the command, and the connection is cut before its reply;
        - `drop_reply`: the reply, or the message, is not delivered, and the connection stays;
        - `hold_request`, `hold_reply`: kept back until `let_go`. What follows on the connection waits too;
        - `late_request`: as `cut_request`, but the server reads the command at `let_go`;
        - `double`: the server reads the command, and once more at `let_go`.

        Of `message` there are `cut_reply`, `drop_reply` and `hold_reply`.
        """
        assert of in COMMANDS and action in ACTIONS
        self._call(self._rules.append, Rule(action, of, times))

    def delay(self, seconds: float) -> None:
        """From now on each reply is kept back for so long."""
        self.delay_s = seconds

    def hits(self) -> int:
        """How often a rule has been applied since `reset`."""
        return sum(rule.hits for rule in self._rules)

    def unused(self) -> int:
        """How many rules have not been applied as often as they should; those of a hundred times, never."""
        return sum(rule.hits < (1 if rule.times == 100 else rule.times) for rule in self._rules)

    def cut_listeners(self) -> None:
        """The client loses its listening connections. The server learns of it at `let_go`."""
        self._call(lambda: [link.cut_listener() for link in self._links])

    def let_go(self) -> None:
        """What is kept back goes on its way, late requests first, and nothing more is kept back."""
        self._run(self._deliver_kept())
        self._call(self._release)

    def cut(self) -> None:
        """Cuts all connections."""
        self._call(lambda: [link.cut() for link in list(self._links)])

    def reset(self) -> None:
        """Forgets the rules, the delay and the late requests, and cuts all connections."""
        self.delay_s = 0.0
        self._call(self._late.clear)
        self._call(self._release)
        self.cut()
        self._call(self._rules.clear)

    # --- in the loop's thread

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, function: Any, *arguments: Any) -> None:
        async def call() -> None:
            function(*arguments)

        self._run(call())

    def _release(self) -> None:
        for rule in self._rules:
            rule.go.set()
            rule.left = 0
        for link in self._links:
            link.end_of_client.set()

    async def _deliver_kept(self) -> None:
        while self._late:
            await self.deliver(self._late.pop(0))

    async def deliver(self, request: bytes) -> None:
        """On a connection of its own. A request that waits there leaves the queue when it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            writer.write(request)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                while await reader.read(1 << 16):
                    pass
        finally:
            writer.close()

    def keep(self, request: bytes) -> None:
        """The server reads it later."""
        self._late.append(request)

    def rule_for(self, words: list[str]) -> Rule | None:
        """What is done with a request, or with a message, and with the reply to a request."""
        return next((rule for rule in self._rules if rule.take(words)), None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, (reader, writer), upstream)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        # The replies that are to come, in order, with the rule for each.
        self._expected: deque[Rule | None] = deque()
        self._listens = self._has_pushes = False
        # The server may see the end of its client.
        self.end_of_client = asyncio.Event()
        self.end_of_client.set()

    async def run(self) -> None:
        # Either direction ends both: a server sees the end of its client, and the other way round.
        up, down = asyncio.create_task(self._requests()), asyncio.create_task(self._replies())
        with contextlib.suppress(ConnectionError):
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        await self.end_of_client.wait()
        for task in (up, down):
            task.cancel()
        await asyncio.gather(up, down, return_exceptions=True)
        for writer in (self._to_client, self._to_server):
            writer.close()

    def cut(self) -> None:
        self._to_client.transport.abort()
        self._to_server.close()
        self.end_of_client.set()

    def cut_listener(self) -> None:
        if self._listens:
            self.end_of_client.clear()
            self._to_client.transport.abort()

    async def _requests(self) -> None:
        async for request in _values(self._from_client):
            words = words_of(request)
            rule = self._proxy.rule_for(words)
            action = rule.action if rule else ""
            if action in ("late_request", "double"):
                self._proxy.keep(request)
            if rule and not action.endswith("_reply"):
                rule.hits += 1
                if action in ("cut_request", "late_request"):
                    return self.cut()
                if action != "double":
                    await rule.go.wait()
            self._has_pushes |= [word.upper() for word in words[:2]] == ["HELLO", "3"]
            if words[0].upper() in _SUBSCRIBING:
                self._listens = True
            else:
                self._expected.append(rule if action.endswith("_reply") else None)
            self._to_server.write(request)
            await self._to_server.drain()

    async def _replies(self) -> None:
        async for reply in _values(self._from_server, lambda: self._proxy.delay_s):
            rule = self._rule_of(reply)
            if rule is not None:
                rule.hits += 1
                if rule.action == "cut_reply":
                    return self.cut()
                if rule.action == "drop_reply":
                    continue
                await rule.go.wait()
            self._to_client.write(reply)
            await self._to_client.drain()

    def _rule_of(self, reply: bytes) -> Rule | None:
        if is_message(reply):
            return self._proxy.rule_for(["SMESSAGE"])
        if reply[:1] == PUSH or (self._listens and not self._has_pushes and reply[:1] == ARRAY):
            return None  # a reply to SSUBSCRIBE, or to the PING of a connection that listens
        return self._expected.popleft() if self._expected else None


async def _values(
    reader: asyncio.StreamReader, delay_s: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[bytes]:
    """The values that are read, each after the delay."""
    buffer = bytearray()
    while True:
        try:
            data = await reader.read(1 << 16)
        except ConnectionError:
            return
        if not data:
            return
        if delay_s():
            await asyncio.sleep(delay_s())
        buffer += data
        start = 0
        while start < len(buffer) and (end := end_of_value(buffer, start)) is not None:
            yield bytes(buffer[start:end])
            start = end
        del buffer[:start]


class _Process(BaseManager):
    """The process of a proxy."""


def _make(kind: type[Proxy], *arguments: Any) -> Proxy:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return kind(*arguments)


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(0)


_Process.register("make", _make)


class Running:
    """A proxy in its process, with the methods that it has."""

    def __init__(self, kind: type[Proxy], *arguments: Any) -> None:
        self._process = _Process(ctx=multiprocessing.get_context("spawn"))
        self._process.start()
        self._proxy = self._process.make(kind, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)

    def close(self) -> None:
        self._process.shutdown()
