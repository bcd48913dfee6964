# Made from asyncio/_request.py by scripts/synchronous.py: change it there.
"""`Request`: what is wanted, and how a program gets it."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from slock_client._commands import READ, Key
from slock_client._options import Options, Wanted
from slock_client._sync._hold import AnyHold
from slock_client._thread_block import RequestBlock

H = TypeVar("H", bound=AnyHold)
H_co = TypeVar("H_co", bound=AnyHold, covariant=True)


class Acquirer(Protocol[H_co]):
    """`Locks` or `Quorum`."""

    def _acquire(self, wanted: Wanted, *, once: bool) -> H_co | None: ...


class Request(RequestBlock[H]):
    """Keys, a mode and options. Making one sends nothing. It can be used many times, also at once.

    `with request as hold:` acquires, runs the work, and releases. When the hold is lost meanwhile, the
    block ends with `LostError`: in asyncio at once, as the task is cancelled; in a thread unless it ends with
    an error of its own: call `hold.check()` before each step, or give `on_lost`. `@request` does the same for
    a function, with a hold of its own for each call.
    """

    def __init__(self, locks: Acquirer[H], wanted: Wanted) -> None:
        super().__init__()
        self._locks = locks
        self._wanted = wanted

    def acquire(self) -> H:
        """Waits until the lock is granted, at most for `wait`.

        `TimedOutError` when the wait is over, or when no server answers for `retry_for`; else as the
        servers say. A cancellation, or an exception such as `KeyboardInterrupt`, leaves neither a hold nor a
        request.
        """
        hold = self._locks._acquire(self._wanted, once=False)
        assert hold is not None
        return hold

    def try_acquire(self) -> H | None:
        """Asks once. None when the lock is not free. Errors as those of `acquire`."""
        return self._locks._acquire(self._wanted, once=True)

    def __repr__(self) -> str:
        return f"<Request {self._wanted}>"


class Defaults:
    """The options of requests that are not said otherwise."""

    def __init__(self, options: Any) -> None:
        self._limit = options.get("limit")
        Wanted(("any",), READ, Options(**options))
        self.options = Options(**{**options, "limit": None})

    def wanted(self, keys: tuple[Key, ...], mode: str, options: Any) -> Wanted:
        if mode == READ and self._limit is not None:
            options = {"limit": self._limit, **options}
        return Wanted(keys, mode, self.options.changed(**options))
