"""A quorum is N `Locks` and arithmetic: majority, drift, validity, release everywhere."""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import redis.asyncio
import redis.exceptions as base

from slock_client import _answers, _commands
from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import WRITE, Command, Key
from slock_client._durations import positive, seconds_of
from slock_client._lease import Drift, Told, majority
from slock_client._options import HoldOptions, ReadOptions, Wanted, keys_of
from slock_client.asyncio import _tasks as io
from slock_client.asyncio._give_up import CALLER_WAITS
from slock_client.asyncio._hold import AnyHold, Held
from slock_client.asyncio._locks import Locks
from slock_client.asyncio._request import Acquirer
from slock_client.asyncio._servers import ask
from slock_client.asyncio._watchdog import Watchdog
from slock_client.errors import NotHeldError, QuorumMissedError, TimedOutError
from slock_client.hooks import Hooks
from slock_client.polling import Exponential, Strategy

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_DRIFT_FACTOR = 0.01
DEFAULT_POLL = Exponential(timedelta(milliseconds=20), timedelta(milliseconds=250))

# What a clock may drift whatever the ttl, in seconds.
LEAST_DRIFT = 0.002

LEAST_NODE_TIMEOUT = timedelta(milliseconds=50)
NODE_TIMEOUT_PART = 20

# A renewal begins after a third of the ttl. A node may take as long again, so that there is time for another.
MOST_OF_TTL = 3


class Tally:
    """What the nodes have answered to one question: a number above zero, 0, or an error."""

    def __init__(self, nodes: Iterable[str]) -> None:
        self._answers: dict[str, object] = dict.fromkeys(nodes)
        self._majority = majority(len(self._answers))

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

    def missed(self, what: str, yes: str, no: str) -> QuorumMissedError:
        """The error that says what each node answered."""

        def words(answer: object) -> str:
            if answer is None:
                return "not waited for"
            if isinstance(answer, BaseException):
                return str(answer) or type(answer).__name__
            return yes if answer else no

        told = {node: words(answer) for node, answer in self._answers.items()}
        return QuorumMissedError(f"{what} has no majority", told)


class NodeHold(Held):
    """What the token of a quorum's hold has at one node. When it is gone, the node is asked for it anew."""

    def __init__(self, name: str, node: Locks, wanted: Wanted, token: str, drift: Drift) -> None:
        super().__init__(node._shared, wanted, token, drift)
        self.name = name
        self.confirmed = -math.inf
        """When the last command was sent to which the node said that it has the hold."""
        self.gone_at = -math.inf
        """When the last command was sent to which the node did not say so."""
        self.is_asked = False
        """Whether the node is being asked for the hold."""
        self._unanswered = False
        """Whether a command that gives a hold had no answer."""

    async def grant(self, sent: float, end: float) -> Answer:
        """Asks for the hold: its fence, 0, or an error. `sent` is a moment before."""
        self.is_asked = True
        try:
            await self.shared.check_permission(self.wanted, end)
            if self.ended:
                return 0
            return await self._get(_commands.acquire(self.wanted, self.token), sent, end)
        finally:
            self.is_asked = False

    async def refresh(self, sent: float, end: float) -> Answer:
        """The fence of a hold that another process took; 0 when there is none; or an error."""
        command = _commands.refresh(self.keys, self.wanted.mode, self.token, self.ttl_ms)
        return await self._get(command, sent, end)

    async def extend(self, sent: float, end: float, ttl: int) -> Answer:
        """1 when the node has the hold, for at least `ttl` from `sent` on; 0 when it is gone."""
        if not self.lease.is_held:
            return 0
        command, take = self.renewal(ttl)
        answer = await self._answer(command, end)
        take(sent, answer)
        return answer

    async def _get(self, command: Command, sent: float, end: float) -> Answer:
        """The fence that a command gave, 0, or an error."""
        self.lease.in_doubt = True  # until it is answered, for who gives up meanwhile
        answer = await self._answer(command, end, gives=True)
        self.lease.in_doubt = self._unanswered
        if isinstance(answer, int) and answer:
            self.granted(answer, self.wanted.mode, sent, self.ttl_ms)
        elif isinstance(answer, BaseException) and self.owner is not None:
            self.owner._renewal_failed(answer)
        self.told(Told.HELD if self.lease.is_held else Told.GONE, sent)
        if self.ended and (self.owner is None or not self.owner._handed_over):  # nobody waits for it any more
            io.start(functools.partial(self.give_up, CALLER_WAITS), "giving up", limited=True)
        return answer

    async def _answer(self, command: Command, end: float, *, gives: bool = False) -> Answer:
        """The answer, or an error. A connection may have ended while it was idle: then it is sent again."""
        answer: Answer = None
        for _ in range(2):
            try:
                [answer] = await ask(self.shared.servers, self.key, command, end=end)
            except Exception as error:
                answer = error
            if not isinstance(answer, BaseException):
                break
            self._unanswered = self._unanswered or (gives and _answers.may_be_executed(answer))
            if isinstance(answer, base.TimeoutError) or not _answers.is_lost_connection(answer) or self.ended:
                break
        return answer

    def told(self, told: Told, sent: float) -> None:
        if told is Told.HELD:
            self.confirmed = sent
        elif told is Told.GONE:
            self.renew_at, self.gone_at = math.inf, sent
        super().told(told, sent)


