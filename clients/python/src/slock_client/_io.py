"""What a half of the library, synchronous or asyncio, must offer to the rules.

The rules are written once, as coroutines that wait only for what is in this file. In asyncio they are awaited
as usual. In the synchronous half nothing in this file ever suspends: it blocks the thread instead, so that a
coroutine runs from its start to its end in one step, which is what `finish` does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from slock_client._answers import Answer
from slock_client._commands import Command
from slock_client._recipe import Recipe

T = TypeVar("T")

# How long a wait is silent, in seconds, before it is looked for the first time whether the server is there.
FIRST_LOOK = 1.0

Work = Callable[[], Coroutine[Any, Any, T]]
"""Begins something, in the thread or task in which it is called."""

Look = Callable[[], Coroutine[Any, Any, float]]


def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("the synchronous half of slock_client must not suspend")


class Event(Protocol):
    """Something that happens once, or again after `clear`."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def is_set(self) -> bool: ...

    async def wait(self, end: float | None) -> bool:
        """Returns when it has happened, or at `end`: whether it has."""


class Link(Protocol):
    """The connections to one server. Ends are on the clock of the library.

    An error of the server is an answer. A lost connection is raised; `note_unsent` marks an error before
    which nothing was sent. `TimeoutError` of redis-py is raised when the answers do not come until `end`,
    or when one takes longer than the recipe says.
    """

    recipe: Recipe

    async def ask(self, *commands: Command, end: float) -> list[Answer]:
        """The answers to the commands, which go in one pipeline."""

    async def wait(self, *commands: Command, end: float, look: Look) -> list[Answer]:
        """The answers to commands that may block a connection until `end`. They get one of their own.

        While there is no answer it awaits `look()` now and then, whose errors end the wait, and which says
        after how many seconds to look again.
        """

    def interrupt(self) -> None:
        """Each `wait` ends with an error of a lost connection, also each that begins later."""

    def drop(self) -> None:
        """Closes the connections that are idle: perhaps they lead to the wrong server."""

    async def close(self) -> None:
        """Closes what is idle for good. A release that comes later opens a connection for itself."""


class Io(Protocol):
    """Input, output, time and other threads or tasks."""

    def event(self) -> Event: ...

    async def sleep(self, seconds: float) -> None: ...

    def link(self, recipe: Recipe) -> Link: ...

    def start(self, work: Work[None], name: str, *, limited: bool = False) -> None:
        """Begins `work` in a thread or task of the library.

        `limited`: with others of its kind it may queue.
        """

    def each(self, works: Sequence[Work[T]]) -> AsyncIterator[tuple[int, T | BaseException]]:
        """Does all at the same time: the number of each and its result, or its error, as they end.

        Who stops iterating leaves the others to end by themselves.
        """


async def all_of(io: Io, works: Sequence[Work[T]]) -> list[T | BaseException]:
    """The results, or errors, of all."""
    if len(works) == 1:
        try:
            return [await works[0]()]
        except Exception as error:
            return [error]
    results: dict[int, T | BaseException] = {}
    async for number, result in io.each(works):
        results[number] = result
    return [results[number] for number in range(len(works))]
