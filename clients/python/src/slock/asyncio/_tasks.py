"""Tasks that clean up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def start(work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
    """A task that begins `work` also when it is cancelled before its first step.

    `asyncio.run` cancels all tasks at its end. One that has just been made would end without a trace, and
    whoever depends on it would wait for ever.
    """
    return asyncio.get_running_loop().create_task(_Begins(work), name=name)


class _Begins(Coroutine[Any, Any, T]):
    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._begun = False

    def send(self, value: Any) -> Any:
        self._begun = True
        return self._work.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        error = kind if value is None else value
        if not self._begun and isinstance(error, asyncio.CancelledError):
            return self.send(None)
        return self._work.throw(error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()
