"""Whatever frees a lock wakes the next one: commands of the module, core commands, deadlines, eviction.

No test measures how long it takes. The old hold lasts an hour, so that nothing but the cause can end it, and
while a waiter waits nobody talks to the server, so that no command can find by chance what a wake-up missed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from harness import RespError, Server, wait_until
from harness.causes import BRIEF, FREEING, HOLDER, KEY, REPLACING, SHARING, Cause
from harness.waiting import HOUR, Line, at_once, wait_unblocked

pytest_plugins = ["harness.cleanup"]


@pytest.fixture(scope="module", params=[10, 1], ids=["hz 10", "hz 1"])
def waking(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(name="waking", hz=request.param, dynamic_hz=False).start()
    yield server
    server.stop()
    server.discard()


@pytest.fixture(autouse=True)
def _clean(waking: Server) -> Iterator[None]:
    waking.client().flushall()
    yield
    waking.check()


@pytest.fixture
def client(waking: Server) -> redis.Redis:
    return waking.client()


def _happens(server: Server, client: redis.Redis, cause: Cause) -> None:
    replies = at_once(server, *cause.commands(client))
    assert not any(isinstance(reply, RespError) for reply in replies), replies


@pytest.mark.parametrize("cause", FREEING, ids=str)
def test_the_next_writer_gets_the_freed_lock(waking: Server, client: redis.Redis, cause: Cause) -> None:
    line = Line(waking)
    cause.hold(client)
    old = line.info().fence
    first, second = line.write("first"), line.write("second")
    _happens(waking, client, cause)
    assert first.fence() > old
    assert second.is_waiting()
    assert (line.holders(), line.queued()) == (["first"], ["second"])
    assert line.release("first") == 1
    assert second.fence()
    wait_unblocked(client)


@pytest.mark.parametrize("cause", FREEING, ids=str)
def test_the_next_readers_get_the_freed_lock_together(
    waking: Server, client: redis.Redis, cause: Cause
) -> None:
    line = Line(waking)
    cause.hold(client)
    old = line.info().fence
    # Behind readers a reader would be let in at once: a writer keeps them in the queue.
    blocker = line.write("blocker")
    readers = [line.read("r1"), line.read("r2"), line.read("r3")]
    writer, late = line.write("writer"), line.read("late")
    _happens(waking, client, cause)
    blocked_for = blocker.fence()
    line.release("blocker")
    fences = [reader.fence() for reader in readers]
    assert [old, blocked_for, *fences] == sorted({old, blocked_for, *fences})
    assert writer.is_waiting() and late.is_waiting()
    assert (line.holders(), line.queued()) == (["r1", "r2", "r3"], ["writer", "late"])
    for reader in readers:
        line.release(reader.token)
    assert writer.fence() and late.is_waiting()
    line.release("writer")
    assert late.fence()


@pytest.mark.parametrize("cause", SHARING, ids=str)
def test_readers_at_the_head_join_a_lock_that_is_now_read(
    waking: Server, client: redis.Redis, cause: Cause
) -> None:
    line = Line(waking)
    cause.hold(client)
    readers = [line.read("r1"), line.read("r2")]
    writer, late = line.write("writer"), line.read("late")
    _happens(waking, client, cause)
    fences = [reader.fence() for reader in readers]
    assert fences == sorted(set(fences))
    assert writer.is_waiting() and late.is_waiting()
    assert line.holders() == sorted(["r1", "r2", *cause.readers_left])
    for token in line.holders():
        line.release(token)
    assert writer.fence() > fences[-1]


@pytest.mark.parametrize("cause", SHARING, ids=str)
def test_a_writer_at_the_head_stays_when_the_lock_is_now_read(
    waking: Server, client: redis.Redis, cause: Cause
) -> None:
    line = Line(waking)
    cause.hold(client)
    writer, reader = line.write("writer"), line.read("reader")
    _happens(waking, client, cause)
    assert line.holders() == sorted(cause.readers_left)
    assert writer.is_waiting() and reader.is_waiting()
    for token in cause.readers_left:
        line.release(token)
    assert writer.fence() and reader.is_waiting()
    line.release("writer")
    assert reader.fence()


@pytest.mark.parametrize("cause", REPLACING, ids=str)
def test_another_type_under_the_name_is_an_error_for_everyone_who_waits(
    waking: Server, client: redis.Redis, cause: Cause
) -> None:
    line = Line(waking)
    cause.hold(client)
    waiting = [line.write("w1"), line.read("r1"), line.read("r2"), line.write("w2")]
    _happens(waking, client, cause)
    for waiter in waiting:
        assert waiter.error().startswith("WRONGTYPE "), waiter
    assert client.type(KEY) in (b"string", b"list")
    client.delete(KEY)
    assert line.info() is None
    wait_unblocked(client)
    assert line.locks.lock(KEY, "new", HOUR)


@pytest.mark.parametrize("how", ["SLOCK.LOCK", "SLOCK.RLOCK"])
def test_a_hold_taken_for_a_short_time_ends_for_who_waits(
    waking: Server, client: redis.Redis, how: str
) -> None:
    """Nothing but the module's own timer can see this deadline."""
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        line = Line(waking)
        client.execute_command(how, KEY, HOLDER, 300)
        assert line.write("waiting").fence()
        client.execute_command(how, "other", HOLDER, 200)
        client.execute_command("PERSIST", "other")
        assert Line(waking, "other").write("waiting").fence()
    finally:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 1)


