"""One use of a request: token, limit of time, pauses, and what each answer leads to."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import redis.exceptions as base

from slock_client import _answers, _commands
from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import Channel, Command
from slock_client._durations import ms_left
from slock_client._endpoint import FIRST_LOOK
from slock_client._options import Wanted
from slock_client.asyncio._servers import ask
from slock_client.asyncio._shared import ANSWER_OVERDUE, Shared, retry_pauses, timed_out
from slock_client.errors import SlockError, TimedOutError

# While a copy of a request lacks its answer, a request that waits by NOTIFY asks again so often, in seconds:
# the copy may come late and take the message to its own tag.
ASK_AGAIN_AFTER = 5.0

# A call ends at most about so long after its limit, in seconds. What is left to do goes on without it.
CALL_OVERDUE = 0.5

# After an error it pauses for at least so long, in seconds.
LEAST_PAUSE = 0.01

# A connection that ended before a wait began says so at once: in less time than this, in seconds.
ENDED_BEFORE = 0.2

# While a request waits on a connection of its own, the server is asked at least so often whether it is there.
# For its answer it has so long, at least and at most. In seconds.
MOST_PAUSE = 20.0
LEAST_PING = 0.3
MOST_PING = 5.0


class Granted(NamedTuple):
    """A fence, and when its request was sent and answered."""

    fence: int
    sent: float
    received: float


class SubscriptionLost(Exception):
    """The channel has no subscriber any more: subscribe again, and ask again with the same token."""


class Acquisition:
    """Asks for a hold, or for another mode of one, until there is an answer that counts."""

    def __init__(self, shared: Shared, wanted: Wanted, command: Command, wait: float, *, once: bool) -> None:
        """`command`: without a wait. `wait`: at most so many seconds. `once`: a refusal ends it."""
        self.keys = wanted.keys
        self.names = wanted.names
        self.unanswered = False
        """Whether a copy of the command had no answer: the server may carry it out at any later time."""
        self.waits = False
        """Whether the server may know a request that waits, or has not answered yet."""
        self.fence: int | None = None
        """What was granted last."""
        self.problem: BaseException | None = None
        self._shared = shared
        self._wanted = wanted
        self._command = command
        self._once = once
        self._began = now()
        self._end = self._began + wait
        self._contact: float | None = None  # when the server was last known to be there
        self._wait: Any = None
        """Where its message comes, when it waits by NOTIFY."""

    @property
    def limit(self) -> float:
        """When the call is over, as things are now."""
        if self._once:
            return self._began + self._shared.retry_for
        return min(self._end, self._outage_end())

    @property
    def in_doubt(self) -> bool:
        """Whether something may be left of it on the server that nobody knows of."""
        return self.unanswered or self.waits

    @property
    def left_to_give_up(self) -> float:
        """How long the call may still take when it is over, in seconds."""
        return max(0.05, min(CALL_OVERDUE, self.limit + CALL_OVERDUE - now()))

    async def granted(self) -> Granted | None:
        """The grant; None when it was refused and asks once. `TimedOutError` when the limit is over."""
        try:
            return await self._granted()
        finally:
            self._forget()

    async def _granted(self) -> Granted | None:
        strategy, pauses = self._shared.strategy, retry_pauses()
        polls = iter(()) if strategy is None else strategy.pauses()
        while True:
            self._shared.check_open()
            try:
                granted = await self._attempt()
            except SlockError:
                raise
            except SubscriptionLost:
                # The server may not have noticed yet, and grant what waits there.
                self.unanswered = True
                continue
            except Exception as error:
                self._shared.check_open()
                if not _answers.is_temporary(error) and _answers.code_of(error) != "NOSUBSCRIBER":
                    raise _answers.error_of(error, self.names) from None
                if self.problem is None or not isinstance(error, base.TimeoutError):
                    self.problem = error
                # Shorter pauses near the limit: there is time for another attempt then.
                left = max(0.0, self.limit - now())
                await self._shared.pause(min(next(pauses), max(LEAST_PAUSE, left / 2)))
                if now() >= self.limit:
                    raise self.timed_out("the server did not answer within the time") from error
                continue
            self.problem = None
            if granted is not None or self._once:
                return granted
            pause = next(polls, None)
            if pause is None:
                raise self.timed_out("the lock is not free, and no attempt is left")
            await self._shared.pause(min(pause, max(0.0, self._end - now())))
            if now() >= self._end:
                raise self.timed_out("the wait is over")

    def timed_out(self, text: str) -> TimedOutError:
        """The error of a call that is over. Its cause is the last error that is no time-out, if any."""
        return timed_out(self.names, text, self.problem, answered=self._contact is not None)

    def _outage_end(self) -> float:
        """Until when it goes on without any answer."""
        if self._contact is None:
            return self._began + self._shared.retry_for
        return self._contact + self._shared.retry_wait_for

    async def _attempt(self) -> Granted | None:
        listening = self._shared.listening
        if self._once or self._shared.strategy is not None:
            return await self._ask_now()
        if listening is None:
            return await self._block()
        try:
            subscription = listening.present(self.keys[0])
            if subscription is None:
                # Most locks are free: only a request that has to wait needs a subscription.
                granted = await self._ask_now()
                if granted is not None:
                    return granted
                subscription = await listening.subscribe(self.keys[0], self.limit + ANSWER_OVERDUE)
            return await self._notify(listening, subscription)
        except base.ResponseError as error:
            if not _answers.is_channel_refused(error):
                raise
            self._shared.refuse_channels(error)
            return await self._block()

    async def _send(self, command: Command, *, blocks: bool = False) -> Answer:
        """The answer. An error of the server is raised."""
        self.waits = True
        end = (self._end if blocks else self.limit) + ANSWER_OVERDUE
        look = self._look if blocks else None
        try:
            [answer] = await ask(self._shared.servers, self.keys[0], command, end=end, look=look)
        except Exception as error:
            self.waits = False
            self.unanswered = self.unanswered or _answers.may_be_executed(error)
            was_open = _answers.may_be_executed(error) and not isinstance(error, base.TimeoutError)
            if blocks and was_open and now() - self._asked > ENDED_BEFORE:
                self._contact = now()  # until now it waited
            raise
        return self._take(answer)

    def _take(self, answer: Answer) -> Answer:
        """Notes an answer, or what a message says."""
        self.fence = answer if isinstance(answer, int) and answer else None  # first: Ctrl-C can come between
        self._contact = now()
        self.waits = answer is None or isinstance(answer, SubscriptionLost)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _ask_now(self) -> Granted | None:
        sent = now()
        fence = await self._send(self._command)
        return Granted(fence, sent, now()) if fence else None

    async def _block(self) -> Granted:
        self._asked = now()
        fence = await self._send(self._waiting(self._asked, None), blocks=True)
        return self._told(fence, self._asked)

    async def _look(self) -> float:
        """A wait on a connection of its own is silent by nature. So now and then the server is asked, over
        another one, whether it is there. Gives after how many seconds to look again.
        """
        end = min(max(self._outage_end(), now() + LEAST_PING), now() + MOST_PING, self._end + ANSWER_OVERDUE)
        try:
            await ask(self._shared.servers, self.keys[0], ("PING",), end=end)
        except Exception as error:
            if _answers.is_lost_connection(error):
                left = self._outage_end() - now()
                if left <= 0:  # of the command that waits it is not known whether it was executed
                    raise base.TimeoutError(f"the server is silent: {error}") from error
                return min(FIRST_LOOK, left)
        self._contact = now()
        return min(max(FIRST_LOOK, now() - self._asked), MOST_PAUSE)  # after twice the time each time

    async def _notify(self, listening: Any, subscription: Any) -> Granted:
        if self._wait is None or self._wait.subscription is not subscription:
            self._forget()
            self._wait, self._asked = listening.wait(subscription), now()
        overdue = self._end + ANSWER_OVERDUE
        while True:
            self._wait.begin()
            try:
                fence = await self._send(self._waiting(now(), self._wait.channel))
            except base.ResponseError as error:
                if _answers.code_of(error) == "NOSUBSCRIBER":
                    subscription.listener.unsubscribe(subscription)
                raise
            if fence is None:
                again = now() + ASK_AGAIN_AFTER if self.unanswered else math.inf
                message = await self._wait.message(min(overdue, again))
                fence = None if message is None else self._take(message)
            if fence is not None:
                return self._told(fence, self._asked)
            if now() >= overdue:
                raise self.timed_out("the wait is over, and the server did not say so")

    def _forget(self) -> None:
        """A message that comes later is ignored."""
        if self._wait is not None:
            self._wait.forget()
            self._wait = None

    def _told(self, fence: int, sent: float) -> Granted:
        if not fence:
            self.problem = None
            raise self.timed_out("the wait is over")
        return Granted(fence, sent, now())

    def _waiting(self, moment: float, channel: Channel | None) -> Command:
        """The command with what is left of the wait; to the server 0 is without limit."""
        wait_ms = 0 if self._end == math.inf else ms_left(self._end, moment)
        return _commands.waiting(self._command, wait_ms, channel)
