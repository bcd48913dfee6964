"""The parts without I/O."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
import redis
from redis.crc import key_slot

import slock
from slock import _answers, _quorum, _validity, polling
from slock._pauses import retry_pauses
from slock._schedule import LEAST_BATCH_TIME, Schedule
from slock._slots import hash_tag, redirection
from slock._time import ms_left, whole_ms


class Hold:
    """What a schedule needs of a hold."""

    def __init__(self, renew_at: float, valid_until: float) -> None:
        self.ttl_seconds = 3.0
        self.renew_at, self.valid_until, self.ended = renew_at, valid_until, False

    def expire(self) -> None:
        self.ended = True


def test_the_schedule_tells_what_is_due_and_what_is_over() -> None:
    schedule: Schedule[Hold] = Schedule()
    early, late, over = Hold(1.0, 10.0), Hold(5.0, 10.0), Hold(9.0, 0.5)
    for hold in (late, over, early):
        schedule.put(hold)
    assert schedule.next_time() == 0.5
    assert schedule.take(0.4) == ([], [])
    assert schedule.take(1.0) == ([over], [early])
    assert over not in schedule and early in schedule
    early.renew_at = 2.0
    schedule.put(early)
    assert schedule.next_time() == 2.0


def test_the_schedule_forgets_what_is_removed_or_has_ended() -> None:
    schedule: Schedule[Hold] = Schedule()
    holds = [Hold(1.0, 10.0) for _ in range(1000)]
    for hold in holds:
        schedule.put(hold)
    for hold in holds[1:]:
        schedule.remove(hold)
    assert len(schedule) == 1 and len(schedule._heap) < 200
    holds[0].ended = True
    assert schedule.take(5.0) == ([], [])
    assert not schedule and schedule.next_time() is None


def test_a_batch_ends_when_a_hold_may_be_over_and_has_some_time_always() -> None:
    schedule: Schedule[Hold] = Schedule()
    due = Hold(1.0, 100.0)
    schedule.put(due)
    assert schedule.batch_end([due], 1.0) == pytest.approx(1.0 + 3.0 / 5)
    schedule.put(Hold(2.0, 1.3))
    assert schedule.batch_end([due], 1.0) == pytest.approx(1.3)
    assert schedule.batch_end([due], 1.29) == pytest.approx(1.29 + LEAST_BATCH_TIME)


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
    locks = slock.Locks(redis.Redis())
    with pytest.raises(TypeError, match="ttl must be a timedelta"):
        locks.write("job", ttl=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ttl must be above zero"):
        locks.write("job", ttl=timedelta(0))
    with pytest.raises(ValueError, match="limit is for reading"):
        locks.write("job", limit=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="named twice"):
        locks.read("job", "job")


def test_validity_is_counted_from_before_the_request() -> None:
    assert _validity.valid_until(100.0, 3000) == pytest.approx(102.999)
    assert _validity.is_prompt(100.0, 101.0, 3000)
    assert not _validity.is_prompt(100.0, 101.1, 3000)


def test_what_errors_mean() -> None:
    assert _answers.is_temporary(redis.ResponseError("UNBLOCKED the server became a replica"))
    assert _answers.is_temporary(redis.ResponseError("GRACE the server has just started"))
    assert _answers.is_temporary(redis.ReadOnlyError("You can't write against a read only replica."))
    assert _answers.is_temporary(redis.ConnectionError("gone"))
    assert not _answers.is_temporary(redis.AuthenticationError("invalid password"))
    assert not _answers.is_temporary(redis.ResponseError("WRONGTYPE it is a string"))
    for code, kind in (
        ("DEADLOCK", slock.Deadlock),
        ("QUEUEFULL", slock.QueueFull),
        ("WRONGMODE", slock.WrongMode),
        ("NOTHELD", slock.NotHeld),
    ):
        error = _answers.error_of(redis.ResponseError(f"{code} because of this"))
        assert type(error) is kind and str(error) == "because of this"
    unknown = redis.ResponseError("unknown command 'SLOCK.LOCK', with args beginning with: ")
    assert "loadmodule" in str(_answers.error_of(unknown))


@pytest.mark.parametrize("key", ["job", "{job}:1", "a}b", "{}x", "a{b", "x{}y}", ""])
def test_a_hash_tag_leads_to_the_slot_of_the_key(key: str) -> None:
    assert key_slot(b"{" + hash_tag(key) + b"}.waits:1") == key_slot(key.encode())


def test_redirections_of_both_spellings() -> None:
    whole = redirection(redis.ResponseError("MOVED 7 10.0.0.1:6379"), ("asked", 1))
    short = redirection(redis.exceptions.AskError("7 :6380"), ("asked", 1))
    assert whole is not None and whole == ("MOVED", 7, "10.0.0.1", 6379)
    assert short is not None and short == ("ASK", 7, "asked", 6380)
    assert redirection(redis.ResponseError("WRONGTYPE no"), ("asked", 1)) is None


def test_the_arithmetic_of_a_quorum() -> None:
    assert [_quorum.majority(nodes) for nodes in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]
    assert _quorum.valid_until(100.0, 10_000, 0.01) == pytest.approx(109.898)
    ten = timedelta(seconds=10)
    assert _quorum.node_timeout(None, ten) == pytest.approx(0.5)
    assert _quorum.node_timeout(None, timedelta(milliseconds=300)) == pytest.approx(0.05)
    assert _quorum.node_timeout(timedelta(seconds=20), ten) < 10


def test_a_tally_tells_refused_from_missed() -> None:
    tally = _quorum.Tally(["a", "b", "c", "d", "e"])
    for node, answer in (("a", 5), ("b", 0), ("c", redis.ConnectionError("down"))):
        tally.add(node, answer)
    assert not tally.is_hopeless and not tally.has_majority
    tally.add("d", 0)
    assert tally.is_hopeless and not tally.is_refused
    tally.add("e", 0)
    assert tally.is_refused
    assert tally.told("granted", "refused") == {
        "a": "granted",
        "b": "refused",
        "c": "down",
        "d": "refused",
        "e": "refused",
    }
