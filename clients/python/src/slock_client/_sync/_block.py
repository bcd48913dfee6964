# Made from asyncio/_block.py by scripts/synchronous.py: change it there.
"""Blocks: of a hold that there is, and of a request, which acquires one."""

from __future__ import annotations

from typing import Any, TypeVar

from slock_client import _threads as io
from slock_client._thread_guard import Guard

H = TypeVar("H", bound=Any)


class Block:
    """Many tasks may be in blocks of one request, or of one hold."""

    def __init__(self) -> None:
        self._guards: dict[object, list[Guard]] = {}  # of each task, the innermost last

    def _begin(self, hold: H) -> H:
        self._guards.setdefault(io.current(), []).append(Guard(hold))
        return hold

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        task = io.current()
        guard = self._guards[task].pop()
        if not self._guards[task]:
            del self._guards[task]
        ended_by_loss = guard.leave(error)
        guard.hold._finish_block()
        if ended_by_loss:
            guard.hold._raise_if_lost(error)
