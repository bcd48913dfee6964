"""The life of an acquisition, from its first command to a grant or an error.

All commands of it have one owner token, so each may be sent again: it is the same hold, or the same request in its
place in the queue.
"""

from __future__ import annotations

import random
from typing import Any, Literal, NamedTuple

from slock_client import info
from slock_client._clock import now
from slock_client._listener import AGAIN, CLOSED, Ticket
from slock_client._options import Options
from slock_client._protocol import SERVER_WAIT, Owner, explained, more_telling, no_answer, passes, short, waiting
from slock_client._server import AFTER_ERRORS, Server
from slock_client._settings import Settings
from slock_client._transport import Call, NoReply, Runtime, ServerError
from slock_client.errors import ClosedError, SlockError, TimedOutError
from slock_client.polling import Exponential, Strategy

_SEND_AGAIN = 5.0  # seconds that a request waits for its message before it is sent again
_LATE_REPLY = 0.5  # seconds after the end of a wait in which a reply is still waited for
_LATE_MESSAGE = 0.05  # the same for the message that says so
_SUBSCRIBING = 0.1  # seconds for which the confirmation of a new channel is waited for
_HOLDERS_REPLY = 0.25  # seconds for which a call that has timed out waits to learn who has the lock
_POLLING = Exponential(0.02, 1)  # of a request that cannot wait by a message


class Grant(NamedTuple):
    fence: int  # 0 for a quorum
    sent: float  # the validity counts from then


# An attempt gives a grant, or has to be made again at once or after a pause, or others have the lock.
Outcome = Grant | Literal["again", "poll", "refused"]


class Acquisition:
    """One use of a request, or a change of mode that may have to wait, at a server or a quorum."""

    owner: Owner
    keeper: Any  # where the hold is, if it was granted

    def __init__(self, io: Runtime, settings: Settings, options: Options, is_try: bool, polling: Strategy) -> None:
        self.began = now()
        self.io, self.settings, self.options, self.is_try, self._polling = io, settings, options, is_try, polling
        self.once = is_try or options.wait == 0  # a refusal ends it
        self.deadline = float("inf") if self.once or options.wait is None else self.began + options.wait
        self.contact: float | None = None  # when the server last replied
        self.last: Exception | None = None  # the last error that passes; None after a reply without one
        self.is_closed = False
        self._failures = self._polls = 0

    async def attempt(self) -> Outcome:
        """Sends the request once, and waits for what comes of it."""
        raise NotImplementedError

    async def failure(self, is_timed_out: bool) -> SlockError:
        """The error of an acquisition that is over, because others have the lock, or without a reply."""
        raise NotImplementedError

    def leave(self, is_granted: bool) -> None:
        """Sees to it that nothing is left that was not granted."""

    async def run(self) -> Grant | None:
        """Sends the request until it is granted or over. `None`: a try was refused."""
        grant = None
        try:
            grant = await self._repeat()
        finally:
            self.leave(grant is not None)
        if grant is None and not self.is_try:
            raise await self.failure(True)
        return grant

    async def _repeat(self) -> Grant | None:
        while True:
            await self._end_if_over()
            pause: float | None = 0.0
            try:
                outcome = await self.attempt()
            except (NoReply, ServerError) as error:
                if not passes(error):
                    raise explained(error, self.owner.names) from error.__cause__
                self.last = more_telling(self.last, error)
                pause = AFTER_ERRORS.pause(self._failures)
                self._failures += 1
            else:
                if isinstance(outcome, Grant):
                    return outcome
                if outcome == "refused":
                    return None
                if outcome == "poll":
                    pause = self._polling.pause(self._polls)
                    self._polls += 1
            if pause is None:
                raise await self.failure(self.last is None)
            if pause:
                await self.io.pause(min(pause, max(0.0, min(self.limit(), self.deadline) - now())))

    def note_reply(self) -> None:
        self.contact, self.last, self._failures = now(), None, 0

    def limit(self) -> float:
        """Until when the server has to reply."""
        if self.contact is None or self.once:
            return self.began + self.settings.retry_for
        return self.contact + self.settings.retry_wait_for

    async def _end_if_over(self) -> None:
        if self.is_closed:
            raise ClosedError("the Locks has been closed")
        is_over = now() >= self.deadline
        if is_over or (self.last is not None and now() >= self.limit()):
            raise await self.failure(is_over and self.last is None and self.contact is not None)


