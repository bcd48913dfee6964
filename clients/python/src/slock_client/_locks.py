"""What `Locks`, quorums and requests of both halves have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from slock_client import info
from slock_client._engine import Engine
from slock_client._lease import Lease
from slock_client._options import Duration, Mode, Options, RequestOptions, check_keys, seconds
from slock_client._protocol import word
from slock_client._redis import RedisTransport
from slock_client._settings import QuorumSettings, Settings
from slock_client._transport import Call, Runtime, Transport
from slock_client.hooks import Hooks
from slock_client.polling import Exponential, Strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
