"""A hold: what a program may ask of it, when it is lost, and how it is extended, changed and released.

`Held` is what one server knows of it, and what the watchdog renews. `AnyHold` is common to the holds of one
server and of a quorum: the former is a quorum of one. `Hold` is the hold of one server.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import redis.exceptions as base

from slock_client import _commands, _lease
from slock_client._answers import Answer, code_of, error_of, is_temporary, problem_in
from slock_client._clock import now
from slock_client._commands import READ, WRITE, Command, Key
from slock_client._durations import seconds_of, ttl_ms
from slock_client._lease import Drift, Lease, Told
from slock_client._options import Wanted
from slock_client.asyncio import _tasks as io
from slock_client.asyncio._acquisition import Acquisition
from slock_client.asyncio._block import Block
from slock_client.asyncio._give_up import CALLER_WAITS, give_up, give_up_in_doubt
from slock_client.asyncio._shared import Answered, Shared, timed_out
from slock_client.errors import LostError, NotHeldError, RefusedError, TimedOutError
from slock_client.hooks import call, log

if TYPE_CHECKING:
    from typing_extensions import Self

# How long the release of a hold that is lost may take, in seconds. Its ttl ends what is left of it.
LOST_RELEASE_FOR = 0.5

SERVER_DRIFT = Drift()


class Held:
    """What a token holds at one server, or tries to get. Its commands name the hold by its fence."""

    def __init__(self, shared: Shared, wanted: Wanted, token: str, drift: Drift) -> None:
        self.shared = shared
        self.wanted = wanted
        self.keys = wanted.keys
        self.key: Key = wanted.keys[0]
        self.names = wanted.names
        self.token = token
        self.ttl_ms = wanted.options.ttl_ms
        self.lease = Lease(wanted.mode, drift)
        self.renew_at = math.inf
        self.ended = False
        """Whether nobody renews it any more, and what comes late is released."""
        self.owner: AnyHold | None = None
        """None before the grant, and for ever when a quorum has no majority."""

    @property
    def valid_until(self) -> float:
        return math.inf if self.owner is None else self.owner.valid_until

    def expire(self) -> None:
        if self.owner is not None:
            self.owner._expire()

    def stop(self) -> None:
        self.ended = True
        self.shared.watchdog.remove(self)

    def granted(self, fence: int, mode: str, sent: float, ttl: int) -> None:
        """A command sent at `sent` gave the hold, or changed its mode."""
        self.lease.granted(fence, mode, sent, ttl)
        self.renew_at = sent + self.ttl_ms / 1000 * _lease.RENEW_AFTER

    def renewal(self, ttl: int | None = None) -> tuple[Command, Callable[[float, object], Told]]:
        """A command, and what takes the moment at which it was sent and its answer."""
        fence, asked_ms = self.lease.fence or 0, ttl or self.ttl_ms
        command = _commands.extend(self.keys, self.token, asked_ms, fence)
        return command, lambda sent, answer: self._renewed(fence, sent, asked_ms, answer)

    def _renewed(self, fence: int, sent: float, ttl: int, answer: object) -> Told:
        self.expire()  # a hold that is lost stays lost, whatever the answer is
        if self.ended:
            return Told.NOTHING
        self.renew_at = now() + self.ttl_ms / 1000 * _lease.TRY_AGAIN_AFTER
        if isinstance(answer, BaseException) and code_of(answer) == "WRONGTYPE":
            answer = 0  # something else has the name
        if not isinstance(answer, int):
            if self.owner is not None and isinstance(answer, BaseException):
                self.owner._renewal_failed(answer)
            return Told.NOTHING
        with self.shared.changing:
            told = self.lease.extended(fence, sent, ttl, answer)
            if told is Told.HELD:
                self.renew_at = sent + self.ttl_ms / 1000 * _lease.RENEW_AFTER
        self.told(told, sent)
        return told

    def told(self, told: Told, sent: float) -> None:
        """What an answer to a command that was sent at `sent` meant."""
        if self.owner is not None and told is not Told.NOTHING:
            self.owner._told(self, told)

    async def give_up(
        self, caller_waits: float, then: Callable[[list[Answer]], None] = lambda answers: None
    ) -> Answered | None:
        """Leaves nothing of it at the server, in the background."""
        lease = self.lease
        if lease.in_doubt or lease.changing:
            return await give_up_in_doubt(self.shared, self.wanted, self.token, lease.fence, caller_waits)
        if lease.fence is None:
            return None
        release = _commands.release(self.keys, lease.mode, self.token, lease.fence)
        return await give_up(self.shared, self.wanted, [release], caller_waits, then)

    async def release(self, end: float) -> bool:
        """Releases it: whether it was still there.

        `TimedOutError` at `end`: then it goes on in the background.
        """
        lease = self.lease
        was_valid = now() < lease.valid_until
        if lease.in_doubt or lease.changing:
            if self.wanted.given and not was_valid and now() >= self.valid_until:
                return False  # the token may have a later hold by now, but not while a quorum has this one
            ended = await self.give_up(end - now())
            if ended is None:
                raise timed_out(self.names, "the release had no answer within the time", None)
            return self._released(ended, was_valid)
        if lease.fence is None or (not lease.is_held and len(self.keys) == 1):
            return False
        release = _commands.release(self.keys, lease.mode, self.token, lease.fence)
        try:
            answered = await self.shared.insist(self.names, self.key, release, end=end)
        except BaseException as error:
            # It goes on in the background. To release a second time is safe: the release names the fence.
            if isinstance(error, TimedOutError):
                await self.give_up(0)
            elif not isinstance(error, Exception):  # cancelled
                await self.give_up(CALLER_WAITS, self._released_late)
            raise
        return self._released(answered, was_valid)

    def _released(self, answered: Answered, was_valid: bool) -> bool:
        """Whether the last command, the release, released all keys, or a copy before that got no answer."""
        answer = answered.answers[-1]
        if isinstance(answer, BaseException):
            raise error_of(answer, self.names)
        return answer == len(self.keys) or (answer == 0 and answered.after_unanswered and was_valid)

    def _released_late(self, answers: list[Answer]) -> None:
        if self.owner is not None and not answers:
            self.owner._release_failed(timed_out(self.names, "the release had no answer", None))


class AnyHold(Block):
    """A hold of one server or of a quorum.

    Hooks and `on_lost` are called when no lock of the library is taken: they may call the hold.
    """

    def __init__(self, wanted: Wanted, helds: Sequence[Held]) -> None:
        super().__init__()
        self._wanted = wanted
        self._helds = helds
        self._shared = helds[0].shared
        self.token = helds[0].token
        """The owner's identity."""
        self.mode = wanted.mode
        """`write` or `read`."""
        self.keys = wanted.keys
        self.metadata = wanted.options.metadata
        """What the request said. Of a hold that was adopted `locks.info` tells it."""
        self.label = wanted.label
        """The name under which hooks report it."""
        self._reason: str | None = None
        self._released = False  # or handed over
        self._handed_over = False
        self._problem: BaseException | None = None  # the last of renewals, if any not a time-out
        self._warned = False
        self._granted_at = now()
        self._lease_end = self._granted_at + seconds_of("longest_lease", wanted.options.longest_lease)
        self._process = os.getpid()
        self._on_loss: list[Callable[[], None]] = []  # the blocks under it, and who waits for it
        for held in helds:
            held.owner = self
        self._look_again()

    # --- what a program asks

    @property
    def valid_until(self) -> float:
        """Until when the hold is certain, as `slock_client.now()` counts, in seconds. Renewals move it."""
        return min(_lease.majority_until([held.lease.valid_until for held in self._helds]), self._lease_end)

    @property
    def time_left(self) -> timedelta:
        """How long the hold is certain from now on; zero when it is not."""
        return timedelta(seconds=0 if self._ended else max(0.0, self.valid_until - now()))

    @property
    def lost(self) -> bool:
        """Whether the hold ended and nobody released it. Asks the clock, not the server."""
        self._expire()
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why the hold is lost: `gone`, `expired` or `lease ended`; None when it is not."""
        return self._reason if self.lost else None

    def check(self) -> None:
        """Raises `LostError` when the hold is lost, and `NotHeldError` when it has been released.

        Asks the clock, not the server: call it before each step.
        """
        if self.lost:
            raise self._lost_error()
        if self._released:
            raise NotHeldError(f"the hold of {self._wanted.names} has been released or handed over")
        if self._is_of_another_process:
            raise NotHeldError(
                f"the hold of {self._wanted.names} is that of the process that this one was forked from"
            )

    def hand_over(self) -> None:
        """Ends the hold here without releasing it: another process goes on with it, by `adopt`."""
        self.check()
        self._handed_over = True
        self._end()

    async def release(self) -> bool:
        """Releases the hold, and tells whether it was still there. A second call changes nothing and gives
        False.

        It ends within a second after `retry_for`: with `TimedOutError` when the server did not answer, of a
        quorum with `QuorumMissedError`. The lock ends by its ttl then.
        """
        if self._released or self._is_of_another_process:
            return False
        held = self._end()
        try:
            there = await self._release(held)
        except Exception as error:
            if not held:
                return False  # its ttl has ended, or ends what is left of it
            self._release_failed(error)
            raise
        if held and not there:  # it had ended before
            self._reason = _lease.GONE
            self._shared.hooks.tell("lost", self.label, _lease.GONE)
        return held and there

    async def extend(self, ttl: timedelta | None = None) -> None:
        """Makes the hold valid for `ttl` from now on, without an argument for its present ttl. It never
        shortens.

        `LostError` when it is lost, `NotHeldError` when it has been released.
        """
        self._shared.check_open()
        self.check()
        wanted_ms = self._helds[0].ttl_ms if ttl is None else ttl_ms(ttl)
        await self._extend(wanted_ms)
        self.check()
        for held in self._helds:
            held.ttl_ms = max(held.ttl_ms, wanted_ms)
        self._look_again()

    async def wait_lost(self, timeout: timedelta | None = None) -> bool:
        """Waits until the hold is lost, at most `timeout`, and tells whether it is.

        Without a timeout it waits for ever when the hold is released.
        """
        end, told = now() + seconds_of("timeout", timeout), io.Event()
        self._on_loss.append(told.set)
        try:
            while not self.lost and now() < end:
                await told.wait(end if self._released else min(end, self.valid_until))
        finally:
            self._on_loss.remove(told.set)
        return self.lost

    async def __aenter__(self) -> Self:
        self.check()
        return self._begin(self)

    def __repr__(self) -> str:
        state = "released" if self._released else self._reason or "held"
        return f"<{type(self).__name__} {self.label!r} {self.mode} {state}>"

    # --- its end

    async def _release(self, held: bool) -> bool:
        """Releases what the servers have: whether it was there. `held`: whether it was valid."""
        raise NotImplementedError

    async def _extend(self, ttl_ms: int) -> None:
        """Extends it at the servers, for so long."""
        raise NotImplementedError

    @property
    def _ended(self) -> bool:
        """Whether it was released, handed over or lost."""
        return self._released or self._reason is not None

    @property
    def _is_of_another_process(self) -> bool:
        return os.getpid() != self._process

    def _lost_error(self) -> LostError:
        assert self._reason is not None
        cause = self._problem if self._reason == _lease.EXPIRED else None
        return LostError(self.label, self._wanted.names, self._reason, cause)

    def _raise_if_lost(self, cancellation: BaseException | None) -> None:
        if self.reason is not None:
            lost = self._lost_error()
            lost.__cause__ = lost.__cause__ or cancellation
            raise lost

    def _told(self, held: Held, told: Told) -> None:
        """A server says that it has the hold, or that it has lost it."""
        if self._ended:
            return
        if told is Told.HELD:
            self._problem = None
        gone = sum(not one.lease.is_held for one in self._helds)
        if gone > len(self._helds) - _lease.majority(len(self._helds)):
            self._lose(_lease.GONE)
        else:
            self._expire()

    def _look_again(self) -> None:
        """The times have changed."""
        if self._wanted.options.renew and not self._ended:
            for held in self._helds:
                held.shared.watchdog.add(held)

    def _renew_no_more(self) -> None:
        """It ends when it would end without another renewal."""
        self._lease_end = min(self._lease_end, self.valid_until)

    def _expire(self) -> None:
        """It is lost when its time has passed."""
        if self._ended:
            return
        moment = now()
        if moment >= self._lease_end:
            self._lose(_lease.LEASE_ENDED)
        elif moment >= self.valid_until:
            self._lose(_lease.EXPIRED)

    def _lose(self, reason: str) -> None:
        """It is lost, unless it has ended before."""
        with self._shared.changing:
            if self._ended:
                return
            self._reason = reason
        self._stop()
        # A hold that nobody renews ends by its ttl as a rule.
        level = logging.WARNING if self._wanted.options.renew else logging.DEBUG
        log.log(level, "%s", LostError(self.label, self._wanted.names, reason, self._problem))
        self._shared.hooks.tell("lost", self.label, reason)
        self._shared.hooks.tell_time("held", self.label, self._granted_at)
        for tell in list(self._on_loss):
            tell()
        if self._wanted.options.on_lost is not None:
            call(self._wanted.options.on_lost, self)

    def _end(self) -> bool:
        """The program releases it or hands it over. Whether it was there, as far as is known."""
        self._expire()
        with self._shared.changing:
            held, self._released = not self._ended, True
        self._stop()
        if held:
            self._shared.hooks.tell_time("held", self.label, self._granted_at)
        return held

    def _renewal_failed(self, error: BaseException) -> None:
        """It is tried again.

        Of a renewal that the server refuses an operator must know: once for each hold.
        """
        if self._ended:
            return
        if self._problem is None or not isinstance(error, base.TimeoutError):
            self._problem = error
        refused = not is_temporary(error) and not self._warned
        self._warned = self._warned or refused
        level = logging.WARNING if refused else logging.DEBUG
        log.log(level, "%s: a renewal failed: %s", self.label, error)
        self._shared.hooks.tell("renewal_failed", self.label, error)

    def _release_failed(self, error: BaseException) -> None:
        log.warning("%s: the release failed; the lock ends by its ttl: %s", self.label, error)
        self._shared.hooks.tell("release_failed", self.label, error)

    def _stop(self) -> None:
        for held in self._helds:
            held.stop()


class Hold(AnyHold):
    """A lock that is held. `Locks` makes it; `release` ends it. `async with hold:` releases it at the end."""

    def __init__(self, wanted: Wanted, held: Held) -> None:
        self._held = held
        super().__init__(wanted, (held,))

    @property
    def fence(self) -> int:
        """Rises with each new hold of the server: send it with every write."""
        return self._held.lease.fence or 0

    async def _release(self, held: bool) -> bool:
        return await self._held.release(now() + (self._shared.retry_for if held else LOST_RELEASE_FOR))

    async def _extend(self, ttl_ms: int) -> None:
        held, names = self._held, self._wanted.names
        end = now() + self._shared.retry_for
        while True:
            command, take = held.renewal(ttl_ms)
            try:
                answered = await self._shared.insist(
                    names, held.key, command, end=min(end, max(now(), self.valid_until))
                )
            except Exception as error:
                if isinstance(error, TimedOutError):
                    self._problem = error.__cause__
                elif code_of(error) == "WRONGTYPE":
                    self._lose(_lease.GONE)
                self.check()  # it may have ended meanwhile
                raise
            told = take(answered.sent, answered.answers[0])
            self.check()
            if told is not Told.NOTHING:
                return
            if now() >= end:
                raise timed_out(names, "a change of mode is under way", None)
            await io.sleep(0.02)  # a change of mode gives another fence

    async def upgrade(self, wait: timedelta | None = None) -> None:
        """The reader becomes the writer, when the other readers have gone. It waits at most for `wait`.

        `TimedOutError` when the wait is over: the hold stays as it was. `DeadlockError` when another reader
        waits for the same. `RefusedError` within 120 s after an upgrade of this hold that was given up, and
        while another change of its mode goes on.
        """
        await self._change(WRITE, seconds_of("wait", wait))

    async def downgrade(self) -> None:
        """The writer becomes a reader. No other writer comes in between.

        `RefusedError` while another change of its mode goes on.
        """
        await self._change(READ, 0)

    async def _change(self, mode: str, seconds: float) -> None:
        """It waits at most so long."""
        self._shared.check_open()
        self.check()
        held, lease, names = self._held, self._held.lease, self._wanted.names
        if len(held.keys) > 1:
            raise ValueError("the mode of a hold of several keys cannot be changed")
        with self._shared.changing:
            if lease.changing:
                raise RefusedError(f"{names}: another change of the mode is under way")
            lease.changing = True
            before = self.mode
            if mode == READ:
                # The server refuses no downgrade, so a copy may be carried out late.
                # So it counts as a reader from now on.
                self.mode = READ
        ttl = held.ttl_ms
        command = _commands.change(mode, held.key, held.token, ttl, self.fence)
        acquisition = Acquisition(self._shared, self._wanted, command, seconds, once=seconds == 0)
        settled = False
        try:
            self._shared.begin(acquisition)
            granted = await acquisition.granted()
            if granted is None:
                raise acquisition.timed_out("other readers hold it")
            settled = True
            with self._shared.changing:
                self.mode = mode
                held.granted(granted.fence, mode, granted.sent, ttl)
        except NotHeldError:
            settled = True
            self._lose(_lease.GONE)
            self.check()
            raise
        except RefusedError as error:
            raise RefusedError(
                f"{names}: an upgrade of this hold was given up less than "
                f"{_commands.REFUSE_MS // 1000} s ago, and the server refuses another one for so long"
            ) from error
        finally:
            lease.in_doubt = lease.in_doubt or acquisition.in_doubt
            try:
                if acquisition.in_doubt and not settled:
                    await self._settle(acquisition.left_to_give_up, command if mode == READ else None)
                else:
                    if lease.mode != mode:
                        self.mode = before  # the server has refused it
                    lease.changing = False
            finally:
                self._shared.end(acquisition)
        self.check()
        if not _lease.is_prompt(granted.sent, granted.received, ttl):
            await self.extend()
        self._look_again()

    async def _settle(self, caller_waits: float, downgrade: Command | None) -> None:
        """A change of mode was given up.

        Of an upgrade, it ends what waits, and asks in which mode the token holds the key.
        It repeats a downgrade until it is answered."""
        held = self._held
        sent, ttl = now(), held.ttl_ms
        modes = [WRITE, READ]
        commands = _commands.cancel(held.keys, held.token, refuse=not self._wanted.given)
        commands += _commands.look_at_modes(held.keys, held.token, ttl)
        if downgrade is not None:
            modes, commands = [READ], [downgrade]

        def take_mode(answers: list[Answer]) -> None:
            held.lease.changing = False
            if self._ended or not answers:
                return
            for mode, answer in zip(modes, answers[-len(modes) :], strict=True):
                if isinstance(answer, int) and answer:
                    with self._shared.changing:
                        self.mode = mode
                        held.lease.granted(answer, mode, sent, ttl)
                    return
            if problem_in(answers[-len(modes) :]) is None:
                self._lose(_lease.GONE)

        await give_up(self._shared, self._wanted, commands, caller_waits, take_mode)
