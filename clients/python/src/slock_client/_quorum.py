"""A quorum is N `Locks` and arithmetic: majority, drift, validity, release everywhere."""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import redis.exceptions as base

from slock_client import _commands
from slock_client._answers import Answer, error_of, is_lost_connection, is_temporary, may_be_executed
from slock_client._clock import now
from slock_client._commands import Command, Key, Token
from slock_client._durations import positive, ttl_ms
from slock_client._give_up import CALLER_WAITS, the_end
from slock_client._hold import Held, HoldRules
from slock_client._io import Io
from slock_client._lease import GONE, Drift, Told
from slock_client._locks import LocksRules, outcome_of
from slock_client._options import Wanted, keys_of
from slock_client._schedule import RENEW_AFTER, TRY_AGAIN_AFTER
from slock_client._shared import Shared
from slock_client._watchdog import Watchdog
from slock_client.errors import NotHeldError, QuorumMissedError, TimedOutError
from slock_client.hooks import Hooks
from slock_client.polling import Exponential, Strategy

DEFAULT_DRIFT_FACTOR = 0.01
DEFAULT_POLL = Exponential(timedelta(milliseconds=20), timedelta(milliseconds=250))

# What a clock may drift whatever the ttl, in seconds.
LEAST_DRIFT = 0.002

LEAST_NODE_TIMEOUT = timedelta(milliseconds=50)
NODE_TIMEOUT_PART = 20

# A renewal begins after a third of the ttl. A node may take as long again, so that there is time for another.
MOST_OF_TTL = 3

_EXTENSIONS = ("SLOCK.EXTEND", "SLOCK.MEXTEND")
_NOT_FOR_QUORUM = ("waiting", "min_replicas", "replica_timeout")


def majority(nodes: int) -> int:
    """How many nodes of so many are more than half."""
    return nodes // 2 + 1


def majority_until(ends: Iterable[float]) -> float:
    """Until when a majority holds, where each node holds until one of `ends`."""
    latest_first = sorted(ends, reverse=True)
    return latest_first[majority(len(latest_first)) - 1]


def node_timeout(chosen: timedelta | None, ttl: timedelta) -> float:
    """How long a node may take for its answer, in seconds: at most a third of the ttl."""
    if chosen is not None:
        timeout = positive("node_timeout", chosen)
    else:
        timeout = max(ttl / NODE_TIMEOUT_PART, LEAST_NODE_TIMEOUT)
    return min(timeout, ttl / MOST_OF_TTL).total_seconds()


def refuse(names: Iterable[str]) -> None:
    """Raises `TypeError` for options that a quorum does not have."""
    for name in names:
        if name in _NOT_FOR_QUORUM:
            polls = ": it polls, as `poll` says" if name == "waiting" else ""
            raise TypeError(f"a quorum has no option `{name}`{polls}")


def node_names(addresses: Sequence[str]) -> list[str]:
    """A name for each node that no other has. Sentinels of several servers often say the same name."""
    return [
        f"{address} ({number})" if addresses.count(address) > 1 else address
        for number, address in enumerate(addresses, 1)
    ]