@pytest.mark.parametrize("cause", [cause for cause in FREEING if "deadline" in cause.name], ids=str)
def test_a_deadline_wakes_without_the_servers_own_expiry(
    waking: Server, client: redis.Redis, cause: Cause
) -> None:
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        line = Line(waking)
        cause.hold(client)
        first, second = line.write("first"), line.write("second")
        _happens(waking, client, cause)
        assert first.fence() and second.is_waiting()
        line.locks.extend(KEY, "first", BRIEF)
        assert second.fence()
    finally:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 1)


def test_a_deadline_that_was_moved_away_wakes_nobody(waking: Server, client: redis.Redis) -> None:
    line = Line(waking)
    client.execute_command("SLOCK.LOCK", KEY, HOLDER, HOUR)
    waiting = line.write("waiting")
    sleep = ("DEBUG", "SLEEP", "0.05")
    extend, shorten = (("SLOCK.EXTEND", KEY, HOLDER, ttl) for ttl in (HOUR, 20))
    for _ in range(5):
        assert at_once(waking, shorten, extend, sleep)[:2] == [1, 1]
    assert line.holders() == [HOLDER] and waiting.is_waiting()
    at_once(waking, extend, shorten)
    assert waiting.fence()


def test_one_readers_deadline_frees_nothing_while_another_reads(waking: Server, client: redis.Redis) -> None:
    line = Line(waking)
    for token in ("brief", HOLDER):
        client.execute_command("SLOCK.RLOCK", KEY, token, HOUR)
    waiting = line.write("waiting")
    at_once(waking, ("SLOCK.EXTEND", KEY, "brief", 10), ("DEBUG", "SLEEP", "0.05"))
    assert line.holders() == [HOLDER] and waiting.is_waiting()
    line.release(HOLDER)
    assert waiting.fence()


def test_many_deadlines_wake_each_its_own_lock(waking: Server, client: redis.Redis) -> None:
    client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 0)
    try:
        lines = [Line(waking, f"k{number}") for number in range(60)]
        for line in lines:
            line.locks.lock(line.key, HOLDER, HOUR)
        waiting = [line.write(f"waits for {line.key}") for line in lines]
        at_once(
            waking, *[("SLOCK.EXTEND", line.key, HOLDER, 1 + 7 * at % 200) for at, line in enumerate(lines)]
        )
        assert all(waiter.fence() for waiter in waiting)
    finally:
        client.execute_command("DEBUG", "SET-ACTIVE-EXPIRE", 1)


def test_swapdb_takes_a_holder_to_who_waits_in_the_other_database(waking: Server) -> None:
    """The queue stays with its database and name; what is held there is another lock now."""
    here, there = Line(waking), Line(waking, database=1)
    here.locks.lock(KEY, "holder here", HOUR)
    there.locks.lock(KEY, "holder there", HOUR)
    first, other = here.write("first"), there.write("other")
    here.client.swapdb(0, 1)
    assert (here.holders(), here.queued()) == (["holder there"], ["first"])
    assert (there.holders(), there.queued()) == (["holder here"], ["other"])
    assert first.is_waiting() and other.is_waiting()
    here.release("holder there")
    assert first.fence() and other.is_waiting()
    there.release("holder here")
    assert other.fence()


@pytest.mark.parametrize("command", [("MOVE", KEY, 1), ("COPY", KEY, "copy", "DB", 1)], ids=["MOVE", "COPY"])
def test_moving_a_lock_does_not_move_the_client_that_asks(waking: Server, command: tuple) -> None:
    line = Line(waking)
    line.locks.lock(KEY, HOLDER, HOUR)
    line.write("waiting")
    replies = at_once(waking, command, ("SET", "text", "a string"), ("CLIENT", "INFO"))
    assert b" db=0 " in replies[2]
    assert line.client.get("text") == b"a string"


def test_a_lock_moved_to_a_name_that_is_waited_for_keeps_them_waiting(waking: Server) -> None:
    line = Line(waking)
    line.locks.lock(KEY, HOLDER, HOUR)
    line.locks.lock("new", "new holder", HOUR)
    waiting = line.write("waiting")
    line.client.rename("new", KEY)
    assert line.holders() == ["new holder"] and waiting.is_waiting()
    assert line.release(HOLDER) == 0
    assert line.release("new holder") == 1
    assert waiting.fence()


def test_a_lock_renamed_away_is_still_held_under_its_new_name(waking: Server) -> None:
    line = Line(waking)
    fence = line.locks.lock(KEY, HOLDER, HOUR)
    waiting = line.write("waiting")
    line.client.rename(KEY, "elsewhere")
    assert waiting.fence() > fence
    assert line.locks.check("elsewhere", fence) == 1
    assert line.locks.unlock("elsewhere", HOLDER) == 1
    assert line.holders() == ["waiting"]


def _has_its_append_only_file(client: redis.Redis) -> bool:
    state = client.info("persistence")
    return not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]


@pytest.mark.parametrize("reload", [("DEBUG", "RELOAD"), ("DEBUG", "LOADAOF")], ids=" ".join)
def test_reloading_the_data_grants_nothing_and_loses_nobody(
    waking: Server, client: redis.Redis, reload: tuple[str, str]
) -> None:
    if reload[1] == "LOADAOF":
        client.config_set("appendonly", "yes")
        wait_until(lambda: _has_its_append_only_file(client), 30, "the first rewrite")
    try:
        line = Line(waking)
        fence = line.locks.lock(KEY, HOLDER, HOUR)
        waiting = [line.write("first"), line.read("second")]
        client.execute_command(*reload)
        assert line.locks.check(KEY, fence) == 1
        assert (line.holders(), line.queued()) == ([HOLDER], ["first", "second"])
        assert all(waiter.is_waiting() for waiter in waiting)
        line.release(HOLDER)
        assert waiting[0].fence() > fence
        line.release("first")
        assert waiting[1].fence()
    finally:
        client.config_set("appendonly", "no")
