"""One server, or one cluster, as one process or event loop uses it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from slock_client._clock import now
from slock_client._ends import AFTER_ERRORS, Ends
from slock_client._listener import AGAIN, Listener
from slock_client._options import Options
from slock_client._protocol import REFUSE_FOR, Owner, explained, more_telling, ms, no_answer, passes
from slock_client._transport import Call, NoReply, Runtime, ServerError, Transport
from slock_client.errors import ClosedError, NoAnswerError, TooFewReplicasError
from slock_client.hooks import Report

T = TypeVar("T")

_OF_A_REQUEST = ("SLOCK.LOCK", "SLOCK.RLOCK", "SLOCK.MLOCK", "SLOCK.MRLOCK")
_OF_A_MODE = ("SLOCK.UPGRADE", "SLOCK.DOWNGRADE")
_REPLICA_SLICE = 0.5  # seconds of one WAIT for replicas


Explain = Callable[[Exception, tuple[str, ...]], BaseException]


def _refused(error: Exception, names: tuple[str, ...]) -> BaseException:
    return NoAnswerError(f"the server refused the release: {error}", names)


class Answer(NamedTuple):
    """The reply to a command that may have been sent several times."""

    number: int
    sent: float  # before the copy was sent that was answered
    copies: int = 1


class Server:
    def __init__(
        self, transport: Transport, io: Runtime, report: Report, retry_for: float, confirm: Callable[[], None]
    ) -> None:
        self.transport, self.io, self.report, self.retry_for = transport, io, report, retry_for
        self._confirm = confirm  # called when another primary may lack some holds
        self.is_closed = False
        self.link = transport.link(io, self._switched)
        self.listener = Listener(self.link, io, transport.is_cluster, report.polls)
        self.ends = Ends(io, self.number, retry_for)

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
            self.report.reached(error)
            raise
        self.report.reached(None)
        if isinstance(replies[0], ServerError):
            raise replies[0]
        return replies

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

    async def ask(self, names: tuple[str, ...], limit: float, call: Call, explain: Explain = explained) -> Answer:
        """Sends a command until it is answered, for so many seconds."""
        copies = 0

        async def send(until: float) -> Answer:
            nonlocal copies
            copies += 1
            return (await self.number(call, until))._replace(copies=copies)

        return await self.repeat(names, limit, send, explain)

    async def repeat(
        self, names: tuple[str, ...], limit: float, send: Callable[[float], Awaitable[T]], explain: Explain = explained
    ) -> T:
        """Sends until there is an answer, for so many seconds. Then it raises `NoAnswerError` about the names."""
        began, failures, last = now(), 0, None
        while True:
            try:
                return await send(began + limit)
            except (NoReply, ServerError) as error:
                if not passes(error):
                    raise explain(error, names) from error.__cause__
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
            extended, acknowledged = await self.replies(call, max(until, sent + left + self.retry_for))
            if isinstance(acknowledged, ServerError):
                raise acknowledged
            if extended == 0 or acknowledged >= options.min_replicas:
                return Answer(extended, sent)
            if now() >= end:
                text = f"{acknowledged} of {options.min_replicas} replicas acknowledged"
                raise TooFewReplicasError(text, owner.names)

    def drop(self, owner: Owner, fence: int) -> None:
        """Releases in the background."""
        self.ends.add(owner.end(fence))

    def over(self, servers: Sequence[Server]) -> Server:
        return servers[0]

    async def end(self, owner: Owner, fence: int, after: float) -> bool:
        """Releases, or has the hold end after so many seconds. Tells whether it was still there.

        Without a reply, or if the caller leaves, it goes on in the background.
        """
        call, whole = owner.end(fence), len(owner.keys)
        if after > 0:
            call, whole = owner.extend(after, fence, only_lengthens=False), 1
        is_answered = False
        try:
            answer = await self.ask(owner.names, self.retry_for, call, _refused)
            is_answered = True
        finally:
            if not is_answered:
                self.ends.add(call, after if after > 0 else REFUSE_FOR)
        # The server does not remember the end of a token of the program's: of two copies the second finds nothing.
        return answer.number == whole or (owner.is_given and answer.copies > 1)
