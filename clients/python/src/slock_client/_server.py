"""One server, or one cluster, as one process or event loop uses it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from slock_client._clock import now
from slock_client._listener import AGAIN, Listener
from slock_client._options import Options
from slock_client._protocol import REFUSE_FOR, Owner, explained, more_telling, ms, no_answer, passes
from slock_client._settings import Settings
from slock_client._transport import Call, NoReply, Runtime, ServerError, Transport
from slock_client.errors import ClosedError, NoAnswerError, TooFewReplicasError
from slock_client.polling import Exponential

T = TypeVar("T")
_log = logging.getLogger("slock_client")

AFTER_ERRORS = Exponential(0.01, 1)
_OUTAGE = 1.0  # seconds without a reply before that is logged: a connection may be lost at any time
_DELIVERIES = 8  # that are on their way at once. During an outage the others cost their memory.
_REPLICA_SLICE = 0.5  # seconds of one WAIT for replicas
_OF_A_REQUEST = ("SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.MLOCK", "SLOCK.MRLOCK")
_OF_A_MODE = ("SLOCK.UPGRADE", "SLOCK.DOWNGRADE")


class Answer(NamedTuple):
    """The reply to a command that may have been sent several times."""

    number: int
    sent: float  # before the copy was sent that was answered
    copies: int = 1


class Server:
    def __init__(self, transport: Transport, io: Runtime, settings: Settings, confirm: Callable[[], None]) -> None:
        self.transport, self.io, self.settings = transport, io, settings
        self._confirm = confirm  # called when another primary may lack some holds
        self.is_closed = False
        self.link = transport.link(io, self._switched)
        self.listener = Listener(self.link, io, transport.is_cluster)
        self._silent_since: float | None = None  # infinite: it has been logged
        self._deliveries: deque[tuple[Call, float]] = deque()  # commands, and until when they are sent
        self._permits = deque(range(_DELIVERIES))

    def _switched(self) -> None:
        self.listener.put_all(AGAIN)
        self._confirm()

    async def replies(self, call: Call, until: float) -> list[Any]:
        """Sends a command once. An error reply to the first is raised."""
        if now() >= until:
            raise NoReply("no time was left to send the command")
        try:
            replies = await self.io.call(self.link, call, until)
        except NoReply as error:
            self._note_silence(error)
            raise
        if self._silent_since is not None:
            if self._silent_since == float("inf"):
                _log.info("slock: the server replies again")
            self._silent_since = None
        if isinstance(replies[0], ServerError):
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

    async def ask(self, names: tuple[str, ...], limit: float, call: Call) -> Answer:
        """Sends a command until it is answered, for so many seconds."""
        copies = 0

        async def send(until: float) -> Answer:
            nonlocal copies
            copies += 1
            return (await self.number(call, until))._replace(copies=copies)

        return await self.repeat(names, limit, send)

    async def repeat(self, names: tuple[str, ...], limit: float, send: Callable[[float], Awaitable[T]]) -> T:
        """Sends until there is an answer, for so many seconds. Then it raises `NoAnswerError` about the names."""
        began, failures, last = now(), 0, None
        while True:
            try:
                return await send(began + limit)
            except (NoReply, ServerError) as error:
                if not passes(error):
                    raise explained(error, names) from error.__cause__
                last = more_telling(last, error)
            pause = AFTER_ERRORS.pause(failures) or 0.0
            failures += 1
            if self.is_closed:
                raise ClosedError("the Locks has been closed")
            if now() + pause >= began + limit:
                raise no_answer(names, limit, last)
            await self.io.pause(pause)

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
            extended, acknowledged = await self.replies(call, max(until, sent + left + self.settings.retry_for))
            if isinstance(acknowledged, ServerError):
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
        call, whole = owner.end(fence), len(owner.keys)
        if after > 0:
            call, whole = owner.extend(after, fence, only_lengthens=False), 1
        is_answered = False
        try:
            answer = await self.ask(owner.names, self.settings.retry_for, call)
            is_answered = True
        finally:
            if not is_answered:
                self.deliver(call, after if after > 0 else REFUSE_FOR)
        # The server does not remember the end of a token of the program's: of two copies the second finds nothing.
        return answer.number == whole or (owner.is_given and answer.copies > 1)

    def drop(self, owner: Owner, fence: int) -> None:
        """Releases in the background."""
        self.deliver(owner.end(fence))

    def deliver(self, call: Call, duration: float = REFUSE_FOR) -> None:
        """Sends a command in the background until it is answered, for a time: by default the time for which the server
        would refuse the token."""
        self._deliveries.appendleft((call, now() + duration))
        self.io.spawn(self._deliver)

    def is_idle(self) -> bool:
        return not self._deliveries and len(self._permits) == _DELIVERIES

    async def _deliver(self) -> None:
        try:
            permit = self._permits.pop()
        except IndexError:
            return
        try:
            while self._deliveries:
                await self._deliver_next()
        except IndexError:
            pass  # another one has taken it
        finally:
            self._permits.append(permit)
        if self._deliveries:  # it came after the last look
            self.io.spawn(self._deliver)

    async def _deliver_next(self) -> None:
        call, until = self._deliveries.popleft()

        async def send(end: float) -> None:
            try:
                await self.number(call, end)
            except ServerError as error:
                if passes(error):
                    raise

        try:
            await self.repeat((), min(until - now(), self.settings.retry_for), send)
        except NoAnswerError:  # its node may be away, and that of the next one not
            if now() < until:
                self._deliveries.append((call, until))
        except ClosedError:
            pass
