"""The connection on which waits end."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import redis.exceptions as base

from slock_client._acquisition import Inbox, SubscriptionLost
from slock_client._answers import is_lost_connection
from slock_client._clock import now
from slock_client._commands import Key
from slock_client._io import Link
from slock_client._recipe import Recipe
from slock_client._servers import Servers
from slock_client.asyncio._connection import connected, disconnected
from slock_client.asyncio._tasks import start, wait_until
from slock_client.errors import ClosedError

# The connection is tested so often, in seconds, while somebody waits.
PING_AFTER = 5.0


class Subscription:
    """A channel to which this process listens, and the waits that end there."""

    def __init__(self, name: bytes, listener: Listener) -> None:
        self.name = name
        self.tag: bytes | None = None
        """The hash tag of its keys, in a cluster."""
        self.listener = listener
        self.alive = True
        self._waits: dict[bytes, Inbox] = {}

    @property
    def waits(self) -> int:
        return len(self._waits)

    def note(self, tag: bytes, inbox: Inbox) -> None:
        """Must be called before the request is sent: the message can come before the reply."""
        self._waits[tag] = inbox
        if self.alive:
            self.listener.test_soon()
        else:
            inbox.put(tag, SubscriptionLost())

    def forget(self, tag: bytes) -> None:
        self._waits.pop(tag, None)
        if not self._waits:
            self.listener.unused(self)

    def tell(self, tag: bytes, message: bytes) -> None:
        """A message with a tag that nobody has noted is ignored: whoever gave the request up releases it."""
        if tag in self._waits:
            self._waits[tag].put(tag, message)

    def unheard(self) -> None:
        self.listener.fail()

    def lose(self) -> None:
        self.alive = False
        for tag, inbox in self._waits.items():
            inbox.put(tag, SubscriptionLost())


class Listener:
    """One connection that listens at one server."""

    def __init__(self, recipe: Recipe, unused: Callable[[Subscription], None]) -> None:
        """`unused` is called when nobody waits on a subscription any more."""
        self.unused = unused
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

    async def subscribe(self, name: bytes, end: float) -> Subscription:
        """Returns when the server has confirmed it. An error of the server is raised."""
        loop = asyncio.get_running_loop()
        subscription = Subscription(name, self)
        confirmed: asyncio.Future[object] = loop.create_future()
        self._asked.append((subscription, confirmed))
        self._send("SSUBSCRIBE", name)
        if self._task is None:
            self._task = start(self._listen(), "slock listener")
        try:
            await wait_until(end, confirmed)
        except asyncio.CancelledError:
            confirmed.cancel()
            raise
        if not confirmed.done():
            self.fail()
            raise base.TimeoutError("no answer to SSUBSCRIBE within the time")
        answer = confirmed.result()
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

    async def close(self) -> None:
        """Ends the connection for good."""
        self.fail()
        tasks = [task for task in (self._task, self._sender) if task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _send(self, *command: bytes | str) -> None:
        self._unsent.append(command)
        if self._connection is not None and self._sender is None:
            self._sender = start(self._send_all(), "slock listener")

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
                await disconnected(connection)

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

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._listeners: dict[Link, Listener] = {}
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
        subscription = self._subscriptions.get(self._servers.channel_tag(key))
        return subscription if subscription is not None and subscription.alive else None

    async def subscribe(self, key: Key, end: float) -> Subscription:
        """The subscription for a key; it is made when there is none. Errors of the server are raised."""
        tag = self._servers.channel_tag(key)
        lock = self._subscribing.setdefault(tag, asyncio.Lock())
        async with lock:
            return self.present(key) or await self._subscribe(key, tag, end)

    async def close(self) -> None:
        """Ends the connections for good."""
        self._closed = True
        for listener in self._listeners.values():
            await listener.close()

    def _unused(self, subscription: Subscription) -> None:
        """In a cluster there may be as many channels as locks: those where nobody waits are left."""
        tag = subscription.tag
        if tag is not None and self._subscriptions.get(tag) is subscription:
            del self._subscriptions[tag]
            subscription.listener.unsubscribe(subscription)

    async def _subscribe(self, key: Key, tag: bytes | None, end: float) -> Subscription:
        name = b"waits:" + secrets.token_hex(16).encode()
        if tag is not None:
            name = b"{" + tag + b"}." + name
        link = (await self._servers.place_of(key, end)).link
        if self._closed:
            raise ClosedError
        listener = self._listeners.get(link)
        if listener is None or not listener.alive:
            listener = self._listeners[link] = Listener(link.recipe, self._unused)
        limit = now() + link.recipe.timeout + link.recipe.connect_timeout
        try:
            subscription = await listener.subscribe(name, min(end, limit))
        except Exception as error:
            if self._servers.redirected(key, error) is not None:
                raise base.ConnectionError("the slot is served by another node") from error
            if is_lost_connection(error):
                self._servers.suspect()
            raise
        subscription.tag = tag
        self._subscriptions[tag] = subscription
        return subscription