class QuorumHold(AnyHold):
    """A lock that is held on the majority of the servers. `Quorum` makes it; `release` ends it."""

    def __init__(self, quorum: Quorum, wanted: Wanted, nodes: Sequence[NodeHold]) -> None:
        self._quorum = quorum
        self._nodes = nodes
        super().__init__(wanted, nodes)

    @property
    def fences(self) -> dict[str, int]:
        """The fence of each node that granted it, by address. Those of different nodes cannot be compared."""
        return {node.name: node.lease.fence or 0 for node in self._nodes if node.lease.is_held}

    async def _release(self, held: bool) -> bool:
        end = now() + self._quorum._timeout(self._helds[0].ttl_ms)
        try:
            tally = await _tally(
                self._nodes,
                lambda node: node.release(end),
                lambda tally: tally.has_majority or tally.is_hopeless,
            )
        except BaseException:
            await _give_up(self._nodes)
            raise
        if not tally.has_majority and not tally.is_refused:
            raise tally.missed(f"the release of {self._wanted.names}", "released", "not held")
        return tally.has_majority

    async def _extend(self, ttl_ms: int) -> None:
        sent = now()
        end = sent + self._quorum._timeout(ttl_ms)
        tally = await _tally(
            self._nodes,
            lambda node: node.extend(sent, end, ttl_ms),
            lambda tally: tally.has_majority or tally.is_refused,
        )
        self.check()
        if not tally.has_majority:
            raise tally.missed(f"the extension of {self._wanted.names}", "extended", "not held")

    def _told(self, held: Held, told: Told) -> None:
        """One that has lost it is asked to grant it anew, once a majority is known to have had it since
        then.
        """
        super()._told(held, told)
        self._look_again()
        for one in self._nodes:
            having = sum(other.lease.is_held and other.confirmed >= one.gone_at for other in self._nodes)
            is_known = having >= majority(len(self._nodes))
            if is_known and not (one.lease.is_held or one.is_asked or self._ended):
                one.is_asked = True
                io.start(functools.partial(self._bring_back, one), "grant")

    async def _bring_back(self, node: NodeHold) -> None:
        with contextlib.suppress(Exception):  # it is asked again after the next renewal
            sent = now()
            await node.grant(sent, sent + self._quorum._timeout(self._helds[0].ttl_ms))