class Request(Acquisition):
    """An acquisition at a server."""

    def __init__(self, server: Server, owner: Owner, call: Call, options: Options, is_try: bool = False) -> None:
        super().__init__(server.io, server.settings, options, is_try, _POLLING)
        self.keeper, self.owner, self._call = server, owner, call
        self._server = server
        self._waits = False  # others had the lock, so it waits by a message from now on
        self._ticket: Ticket | None = None  # by which its last copy waits
        self._sent = 0.0  # before the last copy was sent that was answered null
        self._ends = float("inf")  # when the wait of that copy ends on the server, at the earliest
        self._is_loose = False  # a copy of it may be on its way to the server
        self._is_queued = False  # it waits on the server, or is held

    @property
    def is_open(self) -> bool:
        """Whether something of it may be left on the server."""
        return self._is_loose or self._is_queued

    def leave(self, is_granted: bool) -> None:
        self.forget()
        if not is_granted and self.is_open:
            self._server.drop(self.owner, 0)

    def stop(self) -> None:
        """Ends the wait of an upgrade whose hold is over."""
        self.is_closed = True
        if self._ticket is not None:
            self._ticket.mailbox.put(CLOSED)

    def forget(self) -> None:
        if self._ticket is not None:
            self._server.listener.tickets.pop(self._ticket.tag, None)
            self._ticket = None

    async def failure(self, is_timed_out: bool) -> SlockError:
        waited, names = now() - self.began, self.owner.names
        if not is_timed_out:
            return no_answer(names, waited, self.last)
        holders = await info.holders_of(self._server.replies, self.owner.questions(), _HOLDERS_REPLY)
        return TimedOutError(f"timed out after {short(waited)}", names, holders)

    async def attempt(self) -> Outcome:
        channel = "" if self.once else await self._channel()
        call, wait = self._call, 0.0
        if channel and self._ticket:
            wait = min(SERVER_WAIT, max(self.deadline - now(), 0.001))
            call = waiting(call, wait, channel, self._ticket.tag)
        # If this process was late, the server gets the time for a reply all the same.
        limit = max(self.limit(), now() + _LATE_REPLY)
        until = min(limit, now() + self.settings.retry_for, self.deadline + _LATE_REPLY)
        was_loose, self._is_loose = self._is_loose, True
        try:
            answer = await self._server.number(call, until)
        except ServerError as error:
            self._is_loose, self.contact = was_loose, now()
            if channel and self._server.listener.has_failed(self.owner.keys[0], channel, error):
                return "again"
            if error.code == "NOSUBSCRIBER" and self._ticket:  # it is confirmed soon
                self.note_reply()
                await self._hear(_SUBSCRIBING * random.uniform(1, 5))
                return "again"
            raise
        self._is_queued = bool(answer.number or channel)
        self._is_loose = was_loose
        if answer.number:
            return await self._confirm(answer.number, answer.sent, False)
        self.note_reply()
        if channel:
            self._waits, self._sent, self._ends = True, answer.sent, answer.sent + wait
            return await self._await()
        if self.once:
            return "refused"
        if self._waits:  # it wants a channel, and may not have one
            return "poll"
        self._waits = True
        return "again"

    async def _channel(self) -> str:
        """The channel to wait by. A request that has not been refused waits only if there is one already. If it is new,
        the confirmation of the server is waited for, but not for long."""
        listener, key = self._server.listener, self.owner.keys[0]
        self.forget()  # a message that is late may tell of a hold that ended before this copy is sent
        if self._waits:
            self._ticket = listener.ticket(key)
        name, is_new = await listener.channel(key, self._waits)
        if name and self._ticket is None:
            self._ticket = listener.ticket(key)
        if is_new:
            await self._hear(_SUBSCRIBING)
        return name

    async def _hear(self, timeout: float) -> Any:
        assert self._ticket is not None
        message = CLOSED if self.is_closed else await self._ticket.mailbox.get(timeout)
        if message is CLOSED:
            self.is_closed = True
        return message

    async def _await(self) -> Outcome:
        """Waits for the message of a request that is in the queue."""
        pause = min(_SEND_AGAIN * random.uniform(0.8, 1), self.settings.retry_wait_for / 4)
        message = await self._hear(min(pause, self.deadline - now() + _LATE_MESSAGE))
        if message in (None, AGAIN, CLOSED):
            return "again"
        if isinstance(message, ServerError):
            raise message
        if message:
            return await self._confirm(message, self._sent, True)
        # The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
        # withdrawn the request.
        self._is_queued = False
        if now() < self._ends:
            raise await self.failure(True)
        return "again"

    async def _confirm(self, fence: int, sent: float, is_by_message: bool) -> Outcome:
        """Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may
        be long ago, if a message told of it, and at a server that may not be the primary any more."""
        if self.contact is None:
            self.contact = self.began
        since, ttl = now() - sent, self.options.ttl
        is_sure = not is_by_message or (since <= ttl / 3 and not self._server.transport.has_failover)
        if not self.options.min_replicas and is_sure and since < self.settings.counted(ttl):
            return Grant(fence, sent)
        answer = await self._server.extend(self.owner, ttl, fence, self.options, now() + self.settings.retry_for)
        return Grant(fence, answer.sent) if answer.number else "again"  # it is over by now
