# SPDX-License-Identifier: MIT OR Apache-2.0

"""What `Locks`, quorums and requests of both halves have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slock_client import _options, info
from slock_client._acquisition import Request
from slock_client._clock import now
from slock_client._hold import Grant, HoldBase
from slock_client._listener import CLOSED
from slock_client._options import Mode, Options, check_keys
from slock_client._protocol import Owner, not_held, word
from slock_client._quorum import Votes, acquire
from slock_client._redis import transport_of
from slock_client._server import Answer, Server
from slock_client._transport import Call, Runtime, Transport
from slock_client._watchdog import Watchdog
from slock_client.errors import ClosedError, NotHeldError, WrongModeError, outcome_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

R = TypeVar("R")
H = TypeVar("H", bound=HoldBase)


class Engine:
    """What one process, or one event loop, has of a `Locks`: connections, waits, holds and what looks after them."""

    def __init__(self, options: Options, transports: Sequence[Transport], io: Callable[[], Runtime]) -> None:
        self._options = options
        self.running: set[object] = set()  # acquisitions
        self.servers = [Server(one, io(), options, lambda: self.watchdog.confirm()) for one in transports]
        self.io = io()  # renewals wait for tasks of the servers, so they do not share their threads
        self.watchdog = Watchdog(self.io, self.servers)
        for server in self.servers:
            server.listener.waits = lambda: self.watchdog.wake(float("inf"))

    def check_open(self) -> None:
        if self._options.closing.is_set():
            raise ClosedError("the Locks has been closed")

    def _owner(self, names: tuple[str, ...], options: Options) -> Owner:
        self.check_open()
        return Owner(names, options)

    async def acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Grant | None:
        """`None`: a try was refused."""
        self.check_open()
        began, key, outcome = now(), object(), ""
        self.running.add(key)
        try:
            grant = await self._acquire(names, mode, options, is_try)
            if grant is not None and options.closing.is_set():
                grant.keeper.drop(grant.owner, grant.answer.number)
                self.check_open()
            outcome = "refused" if grant is None else "granted"
            return grant
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.running.discard(key)
            options.hooks._call("waited", options.label or names[0], now() - began, outcome)

    async def _acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Grant | None:
        if options.is_quorum:
            votes = await acquire(self.servers, lambda: self._owner(names, options), mode, options, is_try)
            return None if votes is None else Grant(votes, votes.owner, mode, options, Answer(0, votes.sent))
        server, owner = self.servers[0], self._owner(names, options)
        call = owner.lock(mode, options.ttl, options.limit)
        answer = await Request(server, owner, call, options, is_try).acquire()
        return None if answer is None else Grant(server, owner, mode, options, answer)

    async def adopt(self, names: tuple[str, ...], mode: Mode, options: Options) -> Grant:
        owner = self._owner(names, options)
        if options.is_quorum:
            votes = Votes(self.servers, owner, mode, options)
            if await votes.adopt():
                return Grant(votes, owner, mode, options, Answer(0, votes.sent))
        else:
            with contextlib.suppress(WrongModeError):
                answer = await self.servers[0].ask(names, owner.adopt(mode, options.ttl))
                if answer.number:
                    return Grant(self.servers[0], owner, mode, options, answer)
        raise not_held(names, mode)

    async def release(self, names: tuple[str, ...], options: Options) -> int:
        owner = self._owner(names, options)
        if options.is_quorum:
            return await Votes(self.servers, owner, "write", options).release()
        return (await self.servers[0].ask(names, owner.end(0))).number

    async def query(self, call: Call) -> Any:
        """The reply to a question. Without a key it is a list of those of all primaries."""
        self.check_open()
        server = self.servers[0]
        [reply, *_] = await server.repeat((), lambda until: server.replies(call, until))
        return reply if call.key or server.link.is_cluster else [reply]

    async def close(self) -> None:
        """Waits for acquisitions and ends that are under way, for a time, and ends the connections."""
        end = now() + self._options.retry_for
        while now() < end and (self.running or not all(server.deliveries.is_idle() for server in self.servers)):
            await self.io.pause(0.002)
        for server in self.servers:
            server.is_closed = True
            server.listener.close()
            await server.link.close()


class LocksBase(Generic[R, H]):
    """What a program asks for locks. The types are its requests and holds."""

    _is_async = False
    _request: Callable[..., R]
    _hold: Callable[..., H]

    def __init__(self, client: Any, **options: Unpack[_options.LocksOptions]) -> None:
        self._open([client], options, _options.LocksOptions)

    def _open(self, clients: Iterable[Any], options: Mapping[str, Any], kind: Any) -> None:
        self._options = Options(is_quorum=kind is _options.QuorumOptions).change(options, kind)
        self._transports = [transport_of(client, self._is_async) for client in clients]
        self._engines: dict[Any, Engine] = {}

    def write(self, *keys: str, **options: Unpack[_options.RequestOptions]) -> R:
        """A request for the lock of all keys, or of none, as the one writer. It sends nothing."""
        return self._request(self, keys, "write", self._options.change(options))

    def read(self, *keys: str, **options: Unpack[_options.ReadOptions]) -> R:
        """A request for the lock of all keys, or of none, as a reader. It sends nothing."""
        return self._request(self, keys, "read", self._options.change(options, _options.ReadOptions))

    def _engine(self) -> Engine:
        """That of this process or event loop."""
        raise NotImplementedError

    def _made(self, place: Any, io: Callable[[], Runtime]) -> Engine:
        return self._engines.setdefault(place, Engine(self._options, self._transports, io))

    async def _adopt(
        self, /, keys: str | Iterable[str], token: str, mode: Mode = "write", **options: Unpack[_options.HoldOptions]
    ) -> H:
        """Makes a hold of an owner token that another process took and detached, and renews it from now on. Raises
        `NotHeldError` if the token does not hold all keys in the mode."""
        changed = self._options.change({**options, "token": token})
        return self._hold(self, await self._engine().adopt(_names(keys), mode, changed))

    async def _release(self, keys: str | Iterable[str], token: str) -> int:
        """Releases what an owner token holds of the keys, in whichever mode, and tells on how many keys it did, or on
        how many nodes of a quorum. It is for a token that another process took; a hold has `release`."""
        return await self._engine().release(_names(keys), self._options.change({"token": token}))

    async def _info(self, key: str) -> info.LockInfo:
        """Who holds the lock of the key and who waits for it, all of them."""
        check_keys((key,))
        name = self._options.prefix + key
        return info.info_of(key, await self._engine().query(Call(name, ("SLOCK.INFO", word(name), "FULL", "COUNT", 0))))

    async def _queues(self) -> list[info.Queue]:
        """The locks that are waited for whose names begin with the prefix, on all nodes, the longest wait first."""
        found, cursor = dict[str, info.Queue](), 0
        while True:
            replies = await self._engine().query(Call(None, ("SLOCK.QUEUES", "COUNT", 0, "CURSOR", cursor)))
            found.update((one.key, one) for _, page in replies for one in info.queues_of(page, self._options.prefix))
            # All nodes are asked from the least of their cursors on, so some may tell the same again.
            cursor = min((int(after) for after, _ in replies if int(after)), default=0)
            if not cursor:
                return sorted(found.values(), key=lambda queue: -queue.longest_wait)

    async def _close(self, release: bool = False) -> None:
        """Ends the waits and the renewals, in all event loops. They, and all later calls except `Hold.release`, raise
        `ClosedError`.

        Holds are lost at the end of their ttl, and may still be released. With `release` all of this process or loop
        are released now, and the first error is raised at the end. What is on its way is waited for, for at most the
        time of `retry_for`.
        """
        engine = self._engine()
        self._options.closing.set()  # before a release could grant the lock to a wait of this `Locks`
        for one in list(self._engines.values()):
            for server in one.servers:
                server.listener.put_all(CLOSED)
        errors = list[Exception]()
        try:
            for hold in [claim.get() for claim in list(engine.watchdog.holds)] if release else ():
                try:
                    if hold is not None:
                        await hold._release()
                except NotHeldError:
                    pass
                except Exception as error:  # the other holds are released all the same
                    errors.append(error)
        finally:
            await engine.close()
        for first in errors[:1]:
            raise first


class QuorumBase(LocksBase[R, H]):
    """Locks on several independent servers, each with a client: not replicas or nodes of one another. Their number
    should be odd. A hold counts while a majority of the servers has it. It polls. See `QuorumOptions`.
    """

    def __init__(self, clients: Iterable[Any], **options: Unpack[_options.QuorumOptions]) -> None:
        self._open(clients, {"drift_factor": 0.01, **options}, _options.QuorumOptions)
        if not self._transports:
            raise ValueError("a quorum needs servers, not 0")


class RequestBase(Generic[H]):
    """What is wanted: keys, a mode and options. It may be used many times, also at once."""

    _hold: Callable[..., H]

    def __init__(self, locks: Any, keys: tuple[str, ...], mode: Mode, options: Options) -> None:
        check_keys(keys)
        self._locks, self.keys, self.mode, self._options = locks, keys, mode, options
        self._blocks: list[Any] = []  # those that did not begin by a `with` statement

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.mode} {', '.join(self.keys)}>"

    async def _grant(self, is_try: bool = False) -> Any:
        return await self._locks._engine().acquire(self.keys, self.mode, self._options, is_try)

    async def _acquire(self) -> H:
        """Waits until the lock is granted, at most for `wait`. Raises `TimedOutError` if others had it until then, and
        `NoAnswerError` if no reply came: for `retry_for` if there never was one, else for `retry_wait_for`. If it
        fails, or is cancelled, it leaves neither a hold nor a place in the queue."""
        return self._hold(self._locks, await self._grant())

    async def _try_acquire(self) -> H | None:
        """Sends the request once. `None` if others hold the lock or wait for it."""
        grant = await self._grant(True)
        return None if grant is None else self._hold(self._locks, grant)


def _names(keys: str | Iterable[str]) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    check_keys(names)
    return names
