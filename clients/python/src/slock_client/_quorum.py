"""Locks on several independent servers: N servers, and arithmetic. The algorithm is that of redsync and of the Redis
documentation ("Distributed Locks with Redis")."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from slock_client._acquisition import Acquisition, Grant, Limits, Outcome
from slock_client._clock import now
from slock_client._options import Mode, Options
from slock_client._protocol import REFUSE_FOR, Owner, explained, metadata_of, not_held, passes, short
from slock_client._server import Answer, Server
from slock_client._transport import Call, NoReply, ServerError
from slock_client.errors import NodeReply, QuorumMissedError, SlockError, TimedOutError
from slock_client.polling import Strategy

_SILENT = "no reply in time"
_TOO_FEW = "granted, and released since there was no majority"
_NOT_HERE = ("WRONGMODE", "NOTHELD", "WRONGTYPE")


class QuorumSettings:
    """Durations are in seconds."""

    def __init__(self, node_timeout: float | None, drift_factor: float, fail_fast: bool, poll: Strategy) -> None:
        self.node_timeout, self.drift_factor, self.fail_fast, self.poll = node_timeout, drift_factor, fail_fast, poll

    def counted(self, ttl: float) -> float:
        """The part of a ttl that counts for the validity."""
        return ttl - ttl * self.drift_factor - 0.002

    def timeout(self, ttl: float, retry_for: float) -> float:
        """How long a node has for its reply. It may still reply after that."""
        chosen = self.node_timeout or min(max(ttl / 20, 0.05), retry_for)
        return min(chosen, ttl * 0.9)


class Tally:
    """The replies of all nodes. Those that have not replied have the error `_SILENT`, which passes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.nodes = [NodeReply(name, False, _SILENT) for name in names]
        self._final = 0  # nodes with an error that lasts

    def note(self, number: int, is_granted: bool, error: Exception | None) -> None:
        text = "" if error is None else str(explained(error)) or type(error).__name__
        self.nodes[number] = NodeReply(self.nodes[number].node, is_granted and error is None, text)
        self._final += error is not None and not passes(error)

    def _minority(self) -> int:
        return (len(self.nodes) - 1) // 2

    @property
    def granted(self) -> int:
        return sum(one.granted for one in self.nodes)

    @property
    def is_granted(self) -> bool:
        return self.granted > len(self.nodes) // 2

    @property
    def is_refused(self) -> bool:
        """Whether others have the lock at so many nodes that there can be no majority, whatever the others say."""
        return sum(not one.granted and not one.error for one in self.nodes) > self._minority()

    @property
    def is_lost(self) -> bool:
        """Whether a majority is out of reach."""
        return sum(not one.granted and one.error != _SILENT for one in self.nodes) > self._minority()

    @property
    def is_final(self) -> bool:
        """Whether a majority of nodes gives errors that last."""
        return self._final > len(self.nodes) // 2

    @property
    def is_certain(self) -> bool:
        return self.is_granted or self.is_refused

    def missed(self, names: tuple[str, ...], waited: float) -> SlockError:
        kind = TimedOutError if self.is_refused else QuorumMissedError
        return kind(f"no majority of {len(self.nodes)} nodes after {short(waited)}", names, nodes=self.nodes)


