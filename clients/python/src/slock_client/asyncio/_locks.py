"""`Locks`: made once from a client of redis-py. It makes requests, adopts, releases by token, and looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import redis.asyncio

from slock_client import _commands, status
from slock_client._clock import now
from slock_client._commands import WRITE, Command, Key
from slock_client._durations import positive, seconds_of, whole_ms
from slock_client._lease import is_prompt
from slock_client._options import HoldOptions, ReadOptions, Wanted, keys_of
from slock_client.asyncio._acquisition import CALL_OVERDUE, Acquisition, Granted
from slock_client.asyncio._give_up import CALLER_WAITS
from slock_client.asyncio._guard import WAYS
from slock_client.asyncio._hold import SERVER_DRIFT, Held, Hold
from slock_client.asyncio._listener import Listening
from slock_client.asyncio._request import Acquirer
from slock_client.asyncio._servers import servers_of
from slock_client.asyncio._shared import ANSWER_OVERDUE, Answered, Shared
from slock_client.errors import NotHeldError, TooFewReplicasError
from slock_client.hooks import Hooks
from slock_client.polling import Strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_RETRY_FOR = timedelta(seconds=3)
DEFAULT_RETRY_WAIT_FOR = timedelta(seconds=60)


class Locks(Acquirer[Hold]):
    """Makes requests for locks. One for a program (in asyncio: and its event loop), from a client of
    `redis.asyncio`.

    `client`: `Redis`, also one for a primary that Sentinels name, or `RedisCluster`. `Locks` opens
    connections of its own with the options of the client. An answer may take as long as the client's
    `socket_timeout`; a wait may take longer.

    `waiting`: `"notify"`, in asyncio only, and its default: all waits share one connection. `"block"`: each
    wait has a connection of its own. A strategy of `slock_client.polling`: asks again and again. `retry_for`:
    how long a call goes on without any answer of the server. `retry_wait_for`: the same for a request that
    waits. `hooks`: what the program is told. All options of `read` are the defaults of requests.
    """

    _weak = False
    """Whether the client may be collected nevertheless."""

    def __init__(
        self,
        client: redis.asyncio.Redis | redis.asyncio.RedisCluster,
        *,
        waiting: str | Strategy = WAYS[0],
        retry_for: timedelta = DEFAULT_RETRY_FOR,
        retry_wait_for: timedelta = DEFAULT_RETRY_WAIT_FOR,
        hooks: Hooks | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        positive("retry_for", retry_for)
        positive("retry_wait_for", retry_wait_for)
        if not isinstance(waiting, Strategy) and waiting not in WAYS:
            ways = " or ".join(map(repr, WAYS))
            raise ValueError(f"waiting must be {ways}, or a strategy of slock_client.polling")
        servers = servers_of(client, weak=self._weak)
        shared = Shared(servers, hooks or Hooks(), retry_for, retry_wait_for)
        shared.strategy = waiting if isinstance(waiting, Strategy) else None
        self._listening = shared.listening = Listening(servers) if waiting == "notify" else None
        super().__init__(shared, options)

    async def adopt(
        self, keys: Key | Sequence[Key], token: str, mode: str, **options: Unpack[HoldOptions]
    ) -> Hold:
        """The hold that another process took with `token` and handed over. It is renewed from now on.

        Options as those of `write`. `NotHeldError` when the token does not hold all keys in this mode.
        """
        wanted = self._wanted(keys_of(keys), mode, {**options, "token": token})
        held = Held(self._shared, wanted, token, SERVER_DRIFT)
        refresh = _commands.refresh(held.keys, mode, token, held.ttl_ms)
        answered = await self._ask(held.names, held.key, refresh)
        [fence] = answered.answers
        if not fence:
            raise NotHeldError(f"the token does not hold {held.names} for {mode}")
        held.granted(fence, mode, answered.sent, held.ttl_ms)
        return Hold(wanted, held)

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what `token` holds, in whichever mode: how many of the keys it held.

        When it had to be sent again, 0 can also mean that the first attempt did it.
        """
        wanted = self._wanted(keys_of(keys), WRITE, {"token": token})
        command = _commands.release_in_any_mode(wanted.keys, token)
        return int((await self._ask(wanted.names, wanted.keys[0], command)).answers[0])

    async def info(self, key: Key) -> status.LockInfo:
        """Who holds the lock and who waits for it."""
        answered = await self._ask(_commands.text_of(key), key, _commands.info(key))
        return status.lock_info(answered.answers[0])

    async def queues(self) -> list[status.QueueInfo]:
        """The locks for which somebody waits, the longest wait first. In a cluster those of all nodes."""
        key, command, end = "the queues", _commands.queues(), now() + self._shared.retry_for
        answers = (await self._ask(key, key, command, end=end)).answers  # from now on the nodes are known
        for other in self._shared.servers.others(key):
            answers += (await self._ask(key, other, command, end=end)).answers
        return status.queue_infos(answers)

    async def close(self) -> None:
        self._shared.watchdog.close()
        self._shared.close()
        if self._listening is not None:
            self._listening.close()
        await self._shared.wait_ended()
        await self._close_connections()

    def _attempt(self, wanted: Wanted, once: bool) -> _NewHold:
        return _NewHold(self._shared, wanted, once=once)

    async def _ask(self, names: str, key: Key, *commands: Command, end: float | None = None) -> Answered:
        self._shared.check_open()
        end = now() + self._shared.retry_for if end is None else end
        return await self._shared.insist(names, key, *commands, end=end)

    async def _close_connections(self) -> None:
        for node in self._shared.servers.nodes():
            await node.close()


