# Made from asyncio/_block.py by scripts/synchronous.py: change it there.
"""Blocks: of a hold that there is, and of a request, which acquires one."""

from __future__ import annotations

import contextlib
from itertools import chain
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
        guard = self._take_guard()
        ended_by_loss = guard.leave(error)
        with contextlib.suppress(Exception):  # the work is done, and the hook has been told
            guard.hold.release()
        if ended_by_loss:
            guard.hold._raise_if_lost(error)

    def _take_guard(self) -> Guard:
        """That of the block that ends. It may have begun in another task, as those of fixtures do."""
        task = io.current()
        if task not in self._guards:
            if len(self._guards) != 1:
                for guard in chain(*self._guards.values()):
                    guard.hold._renew_no_more()
                raise RuntimeError(
                    "a block ends in another task or thread than it began in, and it is not known which one: "
                    "make a request for each. None of their holds is renewed any more"
                )
            [task] = self._guards
        guard = self._guards[task].pop()
        if not self._guards[task]:
            del self._guards[task]
        return guard
