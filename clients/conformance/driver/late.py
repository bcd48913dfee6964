"""A proxy that delivers commands late or once more, at random.

What a command means it does not know, but for the token, which says what a doubled request may leave behind.
It knows nothing of scenarios: those choose the place themselves, with `proxy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter, defaultdict, deque

from driver.frames import PUSH, end_of_value, is_message, words_of

# How often, of a hundred commands of the module. The rest passes.
PERCENT = {"delay": 4.0, "late": 2.0, "lose reply": 2.0, "double": 5.0}
LOST_MESSAGES_PERCENT = 1.0
# How late a command can be: longer than the first pauses of a library, shorter than a history.
LATEST_SECONDS = 0.4
DELAY_SECONDS = 0.05

# Commands that leave something behind when they are carried out after the end of their owner.
_ASKING = ("LOCK", "RLOCK", "MLOCK", "MRLOCK")
_LASTING = (*_ASKING, "UPGRADE", "DOWNGRADE")


class LateProxy:
    """Listens on a port of its own and forwards to the server on `target`."""

    def __init__(self, target: int, seed: int) -> None:
        self.target, self.dice = target, random.Random(seed)
        self.counts: Counter[str] = Counter()
        # Tokens of requests that were delivered twice, and of those whose answer did not arrive.
        self.doubled: set[str] = set()
        self.unanswered: set[str] = set()
        # Of requests for a lock that were delivered twice, whose answer did not arrive, or that came after
        # the end of their acquisition: a machine that has much to do delivers late by itself.
        self.asked_late: set[str] = set()
        self._ended: set[str] = set()
        # Of UPGRADE that were delivered once more: that copy may be granted after the first was refused.
        self.upgraded_twice: set[str] = set()
        # What went through for each token, for the message of a test that failed.
        self.seen: defaultdict[str, list[str]] = defaultdict(list)
        self._loop = asyncio.new_event_loop()
        self._calm = False
        self._late: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        opening = asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]

    def calm(self) -> None:
        """From now on everything passes."""
        self._calm = True

    def is_idle(self) -> bool:
        """Whether everything has been delivered."""
        return not self._late

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # --- in the loop's thread

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await _Link(self, reader, writer).run()

    def fate(self, words: list[str]) -> str:
        if self._calm or not words[0].upper().startswith("SLOCK."):
            return "pass"
        roll = self.dice.random() * 100
        for fate, percent in PERCENT.items():
            roll -= percent
            if roll < 0:
                self.counts[fate] += 1
                return fate
        return "pass"

    def loses_message(self) -> bool:
        return not self._calm and self.dice.random() * 100 < LOST_MESSAGES_PERCENT

    def note(self, what: str, request: bytes) -> None:
        words = words_of(request)
        if words[0].upper().startswith("SLOCK."):
            token = token_of(words)
            self.seen[token].append(f"{time.monotonic():.3f} {what}: {' '.join(words)}")
            if words[0].upper() == "SLOCK.CANCEL":
                self._ended.add(token)
            elif token in self._ended:
                self.asked_late.update(lasting_token(request, _ASKING))

    def note_unanswered(self, requests: list[bytes]) -> None:
        for request in requests:
            self.note("no answer", request)
            self.unanswered.update(lasting_token(request))
            self.asked_late.update(lasting_token(request, _ASKING))

    def deliver_once_more(self, request: bytes) -> None:
        """On a connection of its own, which closes then: who waits on it does not stay in the queue."""
        self.doubled.update(lasting_token(request))
        self.asked_late.update(lasting_token(request, _ASKING))
        words = words_of(request)
        if words[0].upper() == "SLOCK.UPGRADE":
            self.upgraded_twice.add(token_of(words))
        self.deliver_late([request], None)

    def deliver_late(self, requests: list[bytes], upstream: Streams | None) -> None:
        """In their order, on the connection that they were meant for."""
        task = self._loop.create_task(self._deliver(requests, upstream))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _deliver(self, requests: list[bytes], upstream: Streams | None) -> None:
        await asyncio.sleep(self.dice.random() * LATEST_SECONDS)
        with contextlib.suppress(OSError):
            reader, writer = upstream or await asyncio.open_connection("127.0.0.1", self.target)
            for request in requests:
                self.note("late" if upstream else "once more", request)
            try:
                writer.write(b"".join(requests))
                writer.write_eof()
                while await reader.read(1 << 16):
                    pass
            finally:
                writer.close()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: LateProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = reader, writer
        # Requests whose replies are to come, in order, and what is to happen then.
        self._expected: deque[tuple[bytes, str]] = deque()
        self._listens = False

    async def run(self) -> None:
        upstream = await asyncio.open_connection("127.0.0.1", self._proxy.target)
        self._from_server, self._to_server = upstream
        up, down = asyncio.create_task(self._requests()), asyncio.create_task(self._replies())
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            late = up.result() if up.done() and not up.exception() else []
        finally:
            self._to_client.transport.abort()
            self._proxy.note_unanswered([request for request, _ in self._expected])
            for task in (up, down):
                task.cancel()
        if late:
            await asyncio.wait((down,))  # two may not read one connection
            self._proxy.note_unanswered(late)
            self._proxy.deliver_late(late, upstream)
        else:
            self._to_server.close()

    async def _requests(self) -> list[bytes]:
        """Forwards until the connection ends. What has been read and is to be delivered late is returned."""
        buffer = bytearray()
        while True:
            try:
                data = await self._from_client.read(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return []
            buffer += data
            requests, start = [], 0
            while start < len(buffer) and (end := end_of_value(buffer, start)) is not None:
                requests.append(bytes(buffer[start:end]))
                start = end
            del buffer[:start]
            for number, request in enumerate(requests):
                words = words_of(request)
                fate = self._proxy.fate(words)
                if fate == "late":
                    return requests[number:]
                if fate == "delay":
                    await asyncio.sleep(self._proxy.dice.random() * DELAY_SECONDS)
                if words[0].upper() in ("SSUBSCRIBE", "SUNSUBSCRIBE"):
                    self._listens = True
                else:
                    self._expected.append((request, fate))
                self._proxy.note(fate, request)
                self._to_server.write(request)
                await self._to_server.drain()

    async def _replies(self) -> None:
        buffer = bytearray()
        while data := await self._from_server.read(1 << 16):
            buffer += data
            start = 0
            while start < len(buffer) and (end := end_of_value(buffer, start)) is not None:
                reply, start = bytes(buffer[start:end]), end
                if not self._passes(reply):
                    return
                self._to_client.write(reply)
            await self._to_client.drain()
            del buffer[:start]

    def _passes(self, reply: bytes) -> bool:
        if is_message(reply):
            return not self._proxy.loses_message()
        if reply[:1] == PUSH or (self._listens and reply[:1] == b"*") or not self._expected:
            return True
        if self._expected[0][1] == "lose reply":
            return False
        request, fate = self._expected.popleft()
        if fate == "double":
            self._proxy.deliver_once_more(request)
        return True


def token_of(words: list[str]) -> str:
    name = words[0].upper().removeprefix("SLOCK.")
    return words[2 + int(words[1])] if name.startswith("M") else [*words, "", ""][2]


def lasting_token(request: bytes, commands: tuple[str, ...] = _LASTING) -> list[str]:
    """Whose it is, if it is a command that takes a lock or changes its mode."""
    words = words_of(request)
    is_lasting = words[0].upper().removeprefix("SLOCK.") in commands and "XX" not in map(str.upper, words)
    return [token_of(words)] if is_lasting else []
