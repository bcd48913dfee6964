"""The rules of `Locks`: how a hold is acquired, adopted, released from elsewhere, and looked at."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from slock_client import _commands, status
from slock_client._acquisition import CALL_OVERDUE, Acquisition, Granted, Listening, Ways
from slock_client._clock import now
from slock_client._commands import READ, Channel, Command, Key
from slock_client._durations import positive, whole_ms
from slock_client._give_up import CALLER_WAITS, GiveUp, the_end
from slock_client._hold import Member, ServerHold
from slock_client._io import Io
from slock_client._lease import Drift, is_prompt
from slock_client._options import DEFAULT_RETRY_FOR, DEFAULT_RETRY_WAIT_FOR, Options, Wanted, keys_of
from slock_client._servers import Servers
from slock_client._shared import Shared
from slock_client._watchdog import Watchdog
from slock_client.errors import NotHeldError, TimedOutError, TooFewReplicasError
from slock_client.hooks import Hooks
from slock_client.polling import Strategy


def outcome_of(granted: bool, problem: BaseException | None) -> str:
    """How hooks name the end of an acquisition."""
    if granted:
        return "granted"
    if problem is None:
        return "refused"
    if isinstance(problem, TimedOutError):
        return "timed out"
    return type(problem).__name__ if isinstance(problem, Exception) else "cancelled"


def strategy_of(waiting: str | Strategy, ways: Sequence[str]) -> Strategy | None:
    """The strategy of polling, if it is one. `ways` are the names of the others that there are."""
    if isinstance(waiting, Strategy):
        return waiting
    if waiting not in ways:
        raise ValueError(
            f"waiting must be {' or '.join(map(repr, ways))}, or a strategy of slock_client.polling"
        )
    return None


class Defaults:
    """The options of requests that are not said otherwise."""

    def __init__(self, options: Options, limit: int | None = None) -> None:
        self.ttl = options.ttl
        self._options, self._limit = options, limit

    @staticmethod
    def of(options: dict[str, Any]) -> Defaults:
        limit = options.get("limit")
        Wanted(("any",), READ, Options(**options))
        return Defaults(Options(**{**options, "limit": None}), limit)

    def wanted(self, keys: tuple[Key, ...], mode: str, options: dict[str, Any]) -> Wanted:
        if mode == READ and self._limit is not None:
            options = {"limit": self._limit, **options}
        return Wanted(keys, mode, self._options.changed(**options))


class LocksRules:
    """Locks of one server, or of a cluster."""

    def __init__(
        self,
        io: Io,
        servers: Servers,
        *,
        strategy: Strategy | None = None,
        listening: Listening | None = None,
        hooks: Hooks | None = None,
        retry_for: timedelta = DEFAULT_RETRY_FOR,
        retry_wait_for: timedelta = DEFAULT_RETRY_WAIT_FOR,
        watchdog: Watchdog | None = None,
    ) -> None:
        positive("retry_for", retry_for)
        positive("retry_wait_for", retry_wait_for)
        shared = Shared(io, servers, hooks or Hooks(), retry_for, retry_wait_for)
        self.shared = shared
        self._listening = listening
        ways = Ways(strategy, listening)
        self.member = Member(shared, ways, GiveUp(shared), watchdog or Watchdog(io))

    async def acquire(self, wanted: Wanted, *, once: bool) -> ServerHold | None:
        """The hold; None when it was refused and asks once. An error leaves nothing behind."""
        attempt, began = _Attempt(self.member, wanted, once=once), now()
        hold: ServerHold | None = None

        def ended(problem: BaseException | None) -> None:
            attempt.acquisition.end()
            self.shared.end(attempt)
            duration = timedelta(seconds=now() - began)
            outcome = outcome_of(hold is not None, problem)
            self.shared.hooks.tell("waited", wanted.label, duration, outcome)

        try:
            self.shared.begin(attempt)
            hold = await attempt.hold()
            if hold is None and not once:
                raise attempt.acquisition.timed_out("the lock is not free")
            if hold is None:
                await attempt.give_up(None)  # it was refused, but a copy before may come late
            ended(None)
            return hold
        except BaseException as error:
            try:
                # Ctrl-C can come after the grant too, also in the hook. Nobody would have the hold then.
                if hold is not None:
                    hold.end()
                    hold = None
                await attempt.give_up(error)
            finally:
                ended(error)  # Ctrl-C can come once more; `close` waits until this has ended
            raise

    async def adopt(self, wanted: Wanted) -> ServerHold:
        """The hold that another process took with the token of `wanted`."""
        self.shared.check_open()
        token = wanted.new_token()
        refresh = _commands.refresh(wanted.keys, wanted.mode, token, wanted.options.ttl_ms)
        answered = await self._ask(wanted.names, wanted.keys[0], refresh, _commands.info(wanted.keys[0]))
        fence, info = answered.answers
        if not fence:
            raise NotHeldError(f"the token does not hold {wanted.names} for {wanted.mode}")
        hold = ServerHold(self.member, wanted, token, fence, answered.sent, in_doubt=False)
        holders = [one for one in status.lock_info(info).holders if one.fence == fence]
        hold.metadata = holders[0].metadata if holders else None
        return hold

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what the token holds, in whichever mode: how many of the keys it held."""
        names = keys_of(keys)
        commands = _commands.release_in_any_mode(names, token)
        answered = await self._ask(_commands.names_of(names), names[0], *commands)
        return sum(answered.answers)

    async def info(self, key: Key) -> status.LockInfo:
        """Who holds the lock and who waits for it."""
        answered = await self._ask(_commands.text_of(key), key, _commands.info(key))
        return status.lock_info(answered.answers[0])

    async def queues(self) -> list[status.QueueInfo]:
        """The locks for which somebody waits, the longest wait first. In a cluster those of one node."""
        answered = await self._ask("the queues", "queues", _commands.queues())
        return status.queue_infos(answered.answers[0])

    async def close(self, *, synchronous: bool) -> None:
        """Stops renewing. What waits ends with `ClosedError`. It releases nothing."""
        self.member.watchdog.close()
        self.shared.close()
        if self._listening is not None:
            await self._listening.close()
        await self.shared.wait_ended(own_thread=threading.get_ident() if synchronous else None)
        await self.member.give_up.close()
        for link in self.shared.servers.links():
            await link.close()

    async def _ask(self, names: str, key: Key, *commands: Command) -> Any:
        self.shared.check_open()
        return await self.shared.insist(names, key, *commands, end=now() + self.shared.retry_for)


