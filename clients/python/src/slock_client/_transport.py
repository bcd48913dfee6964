# SPDX-License-Identifier: MIT OR Apache-2.0

"""What is asked of a Redis client library, and of threads or tasks.

The rules of locks are written once, as coroutines. In the asyncio half they are awaited. In the synchronous half what
they await blocks the thread and never suspends them, so that `run` completes a coroutine by one step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from itertools import starmap
from operator import methodcaller
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Command = tuple[Any, ...]
Work = Coroutine[Any, Any, None]


def run(function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Completes a coroutine of the synchronous half.

    It is made and begun by one call of C. One that an exception of a signal handler drops before its first step warns
    of that, and in the warning another exception would get lost.
    """
    try:
        next(map(_begin, starmap(function, (arguments,))))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise RuntimeError("the synchronous half has suspended a coroutine")


_begin = methodcaller("send", None)


def completed(work: Callable[Concatenate[S, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], T]:
    """The method of the synchronous half that completes a coroutine function."""

    @wraps(work)
    def method(self: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        return run(partial(work, self, *arguments, **named))

    return method


class NoReply(Exception):
    """No reply came, and the command may succeed if it is sent again. The cause is the error of the client library."""


class ServerError(Exception):
    """An error reply of the server. The cause is the error of the client library."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.partition(" ")[0]


class Call(NamedTuple):
    """A command, and those that go before and after it over the same connection, if they are not empty. The reply to
    the first of them is not used.

    `key` tells which primary has to have the command. If it is `None`, each primary gets it, and the reply is a list.
    """

    key: str | None
    words: Command
    then: Command = ()
    first: Command = ()

    @property
    def commands(self) -> list[Command]:
        return [command for command in (self.first, self.words, self.then) if command]


class Mailbox(Protocol):
    """A queue with one reader. `put` may be called by any thread."""

    def put(self, item: Any) -> None: ...

    async def get(self, timeout: float) -> Any:
        """The next item, or `None` after so many seconds."""
        ...


class Runtime(Protocol):
    """Threads, or the tasks of one event loop."""

    late: float  # seconds after its limit at which a call ends only if this process stood still

    def mailbox(self) -> Mailbox: ...

    def start(self, function: Callable[[], Work]) -> None:
        """Runs a coroutine function that may run for long, in the background."""
        ...

    def spawn(self, function: Callable[[], Work]) -> None:
        """Runs a coroutine function that takes seconds at most, in the background, perhaps after others."""
        ...

    def is_ending(self) -> bool:
        """Whether the end of an event loop cancels this task of the background. One that it starts would not get to its
        end."""
        ...

    async def apart(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine function where no exception of a signal handler can come, and gives its result."""
        ...

    async def pause(self, duration: float) -> None: ...

    async def call(self, link: Link, call: Call, until: float) -> list[Any]:
        """The replies to all commands of the call. A reply may be an error. Raises `NoReply`."""
        ...


class Link(Protocol):
    """Connections of one process or event loop to one server, to the servers behind Sentinels, or to a cluster."""

    name: str  # the address, for texts of errors
    is_cluster: bool
    has_failover: bool  # whether another server can take over while the former one still replies, as with Sentinel

    @property
    def limit(self) -> float:
        """How many seconds a batch may take, where the connection itself has no limit of time."""
        ...

    async def send(self, key: str | None, commands: list[Command]) -> list[Any]:
        """The replies to commands for the primary that has the key; some may be errors. Raises `NoReply`."""
        ...

    async def listen(self, channel: str, heard: Callable[[str], None], changed: Callable[[bool], None]) -> None:
        """Subscribes to a channel on the primary that has its slot. Does not wait for the server's confirmation.

        Calls `changed` with true when the server has confirmed the subscription, and with false when it has ended.
        """
        ...

    def leave(self, channel: str) -> None:
        """Ends the subscription, if there is one."""
        ...

    def follow(self, is_wanted: bool) -> None:
        """With Sentinel: whether another primary has to be noticed at once. It is told again every second."""
        ...

    async def close(self) -> None: ...


# What a client gives: it makes connections. The function is called when the primary is another one.
Transport = Callable[[Runtime, Callable[[], None]], Link]
