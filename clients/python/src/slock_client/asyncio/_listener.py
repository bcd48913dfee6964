"""The channels to which it listens on the connection that tasks share, and the waits that end there."""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
from collections.abc import Callable
from typing import Any

import redis.exceptions as base

from slock_client._answers import Answer, is_lost_connection
from slock_client._clock import now
from slock_client._commands import Channel, Key
from slock_client.asyncio._acquisition import SubscriptionLost
from slock_client.asyncio._servers import LOOK_UP_FOR, Servers
from slock_client.errors import ClosedError

# The connection is tested so often, in seconds, while somebody waits.
PING_AFTER = 5.0


class Wait:
    """One that asks, and takes the message when the server has answered that it has to wait."""

    def __init__(self, subscription: Subscription, tag: bytes) -> None:
        """From now on messages with the tag come here: before the request is sent."""
        self.subscription = subscription
        self.channel = Channel(subscription.name, tag)
        subscription.waits[tag] = self
        subscription.listener.test_soon()

    def begin(self) -> None:
        """It is asked now: what came before says nothing about that."""
        self._message: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if not self.subscription.alive:
            self.put(SubscriptionLost())

    def put(self, message: Answer) -> None:
        """A message for it. It can come before the answer that it waits, over another connection."""
        if not self._message.done():
            self._message.set_result(message)

    async def message(self, end: float) -> Answer:
        """What the first message says; None at `end`."""
        if end == math.inf:
            return await self._message
        done, _ = await asyncio.wait([self._message], timeout=end - now())
        return self._message.result() if done else None

    def forget(self) -> None:
        """A message that comes later is ignored: whoever gave the request up releases it."""
        self.subscription.waits.pop(self.channel.tag, None)


class Subscription:
    """A channel to which this process listens, and the waits that end there."""

    def __init__(self, name: bytes, hash_tag: bytes | None, listener: Listener) -> None:
        self.name = name
        self.hash_tag = hash_tag
        """That of its keys, in a cluster."""
        self.listener = listener
        self.alive = True
        self.waits: dict[bytes, Wait] = {}

    def lose(self) -> None:
        self.alive = False
        self.listener.ended(self)
        for wait in self.waits.values():
            wait.put(SubscriptionLost())


class Listener:
    """Listens at one server. When its connection fails, all who wait are told, and ask again."""

    def __init__(self, connection: Any, ended: Callable[[Subscription], None]) -> None:
        """`ended` is called with each subscription that is lost, or that is left."""
        self.ended = ended
        self._connection = connection
        self._connection.listener = self
        self._subscriptions: dict[bytes, Subscription] = {}
        self._test: asyncio.TimerHandle | None = None

    async def subscribe(self, name: bytes, hash_tag: bytes | None, end: float) -> Subscription:
        """Returns when the server has confirmed it. An error of the server is raised."""
        subscription = self._subscriptions[name] = Subscription(name, hash_tag, self)
        try:
            [answer] = await self._connection.ask([("SSUBSCRIBE", name)], end)
        except BaseException:
            self.unsubscribe(subscription)
            raise
        if isinstance(answer, BaseException):
            self._subscriptions.pop(name, None)
            raise answer
        self.test_soon()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Who still waits there is told."""
        if self._subscriptions.pop(subscription.name, None) is not None:
            subscription.lose()
            self._connection.tell(("SUNSUBSCRIBE", subscription.name))

    def test_soon(self) -> None:
        """Somebody waits: from now on the connection is tested."""
        if self._test is None:
            self._test = asyncio.get_running_loop().call_later(PING_AFTER, self._look)

    def take(self, message: list[Any]) -> None:
        """A message, or an unsubscription that the server makes: the slot has moved. Others are ignored."""
        match message:
            case [b"smessage", channel, text] if channel in self._subscriptions:
                number, _, tag = text.partition(b" ")
                wait = self._subscriptions[channel].waits.get(tag)
                if wait is not None:
                    wait.put(_answer_of(number))
            case [b"sunsubscribe", channel, _] if channel in self._subscriptions:
                self._subscriptions.pop(channel).lose()

    def lost(self) -> None:
        """The connection has failed."""
        lost, self._subscriptions = self._subscriptions, {}
        for subscription in lost.values():
            subscription.lose()
        if self._test is not None:
            self._test.cancel()
            self._test = None

    def _look(self) -> None:
        """While somebody waits it tests the connection: what is not answered within the time of the endpoint
        ends it. In a cluster there may be as many channels as locks: those where nobody waits are left.
        """
        self._test = None
        for subscription in list(self._subscriptions.values()):
            if subscription.hash_tag is not None and not subscription.waits:
                self.unsubscribe(subscription)
        if any(subscription.waits for subscription in self._subscriptions.values()):
            self._connection.tell(("PING",))
            self.test_soon()


class Listening:
    """The subscriptions of one `Locks`: one, or in a cluster one for each hash tag."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._subscriptions: dict[bytes | None, Subscription] = {}
        self._subscribing: dict[bytes | None, asyncio.Task[Subscription]] = {}
        self._tags = itertools.count(1)
        self._closed = False

    def wait(self, subscription: Subscription) -> Wait:
        """For one request."""
        return Wait(subscription, b"%d" % next(self._tags))

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

    def close(self) -> None:
        """All that wait are told `SubscriptionLost`, and nobody begins to wait."""
        self._closed = True
        for subscription in list(self._subscriptions.values()):
            subscription.lose()

    def _ended(self, subscription: Subscription) -> None:
        if self._subscriptions.get(subscription.hash_tag) is subscription:
            del self._subscriptions[subscription.hash_tag]

    def _subscribed(self, hash_tag: bytes | None, task: asyncio.Task[Subscription]) -> None:
        del self._subscribing[hash_tag]
        if not task.cancelled():
            task.exception()  # perhaps nobody waits for it any more

    async def _subscribe(self, key: Key, hash_tag: bytes | None) -> Subscription:
        name = b"waits:" + secrets.token_hex(16).encode()
        if hash_tag is not None:
            name = b"{" + hash_tag + b"}." + name
        node = (await self._servers.place_of(key, now() + LOOK_UP_FOR)).node
        self._check_open()
        listener = node.shared.listener or Listener(node.shared, self._ended)
        end = now() + node.endpoint.timeout + node.endpoint.connect_timeout
        try:
            subscription = await listener.subscribe(name, hash_tag, end)
        except Exception as error:
            if self._servers.redirected(key, error) is not None:
                raise base.ConnectionError("the slot is served by another node") from error
            if is_lost_connection(error):
                self._servers.suspect()
            raise
        self._check_open()
        self._subscriptions[hash_tag] = subscription
        return subscription

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError


def _answer_of(number: bytes) -> Answer:
    """What a message says: a fence, or 0 when the wait is over, or an error."""
    if number.startswith(b"-"):
        return base.ResponseError(f"{number[1:].decode()} at the end of the wait")
    return int(number)