class _Attempt:
    """One acquisition of a new hold, with the token that is made for it."""

    def __init__(self, member: Member, wanted: Wanted, *, once: bool) -> None:
        wait = wanted.options.wait
        self.token = wanted.new_token()
        self._member = member
        self._wanted = wanted
        self._granted: Granted | None = None
        self._once = once or wait == timedelta(0)
        self.acquisition = Acquisition(
            member.shared,
            member.ways,
            wanted.keys,
            self._command,
            None if wait is None else wait.total_seconds(),
            once=self._once,
            wanted=wanted,
        )

    async def hold(self) -> ServerHold | None:
        while True:
            granted = self._granted = await self.acquisition.granted()
            if granted is None:
                return None
            sent = await self._counts_from(granted)
            if sent is not None:
                in_doubt = self.acquisition.unanswered
                return ServerHold(
                    self._member, self._wanted, self.token, granted.fence, sent, in_doubt=in_doubt
                )
            if self._once:
                raise self.acquisition.timed_out("the hold was over before the answer came")

    async def give_up(self, error: BaseException | None) -> None:
        """Leaves neither a hold nor a request."""
        fence = None if self._granted is None else self._granted.fence
        if not self.acquisition.in_doubt and fence is None:
            return
        seconds = min(CALLER_WAITS, self.acquisition.left_to_give_up)
        if isinstance(error, KeyboardInterrupt):
            seconds = self._member.shared.retry_for  # the program may end with it
        given = self._wanted.options.token is not None
        commands = the_end(self._wanted.keys, self.token, given=given, fence=fence)
        await self._member.give_up.send(self._wanted.keys, commands, seconds)

    def _command(self, wait_ms: int | None, channel: Channel | None) -> Command:
        wanted, options = self._wanted, self._wanted.options
        return _commands.acquire(
            wanted.keys,
            wanted.mode,
            self.token,
            options.ttl_ms,
            metadata=options.metadata,
            limit=options.limit,
            wait_ms=wait_ms,
            channel=channel,
        )

    async def _counts_from(self, granted: Granted) -> float | None:
        """When the request was sent that the validity is counted from; None when the hold is over."""
        options, shared = self._wanted.options, self._member.shared
        if not options.min_replicas and is_prompt(granted.sent, granted.received, options.ttl_ms):
            return granted.sent
        extend = _commands.extend(self._wanted.keys, self.token, options.ttl_ms, granted.fence)
        if options.min_replicas:
            return await self._replicated(extend)
        end = min(now() + shared.retry_for, max(now(), self.acquisition.limit))
        answered = await shared.insist(self._wanted.names, self._wanted.keys[0], extend, end=end)
        counts = answered.answers[0] and now() < Drift().valid_until(answered.sent, options.ttl_ms)
        return answered.sent if counts else None

    async def _replicated(self, extend: Command) -> float | None:
        """Extends the hold: the replicas have it when they have what this connection wrote."""
        options, shared, names = self._wanted.options, self._member.shared, self._wanted.names
        wait = _commands.wait_for_replicas(options.min_replicas, whole_ms(options.replica_timeout))
        end = now() + options.replica_timeout.total_seconds() + CALL_OVERDUE
        answered = await shared.insist(
            names, self._wanted.keys[0], extend, wait, end=end, look=_nothing_to_look_at
        )
        extended, confirmed = answered.answers
        if confirmed < options.min_replicas:
            raise TooFewReplicasError(f"{confirmed} of {options.min_replicas} replicas have {names}")
        return answered.sent if extended else None


async def _nothing_to_look_at() -> float:
    return math.inf