class Tally:
    """What the nodes have answered to one question: a number above zero, 0, or an error."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._answers: dict[str, object] = dict.fromkeys(nodes)
        self._majority = majority(len(nodes))

    def add(self, node: str, answer: object) -> None:
        self._answers[node] = answer

    @property
    def given(self) -> int:
        """How many said yes."""
        return sum(isinstance(answer, int) and answer > 0 for answer in self._answers.values())

    @property
    def refused(self) -> int:
        return sum(isinstance(answer, int) and answer == 0 for answer in self._answers.values())

    @property
    def errors(self) -> list[BaseException]:
        return [answer for answer in self._answers.values() if isinstance(answer, BaseException)]

    @property
    def has_majority(self) -> bool:
        return self.given >= self._majority

    @property
    def is_refused(self) -> bool:
        """Whether so many answered 0 that there can be no majority, whatever the others say."""
        return self.refused > len(self._answers) - self._majority

    @property
    def is_hopeless(self) -> bool:
        """Whether the majority cannot be reached any more."""
        return self.refused + len(self.errors) > len(self._answers) - self._majority

    def told(self, yes: str, no: str) -> dict[str, str]:
        """What each node answered, in words."""
        words: dict[str, str] = {}
        for node, answer in self._answers.items():
            if answer is None:
                words[node] = "not waited for"
            elif isinstance(answer, BaseException):
                words[node] = str(answer) or type(answer).__name__
            else:
                words[node] = yes if answer else no
        return words


class NodeHold(Held):
    """What the token of a quorum's hold has at one node.

    The watchdog renews it, the hold gets it back when it is gone.
    """

    def __init__(self, name: str, node: LocksRules, wanted: Wanted, token: str, drift: Drift) -> None:
        super().__init__(node.member, wanted, token, drift)
        self.name = name
        self.wanted = wanted
        self.key = self.keys[0]
        self.quorum: QuorumHold | None = None
        """None before the quorum has a majority, and for ever when it has none."""
        self.ended = False
        self.renew_at = math.inf
        self.valid_until = math.inf  # for the watchdog: the quorum has a validity, a node has none of its own
        self.confirmed = -math.inf
        """When the last command was sent to which the node said that it has the hold."""
        self.gone_at = -math.inf
        """When the last command was sent to which the node did not say so."""
        self.is_asked = True
        """Whether the node is being asked for the hold."""

    @property
    def ttl_seconds(self) -> float:
        return self.ttl_ms / 1000

    def expire(self) -> None:
        pass

    def renewal(self, ttl: int | None = None) -> tuple[Command, Callable[[float, object], None]]:
        fence, asked_ms = self.lease.fence or 0, self.ttl_ms if ttl is None else ttl
        command = _commands.extend(self.keys, self.token, asked_ms, fence)
        return command, lambda sent, answer: self._extended(fence, sent, asked_ms, answer)

    async def grant(self, sent: float, end: float) -> int:
        """Asks for the hold: its fence, or 0. `sent` is a moment before."""
        options, mode, ttl = self.wanted.options, self.wanted.mode, self.ttl_ms
        command = _commands.acquire(
            self.keys, mode, self.token, ttl, metadata=options.metadata, limit=options.limit
        )
        return await self._ask(command, lambda answer: self.granted(sent, ttl, answer), end)

    async def extend(self, sent: float, end: float, ttl: int) -> int:
        """1 when the node has the hold, for at least `ttl` from `sent` on; 0 when it is gone."""
        if not self.lease.is_held:
            return 0
        command, take = self.renewal(ttl)
        return await self._ask(command, lambda answer: take(sent, answer), end)

    async def refresh(self, sent: float, end: float) -> int:
        """The fence of a hold that another process took; 0 when there is none."""
        command = _commands.refresh(self.keys, self.wanted.mode, self.token, self.ttl_ms)
        return await self._ask(command, lambda answer: self.granted(sent, self.ttl_ms, answer), end)

    async def give_up_or_release(self) -> None:
        """The quorum missed its majority, or was given up."""
        self.ended = True
        if self.lease.in_doubt:
            commands = the_end(self.keys, self.token, given=self.given, fence=self.lease.fence)
            await self.give_up.send(self.keys, commands, CALLER_WAITS)
        elif self.lease.fence is not None:
            commands = [_commands.release(self.keys, self.lease.mode, self.token, self.lease.fence)]
            await self.give_up.send(self.keys, commands, CALLER_WAITS)

    async def _ask(self, command: Command, take: Callable[[Answer], None], end: float) -> int:
        answer: Answer
        for is_last in (False, True):  # a connection may have ended while it was idle
            try:
                [answer] = await self.shared.ask(self.key, command, end=end)
            except Exception as error:
                answer = error
            except BaseException:
                self.lease.in_doubt = True
                raise
            if (
                is_last
                or isinstance(answer, base.TimeoutError)
                or not is_lost_connection(answer)
                or self.ended
            ):
                break
            self._note_doubt(command, answer)
        if isinstance(answer, BaseException):
            self._note_doubt(command, answer)
        take(answer)
        handed_over = self.quorum is not None and self.quorum.handed_over
        if self.ended and command[0] not in _EXTENSIONS and not handed_over:  # nobody waits for it any more
            self.shared.io.start(self.give_up_or_release, "giving up", limited=True)
        if isinstance(answer, BaseException):
            raise answer
        return int(answer)

    def _note_doubt(self, command: Command, error: BaseException) -> None:
        """A command that may give the hold had no answer."""
        if command[0] not in _EXTENSIONS and (may_be_executed(error) or not isinstance(error, Exception)):
            self.lease.in_doubt = True

    def granted(self, sent: float, ttl: int, answer: Answer) -> None:
        self.is_asked = False
        if isinstance(answer, BaseException):
            self._failed(answer)
        elif answer:
            self.lease.granted(answer, self.wanted.mode, sent, ttl)
            self._confirmed(sent)
            return
        self._is_not_there(sent)

    def _extended(self, fence: int, sent: float, ttl: int, answer: object) -> None:
        self.renew_at = now() + self.ttl_seconds * TRY_AGAIN_AFTER
        if isinstance(answer, BaseException):
            self._failed(answer)
        elif isinstance(answer, int):
            told = self.lease.extended(fence, sent, ttl, answer)
            if told is Told.HELD:
                self._confirmed(sent)
            elif told is Told.GONE:
                self._is_not_there(sent)

    def _confirmed(self, sent: float) -> None:
        self.confirmed = sent
        self.renew_at = sent + self.ttl_seconds * RENEW_AFTER
        if self.quorum is not None:
            self.quorum.node_answered(self)

    def _is_not_there(self, moment: float) -> None:
        self.renew_at, self.gone_at = math.inf, moment
        if self.quorum is not None:
            self.quorum.node_answered(self)

    def _failed(self, error: BaseException) -> None:
        if self.quorum is not None and not self.ended:
            self.quorum.renewal_failed(error)


class QuorumHold(HoldRules):
    """A hold on the majority of the servers."""

    def __init__(self, quorum: QuorumRules, wanted: Wanted, token: str, nodes: Sequence[NodeHold]) -> None:
        super().__init__(quorum.io.event, wanted, token, quorum.hooks)
        self._quorum = quorum
        self._nodes = nodes
        # For the watchdog, which looks at its validity only: its nodes are renewed one by one.
        self.renew_at = math.inf
        self.shared: Shared = nodes[0].shared
        self.key = wanted.keys[0]
        for node in nodes:
            node.quorum = self
        if wanted.options.renew:
            quorum.watchdog.add(self)
            for node in nodes:
                quorum.watchdog.add(node)

    @property
    def fences(self) -> Mapping[str, int]:
        return {
            node.name: node.lease.fence
            for node in self._nodes
            if node.lease.fence is not None and node.lease.is_held
        }

    @property
    def ttl_seconds(self) -> float:
        return self._nodes[0].ttl_seconds

    def renewal(self) -> tuple[Command, Callable[[float, object], None]]:
        raise NotImplementedError

    def held_until(self) -> float:
        return majority_until(node.lease.valid_until for node in self._nodes)

    def ttl(self) -> timedelta:
        return timedelta(milliseconds=self._nodes[0].ttl_ms)

    def node_answered(self, node: NodeHold) -> None:
        """A node says that it has the hold, or that it has lost it."""
        if self.ended:
            return
        if self.wanted.options.renew:
            self._quorum.watchdog.add(node)
        gone = [one for one in self._nodes if not one.lease.is_held]
        if len(gone) > len(self._nodes) - majority(len(self._nodes)):
            self.lose(GONE)
            return
        self.expire()
        # One that has lost it is asked to grant it anew, once a majority is known to have had it since then.
        for one in gone:
            having = sum(other.lease.is_held and other.confirmed >= one.gone_at for other in self._nodes)
            if having >= majority(len(self._nodes)) and not one.is_asked and not self.ended:
                one.is_asked = True
                self.shared.io.start(functools.partial(self._bring_back, one), "grant")

    async def _bring_back(self, node: NodeHold) -> None:
        with contextlib.suppress(Exception):  # it is asked again after the next renewal
            sent = now()
            await node.grant(sent, sent + self._quorum.node_timeout(self.ttl()))

    def stop_renewing(self) -> None:
        self._quorum.watchdog.remove(self)
        for node in self._nodes:
            node.ended = True
            self._quorum.watchdog.remove(node)

    async def release(self) -> bool:
        """Releases it on all nodes: whether the majority still had it."""
        if self.released or self.is_of_another_process:
            return False
        self._quorum.check_open()
        held = self.end()
        end = now() + self._quorum.node_timeout(self.ttl())
        works = {node.name: _release_of(node, self.names, end) for node in self._nodes}
        try:
            tally = await self._quorum.tally(works, lambda tally: tally.has_majority or tally.is_hopeless)
        except BaseException:
            await self._quorum.give_up(self._nodes)
            raise
        if tally.has_majority:
            return held
        if not tally.is_refused:
            error = self._quorum.missed(f"the release of {self.names}", tally, "released", "not held")
            if held:
                self.release_failed(error)
                raise error
        elif held:
            self.found_gone()
        return False

    async def extend(self, ttl: timedelta | None) -> None:
        """Extends it on all nodes. One that has lost it is asked to grant it anew."""
        self._quorum.check_open()
        self.check()
        wanted_ms = self._nodes[0].ttl_ms if ttl is None else ttl_ms(ttl)
        end = now() + self._quorum.node_timeout(timedelta(milliseconds=wanted_ms))
        sent = now()
        works = {node.name: lambda node=node: node.extend(sent, end, wanted_ms) for node in self._nodes}
        tally = await self._quorum.tally(works, lambda tally: tally.has_majority or tally.is_refused)
        self.check()
        if not tally.has_majority:
            raise self._quorum.missed(f"the extension of {self.names}", tally, "extended", "not held")
        for node in self._nodes:
            node.ttl_ms = max(node.ttl_ms, wanted_ms)


def _release_of(node: NodeHold, names: str, end: float) -> Any:
    async def work() -> int:
        return int(await node.release(names, end))

    return work


class QuorumRules:
    """Locks that more than half of several independent servers must grant."""

    def __init__(
        self,
        io: Io,
        nodes: Sequence[LocksRules],
        watchdog: Watchdog,
        *,
        node_timeout: timedelta | None,
        drift_factor: float,
        fail_fast: bool,
        poll: Strategy,
        hooks: Hooks | None,
    ) -> None:
        self.io = io
        self.watchdog = watchdog
        self.hooks = hooks or Hooks()
        names = node_names([node.shared.servers.name for node in nodes])
        self._nodes = dict(zip(names, nodes, strict=True))
        if not nodes:
            raise ValueError("a quorum needs servers")
        self._chosen_timeout = node_timeout
        self._drift = Drift(drift_factor, LEAST_DRIFT)
        self._fail_fast = fail_fast
        self._poll = poll

    def node_timeout(self, ttl: timedelta) -> float:
        return node_timeout(self._chosen_timeout, ttl)

    def check_open(self) -> None:
        self._first.shared.check_open()

    @property
    def _first(self) -> LocksRules:
        """Its acquisitions under way are those of the quorum."""
        return next(iter(self._nodes.values()))

    async def acquire(self, wanted: Wanted, *, once: bool) -> QuorumHold | None:
        began, shared = now(), self._first.shared
        wait = wanted.options.wait
        end = math.inf if wait is None else began + wait.total_seconds()
        pauses = iter(()) if once or wait == timedelta(0) else self._poll.pauses()
        under_way = object()
        nodes: list[NodeHold] = []
        hold: QuorumHold | None = None

        def ended(problem: BaseException | None) -> None:
            shared.end(under_way)
            duration = timedelta(seconds=now() - began)
            self.hooks.tell("waited", wanted.label, duration, outcome_of(hold is not None, problem))

        try:
            shared.begin(under_way)
            while hold is None:
                nodes = self._node_holds(wanted, wanted.new_token())
                tally, hold = await self._attempt(wanted, nodes)
                pause = None if hold is not None else next(pauses, None)
                if pause is None or now() + pause >= end:
                    break
                await shared.pause(pause)
            if hold is None:
                error = self.missed(f"the lock {wanted.names}", tally, "granted", "refused")
                if tally.errors and not tally.is_refused:
                    raise error
                if not once:
                    raise TimedOutError(f"{wanted.names}: the lock is not free") from error
            ended(None)
            return hold
        except BaseException as error:
            try:
                # Ctrl-C can come after the grant too, also in the hook. Nobody would have the hold then.
                if hold is not None:
                    hold.end()
                    hold = None
                if not isinstance(error, Exception):
                    await self.give_up(nodes)
            finally:
                ended(error)  # Ctrl-C can come once more; `close` waits until this has ended
            raise

    async def adopt(self, wanted: Wanted) -> QuorumHold:
        """The hold that another process took with the token of `wanted`, where a majority has it."""
        self.check_open()
        nodes = self._node_holds(wanted, wanted.new_token())
        end = now() + self.node_timeout(wanted.options.ttl)

        sent = now()
        works = {node.name: lambda node=node: node.refresh(sent, end) for node in nodes}
        tally = await self.tally(works, lambda tally: False)
        if tally.has_majority:
            return QuorumHold(self, wanted, nodes[0].token, nodes)
        if tally.is_refused:
            raise NotHeldError(f"the token does not hold {wanted.names}")
        raise self.missed(f"the adoption of {wanted.names}", tally, "held", "not held")

    async def release(self, keys: Key | Sequence[Key], token: Token, ttl: timedelta) -> int:
        """Releases what the token holds on all nodes: how many nodes released something."""
        self.check_open()
        names, end = keys_of(keys), now() + self.node_timeout(ttl)
        commands = _commands.release_in_any_mode(names, token)

        def work(node: LocksRules) -> Any:
            async def release() -> int:
                answers = await node.shared.ask(names[0], *commands, end=end)
                return sum(answer for answer in answers if isinstance(answer, int))

            return release

        works = {name: work(node) for name, node in self._nodes.items()}
        return (await self.tally(works, lambda tally: False)).given

    async def close(self, *, synchronous: bool) -> None:
        self.watchdog.close()
        for node in self._nodes.values():
            await node.close(synchronous=synchronous)

    async def tally(self, works: Mapping[str, Any], is_certain: Callable[[Tally], bool]) -> Tally:
        """What the nodes answer, until the outcome is certain.

        They are asked at the same time, in any order.
        """
        tally = Tally(list(works))
        names = random.sample(list(works), len(works))
        answered = 0
        async for number, answer in self.io.each([works[name] for name in names]):
            tally.add(names[number], answer)
            answered += 1
            if answered == len(names) or is_certain(tally):
                break
        return tally

    async def give_up(self, nodes: Sequence[NodeHold]) -> None:
        """Leaves nothing at the nodes. Those that do not answer are asked in the background."""
        for node in nodes:
            node.ended = True
        works = {node.name: node.give_up_or_release for node in nodes}
        await self.tally(works, lambda tally: False)

    def missed(self, what: str, tally: Tally, yes: str, no: str) -> QuorumMissedError:
        return QuorumMissedError(f"{what} has no majority", tally.told(yes, no))

    def _node_holds(self, wanted: Wanted, token: str) -> list[NodeHold]:
        return [NodeHold(name, node, wanted, token, self._drift) for name, node in self._nodes.items()]

    async def _attempt(self, wanted: Wanted, nodes: Sequence[NodeHold]) -> tuple[Tally, QuorumHold | None]:
        """A node that is not waited for any more may still grant: then it belongs to the hold, or is
        released.
        """
        sent = now()
        end = sent + self.node_timeout(wanted.options.ttl)

        def work(node: NodeHold) -> Any:
            async def ask() -> int:
                await node.shared.check_permission(wanted, end)
                return await node.grant(sent, end)

            return ask

        def is_certain(tally: Tally) -> bool:
            return tally.has_majority or (self._fail_fast and tally.is_hopeless)

        tally = await self.tally({node.name: work(node) for node in nodes}, is_certain)
        if tally.has_majority:
            first = self._drift.valid_until(sent, wanted.options.ttl_ms)
            if now() < first:
                return tally, QuorumHold(self, wanted, nodes[0].token, nodes)
        await self.give_up(nodes)
        for error in tally.errors:
            told = error_of(error, wanted.names)
            if tally.is_hopeless and not is_temporary(error) and told is not error:
                raise told
        return tally, None
