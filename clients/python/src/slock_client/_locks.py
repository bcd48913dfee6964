"""What `Locks`, quorums and requests of both halves have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from slock_client import info
from slock_client._acquisition import Grant, Request
from slock_client._clock import now
from slock_client._lease import Keeper, Lease
from slock_client._listener import CLOSED
from slock_client._options import Duration, Mode, Options, RequestOptions, check_keys, seconds
from slock_client._protocol import Owner, not_held, word
from slock_client._quorum import Votes, acquire
from slock_client._redis import RedisTransport
from slock_client._server import Answer, Server
from slock_client._settings import QuorumSettings, Settings
from slock_client._transport import Call, Runtime, Transport
from slock_client._watchdog import Watchdog
from slock_client.errors import ClosedError, WrongModeError, outcome_of
from slock_client.hooks import Hooks
from slock_client.polling import Exponential, Strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Engine:
    """What one process, or one event loop, has of a `Locks`: connections, waits, holds and what looks after them."""

    def __init__(self, settings: Settings, transports: Sequence[Transport], io: Callable[[], Runtime]) -> None:
        self._settings = settings
        self.running: set[object] = set()  # acquisitions
        self.servers = [Server(one, io(), settings, lambda: self.watchdog.confirm()) for one in transports]
        self.io = self.servers[0].io
        self.watchdog = Watchdog(self.io, self.servers, settings)
        for server in self.servers:
            server.listener.waits = lambda: self.watchdog.wake(float("inf"))

    def check_open(self) -> None:
        if self._settings.is_closing:
            raise ClosedError("the Locks has been closed")

    def _owner(self, names: tuple[str, ...], options: Options) -> Owner:
        self.check_open()
        return Owner(names, self._settings.prefix, options)

    async def acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Lease | None:
        """A lease that has not been handed out, or `None` if a try was refused."""
        self.check_open()
        began, key, outcome = now(), object(), ""
        self.running.add(key)
        try:
            lease = await self._acquire(names, mode, options, is_try)
            outcome = "refused" if lease is None else "granted"
            return lease
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.running.discard(key)
            waited = self._settings.hooks.waited
            if waited is not None:
                waited(options.label or names[0], now() - began, outcome)

    async def _acquire(self, names: tuple[str, ...], mode: Mode, options: Options, is_try: bool) -> Lease | None:
        if self._settings.quorum is not None:
            votes = await acquire(self.servers, lambda: self._owner(names, options), mode, options, is_try)
            return None if votes is None else self._hold(votes, votes.owner, mode, options, Grant(0, votes.sent))
        server, owner = self.servers[0], self._owner(names, options)
        call = owner.lock(mode, options.ttl, options.limit)
        grant = await Request(server, owner, call, options, is_try).acquire()
        return None if grant is None else self._hold(server, owner, mode, options, grant)

    def _hold(self, keeper: Keeper, owner: Owner, mode: Mode, options: Options, grant: Grant) -> Lease:
        lease = Lease(self._settings, keeper, owner, mode, options, grant)
        self.watchdog.add(lease)
        return lease

    async def adopt(self, names: tuple[str, ...], mode: Mode, options: Options) -> Lease:
        owner = self._owner(names, options)
        if self._settings.quorum is not None:
            votes = Votes(self.servers, owner, mode, options)
            if not await votes.adopt():
                raise not_held(names, mode)
            return self._hold(votes, owner, mode, options, Grant(0, votes.sent))
        server = self.servers[0]
        try:
            answer = await server.ask(names, self._settings.retry_for, owner.adopt(mode, options.ttl))
        except WrongModeError:
            answer = Answer(0, 0.0)
        if not answer.number:
            raise not_held(names, mode)
        return self._hold(server, owner, mode, options, Grant(answer.number, answer.sent))

    async def release(self, names: tuple[str, ...], options: Options) -> int:
        owner = self._owner(names, options)
        if self._settings.quorum is not None:
            return (await Votes(self.servers, owner, "write", options).release()).granted
        return (await self.servers[0].ask(names, self._settings.retry_for, owner.end(0))).number

    async def query(self, call: Call) -> Any:
        """The reply to a question. Without a key it is a list of those of all primaries."""
        self.check_open()
        server = self.servers[0]

        async def send(until: float) -> Any:
            reply = (await server.replies(call, until))[0]
            return reply if call.key or server.transport.is_cluster else [reply]

        return await server.repeat((), self._settings.retry_for, send)

    def wake_all(self) -> None:
        """Has all that wait notice that the `Locks` is closed."""
        for server in self.servers:
            server.listener.put_all(CLOSED)

    async def close(self) -> None:
        """Waits for acquisitions and ends that are under way, for a time, and ends the connections."""
        end = now() + self._settings.retry_for
        while now() < end and (self.running or not all(server.is_idle() for server in self.servers)):
            await self.io.pause(0.002)
        for server in self.servers:
            server.is_closed = True
            server.listener.close()
            await server.link.close()


class LocksOptions(RequestOptions, total=False):
    """Of `Locks`: see there."""

    prefix: str
    retry_for: Duration
    retry_wait_for: Duration
    hooks: Hooks | None


class LocksBase:
    """What a program asks for locks."""

    _is_async = False
    _quorum: QuorumSettings | None = None

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "",
        retry_for: Duration = 3,
        retry_wait_for: Duration = 60,
        hooks: Hooks | None = None,
        **defaults: Unpack[RequestOptions],
    ) -> None:
        limits = seconds(retry_for, "retry_for"), seconds(retry_wait_for, "retry_wait_for")
        self._settings = Settings(prefix, *limits, hooks or Hooks(), self._quorum)
        self._defaults = Options().change(dict(defaults))
        clients = [client] if self._quorum is None else client
        self._transports: list[Transport] = [transport_of(one, self._is_async) for one in clients]
        self._engines: dict[Any, Engine] = {}

    def _engine(self) -> Engine:
        raise NotImplementedError

    def _made(self, place: Any, io: Callable[[], Runtime]) -> Engine:
        """The engine of a process or event loop."""
        return self._engines.setdefault(place, Engine(self._settings, self._transports, io))

    def _key(self, key: str) -> str:
        check_keys((key,))
        return self._settings.prefix + key

    async def _adopt(self, keys: str | Iterable[str], token: str, mode: Mode, options: dict[str, Any]) -> Lease:
        changed = self._defaults.change({**options, "token": token})
        return await self._engine().adopt(names_of(keys), mode, changed)

    async def _release(self, keys: str | Iterable[str], token: str) -> int:
        """Releases what an owner token holds of the keys, in whichever mode, and tells on how many keys it did, or on
        how many nodes of a quorum. It is for a token that another process took; a hold has `release`."""
        return await self._engine().release(names_of(keys), Options().change({"token": token}))

    async def _info(self, key: str) -> info.LockInfo:
        """Who holds the lock of the key and who waits for it, all of them."""
        name = self._key(key)
        return info.info_of(key, await self._engine().query(Call(name, ("SLOCK.INFO", word(name), "FULL", "COUNT", 0))))

    async def _queues(self) -> list[info.Queue]:
        """The locks that are waited for whose names begin with the prefix, on all nodes, the longest wait first."""
        found, cursor = dict[str, info.Queue](), 0
        while True:
            replies = await self._engine().query(Call(None, ("SLOCK.QUEUES", "COUNT", 0, "CURSOR", cursor)))
            found.update((one.key, one) for _, page in replies for one in info.queues_of(page, self._settings.prefix))
            # All nodes are asked from the least of their cursors on, so some may tell the same again.
            cursor = min((int(after) for after, _ in replies if int(after)), default=0)
            if not cursor:
                return sorted(found.values(), key=lambda queue: -queue.longest_wait)

    def _begin_close(self) -> None:
        self._settings.is_closing = True
        for engine in list(self._engines.values()):
            engine.wake_all()


class QuorumBase(LocksBase):
    """Locks on several independent servers, each with a client: not replicas or nodes of one another. Their number
    should be odd. A hold counts while a majority of the servers has it.

    It polls, by the strategy `poll`. `node_timeout` is how long it waits for one node: by default a twentieth of the
    ttl, at least 50 ms and at most `retry_for`; always less than the ttl. `drift_factor` is the part of the ttl that
    does not count, because clocks run at different speeds. With `fail_fast` an attempt ends as soon as the majority is
    out of reach.
    """

    def __init__(
        self,
        clients: Iterable[Any],
        *,
        node_timeout: Duration | None = None,
        drift_factor: float = 0.01,
        fail_fast: bool = False,
        poll: Strategy = Exponential(0.02, 0.25),  # noqa: B008 -- it has no state
        **options: Unpack[LocksOptions],
    ) -> None:
        clients = list(clients)
        if not clients or not 0 <= drift_factor < 1:
            wanted = "a quorum needs servers, and a drift factor of at least 0 and less than 1"
            raise ValueError(f"{wanted}, not {len(clients)} and {drift_factor}")
        timeout = None if node_timeout is None else seconds(node_timeout, "node_timeout")
        self._quorum = QuorumSettings(timeout, drift_factor, fail_fast, poll)
        super().__init__(clients, **options)


class RequestBase:
    """What is wanted: keys, a mode and options. It may be used many times, also at once."""

    def __init__(self, locks: Any, keys: tuple[str, ...], mode: Mode, options: Options) -> None:
        check_keys(keys)
        if options.limit is not None and mode == "write":
            raise TypeError("a limit is for reading only")
        if locks._settings.counted(options.ttl) <= 0:
            raise ValueError(f"the ttl must be above 2 ms and the drift, not {options.ttl:g} s")
        self._locks, self.keys, self.mode, self._options = locks, keys, mode, options
        self._blocks: list[Any] = []  # those that did not begin by a `with` statement

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.mode} {', '.join(self.keys)}>"

    async def _acquire(self, is_try: bool = False) -> Any:
        return await self._locks._engine().acquire(self.keys, self.mode, self._options, is_try)


def names_of(keys: str | Iterable[str]) -> tuple[str, ...]:
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    check_keys(names)
    return names


def transport_of(client: Any, is_async: bool) -> Transport:
    """That of the client. `slock_client.testing` has one of its own."""
    make = getattr(client, "slock_transport", None)
    return RedisTransport(client, is_async) if make is None else make(is_async)
