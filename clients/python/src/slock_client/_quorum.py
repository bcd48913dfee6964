# SPDX-License-Identifier: MIT OR Apache-2.0

"""Locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of the Redis
documentation ("Distributed Locks with Redis")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import count

from slock_client._clock import now
from slock_client._options import Mode, Options
from slock_client._protocol import Owner, at_least_call, explained, naming_at_least, passes, short
from slock_client._server import Answer, Server
from slock_client._transport import Call, NoReply, ServerError
from slock_client.errors import NodeReply, QuorumMissedError, SlockError, TimedOutError

_SILENT = NoReply("no reply in time")
_TOO_FEW = SlockError("granted, and released since there was no majority")
_NOT_ASKED = SlockError("the lock was not asked for")
_TURN = 0.005  # seconds between two looks whether a node has replied
_NOT_HERE = ("WRONGMODE", "NOTHELD", "WRONGTYPE")

Reply = bool | Exception  # of a node: whether it granted, extended or released; or why that is not known


class Tally:
    """The replies of all nodes, in the order of the clients."""

    def __init__(self, size: int) -> None:
        self.replies: list[Reply] = [_SILENT] * size

    def _is_majority(self, is_one: Callable[[Reply], bool]) -> bool:
        return 2 * sum(map(is_one, self.replies)) > len(self.replies)

    @property
    def granted(self) -> int:
        return self.replies.count(True)

    @property
    def is_granted(self) -> bool:
        return self._is_majority(lambda reply: reply is True)

    @property
    def is_refused(self) -> bool:
        """Whether others have the lock at so many nodes that there can be no majority, whatever the others say."""
        return not self._is_majority(lambda reply: reply is not False)

    @property
    def is_lost(self) -> bool:
        """Whether a majority is out of reach."""
        return not self._is_majority(lambda reply: reply in (True, _SILENT))

    @property
    def is_final(self) -> bool:
        """Whether a majority of nodes gives errors that last."""
        return self._is_majority(lambda reply: isinstance(reply, Exception) and not passes(reply))


class _Vote:
    """What one node gave one owner."""

    def __init__(self, server: Server, fence: int = 0) -> None:
        self.server = server
        self.fence = fence  # 0: none
        self.is_asked = False  # a command that asks for the lock is on its way
        # No such command is sent any more: a node that has restarted does not know of the end, and would grant it.
        self.is_ended = False

    async def send(self, call: Call, until: float, *, takes: bool = False) -> int:
        """Sends a command, and once more if there was no reply: an idle connection may have been closed. One that takes
        the lock is not sent again after the end."""
        try:
            return (await self.server.number(call, until)).number
        except NoReply:
            if takes and self.is_ended:
                raise
            return (await self.server.number(call, until)).number

    async def take(self, call: Call, until: float, *, is_extension: bool = False) -> bool:
        """Sends a command that gives a fence or 0, when the one before has its reply. An extension is of the hold that
        the node gave."""
        while self.is_asked and now() < until:
            await self.server.io.pause(_TURN)
        if self.is_asked or self.is_ended:
            raise NoReply("the command before has no reply yet" if self.is_asked else "the hold has been ended")
        before, self.is_asked = self.fence, True
        try:
            self.fence = await self.send(call, until, takes=True)
        except ServerError as error:
            if error.code == "GRACE" and is_extension:  # it gives no new hold, so it has not got this one
                return False
            if error.code not in _NOT_HERE:
                raise
            self.fence = 0
        finally:
            self.is_asked = False
        return self.fence > 0 and (not is_extension or self.fence == before)

    async def release(self, owner: Owner, until: float) -> bool:
        """Ends the hold at this node, in the background if it does not reply in time."""
        call, self.fence = owner.end(self.fence), 0
        try:
            return await self.send(call, until) > 0
        except NoReply:
            self.server.deliver(call)
            raise


Question = Callable[[_Vote, float], Awaitable[bool]]  # asks one node, until a time


class Votes:
    """What the nodes gave one owner: the keeper of a hold."""

    def __init__(self, servers: Sequence[Server], owner: Owner, mode: Mode, options: Options) -> None:
        self._servers, self.owner, self._options = servers, owner, options
        self._mode: Mode = mode
        self._votes = [_Vote(server) for server in servers]
        self.sent = now()  # before the first command was sent

    def over(self, servers: Sequence[Server]) -> Votes:
        """The same for a caller that may be in another event loop, which has other connections."""
        if servers is self._servers:
            return self
        votes = Votes(servers, self.owner, self._mode, self._options)
        votes._votes = [_Vote(server, known.fence) for server, known in zip(servers, self._votes, strict=True)]
        return votes

    @property
    def fences(self) -> list[int]:
        return [vote.fence for vote in self._votes]

    def missed(self, tally: Tally, began: float) -> SlockError:
        """The error of a call that got no majority."""
        nodes = []
        for server, reply in zip(self._servers, tally.replies, strict=True):
            error = explained(reply) if isinstance(reply, Exception) else None
            text = "" if error is None else str(error) or type(error).__name__
            nodes.append(NodeReply(server.link.name, reply is True, text))
        kind = TimedOutError if tally.is_refused else QuorumMissedError
        text = f"no majority of {len(nodes)} nodes after {short(now() - began)}"
        return kind(text, self.owner.names, nodes=nodes)

    def _stop(self) -> None:
        for vote in self._votes:
            vote.is_ended = True

    async def ask(self, question: Question, is_enough: Callable[[Tally], bool]) -> Tally:
        """Asks all nodes at once. Gives the replies that came before they were enough, or the time was over. A node
        that has not replied by then may still do so."""
        options, io = self._options, self._servers[0].io
        timeout = options.node_timeout or min(max(options.ttl / 20, 0.05), options.retry_for)
        until = now() + min(timeout, options.ttl * 0.9)
        mailbox, tally = io.mailbox(), Tally(len(self._votes))

        async def ask(number: int, vote: _Vote) -> None:
            reply: Reply
            try:
                reply = await question(vote, until)
            except (NoReply, ServerError) as error:
                reply = error
            mailbox.put((number, reply))

        for number, vote in enumerate(self._votes):
            vote.server.io.spawn(partial(ask, number, vote))
        for _ in self._votes:
            told = await mailbox.get(until - now())
            if told is None:
                break
            tally.replies[told[0]] = told[1]
            if is_enough(tally):
                break
        return tally

    async def decide(self, question: Question) -> bool:
        """Asks all nodes at once. Raises if neither a majority grants nor a majority refuses."""
        began = now()
        tally = await self.ask(question, lambda tally: tally.is_granted or tally.is_refused)
        if not (tally.is_granted or tally.is_refused):
            raise self.missed(tally, began)
        return tally.is_granted

    async def release(self) -> int:
        """At how many nodes it released what the owner holds."""
        self._stop()
        return (await self.ask(lambda vote, until: vote.release(self.owner, until), lambda _: False)).granted

    async def check(self) -> Tally:
        """Has all nodes check `at_least` before the lock is asked for. One that accepts it counts as if it granted."""
        call = at_least_call(self.owner.names, self._options)

        async def node(vote: _Vote, until: float) -> bool:
            with naming_at_least():
                await vote.send(call, until)
            return True

        tally = await self.ask(node, lambda tally: tally.is_granted or tally.is_final)
        if not tally.is_granted:
            tally.replies = [_NOT_ASKED if reply is True else reply for reply in tally.replies]
        self.sent = now()
        return tally

    async def attempt(self) -> Tally:
        """Asks all nodes once for the lock. Without a majority in time it ends what they gave."""
        options = self._options
        call = self.owner.lock(self._mode, options.ttl, options.limit)
        try:
            tally = await self.ask(
                lambda vote, until: vote.take(call, until),
                lambda tally: tally.is_granted or (options.fail_fast and tally.is_lost),
            )
            is_in_time = now() - self.sent < options.counted(options.ttl)
            if not tally.is_granted or not is_in_time:  # else the other nodes may still grant
                await self.release()  # it waits, because the next attempt would find what this one holds
                tally.replies = [_TOO_FEW if reply is True else reply for reply in tally.replies]
        except BaseException:
            self.drop(self.owner, 0)
            raise
        return tally

    async def adopt(self) -> bool:
        call = self.owner.adopt(self._mode, self._options.ttl)
        return await self.decide(lambda vote, until: vote.take(call, until))

    async def extend(self, owner: Owner, ttl: float, fence: int, options: Options, until: float) -> Answer:
        """Counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks
        for the lock: for the same owner token it extends the hold, and it brings a node back that has lost it."""
        call = owner.lock(self._mode, ttl, options.limit)
        sent = now()
        held = await self.decide(lambda vote, until: vote.take(call, until, is_extension=True))
        return Answer(int(held), sent)

    async def end(self, owner: Owner, fence: int, after: float) -> bool:
        """Releases, or has the hold end after so many seconds. Tells whether a majority still had it."""

        async def node(vote: _Vote, until: float) -> bool:
            if after > 0:
                return await vote.send(owner.extend(after, vote.fence, only_lengthens=False), until) > 0
            return await vote.release(owner, until)

        self._stop()
        return await self.decide(node)

    def drop(self, owner: Owner, fence: int) -> None:
        """Releases in the background."""
        self._stop()
        for vote in self._votes:
            vote.server.deliver(owner.end(vote.fence))


async def acquire(
    servers: Sequence[Server], owner: Callable[[], Owner], mode: Mode, options: Options, is_try: bool
) -> Votes | None:
    """Asks until a majority grants the lock. Each attempt has an owner of its own. `None`: a try was refused."""
    began, is_once = now(), is_try or options.is_once
    deadline = float("inf") if is_once or options.wait is None else began + options.wait
    limit = began + options.retry_for  # a majority has to have replied
    is_checked = options.at_least <= options.ttl
    for number in count():
        votes = Votes(servers, owner(), mode, options)
        if not is_checked:
            tally = await votes.check()
            is_checked = tally.is_granted
        if is_checked:
            tally = await votes.attempt()
            if tally.is_granted:
                return votes
        if is_try and tally.is_refused:
            return None
        pause = None if is_once or tally.is_final else options.poll(number)
        if tally.is_refused:
            limit = now() + options.retry_wait_for + (pause or 0)
        if pause is not None:
            await servers[0].io.pause(min(pause, limit - now(), deadline - now()))
        if pause is None or now() >= min(limit, deadline):
            raise votes.missed(tally, began)
    raise AssertionError
