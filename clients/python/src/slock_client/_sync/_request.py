# Made from asyncio/_request.py by scripts/synchronous.py: change it there.
"""`Request`: what is wanted, and how a program gets it from an `Acquirer`: from `Locks` or from `Quorum`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from slock_client._answers import outcome_of
from slock_client._clock import now
from slock_client._commands import READ, WRITE, Key
from slock_client._options import Options, ReadOptions, RequestOptions, Wanted, is_async
from slock_client._sync._block import Block
from slock_client._sync._hold import AnyHold
from slock_client._sync._shared import Shared
from slock_client._thread_guard import DECORATES_ASYNC, OTHER_FUNCTION

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=AnyHold)


class Acquirer(Generic[H]):
    """What `Locks` and `Quorum` have in common: a program can take either."""

    def __init__(self, shared: Shared, options: Any) -> None:
        """`options`: of requests, as far as they do not say otherwise."""
        self._shared = shared
        self._reading = Options(**options)
        self._writing = self._reading.changed(limit=None)

    def write(self, *keys: Key, **options: Unpack[RequestOptions]) -> Request[H]:
        """A request to be the only one that holds all of `keys`."""
        return Request(self, self._wanted(keys, WRITE, options))

    def read(self, *keys: Key, **options: Unpack[ReadOptions]) -> Request[H]:
        """A request to hold `keys` together with other readers.

        Options as those of `write`, and `limit`: at most so many readers at once.
        """
        return Request(self, self._wanted(keys, READ, options))

    def close(self) -> None:
        """Stops renewing and closes the connections. Acquisitions that wait end with `ClosedError`.

        It releases nothing: holds end at their ttl. In a thread a signal handler may call it.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wanted(self, keys: tuple[Key, ...], mode: str, options: Any) -> Wanted:
        defaults = self._reading if mode == READ else self._writing
        return Wanted(keys, mode, defaults.changed(**options))

    def _attempt(self, wanted: Wanted, once: bool) -> Any:
        """The acquisition of one hold. Its `hold()` gives it, or None when it was refused and asks once;
        `give_up(error)` leaves neither a hold nor a request.
        """
        raise NotImplementedError

    def _acquire(self, wanted: Wanted, *, once: bool) -> H | None:
        """The hold; None when it was refused and asks once. An error leaves nothing behind."""
        shared, attempt, began = self._shared, self._attempt(wanted, once), now()
        hold: H | None = None

        def ended(problem: BaseException | None) -> None:
            shared.end(attempt)
            shared.hooks.tell_time("waited", wanted.label, began, outcome_of(hold is not None, problem))

        try:
            shared.begin(attempt)
            hold = attempt.hold()
            shared.check_open()  # nobody would renew it
            if hold is None:
                attempt.give_up(None)  # it was refused, but a copy before may come late
            ended(None)
            return hold
        except BaseException as error:
            try:
                # Ctrl-C can come after the grant too, also in the hook. Nobody would have the hold then.
                if hold is not None:
                    hold._end()
                    hold = None
                attempt.give_up(error)
            finally:
                ended(error)  # Ctrl-C can come once more; `close` waits until this has ended
            raise


class Request(Block, Generic[H]):
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
        request. In a thread a second exception in the same moment can leave a hold to its ttl.
        """
        hold = self._locks._acquire(self._wanted, once=False)
        assert hold is not None
        return hold

    def try_acquire(self) -> H | None:
        """Asks once. None when the lock is not free. Errors as those of `acquire`."""
        return self._locks._acquire(self._wanted, once=True)

    def __enter__(self) -> H:
        hold = self.acquire()
        try:
            return self._begin(hold)
        except BaseException:  # Ctrl-C
            hold.release()
            raise

    def __call__(self, work: Callable[P, T]) -> Callable[P, T]:
        """A function that does `work` under the lock."""
        if is_async(work) != DECORATES_ASYNC:
            raise TypeError(OTHER_FUNCTION)
        if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
            raise TypeError("a generator works after its call has ended: use a block in it")

        @functools.wraps(work)
        def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return work(*args, **kwargs)

        return under_lock

    def __repr__(self) -> str:
        return f"<Request {self._wanted.mode} {self._wanted.names}>"