class Quorum(Acquirer[QuorumHold]):
    """Makes requests for locks that more than half of several independent servers must grant.

    It stays usable while a minority of them is away. There is no one fence: where the lock protects something
    that can compare fences, one server with replicas is the better choice.

    `clients`: one of redis-py for each server. `node_timeout`: how long a node may take for an answer;
    without one a twentieth of the ttl, from 50 ms to 3 s; never more than a third of the ttl. `drift_factor`:
    which part of the ttl the clocks may drift. `fail_fast`: an attempt ends as soon as the majority cannot
    be reached. `poll`: how it asks again when it is refused. All options of `read` are the defaults of
    requests, but `min_replicas` and `replica_timeout`, which a quorum does not have.

    A node is named by its address; behind Sentinels by the name of the service. Nodes of one name also have
    their number in `clients`: `main (2)`.
    """

    def __init__(
        self,
        clients: Sequence[redis.asyncio.Redis],
        *,
        node_timeout: timedelta | None = None,
        drift_factor: float = DEFAULT_DRIFT_FACTOR,
        fail_fast: bool = False,
        poll: Strategy = DEFAULT_POLL,
        hooks: Hooks | None = None,
        **options: Unpack[ReadOptions],
    ) -> None:
        _refuse(options)
        if not clients:
            raise ValueError("a quorum needs servers")
        if node_timeout is not None:
            positive("node_timeout", node_timeout)
        self._node_timeout = node_timeout
        self._drift = Drift(drift_factor, LEAST_DRIFT)
        self._fail_fast = fail_fast
        self._poll = poll
        self._watchdog = Watchdog()
        nodes = [Locks(client, hooks=hooks) for client in clients]
        names = [node._shared.servers.name for node in nodes]
        self._nodes: dict[str, Locks] = {}
        for number, (name, node) in enumerate(zip(names, nodes, strict=True), 1):
            node._shared.watchdog = self._watchdog
            self._nodes[f"{name} ({number})" if names.count(name) > 1 else name] = node
        # Its acquisitions under way are those of the first node.
        super().__init__(nodes[0]._shared, options)

    async def adopt(
        self, keys: Key | Sequence[Key], token: str, mode: str, **options: Unpack[HoldOptions]
    ) -> QuorumHold:
        """The hold that another process took with `token` and handed over. It is renewed from now on.

        `NotHeldError` when the majority says that the token holds nothing, `QuorumMissedError` when too many
        nodes did not answer.
        """
        wanted = self._wanted(keys_of(keys), mode, {**options, "token": token})
        self._shared.check_open()
        nodes = self._node_holds(wanted)
        sent = now()
        end = sent + self._timeout(wanted.options.ttl_ms)
        tally = await _tally(nodes, lambda node: node.refresh(sent, end), lambda tally: False)
        if tally.has_majority:
            return QuorumHold(self, wanted, nodes)
        if tally.is_refused:
            raise NotHeldError(f"the token does not hold {wanted.names}")
        raise tally.missed(f"the adoption of {wanted.names}", "held", "not held")

    async def release(self, keys: Key | Sequence[Key], token: str) -> int:
        """Releases what `token` holds on all nodes, in whichever mode: how many nodes released something.

        It waits for all nodes, for each at most the `node_timeout`. One that does not answer in time is not
        counted.
        """
        self._shared.check_open()
        nodes = self._node_holds(self._wanted(keys_of(keys), WRITE, {"token": token}))
        end = now() + self._timeout(self._writing.ttl_ms)

        async def release(node: NodeHold) -> int:
            command = _commands.release_in_any_mode(node.keys, token)
            [answer] = await ask(node.shared.servers, node.key, command, end=end)
            return answer if isinstance(answer, int) else 0

        return (await _tally(nodes, release, lambda tally: False)).given

    async def close(self) -> None:
        self._watchdog.close()
        for node in self._nodes.values():
            await node.close()

    def _attempt(self, wanted: Wanted, once: bool) -> _NewQuorumHold:
        return _NewQuorumHold(self, wanted, once)

    def _wanted(self, keys: tuple[Key, ...], mode: str, options: Any) -> Wanted:
        _refuse(options)
        return super()._wanted(keys, mode, options)

    def _node_holds(self, wanted: Wanted) -> list[NodeHold]:
        token = wanted.new_token()
        return [NodeHold(name, node, wanted, token, self._drift) for name, node in self._nodes.items()]

    def _timeout(self, ttl_ms: int) -> float:
        """How long a node may take for its answer, in seconds: at most a third of the ttl."""
        ttl = timedelta(milliseconds=ttl_ms)
        long = timedelta(seconds=self._shared.retry_for)
        timeout = self._node_timeout or min(max(ttl / NODE_TIMEOUT_PART, LEAST_NODE_TIMEOUT), long)
        return min(timeout, ttl / MOST_OF_TTL).total_seconds()


