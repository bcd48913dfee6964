# SPDX-License-Identifier: MIT OR Apache-2.0

"""`Lock` in place of that of redis-py and valkey-py, in terms of `Locks`. DROP_IN.md has the differences."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, ClassVar, ParamSpec, TypeVar

from slock_client import _sync
from slock_client._block import Block, Exit, entered
from slock_client._clock import now
from slock_client._hold import HoldBase
from slock_client._locks import LocksBase
from slock_client._options import LEAST_TTL, Duration, seconds
from slock_client._protocol import Owner, word
from slock_client._transport import Call, completed, run
from slock_client.asyncio import _asyncio
from slock_client.errors import LostError, NoAnswerError, NotHeldError, TimedOutError

P = ParamSpec("P")
T = TypeVar("T")


class _Owner:
    """What a lock has acquired."""

    token: bytes | None = None
    hold: HoldBase | None = None  # it is renewed as long as this refers to it


@cache
def _by_thread(local: type) -> Any:
    """The same, for each thread, and gone with it. Of the class that is `threading.local` when it is needed: gevent may
    replace that after the import."""
    return type("_ThreadOwner", (local, _Owner), {})


class DropIn:
    """What the locks of both halves and both libraries have in common."""

    watchdog_ttl: ClassVar[Duration] = 10.0
    """How long a lock without a `timeout` lives after its last renewal, in seconds. A subclass may change it."""

    _kind: ClassVar[Any]  # of `Locks`
    _errors: Any  # the exceptions of the library
    redis: Any  # the client
    name: Any
    timeout: float | None
    blocking: bool
    blocking_timeout: float | None
    thread_local: bool
    local: Any

    def register_scripts(self) -> None:
        """The last step of the library's `__init__`. The server has the commands, so there are no scripts."""
        self.local = _by_thread(threading.local)() if self.thread_local else _Owner()
        self._blocks: list[Block] = []

    def _refuse_script(self, _: object) -> None:
        raise TypeError("this lock uses no Lua scripts: one that is set, as celery-redbeat does, would have no effect")

    lua_release: Any = property(lambda _: None, _refuse_script)
    lua_extend: Any = lua_release
    lua_reacquire: Any = lua_release

    @property
    def fence(self) -> int | None:
        """The fencing token, or `None` if the lock is not acquired. Each new hold has a greater one than all before:
        send it with all that is written, and refuse lesser ones where it is stored."""
        hold = self.local.hold
        return None if hold is None else hold.fence

    # --- the parts

    def _client(self) -> Any:
        return getattr(self, "redis", None) or self.valkey  # type: ignore[attr-defined]

    def _locks(self) -> LocksBase[Any, Any]:
        """Those of the pool, which programs share between clients of a short life. A client of a cluster has none.

        They are an attribute, because they refer to the pool: a dictionary, even one with weak keys, would keep both.
        """
        client = self._client()
        shared: dict[str, Any] = vars(getattr(client, "connection_pool", client))
        return shared.get("_slock_locks") or shared.setdefault("_slock_locks", self._kind(client))  # type: ignore[no-any-return]

    def _text(self, value: Any) -> str:
        """The bytes that the client sends, as text of which the same bytes become."""
        return bytes(self._client().get_encoder().encode(value)).decode("utf-8", "surrogateescape")

    def _ttl(self) -> float:
        """In seconds, cut to whole milliseconds as the library does it."""
        ttl = int(self.timeout * 1000) / 1000 if self.timeout else seconds(self.watchdog_ttl, "watchdog_ttl")
        if ttl < 0.001:
            raise self._errors.ResponseError(f"{self.name}: the timeout of a lock must be a millisecond at least")
        return max(ttl, LEAST_TTL)

    async def _acquire(
        self, blocking: bool | None, blocking_timeout: float | None, token: Any, alive: Callable[[], Any] | None = None
    ) -> bool:
        blocking = self.blocking if blocking is None else blocking
        wait = self.blocking_timeout if blocking_timeout is None else blocking_timeout
        is_try = not blocking or (wait is not None and wait <= 0)
        given: dict[str, Any] = {"ttl": self._ttl(), "wait": None if is_try else wait, "renew": not self.timeout}
        locks = self._locks()
        options = locks._options.change(given if token is None else {**given, "token": self._text(token)})
        try:
            grant = await self._replied(locks._engine().acquire, (self._text(self.name),), "write", options, is_try)
        except TimedOutError:
            return False
        if grant is None:
            return False
        self.local.hold = HoldBase(locks, grant, alive)
        self.local.token = grant.owner.token.encode("utf-8", "surrogateescape")
        return True

    async def _enter(self, block: Block) -> Any:
        block.hold = self
        if not await self._acquire(None, None, None, block.alive):
            raise self._error("Unable to acquire lock within the time specified")
        return self

    async def _locked(self) -> bool:
        """Whether somebody has the lock."""
        return (await self._replied(self._locks()._info, self._text(self.name))).mode != "free"

    async def _owned(self) -> bool:
        """Whether this thread has it by this lock."""
        token, hold = self.local.token, self.local.hold
        if token is None or await self._left(token) < 0:
            return False
        return bool(self.timeout) or hold is None or not hold.lost

    async def _left(self, token: bytes) -> int:
        """How many milliseconds the token still holds the lock; negative: it does not."""
        key = self._text(self.name)
        return int(await self._replied(self._locks()._engine().query, Call(key, ("SLOCK.PTTL", word(key), token))))

    async def _release(self) -> None:
        """Raises `LockError` when it has not been acquired, and `LockNotOwnedError` when it is no longer owned. When it
        is cancelled or interrupted, it may be called again."""
        local = self.local
        token, hold = local.token, local.hold
        if token is None:
            raise self._error("Cannot release a lock that's not owned or is already unlocked.")
        local.token = local.hold = None  # before the reply: after it another task may have acquired by this object
        try:
            if not await self._replied(self._end, self._text(token), hold):
                raise self._not_owned("release")
        except BaseException as error:
            if not isinstance(error, Exception) and local.token is None:
                local.hold, local.token = hold, token
            raise

    async def _end(self, token: str, hold: HoldBase | None) -> bool:
        try:
            if hold is None or hold.token != token:
                return await self._locks()._release(self._text(self.name), token) > 0
            if not (hold._is_live() or hold.lost):  # a release of it was cancelled
                return await hold._end_there()
            await hold._release()
        except LostError as loss:
            raise self._not_owned("release") from loss
        except NotHeldError:
            return False
        return True

    async def _set_ttl(self, ttl: float, verb: str, token: bytes, hold: HoldBase | None) -> bool:
        """As the library does it, also to less. A time to live that comes to nothing ends the hold."""
        locks, key = self._locks(), self._text(self.name)
        owner = Owner((key,), locks._options.change({"token": self._text(token)}))
        if hold is not None:
            hold._until = min(hold._until, now() + ttl)
        call = owner.end(0) if ttl < 0.001 else owner.extend(ttl, 0, only_lengthens=False)
        answer = await self._replied(locks._engine().servers[0].ask, (key,), call)
        if not answer.number and (ttl >= 0.001 or answer.copies == 1):
            raise self._not_owned(verb)
        if hold is not None:
            hold._until = answer.sent + locks._options.counted(ttl)
        return True

    async def _extend(self, additional_time: float, replace_ttl: bool) -> bool:
        token, hold = self._extensible("extend")
        left = 0 if replace_ttl else await self._left(token)
        if left < 0:
            raise self._not_owned("extend")
        return await self._set_ttl((int(additional_time * 1000) + left) / 1000, "extend", token, hold)

    async def _reacquire(self) -> bool:
        return await self._set_ttl(self._ttl(), "reacquire", *self._extensible("reacquire"))

    def _extensible(self, verb: str) -> tuple[bytes, HoldBase | None]:
        """The token and the hold, as they are before the first reply."""
        token, hold = self.local.token, self.local.hold
        if not self.timeout:
            raise self._error(f"Cannot {verb} a lock with no timeout")
        if token is None:
            raise self._not_owned(verb)
        return token, hold

    def _error(self, text: str, kind: str = "LockError") -> Exception:
        error = getattr(self._errors, kind)(text)
        error.lock_name = self.name
        return error  # type: ignore[no-any-return]

    def _not_owned(self, verb: str) -> Exception:
        return self._error(f"Cannot {verb} a lock that's no longer owned", "LockNotOwnedError")

    async def _replied(self, work: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of the work. If there was no reply, it raises the error of the library."""
        try:
            return await work(*arguments, **named)
        except NoAnswerError as error:
            cause = error.__cause__
            if not isinstance(cause, (self._errors.ConnectionError, self._errors.TimeoutError)):
                raise self._errors.TimeoutError(str(error)) from error
        raise cause  # out here the error, of which it is the cause, does not become its context


class SyncDropIn(DropIn):
    """The synchronous half."""

    _kind = _sync.Locks

    def acquire(
        self, sleep: Any = None, blocking: bool | None = None, blocking_timeout: float | None = None, token: Any = None
    ) -> bool:
        """Acquires the lock. `True` when it has it, `False` when another has it and the wait is over.

        With `blocking` it waits in the server's queue for its turn: for at most `blocking_timeout` seconds, or without
        limit. `sleep` is not used. `token` identifies the owner: text or bytes, 1 to 255 bytes; with the token that has
        the lock already, the answer is `True`.
        """
        return run(self._acquire, blocking, blocking_timeout, token)

    release = completed(DropIn._release)
    locked = completed(DropIn._locked)
    owned = completed(DropIn._owned)
    do_extend: Any = completed(DropIn._extend)
    do_reacquire: Any = completed(DropIn._reacquire)

    def __enter__(self) -> Any:
        return run(self._enter, entered(self))

    @Exit
    def __exit__(self, block: Block, *error: object) -> Any:
        return super().__exit__(*error)  # type: ignore[misc]


class AsyncDropIn(DropIn):
    """The asyncio half."""

    _kind = _asyncio.Locks

    async def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: Any = None
    ) -> bool:
        """Acquires the lock. `True` when it has it, `False` when another has it and the wait is over.

        With `blocking` it waits in the server's queue for its turn: for at most `blocking_timeout` seconds, or without
        limit. `token` identifies the owner: text or bytes, 1 to 255 bytes; with the token that has the lock already,
        the answer is `True`. A cancellation leaves neither a hold nor a request.
        """
        return await self._acquire(blocking, blocking_timeout, token)

    release = DropIn._release
    locked = DropIn._locked
    owned = DropIn._owned
    do_extend: Any = DropIn._extend
    do_reacquire: Any = DropIn._reacquire

    def __aenter__(self) -> Any:
        return self._enter(entered(self))

    @Exit
    def __aexit__(self, block: Block, *error: object) -> Any:
        return super().__aexit__(*error)  # type: ignore[misc]
