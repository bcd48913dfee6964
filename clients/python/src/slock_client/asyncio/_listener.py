"""The connection on which waits end."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import weakref
from collections import deque
from typing import Any

import redis.exceptions as base

from slock._commands import Key
from slock._recipe import Recipe
from slock.asyncio._opening import abort, connected
from slock.asyncio._route import Route
from slock.errors import Closed

PING_AFTER = 5.0


class SubscriptionLost(Exception):
    """The channel has no subscriber any more: subscribe again, and ask again with the same token."""


Message = Any  # the number of a message, or the code of an error with its hyphen, or SubscriptionLost


class Subscription:
    """A channel to which this process listens, and the waits that end there."""

    def __init__(self, name: bytes, listener: Listener) -> None:
        self.name = name
        self.listener = listener
        self.alive = True
        self._waits: dict[bytes, asyncio.Future[Message]] = {}

    @property
    def waits(self) -> int:
        return len(self._waits)

    def note(self, tag: bytes) -> asyncio.Future[Message]:
        """Must be called before the request is sent: the message can come before the reply."""
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waits[tag] = future
        if not self.alive:
            future.set_result(SubscriptionLost())
        else:
            self.listener.test_soon()
        return future

    def forget(self, tag: bytes) -> None:
        self._waits.pop(tag, None)

    def tell(self, tag: bytes, message: Message) -> bool:
        """Whether somebody waits for the tag."""
        future = self._waits.get(tag)
        if future is None:
            return False
        if not future.done():
            future.set_result(message)
        return True

    def lose(self) -> None:
        self.alive = False
        for tag in list(self._waits):
            self.tell(tag, SubscriptionLost())


class Listener:
    """One connection that listens at one server."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._connection: Any = None
        self._subscriptions: dict[bytes, Subscription] = {}
        self._asked: deque[tuple[Subscription, asyncio.Future[object]]] = deque()
        self._unsent: list[tuple[bytes | str, ...]] = []
        self._sender: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._test: asyncio.TimerHandle | None = None
        self._untested = False
        self.alive = True

    async def subscribe(self, name: bytes) -> Subscription:
        """Returns when the server has confirmed it. An error of the server is raised."""
        loop = asyncio.get_running_loop()
        subscription = Subscription(name, self)
        confirmed: asyncio.Future[object] = loop.create_future()
        self._asked.append((subscription, confirmed))
        self._send("SSUBSCRIBE", name)
        if self._task is None:
            self._task = loop.create_task(self._listen(), name="slock listener")
        try:
            answer = await asyncio.wait_for(
                asyncio.shield(confirmed), self._recipe.timeout + self._recipe.connect_timeout
            )
        except asyncio.TimeoutError:
            self.fail()
            raise base.TimeoutError("no answer to SSUBSCRIBE within the time") from None
        except asyncio.CancelledError:
            confirmed.cancel()
            raise
        if isinstance(answer, BaseException):
            raise answer
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Nobody waits there any more."""
        if self._subscriptions.pop(subscription.name, None) is not None:
            subscription.alive = False
            self._send("SUNSUBSCRIBE", subscription.name)

    def test_soon(self) -> None:
        """Somebody waits: from now on the connection is tested."""
        if self._test is None and self.alive:
            self._test = asyncio.get_running_loop().call_later(PING_AFTER, self._test_connection)

    def fail(self, error: Exception | None = None) -> None:
        """Ends the connection. All waits are told, and ask again elsewhere."""
        if not self.alive:
            return
        self.alive = False
        problem = error or base.ConnectionError("the listening connection was lost")
        for _, confirmed in self._asked:
            if not confirmed.done():
                confirmed.set_result(problem)
        for subscription in self._subscriptions.values():
            subscription.lose()
        self._subscriptions.clear()
        if self._test is not None:
            self._test.cancel()
        for task in (self._task, self._sender):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self._connection is not None:
            abort(self._connection)

    async def close(self) -> None:
        """Ends the connection for good."""
        self.fail()
        tasks = [task for task in (self._task, self._sender) if task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _send(self, *command: bytes | str) -> None:
        self._unsent.append(command)
        if self._connection is not None and self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_all(), name="slock listener")

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                batch, self._unsent = self._unsent, []
                packed = self._connection.pack_commands(batch)
                await self._connection.send_packed_command(packed, check_health=False)
        except asyncio.CancelledError:
            pass
        except Exception:
            self.fail()
        finally:
            self._sender = None

    async def _listen(self) -> None:
        connection = None
        try:
            connection = self._connection = await connected(self._recipe)
            await self._send_all()
            while self.alive:
                try:
                    message = await connection.read_response(disconnect_on_error=False)
                except base.ResponseError as error:
                    self._confirm(error)
                else:
                    self._take(message)
        except asyncio.CancelledError:
            self.fail()
        except Exception as error:
            self.fail(error)
        finally:
            if connection is not None:
                abort(connection)

    def _take(self, message: list[Any]) -> None:
        self._untested = False
        kind = message[0]
        if kind == b"smessage":
            number, _, tag = message[2].partition(b" ")
            subscription = self._subscriptions.get(message[1])
            if subscription is not None:
                subscription.tell(tag, number)
        elif kind == b"ssubscribe":
            self._confirm(None)
        elif kind == b"sunsubscribe":
            subscription = self._subscriptions.pop(message[1], None)
            if subscription is not None:  # not by this library: the slot has moved, or the node is a replica
                subscription.lose()

    def _confirm(self, error: Exception | None) -> None:
        if not self._asked:
            raise error or base.InvalidResponse("an answer that nobody asked for")
        subscription, confirmed = self._asked.popleft()
        if error is None and confirmed.cancelled():
            self._send("SUNSUBSCRIBE", subscription.name)
        elif error is None:
            self._subscriptions[subscription.name] = subscription
        if not confirmed.done():
            confirmed.set_result(error)

    def _test_connection(self) -> None:
        self._test = None
        if not any(subscription.waits for subscription in self._subscriptions.values()):
            self._untested = False
            return
        if self._untested:
            self.fail(base.TimeoutError("the listening connection does not answer"))
            return
        self._untested = True
        self._send("PING")
        self.test_soon()


class Listening:
    """The subscriptions of one `Locks`: one, or in a cluster one for each hash tag."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._listeners: dict[object, Listener] = {}
        self._subscriptions: dict[bytes | None, Subscription] = {}
        self._subscribing: weakref.WeakValueDictionary[bytes | None, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._tags = itertools.count(1)
        self._closed = False

    def new_tag(self) -> bytes:
        """A tag that names one request."""
        return b"%d" % next(self._tags)

    def present(self, key: Key) -> Subscription | None:
        """The subscription for a key, when there is one."""
        subscription = self._subscriptions.get(self._route.hash_tag(key))
        return subscription if subscription is not None and subscription.alive else None

    async def subscription(self, key: Key) -> Subscription:
        """The subscription for a key; it is made when there is none. Errors of the server are raised."""
        tag = self._route.hash_tag(key)
        lock = self._subscribing.setdefault(tag, asyncio.Lock())
        async with lock:
            return self.present(key) or await self._subscribe(key, tag)

    def done(self, key: Key, subscription: Subscription) -> None:
        """A wait on the subscription has ended."""
        tag = self._route.hash_tag(key)
        if tag is not None and not subscription.waits and self._subscriptions.get(tag) is subscription:
            del self._subscriptions[tag]
            subscription.listener.unsubscribe(subscription)

    async def close(self) -> None:
        """Ends the connections for good."""
        self._closed = True
        for listener in self._listeners.values():
            await listener.close()

    async def _subscribe(self, key: Key, tag: bytes | None) -> Subscription:
        name = b"waits:" + secrets.token_hex(16).encode()
        if tag is not None:
            name = b"{" + tag + b"}." + name
        server, recipe = await self._route.server_of(key)
        if self._closed:
            raise Closed
        listener = self._listeners.get(server)
        if listener is None or not listener.alive:
            listener = self._listeners[server] = Listener(recipe)
        try:
            subscription = await listener.subscribe(name)
        except Exception as error:
            if await self._route.redirected(key, error):
                raise base.ConnectionError("the slot is served by another node") from error
            if isinstance(error, (base.ConnectionError, base.TimeoutError, OSError)):
                self._route.suspect()
            raise
        self._subscriptions[tag] = subscription
        return subscription
