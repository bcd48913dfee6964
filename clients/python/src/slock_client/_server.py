# SPDX-License-Identifier: MIT OR Apache-2.0

"""One server or one cluster: commands are sent to it again until they are answered."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from slock_client._clock import now
from slock_client._listener import AGAIN, Listener
from slock_client._options import Options, exponential
from slock_client._protocol import REFUSE_FOR, Owner, explained, more_telling, ms, no_answer, passes
from slock_client._transport import Call, NoReply, Runtime, ServerError, Transport
from slock_client.errors import ClosedError, NoAnswerError, TooFewReplicasError

_log = logging.getLogger("slock_client")
T = TypeVar("T")

_OUTAGE = 1.0  # seconds without a reply before that is logged: a connection may be lost at any time
_DELIVERIES = 8  # that are on their way at once: an outage may leave many
_REPLICA_SLICE = 0.5  # seconds of one WAIT for replicas
LATE_REPLY = 0.5  # seconds after the end of a wait in which a reply is still waited for
_MOST_MORE = 3.0  # seconds that a process which stood still gets more
_OF_A_REQUEST = ("SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.MLOCK", "SLOCK.MRLOCK")
_OF_A_MODE = ("SLOCK.UPGRADE", "SLOCK.DOWNGRADE")


class Answer(NamedTuple):
    """The reply to a command that may have been sent several times."""

    number: int  # a fence, or how many. A grant of a quorum has 0.
    sent: float  # before the copy was sent that was answered
    copies: int = 1


class Crew(Generic[T]):
    """Works on items, on at most so many at once. The others cost their memory only."""

    def __init__(self, io: Runtime, most: int, work: Callable[[T], Awaitable[None]]) -> None:
        self._io, self._most, self._work = io, most, work
        self._items: deque[T] = deque()
        self._permits = deque([None] * most)

    def put(self, item: T, is_first: bool = False) -> None:
        (self._items.appendleft if is_first else self._items.append)(item)
        if self._permits:
            self._io.spawn(self._run)

    def is_idle(self) -> bool:
        return not self._items and len(self._permits) == self._most

    async def _run(self) -> None:
        try:
            self._permits.pop()
        except IndexError:
            return  # so many others take what is there
        try:
            while True:
                try:
                    item = self._items.popleft()
                except IndexError:
                    break
                await self._work(item)
        finally:
            self._permits.append(None)
            if self._items and not self._io.is_ending():  # it came after the last look here
                self._io.spawn(self._run)


class Server:
    def __init__(self, transport: Transport, io: Runtime, options: Options, confirm: Callable[[], None]) -> None:
        self.io, self.options = io, options
        self._confirm = confirm  # called when another primary may lack some holds
        self.is_closed = False
        self.link = transport(io, self._switched)
        self.listener = Listener(self.link)
        self._silent_since: float | None = None  # infinite: it has been logged
        self.deliveries = Crew(io, _DELIVERIES, self._deliver)

    def _switched(self) -> None:
        self.listener.put_all(AGAIN)
        self._confirm()

    async def replies(self, call: Call, until: float) -> list[Any]:
        """Sends a command once. An error reply to the first is raised."""
        if now() >= until:
            raise NoReply("no time was left to send the command")
        try:
            replies = (await self.io.call(self.link, call, until))[bool(call.first) :]
        except NoReply as error:
            self._note_silence(error)
            raise
        self._silent_since = None
        if isinstance(replies[0], (ServerError, NoReply)):
            raise replies[0]
        return replies

    def _note_silence(self, error: NoReply) -> None:
        if self._silent_since is None:
            self._silent_since = now()
        elif now() - self._silent_since > _OUTAGE:
            self._silent_since = float("inf")
            _log.warning("slock: no reply from the server: %s", error)

    async def number(self, call: Call, until: float) -> Answer:
        """Sends a command once. A reply that is no number, such as null, is 0."""
        sent = now()
        try:
            reply = (await self.replies(call, until))[0]
        except ServerError as error:
            if error.code != "WRONGTYPE" or call.words[0] in _OF_A_REQUEST:
                raise
            if call.words[0] in _OF_A_MODE:
                raise ServerError("NOTHELD another type has replaced the lock") from error.__cause__
            reply = 0  # as if it were gone
        return Answer(reply if isinstance(reply, int) else 0, sent)

    async def ask(self, names: tuple[str, ...], call: Call, limit: float | None = None) -> Answer:
        """Sends a command until it is answered, for so many seconds, or those of `retry_for`."""
        copies = 0

        async def send(until: float) -> Answer:
            nonlocal copies
            copies += 1
            return (await self.number(call, until))._replace(copies=copies)

        return await self.repeat(names, send, limit)

    async def repeat(
        self, names: tuple[str, ...], send: Callable[[float], Awaitable[T]], limit: float | None = None
    ) -> T:
        """Sends until there is an answer, for so many seconds. Then it raises `NoAnswerError` about the names."""
        limit = self.options.retry_for if limit is None else limit
        end = now() + limit
        until, failures, last = end, 0, None
        while True:
            try:
                return await send(until)
            except (NoReply, ServerError) as error:
                failure = error
            if not passes(failure):  # it is raised out here, because else its context would have it as the cause
                raise explained(failure, names)
            last = more_telling(last, failure)
            pause = after_errors(failures)
            failures += 1
            if until == end:
                until = self.extended(end)
            if self.is_closed:
                raise ClosedError("the Locks has been closed")
            if now() + pause >= until:
                raise no_answer(names, limit, last)
            await self.io.pause(pause)

    def extended(self, until: float) -> float:
        """The limit after an attempt that failed. A process that stood still, or whose event loop was busy, may have
        missed the reply. It gets the time for one more: as much as it came late. This is not done twice."""
        late = now() - until
        return until if late < self.io.late else now() + min(max(late, LATE_REPLY), _MOST_MORE)

    async def extend(self, owner: Owner, ttl: float, fence: int, options: Options, until: float) -> Answer:
        """Sends an extension, and waits for replicas if it has to. The number is 0 if the hold is gone."""
        if not options.min_replicas:
            return await self.number(owner.extend(ttl, fence), until)
        end = now() + options.replica_timeout
        while True:
            # WAIT counts the replicas that have what its connection wrote last. An extension to the same millisecond
            # would write nothing, and any replica would do.
            left = min(max(end - now(), 0.001), _REPLICA_SLICE)
            call = owner.extend(ttl + 0.001, fence)._replace(then=("WAIT", options.min_replicas, ms(left)))
            sent = now()
            extended, acknowledged = await self.replies(call, max(until, sent + left + options.retry_for))
            if isinstance(acknowledged, (ServerError, NoReply)):
                raise acknowledged
            if extended == 0 or acknowledged >= options.min_replicas:
                return Answer(extended, sent)
            if now() >= end:
                text = f"{acknowledged} of {options.min_replicas} replicas acknowledged"
                raise TooFewReplicasError(text, owner.names)

    async def end(self, owner: Owner, fence: int, after: float) -> bool:
        """Releases, or has the hold end after so many seconds. Tells whether it was still there.

        Without a reply, or if the caller leaves, it goes on in the background.
        """
        call, whole, duration = owner.end(fence), len(owner.keys), REFUSE_FOR
        if after > 0:
            call, whole, duration = owner.extend(after, fence, only_lengthens=False), 1, after
        try:
            answer = await self.ask(owner.names, call)
        except BaseException:
            self.deliver(call, duration)
            raise
        # The server does not remember the end of a token of the program's: of two copies the second finds nothing.
        return answer.number == whole or (owner.is_given and answer.copies > 1)

    def drop(self, owner: Owner, fence: int) -> None:
        """Ends the acquisition in the background. Without a fence, a request may still wait, and the end of a token of
        the program's does not withdraw it."""
        first = owner.withdraw().words if owner.is_given and not fence else ()
        self.deliver(owner.end(fence)._replace(first=first))

    def deliver(self, call: Call, duration: float = REFUSE_FOR) -> None:
        """Sends a command in the background until it is answered, for a time: by default the time for which the server
        would refuse the token."""
        self.deliveries.put((call, now() + duration), is_first=True)

    async def _deliver(self, delivery: tuple[Call, float]) -> None:
        call, until = delivery

        async def send(end: float) -> None:
            try:
                await self.number(call, end)
            except ServerError as error:
                if passes(error):
                    raise

        try:
            await self.repeat((), send, min(until - now(), self.options.retry_for))
        except NoAnswerError:  # its node may be away, and that of the next one not
            if now() < until:
                self.deliveries.put(delivery)
        except ClosedError:
            pass


def after_errors(failures: int) -> float:
    """The pause after so many errors that pass."""
    return exponential(0.01, 1, failures)
