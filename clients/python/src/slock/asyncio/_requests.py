"""Asks for something that may have to wait, in each of the ways of waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import redis.exceptions as base

from slock._answers import (
    code_of,
    error_of,
    error_of_message,
    is_channel_refused,
    is_lost_connection,
    is_temporary,
    is_wrong_server,
)
from slock._asking import Asking, Granted
from slock._asking import granted as granted_by
from slock._commands import Channel, Command
from slock._pauses import retry_pauses
from slock._recipe import Recipe
from slock.asyncio._acquisitions import Acquisitions
from slock.asyncio._connection import Answer, Connection
from slock.asyncio._listener import Listening, SubscriptionLost
from slock.asyncio._route import Route
from slock.asyncio._until import until
from slock.errors import Closed, SlockError, TimedOut
from slock.polling import Strategy

# So many connections for waiting are kept for the next waits.
SPARE_CONNECTIONS = 8

Pending = tuple[Connection, asyncio.Future[Answer]]


class _Again(Exception):
    """The request can be sent at once in another way."""


class Requests:
    """Sends requests again and again until they have an answer that counts."""

    def __init__(
        self, route: Route, listening: Listening, waiting: str | Strategy, acquisitions: Acquisitions
    ) -> None:
        self._route = route
        self._listening = listening
        self._waiting = waiting
        self._acquisitions = acquisitions
        self._spare: dict[object, list[Connection]] = {}
        self._closings: set[asyncio.Future[None]] = set()

    async def ask(self, asking: Asking[Pending]) -> Granted | None:
        """The grant; None when it was refused and does not wait. `TimedOut` when the wait is over."""
        pauses = retry_pauses()
        if asking.poll_pauses is None and isinstance(self._waiting, Strategy) and not asking.once:
            asking.poll_pauses = self._waiting.pauses()
        while True:
            self._acquisitions.check_open()
            try:
                granted = await until(asking.answer_end, self._attempt(asking))
            except SlockError:
                raise
            except _Again:
                continue
            except SubscriptionLost:
                asking.uncertain = True
                continue
            except Exception as error:
                if is_wrong_server(error):
                    self._route.suspect()
                if not is_temporary(error) and code_of(error) != "NOSUBSCRIBER":
                    raise error_of(error) from None
                asking.note_problem(error)
                pause = asking.pause_after_error(error, next(pauses))
                asking.pending = None
                await self._acquisitions.pause(pause)
                continue
            asking.problem = None
            if granted is not None or asking.once:
                return granted
            await self._acquisitions.pause(asking.pause_to_poll())

    async def end_waits(self) -> None:
        """What waits ends with `Closed`. The acquisitions were closed before, so that no wait begins."""
        await self._listening.close()
        for closed in self._closings:
            if not closed.done():
                closed.set_result(None)

    async def close(self) -> None:
        """Ends the connections that no wait uses."""
        for connections in self._spare.values():
            for connection in connections:
                await connection.close()

    async def _attempt(self, asking: Asking[Pending]) -> Granted | None:
        if asking.once or isinstance(self._waiting, Strategy):
            return await self._ask_now(asking)
        if asking.is_over:
            raise asking.timed_out()
        if self._waiting == "block":
            return await self._block(asking)
        subscription = self._listening.present(asking.key)
        if subscription is None:
            # Most locks are free: only a request that has to wait needs a subscription.
            granted = await self._ask_now(asking)
            if granted is not None:
                return granted
            try:
                await self._listening.subscription(asking.key)
            except base.ResponseError as error:
                if not is_channel_refused(error):
                    raise
                self._waiting = "block"
            raise _Again
        return await self._notify(asking)

    async def _ask_now(self, asking: Asking[Pending]) -> Granted | None:
        sent = time.monotonic()
        [answer] = await self._route.ask(asking.key, asking.build(None, None))
        return granted_by(answer, sent)

    async def _notify(self, asking: Asking[Pending]) -> Granted | None:
        subscription = self._listening.present(asking.key)
        assert subscription is not None
        tag = self._listening.new_tag()
        message = subscription.note(tag)
        try:
            sent = time.monotonic()
            command = asking.build(asking.wait_ms(), Channel(subscription.name, tag))
            [answer] = await self._route.ask(asking.key, command)
            if isinstance(answer, BaseException):
                if code_of(answer) == "NOSUBSCRIBER":
                    subscription.listener.fail()
                elif is_channel_refused(answer):
                    self._waiting = "block"
                    raise _Again
            if answer is not None:
                granted = granted_by(answer, sent)
                if granted is None:
                    raise _timed_out(asking)
                return granted
            return _told(await message, sent, asking)
        finally:
            subscription.forget(tag)
            self._listening.done(asking.key, subscription)

    async def _block(self, asking: Asking[Pending]) -> Granted | None:
        server, recipe = await self._route.server_of(asking.key)
        sent = time.monotonic()
        answer = await self._wait(asking, server, recipe)
        importer = self._route.importer(answer)
        if importer is not None:
            # The slot is being moved, and the key is not at its old node.
            sent = time.monotonic()
            answer = await self._wait(asking, *importer, ("ASKING",))
        if await self._route.redirected(asking.key, answer):
            raise base.ConnectionError("the slot is served by another node")
        granted = granted_by(answer, sent)
        if granted is None:
            raise _timed_out(asking)
        return granted

    async def _wait(
        self, asking: Asking[Pending], server: object, recipe: Recipe, *before: Command
    ) -> Answer:
        """The answer of a server. The commands `before` the request go first on the same connection."""
        self._acquisitions.check_open()
        spare = self._spare.setdefault(server, [])
        connection = spare.pop() if spare else Connection(recipe, limited=False)
        *_, future = connection.hand_over(*before, asking.build(asking.wait_ms(), None))
        asking.pending = connection, future
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closings.add(closed)
        try:
            await asyncio.wait([future, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._closings.discard(closed)
        if not future.done():
            asking.uncertain = True
            raise Closed
        asking.pending = None
        answer = future.result()
        if is_lost_connection(answer) or len(spare) >= SPARE_CONNECTIONS:
            await connection.close()
        else:
            spare.append(connection)
        return answer


def _timed_out(asking: Asking[Pending]) -> TimedOut:
    """The server says that the wait is over."""
    asking.problem = None
    return asking.timed_out()


def _told(message: Any, sent: float, asking: Asking[Pending]) -> Granted:
    if isinstance(message, SubscriptionLost):
        raise message
    text = message.decode()
    if text.startswith("-"):
        raise error_of_message(text[1:])
    if int(text) == 0:
        raise _timed_out(asking)
    return Granted(int(text), sent, time.monotonic())
