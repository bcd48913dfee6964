# SPDX-License-Identifier: MIT OR Apache-2.0

"""The end of a block is noticed in whichever way it comes.

CPython looks for signals at the entry of `__exit__`, before its first line: an exception of a signal handler can end a
block without that anything of it runs. So `__exit__` is looked up as an object of its own for each block, to which only
the interpreter refers. When that is gone, the block has been left, and the watchdog does not renew its hold.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from slock_client._options import current_task

T = TypeVar("T")


class Block:
    """One use of a request or a hold as a block."""

    __slots__ = ("alive", "guard", "hold", "owner", "place")

    def __init__(self, owner: Any) -> None:
        self.owner = owner  # the request or hold
        self.place = _place()
        self.alive: Callable[[], Any] | None = None  # gives None when the block has been left; None: it is not known
        self.hold: Any = None
        self.guard: Any = None


# Between the look-up of `__exit__` and the call of `__enter__`, which follows at once: the block, by the thread.
_entering: dict[int, Block] = {}


def entered(owner: Any) -> Block:
    """The block that begins. Without a `with` statement (`ExitStack`) its end is found by `left`."""
    block = _entering.pop(threading.get_ident(), None)
    if block is not None and block.owner is owner and block.alive is not None and block.alive() is not None:
        return block
    block = Block(owner)
    owner._blocks.append(block)
    return block


def _place() -> Any:
    """The task, or the thread."""
    return current_task() or threading.get_ident()


def left(owner: Any) -> Block:
    """The block that ends, where that is not known: the last one that began in this task or thread, or anywhere."""
    blocks, place = owner._blocks, _place()
    block = next((one for one in reversed(blocks) if one.place == place), None) or blocks[-1]
    blocks.remove(block)
    return block  # type: ignore[no-any-return]


class Exit(Generic[T]):
    """`__exit__` or `__aexit__`. `leave` takes the object, the block, and the three arguments."""

    def __init__(self, leave: Callable[..., T]) -> None:
        self._leave = leave

    def __get__(self, owner: Any, kind: type | None = None) -> Callable[..., T]:
        if owner is None:
            return self
        block = Block(owner)
        leave = partial(self._called, owner, block)
        block.alive = weakref.ref(leave)
        _entering[threading.get_ident()] = block
        return leave

    def __call__(self, owner: Any, *arguments: Any) -> T:
        """As a function of the class, as `ExitStack` calls it."""
        return self._leave(owner, left(owner), *arguments)

    def _called(self, owner: Any, block: Block, *arguments: Any) -> T:
        # Without a hold it was looked up after the block began.
        return self._leave(owner, block if block.hold is not None else left(owner), *arguments)
