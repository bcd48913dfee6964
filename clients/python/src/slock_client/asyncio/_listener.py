"""The connection on which waits end, and the channels to which it listens."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from typing import Any

import redis.exceptions as base

from slock_client._answers import is_lost_connection
from slock_client._clock import now
from slock_client._commands import Key
from slock_client._endpoint import Endpoint
from slock_client.asyncio._acquisition import Acquisition, SubscriptionLost
from slock_client.asyncio._connection import Connection
from slock_client.asyncio._node import Node
from slock_client.asyncio._servers import LOOK_UP_FOR, Servers
from slock_client.errors import ClosedError

# The connection is tested so often, in seconds, while somebody waits.
PING_AFTER = 5.0


class Subscription:
    """A channel to which this process listens, and the waits that end there."""

    def __init__(self, name: bytes, hash_tag: bytes | None, listener: Listener) -> None:
        self.name = name
        self.hash_tag = hash_tag
        """That of its keys, in a cluster."""
        self.listener = listener
        self.alive = True
        self.waits: dict[bytes, Acquisition] = {}

    def note(self, tag: bytes, acquisition: Acquisition) -> None:
        """From now on messages with the tag go there. Before the request is sent: the message can come
        before the reply.
        """
        self.waits[tag] = acquisition
        if self.alive:
            self.listener.test_soon()
        else:
            acquisition.put(SubscriptionLost())

    def forget(self, tag: bytes) -> None:
        """A message with a tag that nobody has noted is ignored: whoever gave the request up releases it."""
        self.waits.pop(tag, None)
        if not self.waits:
            self.listener.unused(self)

    def lose(self) -> None:
        self.alive = False
        for acquisition in self.waits.values():
            acquisition.put(SubscriptionLost())


class Listener:
    """One connection that listens at one server. When it fails, all who wait are told, and ask again."""

    def __init__(self, endpoint: Endpoint, unused: Callable[[Subscription], None]) -> None:
        """`unused` is called when nobody waits on a subscription any more."""
        self.unused = unused
        self.alive = True
        self._connection = Connection(endpoint, take=self._take, ended=self._ended)
        self._subscriptions: dict[bytes, Subscription] = {}
        self._test: asyncio.TimerHandle | None = None

    async def subscribe(self, name: bytes, hash_tag: bytes | None, end: float) -> Subscription:
        """Returns when the server has confirmed it. An error of the server is raised."""
        subscription = self._subscriptions[name] = Subscription(name, hash_tag, self)
        try:
            [answer] = await self._connection.ask([("SSUBSCRIBE", name)], end)
            if isinstance(answer, BaseException):
                raise answer
        except base.ResponseError:
            del self._subscriptions[name]
            raise
        except BaseException:
            self.unsubscribe(subscription)
            raise
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Nobody waits there any more."""
        subscription.alive = False
        if self._subscriptions.pop(subscription.name, None) is not None:
            self._connection.tell(("SUNSUBSCRIBE", subscription.name))

    def test_soon(self) -> None:
        """Somebody waits: from now on the connection is tested."""
        if self._test is None and self.alive:
            self._test = asyncio.get_running_loop().call_later(PING_AFTER, self._ping)

    def fail(self) -> None:
        if self.alive:
            self._connection.fail(base.ConnectionError("the listening connection was lost"))

    async def close(self) -> None:
        """Ends the connection for good."""
        await self._connection.close()

    def _ended(self, error: Exception) -> None:
        self.alive = False
        lost, self._subscriptions = self._subscriptions, {}
        for subscription in lost.values():
            subscription.lose()
        if self._test is not None:
            self._test.cancel()

    def _take(self, message: Any) -> bool:
        """Whether it was a message. The answers to SSUBSCRIBE and PING are none."""
        if type(message) is not list:
            return False
        kind = message[0]
        if kind == b"smessage":
            number, _, tag = message[2].partition(b" ")
            subscription = self._subscriptions.get(message[1])
            if subscription is not None and tag in subscription.waits:
                subscription.waits[tag].put(number)
        elif kind == b"sunsubscribe":
            subscription = self._subscriptions.pop(message[1], None)
            if subscription is not None:  # not by this library: the slot has moved, or the node is a replica
                subscription.lose()
        else:
            return False
        return True

    def _ping(self) -> None:
        """What is not answered within the time of the endpoint ends the connection."""
        self._test = None
        if any(subscription.waits for subscription in self._subscriptions.values()):
            self._connection.tell(("PING",), answers=1)
            self.test_soon()


class Listening:
    """The subscriptions of one `Locks`: one, or in a cluster one for each hash tag."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._listeners: dict[Node, Listener] = {}
        self._subscriptions: dict[bytes | None, Subscription] = {}
        self._subscribing: dict[bytes | None, asyncio.Task[Subscription]] = {}
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
        """The subscription for a key. One is made for all that want it. Errors of the server are raised."""
        hash_tag = self._servers.channel_tag(key)
        task = self._subscribing.get(hash_tag)
        if task is None:
            task = asyncio.get_running_loop().create_task(
                self._subscribe(key, hash_tag), name="slock subscription"
            )
            self._subscribing[hash_tag] = task
            task.add_done_callback(lambda task: self._subscribed(hash_tag, task))
        if not (await asyncio.wait([task], timeout=end - now()))[0]:
            raise base.TimeoutError("the server has not confirmed a subscription within the time")
        return task.result()

    async def close(self) -> None:
        """Ends the connections for good. All that wait there are told `SubscriptionLost`."""
        self._closed = True
        for listener in self._listeners.values():
            await listener.close()

    def _unused(self, subscription: Subscription) -> None:
        """In a cluster there may be as many channels as locks: those where nobody waits are left."""
        hash_tag = subscription.hash_tag
        if hash_tag is not None and self._subscriptions.get(hash_tag) is subscription:
            del self._subscriptions[hash_tag]
            subscription.listener.unsubscribe(subscription)

    def _subscribed(self, hash_tag: bytes | None, task: asyncio.Task[Subscription]) -> None:
        del self._subscribing[hash_tag]
        if not task.cancelled():
            task.exception()  # perhaps nobody waits for it any more

    async def _subscribe(self, key: Key, hash_tag: bytes | None) -> Subscription:
        name = b"waits:" + secrets.token_hex(16).encode()
        if hash_tag is not None:
            name = b"{" + hash_tag + b"}." + name
        node = (await self._servers.place_of(key, now() + LOOK_UP_FOR)).node
        if self._closed:
            raise ClosedError
        listener = self._listeners.get(node)
        if listener is None or not listener.alive:
            listener = self._listeners[node] = Listener(node.endpoint, self._unused)
        end = now() + node.endpoint.timeout + node.endpoint.connect_timeout
        try:
            subscription = await listener.subscribe(name, hash_tag, end)
        except Exception as error:
            if self._servers.redirected(key, error) is not None:
                raise base.ConnectionError("the slot is served by another node") from error
            if is_lost_connection(error):
                self._servers.suspect()
            raise
        self._subscriptions[hash_tag] = subscription
        return subscription
