# SPDX-License-Identifier: MIT OR Apache-2.0

"""The life of an acquisition, from its first command to a grant or an error.

All commands of it have one owner token, so each may be sent again: it is the same hold, or the same request in its
place in the queue.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from slock_client import info
from slock_client._clock import now
from slock_client._listener import AGAIN, CLOSED, Ticket
from slock_client._options import Options, exponential
from slock_client._protocol import (
    SERVER_WAIT,
    Owner,
    at_least_call,
    explained,
    more_telling,
    naming_at_least,
    no_answer,
    passes,
    short,
    waiting,
)
from slock_client._server import LATE_REPLY, Answer, Server, after_errors
from slock_client._transport import Call, NoReply, ServerError
from slock_client.errors import ClosedError, SlockError, TimedOutError

_SEND_AGAIN = 5.0  # seconds that a request waits for its message before it is sent again
_LATE_MESSAGE = 0.05  # the same for the message that says so
_SUBSCRIBING = 0.1  # seconds for which the confirmation of a new channel is waited for
_HOLDERS_REPLY = 0.25  # seconds for which a call that has timed out waits to learn who has the lock

Outcome = Answer | Literal["again"] | None  # a grant, or the request is sent again, or others have the lock


class Request:
    """One use of a request at a server, or a change of mode that may have to wait."""

    def __init__(self, server: Server, owner: Owner, call: Call, options: Options, is_try: bool = False) -> None:
        self._began = now()
        self._server, self._owner, self._call, self._options = server, owner, call, options
        self._is_try, self._key = is_try, owner.keys[0]
        self._once = is_try or options.is_once  # a refusal ends it
        self._deadline = float("inf") if self._once or options.wait is None else self._began + options.wait
        self._least = 0.0  # until when it goes on at least, because this process was late
        self._contact: float | None = None  # when the server last replied
        self._last: Exception | None = None  # the last error that passes; None after a reply without one
        self._failures = self._polls = 0
        self._is_closed = False
        self._is_checked = True  # the server accepts `at_least`, or it was not asked
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

    async def acquire(self) -> Answer | None:
        """The grant, or `None` if a try was refused. Whatever else ends it, nothing is left on the server."""
        grant, self._is_checked = None, self._options.at_least <= self._options.ttl
        try:
            grant = await self.run()
        finally:
            if grant is None and self.is_open:
                self._server.drop(self._owner, 0)
        return grant

    async def run(self) -> Answer | None:
        """Sends the request until it is granted or over. `None`: a try was refused."""
        try:
            return await self._repeat()
        finally:
            self._forget()

    def stop(self) -> None:
        """Ends the wait of an upgrade whose hold is over."""
        self._is_closed = True
        if self._ticket is not None:
            self._ticket.mailbox.put(CLOSED)

    def _forget(self) -> None:
        if self._ticket is not None:
            self._server.listener.tickets.pop(self._ticket.tag, None)
            self._ticket = None

    async def _failure(self, is_timed_out: bool) -> SlockError:
        """The error of a request that is over, because others have the lock, or without a reply."""
        waited, names = now() - self._began, self._owner.names
        if not is_timed_out:
            return no_answer(names, waited, self._last)
        return TimedOutError(f"timed out after {short(waited)}", names, await self._holders())

    async def _holders(self) -> list[str]:
        """Texts about at most 10 holders of the first key that somebody holds, if the server tells them in time."""
        until = now() + _HOLDERS_REPLY
        for question in self._owner.questions():
            try:
                holders = info.info_of("", (await self._server.replies(question, until))[0]).holders
            except (NoReply, ServerError):
                break
            if holders:
                return [f"{holder.metadata} {holder.token}".strip() for holder in holders]
        return []

    async def _repeat(self) -> Answer | None:
        while True:
            if self._is_closed or self._options.closing.is_set():
                raise ClosedError("the Locks has been closed")
            has_sent = self._contact is not None or self._last is not None
            is_over = has_sent and now() >= self._deadline
            if is_over or (self._last is not None and now() >= self._limit()):
                raise await self._failure(is_over and self._last is None)
            try:
                outcome = await self._attempt()
                if outcome != "again":
                    return outcome
                continue
            except (NoReply, ServerError) as error:
                failure = error
            if not passes(failure):  # it is raised out here, because else its context would have it as the cause
                raise explained(failure, self._owner.names)
            self._last = more_telling(self._last, failure)
            more = self._server.extended(self._end())
            if isinstance(failure, NoReply) and not self._least and more != self._end():
                self._least, self._deadline = more, max(self._deadline, more)
            await self._pause(after_errors(self._failures))
            self._failures += 1

    async def _pause(self, duration: float) -> None:
        await self._server.io.pause(min(duration, max(0.0, min(self._limit(), self._deadline) - now())))

    def _note_reply(self) -> None:
        self._contact, self._last, self._failures = now(), None, 0

    def _limit(self) -> float:
        """Until when the server has to reply."""
        limit = self._began + self._options.retry_for
        if self._contact is not None and not self._once:
            limit = self._contact + self._options.retry_wait_for
        return max(limit, self._least)

    def _end(self) -> float:
        """Until when a reply is waited for."""
        return min(self._limit(), self._deadline + LATE_REPLY)

    def _until(self) -> float:
        """The same for the next copy. One after a reply, or the first, has the time for a reply also in a thread that
        comes late."""
        end = self._end() if self._last is not None else max(self._end(), now() + LATE_REPLY)
        return min(end, now() + self._options.retry_for)

    async def _check(self) -> None:
        """Has the server check `at_least` before the lock is asked for."""
        try:
            with naming_at_least():
                await self._server.number(at_least_call(self._owner.names, self._options), self._until())
        except ServerError:
            self._contact = now()
            raise
        self._is_checked = True

    async def _attempt(self) -> Outcome:
        if not self._is_checked:
            await self._check()
        ticket = None if self._once else await self._take_ticket()
        call, wait = self._call, 0.0
        if ticket:
            wait = min(SERVER_WAIT, max(self._deadline - now(), 0.001))
            call = waiting(call, wait, ticket.channel, ticket.tag)
            ticket.was_confirmed = self._server.listener.is_confirmed(ticket)
        was_loose, self._is_loose = self._is_loose, True
        try:
            answer = await self._server.number(call, self._until())
        except ServerError as error:
            self._is_loose, self._contact = was_loose, now()
            if not (ticket and self._server.listener.has_failed(self._key, ticket, error)):
                raise
            if error.code == "NOSUBSCRIBER":  # there is a subscription soon
                self._note_reply()
                await self._hear(_SUBSCRIBING * random.uniform(1, 5))
            return "again"
        self._is_queued = bool(answer.number or ticket)
        self._is_loose = was_loose
        if answer.number:
            return await self._confirm(answer.number, answer.sent, False)
        self._note_reply()
        if ticket:
            self._waits, self._sent, self._ends = True, answer.sent, answer.sent + wait
            return await self._await()
        if self._is_try:
            return None
        if self._once:
            raise await self._failure(True)
        if self._waits:  # it wants a channel, and may not have one
            await self._pause(exponential(0.02, 1, self._polls))
            self._polls += 1
        self._waits = True
        return "again"

    async def _take_ticket(self) -> Ticket | None:
        """A ticket with a channel. A request that has not been refused waits only if there is a channel already. The
        confirmation of the server is waited for, but not for long."""
        self._forget()  # a message that is late may tell of a hold that ended before this copy is sent
        listener = self._server.listener
        if not listener.can_wait(self._key, self._waits):
            return None
        self._ticket = Ticket(self._server.io)
        if not await listener.join(self._ticket, self._key):
            await self._hear(_SUBSCRIBING)
        return self._ticket

    async def _hear(self, timeout: float) -> Any:
        assert self._ticket is not None
        message = CLOSED if self._is_closed else await self._ticket.mailbox.get(timeout)
        if message is CLOSED:
            self._is_closed = True
        return message

    async def _await(self) -> Outcome:
        """Waits for the message of a request that is in the queue."""
        pause = min(_SEND_AGAIN * random.uniform(0.8, 1), self._options.retry_wait_for / 4)
        message = await self._hear(min(pause, self._deadline - now() + _LATE_MESSAGE))
        if message in (None, AGAIN, CLOSED):
            return "again"
        if isinstance(message, ServerError):
            if passes(message) or explained(message) is not message:
                raise message
            self._is_queued = False
            return "again"  # it gets the error of the client library, which a message does not have
        if message:
            return await self._confirm(message, self._sent, True)
        # The wait has run out on the server, which may be because no copy arrived in time. Before that, an operator has
        # withdrawn the request.
        self._is_queued = False
        if now() < self._ends:
            raise await self._failure(True)
        return "again"

    async def _confirm(self, fence: int, sent: float, is_by_message: bool) -> Outcome:
        """Makes sure of how long the hold is valid, and that enough replicas have it. The ttl began at a grant that may
        be long ago, if a message told of it, and at a server that may not be the primary any more."""
        if self._contact is None:
            self._contact = self._began
        since, ttl = now() - sent, self._options.ttl
        is_sure = not is_by_message or (since <= ttl / 3 and not self._server.link.has_failover)
        if not self._options.min_replicas and is_sure and since < self._options.counted(ttl):
            return Answer(fence, sent)
        answer = await self._server.extend(self._owner, ttl, fence, self._options, now() + self._options.retry_for)
        return Answer(fence, answer.sent) if answer.number else "again"  # it is over by now