class _Vote:
    """What one node gave one owner."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.fence = 0  # 0: none
        self.is_asked = False  # a command that asks for the lock is on its way

    async def send(self, call: Call, until: float) -> int:
        """Sends a command, and once more if there was no reply: an idle connection may have been closed."""
        try:
            return (await self.server.number(call, until)).number
        except NoReply:
            return (await self.server.number(call, until)).number

    async def take(self, call: Call, until: float) -> bool:
        """Sends a command that gives a fence or 0."""
        if self.is_asked:
            raise NoReply("the command before has no reply yet")
        self.is_asked = True
        try:
            self.fence = await self.send(call, until)
        except ServerError as error:
            if error.code not in _NOT_HERE:
                raise
            self.fence = 0
        finally:
            self.is_asked = False
        return self.fence > 0


class Votes:
    """What the nodes gave one owner: the keeper of a hold."""

    def __init__(
        self, servers: Sequence[Server], settings: QuorumSettings, owner: Owner, mode: Mode, options: Options
    ) -> None:
        self._settings, self._owner, self._options = settings, owner, options
        self._mode: Mode = mode
        self._servers = servers
        self._votes = [_Vote(server) for server in servers]
        self._io = servers[0].io
        self.metadata = metadata_of(options)
        self.sent = now()  # before the first command was sent

    def over(self, servers: Sequence[Server]) -> Votes:
        if servers is self._servers:
            return self
        votes = Votes(servers, self._settings, self._owner, self._mode, self._options)
        for vote, known in zip(votes._votes, self._votes, strict=True):
            vote.fence = known.fence
        return votes

    @property
    def fences(self) -> list[int]:
        return [vote.fence for vote in self._votes]

    async def _ask(
        self, ttl: float, node: Callable[[_Vote, float], Awaitable[bool]], is_enough: Callable[[Tally], bool]
    ) -> Tally:
        """Asks all nodes at once. Gives the replies that came before they were enough, or the time was over."""
        until = now() + self._settings.timeout(ttl, self._votes[0].server.retry_for)
        mailbox = self._io.mailbox()
        tally = Tally([vote.server.transport.name for vote in self._votes])

        async def ask(number: int, vote: _Vote) -> None:
            is_granted, failed = False, None
            try:
                is_granted = await node(vote, until)
            except (NoReply, ServerError) as error:
                failed = error
            mailbox.put((number, is_granted, failed))

        for number, vote in enumerate(self._votes):
            vote.server.io.spawn(partial(ask, number, vote))
        for _ in self._votes:
            reply = await mailbox.get(until - now())
            if reply is None:
                break
            tally.note(*reply)
            if is_enough(tally):
                break
        return tally

    async def attempt(self) -> Tally:
        """Asks all nodes once for the lock. Without a majority in time it ends what they gave."""
        ttl = self._options.ttl
        call = self._owner.lock(self._mode, self._options, self.metadata)
        is_fast, is_held = self._settings.fail_fast, False

        def is_enough(tally: Tally) -> bool:
            return tally.is_granted or (is_fast and tally.is_lost)

        try:
            tally = await self._ask(ttl, lambda vote, until: vote.take(call, until), is_enough)
            is_held = tally.is_granted and now() - self.sent < self._settings.counted(ttl)
            if is_held:
                return tally  # the other nodes may still grant
            is_held = True
            # It waits, because the next attempt would find what this one holds.
            await self._ask(ttl, self._release, lambda _: False)
        finally:
            if not is_held:
                self.drop(self._owner, 0)
        for number, one in enumerate(tally.nodes):
            if one.granted:  # too late, or too few
                tally.nodes[number] = NodeReply(one.node, False, _TOO_FEW)
        return tally

    async def adopt(self) -> None:
        call = self._owner.adopt(self._mode, self._options.ttl)
        tally = await self._ask(self._options.ttl, lambda vote, until: vote.take(call, until), lambda _: False)
        if tally.is_refused:
            raise not_held(self._owner.names, self._mode)
        if not tally.is_granted:
            raise tally.missed(self._owner.names, now() - self.sent)

    async def release(self) -> int:
        return (await self._ask(self._options.ttl, self._release, lambda _: False)).granted

    async def extend(self, owner: Owner, ttl: float, fence: int, options: Options, until: float) -> Answer:
        """Counts the nodes that still have the hold with the fence that they gave. All are sent the command that asks
        for the lock: for the same owner token it extends the hold, and it brings a node back that has lost it."""
        call = owner.lock(self._mode, options.change({"ttl": ttl}), self.metadata)
        sent = now()

        async def node(vote: _Vote, until: float) -> bool:
            before = vote.fence
            try:
                await vote.take(call, until)
            except ServerError as error:
                if error.code == "GRACE":  # it gives no new hold, so it has not got this one
                    return False
                raise
            return before != 0 and vote.fence == before

        tally = await self._ask(ttl, node, lambda tally: tally.is_certain)
        if not tally.is_certain:
            raise tally.missed(owner.names, now() - sent)
        return Answer(tally.granted if tally.is_granted else 0, sent)

    async def end(self, owner: Owner, fence: int, after: float) -> bool:
        async def extend(vote: _Vote, until: float) -> bool:
            return await vote.send(owner.extend(after, vote.fence, only_lengthens=False), until) > 0

        is_sent = False
        try:
            node = extend if after > 0 else self._release
            tally = await self._ask(self._options.ttl, node, lambda tally: tally.is_certain)
            is_sent = True
        finally:
            if not is_sent and after <= 0:
                self.drop(owner, 0)
        if not tally.is_certain:
            raise tally.missed(owner.names, 0)
        return tally.is_granted

    def drop(self, owner: Owner, fence: int) -> None:
        for vote in self._votes:
            vote.server.ends.add(owner.end(vote.fence))

    async def _release(self, vote: _Vote, until: float) -> bool:
        """Ends the hold at one node, in the background if the node does not reply in time."""
        call, vote.fence = self._owner.end(vote.fence), 0
        is_answered = False
        try:
            released = await vote.send(call, until)
            is_answered = True
        except ServerError:
            is_answered = True
            raise
        finally:
            if not is_answered:
                vote.server.ends.add(call, REFUSE_FOR)
        return released > 0


class QuorumRequest(Acquisition):
    """An acquisition at a quorum. Each attempt has a token of its own."""

    def __init__(
        self,
        servers: Sequence[Server],
        settings: QuorumSettings,
        owner: Callable[[], Owner],
        mode: Mode,
        options: Options,
        limits: Limits,
        is_try: bool,
    ) -> None:
        super().__init__(options, limits, is_try, settings.poll)
        self._new: Callable[[], Votes] = lambda: Votes(servers, settings, owner(), mode, options)
        self._is_try, self._io = is_try, servers[0].io
        self.votes = self._new()
        self._tally = Tally([])

    def names(self) -> tuple[str, ...]:
        return self.votes._owner.names

    async def pause(self, duration: float) -> None:
        await self._io.pause(duration)

    async def failure(self, is_timed_out: bool) -> SlockError:
        return self._tally.missed(self.names(), now() - self.began)

    async def attempt(self) -> Outcome:
        self.votes = self._new()
        self._tally = tally = await self.votes.attempt()
        self.last = None
        if tally.is_granted:
            return Grant(0, self.votes.sent)
        if tally.is_refused and self._is_try:
            return "refused"
        if self.once or tally.is_final:
            raise await self.failure(False)
        if tally.is_refused:
            self.contact = now()
        else:
            self.last = NoReply(_SILENT)
        return "poll"


def check(nodes: int, drift_factor: float) -> None:
    if not nodes or not 0 <= drift_factor < 1:
        raise ValueError(
            f"a quorum needs servers, and a drift factor of at least 0 and less than 1, not {nodes} and {drift_factor}"
        )