class _NewQuorumHold:
    """The acquisition of a new hold: attempts with a token each, with pauses in between."""

    def __init__(self, quorum: Quorum, wanted: Wanted, once: bool) -> None:
        self._quorum, self._wanted, self._once = quorum, wanted, once
        self._nodes: list[NodeHold] = []

    async def hold(self) -> QuorumHold | None:
        quorum, wanted = self._quorum, self._wanted
        wait = seconds_of("wait", wanted.options.wait)
        began = now()
        end, outage_end = began + wait, began + quorum._shared.retry_for
        pauses = iter(()) if self._once or wait == 0 else quorum._poll.pauses()
        while True:
            tally, hold = await self._attempt()
            if hold is not None:
                return hold
            if tally.is_refused:
                outage_end = now() + quorum._shared.retry_wait_for
            pause = next(pauses, None)
            if pause is None or now() + pause >= end or now() >= outage_end:
                break
            await quorum._shared.pause(pause)
        error = tally.missed(f"the lock {wanted.names}", "granted", "refused")
        if tally.errors and not tally.is_refused:
            raise error
        if not self._once:
            raise TimedOutError(f"{wanted.names}: the lock is not free") from error
        return None

    async def _attempt(self) -> tuple[Tally, QuorumHold | None]:
        """A node that is not waited for any more may still grant: then it belongs to the hold, or is
        released.
        """
        quorum, wanted = self._quorum, self._wanted
        self._nodes = quorum._node_holds(wanted)
        sent = now()
        end = sent + quorum._timeout(wanted.options.ttl_ms)
        tally = await _tally(
            self._nodes,
            lambda node: node.grant(sent, end),
            lambda tally: tally.has_majority or (quorum._fail_fast and tally.is_hopeless),
        )
        if tally.has_majority and now() < quorum._drift.valid_until(sent, wanted.options.ttl_ms):
            return tally, QuorumHold(quorum, wanted, self._nodes)
        await _give_up(self._nodes)
        self._nodes = []
        for error in tally.errors:
            told = _answers.error_of(error, wanted.names)
            if tally.is_hopeless and not _answers.is_temporary(error) and told is not error:
                raise told
        return tally, None

    async def give_up(self, error: BaseException | None) -> None:
        await _give_up(self._nodes)


async def _tally(
    nodes: Sequence[NodeHold], ask: Callable[[NodeHold], Any], is_certain: Callable[[Tally], bool]
) -> Tally:
    """What the nodes answer, until the outcome is certain. They are asked at the same time, in any order."""
    tally = Tally(node.name for node in nodes)
    shuffled = random.sample(nodes, len(nodes))
    async for number, answer in io.each([functools.partial(ask, node) for node in shuffled]):
        tally.add(shuffled[number].name, answer)
        if is_certain(tally):
            break
    return tally


async def _give_up(nodes: Sequence[NodeHold]) -> None:
    """The quorum missed its majority, or was given up: leaves nothing at the nodes. Those that do not answer
    are asked in the background.
    """
    for node in nodes:
        node.ended = True
    async for _ in io.each([functools.partial(node.give_up, CALLER_WAITS) for node in nodes]):
        pass


def _refuse(options: Mapping[str, Any]) -> None:
    """Raises `TypeError` for options that a quorum does not have."""
    for name in ("waiting", "min_replicas", "replica_timeout"):
        if name in options:
            polls = ": it polls, as `poll` says" if name == "waiting" else ""
            raise TypeError(f"a quorum has no option `{name}`{polls}")
