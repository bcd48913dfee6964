"""The parts without I/O."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

import slock_client
from slock_client import _answers, polling
from slock_client._durations import ms_left, whole_ms
from slock_client._endpoint import endpoint_with
from slock_client._lease import Drift, Lease, Told, is_prompt, majority, majority_until
from slock_client._slots import hash_tag
from slock_client._sync import _quorum
from slock_client._sync._shared import retry_pauses
from slock_client._sync._watchdog import Watchdog
from slock_client.asyncio._connection import Connection, Question
from slock_client.asyncio._listener import Listener


class Hold:
    """What a watchdog needs of a hold."""

    def __init__(self, renew_at: float, valid_until: float, ttl_ms: int = 3000) -> None:
        self.ttl_ms = ttl_ms
        self.renew_at, self.valid_until, self.ended = renew_at, valid_until, False

    def expire(self) -> None:
        self.ended = True


def watchdog_of(*holds: Hold) -> Any:
    """One whose thread does not run: the tests call what it would call."""
    watchdog: Any = Watchdog()
    watchdog._runs = True
    for hold in holds:
        watchdog.add(hold)
    return watchdog


def test_the_watchdog_tells_what_is_due_and_what_is_over() -> None:
    early, late, over = Hold(1.0, 10.0), Hold(5.0, 10.0), Hold(9.0, 0.5)
    watchdog = watchdog_of(late, over, early)
    assert watchdog.next_time() == 0.5
    assert watchdog.take(0.4) == ([], [])
    assert watchdog.take(1.0) == ([over], [early])
    assert len(watchdog._entries) == 2
    assert watchdog.take(1.9) == ([], []), "its renewal is under way"
    early.renew_at = 1.5
    watchdog.add(early)
    assert watchdog.next_time() == 1.5
    assert watchdog.take(1.9) == ([], [early])
    assert watchdog.take(2.9) == ([], [early]), "whatever became of the renewal"
    assert {id(hold) for hold in watchdog.take(10.0)[0]} == {id(early), id(late)}


def test_a_short_hold_is_renewed_once_in_a_third_of_its_ttl() -> None:
    watchdog = watchdog_of(short := Hold(1.0, 10.0, ttl_ms=30))
    assert watchdog.take(1.0) == ([], [short])
    assert watchdog.take(1.0) == ([], []), "at once again: it would renew and renew, and do nothing else"
    assert watchdog.take(1.01) == ([], [short])


def test_the_watchdog_forgets_what_is_removed_or_has_ended() -> None:
    holds = [Hold(1.0, 10.0) for _ in range(1000)]
    watchdog = watchdog_of(*holds)
    for hold in holds[1:]:
        watchdog.remove(hold)
    assert len(watchdog._entries) == 1 and len(watchdog._heap) < 200
    holds[0].ended = True
    assert watchdog.take(5.0) == ([], [])
    assert not len(watchdog._entries) and watchdog.next_time() == math.inf


def test_pauses_after_an_error_double_up_to_a_second() -> None:
    pauses = list(itertools.islice(retry_pauses(), 12))
    for number, pause in enumerate(pauses):
        most = min(0.01 * 2**number, 1.0)
        assert most / 2 <= pause <= most


def test_strategies_of_polling() -> None:
    second = timedelta(seconds=1)
    assert list(polling.Once().pauses()) == []
    assert list(polling.Constant(second).limit(3).pauses()) == [1.0, 1.0, 1.0]
    pauses = list(polling.Exponential(second / 10, second).limit(6).pauses())
    for pause, most in zip(pauses, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert most / 2 <= pause <= most
    with pytest.raises(ValueError, match="above zero"):
        polling.Constant(timedelta(0))


def test_durations_are_never_bare_numbers() -> None:
    assert whole_ms(timedelta(microseconds=1)) == 1
    assert ms_left(10.0, 10.5) == 1  # the server takes 0 for no limit
    locks = slock_client.Locks(redis.Redis())
    with pytest.raises(TypeError, match="ttl must be a timedelta"):
        locks.write("job", ttl=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ttl must be above zero"):
        locks.write("job", ttl=timedelta(0))
    with pytest.raises(ValueError, match="limit is for reading"):
        locks.write("job", limit=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="named twice"):
        locks.read("job", "job")


def test_validity_is_counted_from_before_the_request() -> None:
    assert Drift().valid_until(100.0, 3000) == pytest.approx(102.996)
    assert is_prompt(100.0, 101.0, 3000)
    assert not is_prompt(100.0, 101.1, 3000)


def test_an_answer_counts_for_the_fence_that_it_names() -> None:
    lease = Lease("read", Drift())
    lease.granted(7, "read", 100.0, 10_000)
    assert lease.extended(6, 101.0, 10_000, 0) is Told.NOTHING
    lease.changing = True
    assert lease.extended(7, 101.0, 10_000, 0) is Told.NOTHING
    assert lease.extended(7, 101.0, 10_000, 1) is Told.HELD
    assert lease.valid_until == pytest.approx(110.989)
    lease.changing = False
    lease.granted(8, "write", 102.0, 10_000)
    assert lease.extended(7, 109.0, 10_000, 1) is Told.NOTHING
    assert lease.extended(8, 90.0, 10_000, 1) is Told.HELD
    assert lease.valid_until == pytest.approx(111.989), "an older answer shortens nothing"
    assert lease.extended(8, 103.0, 10_000, 0) is Told.GONE
    assert lease.valid_until == float("-inf")


def test_what_errors_mean() -> None:
    assert _answers.is_temporary(redis.ResponseError("UNBLOCKED the server became a replica"))
    assert _answers.is_temporary(redis.ResponseError("GRACE the server has just started"))
    assert _answers.is_temporary(redis.ReadOnlyError("You can't write against a read only replica."))
    assert _answers.is_temporary(redis.ConnectionError("gone"))
    assert not _answers.is_temporary(redis.AuthenticationError("invalid password"))
    assert not _answers.is_temporary(redis.ResponseError("WRONGTYPE it is a string"))
    for code, kind in (
        ("DEADLOCK", slock_client.DeadlockError),
        ("QUEUEFULL", slock_client.QueueFullError),
        ("WRONGMODE", slock_client.WrongModeError),
        ("NOTHELD", slock_client.NotHeldError),
        ("REFUSED", slock_client.RefusedError),
    ):
        error = _answers.error_of(redis.ResponseError(f"{code} because of this"), "job")
        assert type(error) is kind and str(error) == "job: because of this"
    unknown = redis.ResponseError("unknown command 'SLOCK.LOCK', with args beginning with: ")
    assert "loadmodule" in str(_answers.error_of(unknown, "job"))


def test_only_what_was_not_sent_is_sure_not_to_be_executed() -> None:
    async def main() -> list[bool]:
        connection = Connection(endpoint_with(redis.asyncio.Connection, {}))
        sent, waiting = Question([], b"", 0.0), Question([], b"", 0.0)
        connection._sent.append(sent)
        connection._unsent.append(waiting)
        connection.fail(redis.ConnectionError("gone"))
        return [_answers.may_be_executed(one.done.result() or Exception()) for one in (sent, waiting)]

    assert asyncio.run(main()) == [True, False]


class Link:
    """A connection of redis-py whose other side is the test."""

    def __init__(self, **arguments: Any) -> None:
        self.sent: list[list[bytes]] = []
        self.answers: asyncio.Queue[Any] = asyncio.Queue()

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, commands: list[bytes], check_health: bool) -> None:
        self.sent.append(commands)

    async def read_response(self, **how: Any) -> Any:
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Messages:
    """What a connection gives to who listens."""

    def __init__(self, connection: Connection) -> None:
        self.taken: list[Any] = []
        connection.listener = self

    def take(self, message: list[Any]) -> None:
        self.taken.append(message)

    def lost(self) -> None: ...


def linked(work: Callable[[Connection, Link, Messages], Coroutine[Any, Any, None]]) -> None:
    """Does `work` with a connection that is open."""

    async def main() -> None:
        links: list[Link] = []

        def made(**arguments: Any) -> Link:
            links.append(Link())
            return links[-1]

        connection = Connection(endpoint_with(made, {}))
        messages = Messages(connection)
        first = asyncio.create_task(connection.ask([("PING",)], math.inf))
        while not links or not links[0].sent:
            await asyncio.sleep(0)
        links[0].answers.put_nowait(b"PONG")
        assert await first == [b"PONG"]
        links[0].sent.clear()
        await work(connection, links[0], messages)
        await connection.close()

    asyncio.run(asyncio.wait_for(main(), 20))


LEFT = [b"sunsubscribe", b"channel", 0]


@pytest.mark.parametrize("answer", [LEFT, redis.ResponseError("BUSY a script runs")])
def test_the_answer_to_an_unsubscription_is_not_that_of_another_command(answer: object) -> None:
    async def work(connection: Connection, link: Link, messages: Messages) -> None:
        connection.tell(("SUNSUBSCRIBE", b"channel"))
        asked = asyncio.create_task(connection.ask([("SLOCK.LOCK",)], math.inf))
        while sum(map(len, link.sent)) < 2:
            await asyncio.sleep(0)
        link.answers.put_nowait(answer)
        link.answers.put_nowait(LEFT)  # a slot moves: nobody has asked for this one
        link.answers.put_nowait([b"smessage", b"channel", b"5 1"])
        link.answers.put_nowait(7)
        assert await asked == [7]
        assert messages.taken == [LEFT, [b"smessage", b"channel", b"5 1"]]

    linked(work)


PUSHED: list[list[Any]] = [
    [b"invalidate", [b"job"]],
    [b"invalidate", None],
    [b"message", b"channel", b"text"],
    [b"pmessage", b"*", b"channel", b"text"],
    [b"sunsubscribe", b"other", 0],
    [b"MOVING", 1, 15],
    [b"news"],
]


@pytest.mark.parametrize("message", PUSHED)
def test_a_message_of_another_kind_is_no_answer(message: list[Any]) -> None:
    async def work(connection: Connection, link: Link, messages: Messages) -> None:
        asked: dict[tuple[str, ...], Any] = {
            ("SLOCK.LOCK", "job"): 7,
            ("SLOCK.INFO", "job"): {b"mode": b"free"},
            ("SLOCK.QUEUES",): [{b"key": b"job"}],
            ("CLUSTER", "SLOTS"): [[0, 16383, [b"host", 1]]],
            ("SSUBSCRIBE", "channel"): [b"ssubscribe", b"channel", 1],
            ("SUNSUBSCRIBE", "channel"): LEFT,
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"): [b"host", b"1"],
        }
        link.answers.put_nowait(message)  # nothing is asked
        for words, answer in asked.items():
            command = tuple(word.encode() if word == "channel" else word for word in words)
            task = asyncio.create_task(connection.ask([command, command], math.inf))
            while not link.sent:
                await asyncio.sleep(0)
            link.sent.clear()
            if command[0] != "SENTINEL":  # which pushes nothing
                link.answers.put_nowait(message)
            link.answers.put_nowait(answer)
            link.answers.put_nowait(answer)
            assert await task == [answer, answer]
        assert messages.taken == [message] * len(asked)
        Listener(connection, lambda subscription: None).take(message)

    linked(work)


def test_tasks_that_are_answered_together_ask_together() -> None:
    async def work(connection: Connection, link: Link, messages: Messages) -> None:
        async def task() -> None:
            await connection.ask([("FIRST",)], math.inf)
            await connection.ask([("SECOND",)], math.inf)

        tasks = [asyncio.create_task(task()) for _ in range(16)]
        while sum(map(len, link.sent)) < 16:
            await asyncio.sleep(0)
        link.sent.clear()
        for number in range(16):
            link.answers.put_nowait(number)
        while sum(map(len, link.sent)) < 16:
            await asyncio.sleep(0)
        assert len(link.sent) <= 3, "the first goes at once, the others together"
        for number in range(16):
            link.answers.put_nowait(number)
        await asyncio.gather(*tasks)

    linked(work)


def test_what_tasks_ask_is_sent_also_when_the_last_asks_nothing() -> None:
    async def work(connection: Connection, link: Link, messages: Messages) -> None:
        async def task(number: int) -> None:
            await connection.ask([("FIRST",)], math.inf)
            if number < 3:
                await connection.ask([("SECOND",)], math.inf)

        tasks = [asyncio.create_task(task(number)) for number in range(4)]
        while sum(map(len, link.sent)) < 4:
            await asyncio.sleep(0)
        for number in range(4):
            link.answers.put_nowait(number)
        while sum(map(len, link.sent)) < 7:
            await asyncio.sleep(0)
        for number in range(3):
            link.answers.put_nowait(number)
        await asyncio.gather(*tasks)

    linked(work)


@pytest.mark.parametrize("key", ["job", "{job}:1", "a}b", "{}x", "a{b", "x{}y}", ""])
def test_a_hash_tag_leads_to_the_slot_of_the_key(key: str) -> None:
    assert key_slot(b"{" + hash_tag(key) + b"}.waits:1") == key_slot(key.encode())


def test_the_arithmetic_of_a_quorum() -> None:
    assert [majority(nodes) for nodes in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert Drift(0.01, 0.002).valid_until(100.0, 10_000) == pytest.approx(109.898)
    assert majority_until([1.0, 5.0, 2.0, 4.0, 3.0]) == 3.0
    quorum = slock_client.Quorum([redis.Redis()])
    assert quorum._timeout(10_000) == pytest.approx(0.5)
    assert quorum._timeout(300) == pytest.approx(0.05)
    patient = slock_client.Quorum([redis.Redis()], node_timeout=timedelta(seconds=20))
    assert patient._timeout(10_000) < 10


def test_a_tally_tells_refused_from_missed() -> None:
    tally = _quorum.Tally(["a", "b", "c", "d", "e"])
    for node, answer in (("a", 5), ("b", 0), ("c", redis.ConnectionError("down"))):
        tally.add(node, answer)
    assert not tally.is_hopeless and not tally.has_majority
    tally.add("d", 0)
    assert tally.is_hopeless and not tally.is_refused
    tally.add("e", 0)
    assert tally.is_refused
    assert tally.missed("the lock", "granted", "refused").answers == {
        "a": "granted",
        "b": "refused",
        "c": "down",
        "d": "refused",
        "e": "refused",
    }
