"""A hold: what a program may ask of it, when it is lost, and how it is extended, changed and released.

`Held` is what one server knows of it. `HoldRules` is common to the holds of one server and of a quorum.
`ServerHold` is the hold of one server.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from slock_client import _commands
from slock_client._acquisition import Acquisition, Granted, Ways
from slock_client._answers import is_temporary, problem_in
from slock_client._clock import now
from slock_client._commands import READ, WRITE, Channel, Command, Key
from slock_client._durations import not_negative, ttl_ms
from slock_client._fork import track
from slock_client._give_up import CALLER_WAITS, GiveUp, the_end
from slock_client._io import Event
from slock_client._lease import EXPIRED, GONE, LEASE_ENDED, Drift, Lease, Told, is_prompt
from slock_client._options import Wanted
from slock_client._schedule import RENEW_AFTER, TRY_AGAIN_AFTER
from slock_client._shared import Shared, timed_out
from slock_client._watchdog import Watchdog
from slock_client.errors import LostError, NotHeldError, RefusedError, SlockError, TimedOutError
from slock_client.hooks import Hooks, call, log

# How long the release of a hold that is lost may take, in seconds. Its ttl ends what is left of it.
LOST_RELEASE_FOR = 0.5


class Member(NamedTuple):
    """What belongs to one `Locks`."""

    shared: Shared
    ways: Ways
    give_up: GiveUp
    watchdog: Watchdog


class Held:
    """What a token holds at one server. Its commands name the hold by its fence."""

    def __init__(self, member: Member, wanted: Wanted, token: str, drift: Drift) -> None:
        self.shared, self.give_up = member.shared, member.give_up
        self.keys: tuple[Key, ...] = wanted.keys
        self.token = token
        self.given = wanted.options.token is not None
        self.lease = Lease(wanted.mode, drift)
        self.ttl_ms = wanted.options.ttl_ms

    async def release(self, names: str, end: float) -> bool:
        """Releases it: whether it was still there.

        `TimedOutError` at `end`: then it goes on in the background.
        """
        lease = self.lease
        if (lease.in_doubt and not self.given) or lease.changing:
            answers = await self.give_up.send(
                self.keys, the_end(self.keys, self.token, given=self.given, fence=lease.fence), end - now()
            )
            if answers is None:
                raise timed_out(names, "the release had no answer within the time", None)
            return any(isinstance(answer, int) and answer for answer in answers[len(self.keys) :])
        if lease.fence is None or (not lease.is_held and len(self.keys) == 1):
            return False
        was_valid = now() < lease.valid_until
        command = _commands.release(self.keys, lease.mode, self.token, lease.fence)
        try:
            answered = await self.shared.insist(names, self.keys[0], command, end=end)
        except TimedOutError:
            await self.give_up.send(self.keys, [command], 0)  # it goes on in the background
            raise
        # 0 after a copy without an answer: that copy released it.
        return bool(answered.answers[0]) or (answered.after_unanswered and was_valid)


class HoldRules:
    """What a program sees of a hold, and the end of it.

    Hooks and `on_lost` are called when no lock of the library is taken: they may call the hold.
    """

    def __init__(self, io_event: Callable[[], Event], wanted: Wanted, token: str, hooks: Hooks) -> None:
        self.wanted = wanted
        self.token = token
        self.hooks = hooks
        self.mode = wanted.mode
        self.metadata = wanted.options.metadata
        self.face: Any = None
        """What the program has: `on_lost` is called with it."""
        self.reason_lost: str | None = None
        self.released = False
        """Whether the program released it or handed it over."""
        self.handed_over = False
        self.problem: BaseException | None = None
        """The error of the last renewal."""
        self._warned = False
        self._new_event = io_event
        self._granted_at = now()
        lease = wanted.options.longest_lease
        self._lease_end = math.inf if lease is None else self._granted_at + lease.total_seconds()
        self._process = os.getpid()
        self._listeners: list[Callable[[], None]] = []
        self.after_fork()
        track(self)

    def after_fork(self) -> None:
        self._changing = threading.RLock()
        self._ended_event: Event | None = None

    # --- to be said by the kinds of holds

    def held_until(self) -> float:
        """Until when the servers hold it for sure."""
        raise NotImplementedError

    def ttl(self) -> timedelta:
        raise NotImplementedError

    async def release(self) -> bool:
        raise NotImplementedError

    async def extend(self, ttl: timedelta | None) -> None:
        raise NotImplementedError

    def stop_renewing(self) -> None:
        raise NotImplementedError

    # --- what a program asks

    @property
    def label(self) -> str:
        return self.wanted.label

    @property
    def names(self) -> str:
        return self.wanted.names

    @property
    def valid_until(self) -> float:
        return min(self.held_until(), self._lease_end)

    @property
    def ended(self) -> bool:
        """Whether it was released, handed over or lost."""
        return self.released or self.reason_lost is not None

    @property
    def lost(self) -> bool:
        if not self.ended and now() >= self.valid_until:
            self.expire()
        return self.reason_lost is not None

    def check(self) -> None:
        if self.lost:
            raise self.lost_error()
        if self.released:
            raise NotHeldError(f"the hold of {self.names} has been released or handed over")
        if self.is_of_another_process:
            raise NotHeldError(
                f"the hold of {self.names} is that of the process that this one was forked from"
            )

    @property
    def is_of_another_process(self) -> bool:
        return os.getpid() != self._process

    def lost_error(self) -> LostError:
        assert self.reason_lost is not None
        cause = self.problem if self.reason_lost == EXPIRED else None
        return LostError(self.label, self.names, self.reason_lost, cause)

    async def wait_lost(self, end: float | None) -> bool:
        """Waits until it is lost, or until `end`: whether it is lost.

        For ever when it is released and there is no end.
        """
        if self._ended_event is None:
            self._ended_event = self._new_event()
        while not self.lost:
            if end is not None and now() >= end:
                return False
            ends = [one for one in (end, None if self.released else self.valid_until) if one is not None]
            await self._ended_event.wait(min(ends, default=None))
        return True

    # --- its end

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called when it is lost."""
        self._listeners.append(listener)

    def stop_listening(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    def expire(self) -> None:
        """It is lost when its time has passed."""
        moment = now()
        if moment >= self._lease_end:
            self.lose(LEASE_ENDED)
        elif moment >= self.valid_until:
            self.lose(EXPIRED)

    def lose(self, reason: str) -> None:
        """It is lost, unless it has ended before."""
        with self._changing:
            if self.ended:
                return
            self.reason_lost = reason
        self.stop_renewing()
        cause = self.problem
        # A hold that nobody renews ends by its ttl as a rule.
        level = logging.WARNING if self.wanted.options.renew else logging.DEBUG
        log.log(level, "%s", LostError(self.label, self.names, reason, cause))
        self.hooks.tell("lost", self.label, reason)
        self._tell_held()
        if self._ended_event is not None:
            self._ended_event.set()
        for listener in list(self._listeners):
            listener()
        if self.wanted.options.on_lost is not None and self.face is not None:
            call(self.wanted.options.on_lost, self.face)

    def end(self) -> bool:
        """The program releases it or hands it over. Whether it was there, as far as is known."""
        held = not self.lost
        with self._changing:
            first, self.released = not self.released, True
        self.stop_renewing()
        if held and first:
            self._tell_held()
        return held and first

    def found_gone(self) -> None:
        """The release found nothing: it had ended before."""
        with self._changing:
            if self.reason_lost is not None:
                return
            self.reason_lost = GONE
        self.hooks.tell("lost", self.label, GONE)

    def renewal_failed(self, error: BaseException) -> None:
        """It is tried again.

        Of a renewal that the server refuses an operator must know: once for each hold.
        """
        self.problem = error
        refused = not is_temporary(error) and not self._warned
        self._warned = self._warned or refused
        level = logging.WARNING if refused else logging.DEBUG
        log.log(level, "%s: a renewal failed: %s", self.label, error)
        self.hooks.tell("renewal_failed", self.label, error)

    def release_failed(self, error: BaseException) -> None:
        log.warning("%s: the release failed; the lock ends by its ttl: %s", self.label, error)
        self.hooks.tell("release_failed", self.label, error)

    def hand_over(self) -> None:
        self.check()
        self.handed_over = True
        self.end()

    async def finish_block(self) -> None:
        """Releases at the end of a block.

        The work was done under the hold: a release that fails is no error of it.
        """
        with contextlib.suppress(Exception):  # which has been logged and told to the hook
            await self.release()

    def _tell_held(self) -> None:
        self.hooks.tell("held", self.label, timedelta(seconds=now() - self._granted_at))


class ServerHold(HoldRules):
    """A hold at one server. The watchdog renews it."""

    def __init__(
        self, member: Member, wanted: Wanted, token: str, fence: int, sent: float, *, in_doubt: bool
    ) -> None:
        super().__init__(member.shared.io.event, wanted, token, member.shared.hooks)
        self._member = member
        self.held = Held(member, wanted, token, Drift())
        self.held.lease.in_doubt = in_doubt
        self.held.lease.granted(fence, wanted.mode, sent, self.held.ttl_ms)
        self.fence = fence
        self.renew_at = sent + self.ttl_seconds * RENEW_AFTER
        if wanted.options.renew:
            member.watchdog.add(self)

    # --- for the watchdog

    @property
    def shared(self) -> Shared:
        return self._member.shared

    @property
    def key(self) -> Key:
        return self.wanted.keys[0]

    @property
    def ttl_seconds(self) -> float:
        return self.held.ttl_ms / 1000

    def renewal(self) -> tuple[Command, Callable[[float, object], None]]:
        """A command, and what takes the moment at which it was sent and its answer."""
        fence, ttl = self.fence, self.held.ttl_ms
        command = _commands.extend(self.wanted.keys, self.token, ttl, fence)
        return command, lambda sent, answer: self._renewed(fence, ttl, sent, answer)

    def _renewed(self, fence: int, ttl: int, sent: float, answer: object) -> None:
        self.expire()  # a hold that is lost stays lost, whatever the answer is
        if self.ended:
            return
        if isinstance(answer, BaseException):
            self.renew_at = now() + self.ttl_seconds * TRY_AGAIN_AFTER
            self.renewal_failed(answer)
            return
        assert isinstance(answer, int)
        self._take(fence, ttl, sent, answer)

    def _take(self, fence: int, ttl: int, sent: float, answer: int) -> Told:
        """The answer to an extension."""
        with self._changing:
            told = self.held.lease.extended(fence, sent, ttl, answer)
            if told is Told.HELD:
                self.problem = None
                self.renew_at = sent + self.ttl_seconds * RENEW_AFTER
            else:
                self.renew_at = now() + self.ttl_seconds * TRY_AGAIN_AFTER
        if told is Told.GONE:
            self.lose(GONE)
        return told

    def held_until(self) -> float:
        return self.held.lease.valid_until

    def ttl(self) -> timedelta:
        return timedelta(milliseconds=self.held.ttl_ms)

    def stop_renewing(self) -> None:
        self._member.watchdog.remove(self)

    # --- what a program does

    async def release(self) -> bool:
        """Whether it was still there. A second call changes nothing."""
        if self.released or self.is_of_another_process:
            return False
        held = self.end()
        end = now() + (self.shared.retry_for if held else LOST_RELEASE_FOR)
        try:
            there = await self.held.release(self.names, end)
        except Exception as error:
            if not held:
                return False  # its ttl has ended, or ends what is left of it
            self.release_failed(error)
            raise
        except BaseException:
            await self._release_in_background(end)
            raise
        if held and not there:
            self.found_gone()
        return held and there

    async def _release_in_background(self, end: float) -> None:
        """The caller was cancelled. To release a second time is safe: the release names the fence."""
        done = self.shared.io.event()

        async def work() -> None:
            try:
                await self.held.release(self.names, end)
            except Exception as error:
                self.release_failed(error)
            finally:
                done.set()

        self.shared.io.start(work, "release")
        await done.wait(now() + CALLER_WAITS)

    async def extend(self, ttl: timedelta | None) -> None:
        """Makes it valid for `ttl` from now on. It never shortens."""
        self.shared.check_open()
        self.check()
        wanted_ms = self.held.ttl_ms if ttl is None else ttl_ms(ttl)
        end = now() + self.shared.retry_for
        while True:
            fence = self.fence
            command = _commands.extend(self.wanted.keys, self.token, wanted_ms, fence)
            try:
                answered = await self.shared.insist(
                    self.names, self.key, command, end=min(end, max(now(), self.valid_until))
                )
            except TimedOutError as error:
                self.problem = error.__cause__
                self.check()  # it may have ended meanwhile
                raise
            self.check()
            if self._take(fence, wanted_ms, answered.sent, answered.answers[0]) is not Told.NOTHING:
                break
            if now() >= end:
                raise timed_out(self.names, "a change of mode is under way", None)
            await self.shared.io.sleep(0.02)  # a change of mode gives another fence
        self.check()
        if wanted_ms > self.held.ttl_ms:
            self.held.ttl_ms = wanted_ms
        self._look_again()

    async def upgrade(self, wait: timedelta | None) -> None:
        """Makes the reader the writer: waits until the other readers have gone, at most for `wait`."""
        seconds = None if wait is None else not_negative("wait", wait).total_seconds()

        def build(wait_ms: int | None, channel: Channel | None) -> Command:
            fence, ttl = self.fence, self.held.ttl_ms
            return _commands.upgrade(self.key, self.token, ttl, fence, wait_ms=wait_ms, channel=channel)

        await self._change(WRITE, build, seconds, once=seconds == 0)

    async def downgrade(self) -> None:
        """Makes the writer a reader. No other writer comes in between."""

        def build(wait_ms: int | None, channel: Channel | None) -> Command:
            return _commands.downgrade(self.key, self.token, self.held.ttl_ms, self.fence)

        await self._change(READ, build, None, once=True)

    async def _change(
        self,
        mode: str,
        build: Callable[[int | None, Channel | None], Command],
        seconds: float | None,
        *,
        once: bool,
    ) -> None:
        self.shared.check_open()
        self.check()
        if len(self.wanted.keys) > 1:
            raise ValueError("the mode of a hold of several keys cannot be changed")
        lease = self.held.lease
        with self._changing:
            if lease.changing:
                raise SlockError(f"{self.names}: another change of the mode is under way")
            lease.changing = True
            before = self.mode
            if mode == READ:
                # The server refuses no downgrade, so a copy may be carried out late.
                # So it counts as a reader from now on.
                self.mode = READ
        acquisition = Acquisition(self.shared, self._member.ways, self.wanted.keys, build, seconds, once=once)
        settled = False
        try:
            self.shared.begin(acquisition)
            ttl = self.held.ttl_ms
            granted = await acquisition.granted()
            settled = True
            if granted is None:
                raise acquisition.timed_out("other readers hold it")
            self._changed(granted, mode, ttl)
        except NotHeldError:
            settled = True
            self.lose(GONE)
            self.check()
            raise
        except RefusedError as error:
            raise RefusedError(
                f"{self.names}: an upgrade of this hold was given up less than "
                f"{_commands.REFUSE_MS // 1000} s ago, and the server refuses another one for so long"
            ) from error
        finally:
            lease.in_doubt = lease.in_doubt or acquisition.in_doubt
            acquisition.end()
            try:
                if acquisition.in_doubt and not settled:
                    again = build(None, None) if mode == READ else None
                    await self._settle(acquisition.left_to_give_up, again)
                else:
                    if lease.mode != mode:
                        self.mode = before  # the server has refused it
                    lease.changing = False
            finally:
                self.shared.end(acquisition)
        self.check()
        if not is_prompt(granted.sent, granted.received, ttl):
            await self.extend(None)
        self._look_again()

    def _changed(self, granted: Granted, mode: str, ttl: int) -> None:
        with self._changing:
            self.mode, self.fence = mode, granted.fence
            self.held.lease.granted(granted.fence, mode, granted.sent, ttl)
            if not is_prompt(granted.sent, granted.received, ttl):
                return
            self.renew_at = granted.sent + self.ttl_seconds * RENEW_AFTER

    async def _settle(self, caller_waits: float, downgrade: Command | None) -> None:
        """A change of mode was given up.

        Of an upgrade, it ends what waits, and asks in which mode the token holds the key.
        It repeats a downgrade until it is answered."""
        done, held = self.shared.io.event(), self.held
        keys, token, ttl = self.wanted.keys, self.token, held.ttl_ms
        asked = [_commands.refresh(keys, mode, token, ttl) for mode in (WRITE, READ)]
        commands = [*_commands.cancel(keys, token, refuse=not held.given), *asked]
        if downgrade is not None:
            commands = [downgrade]

        async def work() -> None:
            try:
                sent = now()
                answers = await held.give_up.send(keys, commands, _commands.REFUSE_MS / 1000)
                with self._changing:
                    held.lease.changing = False
                if answers is not None:
                    write = 0 if downgrade is not None else answers[-2]
                    self._take_mode(write, answers[-1], sent, ttl)
            finally:
                held.lease.changing = False
                done.set()

        self.shared.io.start(work, "giving up")
        await done.wait(now() + caller_waits)

    def _take_mode(self, write: object, read: object, sent: float, ttl: int) -> None:
        if self.ended:
            return
        for mode, answer in ((WRITE, write), (READ, read)):
            if isinstance(answer, int) and answer:
                with self._changing:
                    self.mode, self.fence = mode, answer
                    self.held.lease.granted(answer, mode, sent, ttl)
                return
        if problem_in([write, read]) is None:
            self.lose(GONE)

    def _look_again(self) -> None:
        """The times have changed."""
        if self.wanted.options.renew and not self.ended:
            self._member.watchdog.add(self)