class _NewHold(Acquisition):
    """The acquisition of a new hold, with the token that is made for it."""

    def __init__(self, shared: Shared, wanted: Wanted, *, once: bool) -> None:
        self._held = Held(shared, wanted, wanted.new_token(), SERVER_DRIFT)
        self._refusal_is_answer = once
        wait = seconds_of("wait", wanted.options.wait)
        command = _commands.acquire(wanted, self._held.token)
        super().__init__(shared, wanted, command, wait, once=once or wait == 0)

    async def hold(self) -> Hold | None:
        while True:
            granted = await self.granted()
            if granted is None:
                if self._refusal_is_answer:
                    return None
                raise self.timed_out("the lock is not free")
            sent = await self._counts_from(granted)
            if sent is not None:
                self._held.lease.in_doubt = self.unanswered
                self._held.granted(granted.fence, self._wanted.mode, sent, self._held.ttl_ms)
                return Hold(self._wanted, self._held)
            if self._once:
                raise self.timed_out("the hold was over before the answer came")

    async def give_up(self, error: BaseException | None) -> None:
        """Leaves neither a hold nor a request."""
        seconds = min(CALLER_WAITS, self.left_to_give_up)
        if isinstance(error, KeyboardInterrupt):
            seconds = self._shared.retry_for  # the program may end with it
        self._held.lease.in_doubt, self._held.lease.fence = self.in_doubt, self.fence
        await self._held.give_up(seconds)

    async def _attempt(self) -> Granted | None:
        if await self._shared.check_permission(self._wanted, self.limit + ANSWER_OVERDUE):
            self._contact = now()
        return await super()._attempt()

    async def _counts_from(self, granted: Granted) -> float | None:
        """When the request was sent that the validity is counted from; None when the hold is over."""
        options = self._wanted.options
        if not options.min_replicas and is_prompt(granted.sent, granted.received, options.ttl_ms):
            return granted.sent
        # The replicas have the hold when they have what this connection wrote. To the same millisecond an
        # extension would write nothing, and any replica would do.
        ttl = options.ttl_ms + 1 if options.min_replicas else options.ttl_ms
        commands = [_commands.extend(self.keys, self._held.token, ttl, granted.fence)]
        end, look = min(now() + self._shared.retry_for, max(now(), self.limit)), None
        if options.min_replicas:
            timeout = options.replica_timeout
            commands.append(_commands.wait_for_replicas(options.min_replicas, whole_ms(timeout)))
            end, look = now() + timeout.total_seconds() + CALL_OVERDUE, _nothing_to_look_at
        answered = await self._shared.insist(self.names, self.keys[0], *commands, end=end, look=look)
        extended, *confirmed = answered.answers
        if options.min_replicas and confirmed[0] < options.min_replicas:
            raise TooFewReplicasError(f"{confirmed[0]} of {options.min_replicas} replicas have {self.names}")
        counts = extended and now() < SERVER_DRIFT.valid_until(answered.sent, options.ttl_ms)
        return answered.sent if counts else None


async def _nothing_to_look_at() -> float:
    return math.inf
