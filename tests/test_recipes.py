"""The recipes work: the snippets of docs/recipes.md are run as they are."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness import Server, wait_until
from harness.docs import DOCS, Block, blocks

RECIPES = DOCS / "recipes.md"

MakeServer = Callable[..., Server]


@pytest.fixture
def recipes(server: Server) -> SimpleNamespace:
    """All Python of the page, with its clients connected to the server under test."""
    names: dict = {}
    for block in blocks(RECIPES, "python"):
        code = "\n" * block.line + block.text  # so that a traceback names the line of the page
        exec(compile(code, str(RECIPES), "exec"), names)
    names["r"] = names["blocking"] = server.client(decode_responses=True)
    return _Names(names)


def _connect_to(recipes: SimpleNamespace, client: redis.Redis) -> None:
    """From now on the code of the page uses this client."""
    recipes.held.__wrapped__.__globals__.update(r=client, blocking=client)


class _Names(SimpleNamespace):
    def __init__(self, names: dict) -> None:
        super().__init__(**{name: value for name, value in names.items() if not name.startswith("__")})


def _under(heading: str, language: str) -> list[Block]:
    found = [block for block in blocks(RECIPES, language) if block.heading == heading]
    assert found, f"no {language} under {heading!r}"
    return found


def _in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list]:
    result: list = []

    def body() -> None:
        try:
            result.append(work())
        except Exception as problem:
            result.append(problem)

    thread = threading.Thread(target=body)
    thread.start()
    return thread, result


# --- fences


def test_a_table_refuses_a_write_with_an_older_fence() -> None:
    create, write = (block.text for block in _under("Fenced writes to a database", "sql"))
    with sqlite3.connect(":memory:") as database:
        database.execute(create)

        def changed(fence: int, body: str) -> int:
            return database.execute(write, {"id": "a", "body": body, "fence": fence}).rowcount

        assert [changed(7, "x"), changed(7, "y"), changed(9, "z"), changed(8, "late")] == [1, 1, 1, 0]
        assert database.execute("SELECT body, fence FROM report").fetchall() == [("z", 9)]


def test_a_script_writes_only_for_the_present_holder(client: redis.Redis) -> None:
    asking, remembering = (
        client.register_script(block.text) for block in _under("Fenced writes to Redis", "lua")
    )
    old = client.execute_command("SLOCK.LOCK", "lock", "a", 60_000)
    assert asking(keys=["lock", "data"], args=[old, "1"]) == b"OK"
    client.execute_command("SLOCK.UNLOCK", "lock", "a")
    new = client.execute_command("SLOCK.LOCK", "lock", "b", 60_000)
    assert remembering(keys=["hash"], args=[new, "2"]) == b"OK"
    assert remembering(keys=["hash"], args=[new, "3"]) == b"OK"
    for script, keys in [(asking, ["lock", "data"]), (remembering, ["hash"])]:
        with pytest.raises(redis.ResponseError, match="STALE"):
            script(keys=keys, args=[old, "late"])
    assert client.get("data") == b"1" and client.hget("hash", "value") == b"3"


# --- the job runner


def test_a_job_keeps_its_lock_beyond_the_ttl_and_then_lets_go(
    recipes: SimpleNamespace, client: redis.Redis
) -> None:
    ttl_ms = 900
    with recipes.held("job:1", ttl_ms=ttl_ms) as hold:
        end = time.monotonic() + 2 * ttl_ms / 1000
        while time.monotonic() < end:
            hold.check()
            assert client.execute_command("SLOCK.CHECK", "job:1", hold.fence) == 1
            time.sleep(0.02)
    assert not client.exists("job:1")


def test_a_job_that_lost_its_lock_is_stopped(recipes: SimpleNamespace, client: redis.Redis) -> None:
    steps = []

    def step(fence: int) -> None:
        steps.append(fence)
        client.delete("job:2")
        time.sleep(0.02)

    with pytest.raises(recipes.LockLost):
        recipes.run(2, iter(lambda: step, None))
    assert len(set(steps)) == 1 and steps[0] > 0


def test_a_job_whose_server_is_gone_is_stopped_when_the_ttl_is_over(
    recipes: SimpleNamespace, make_server: MakeServer
) -> None:
    own = make_server()
    _connect_to(recipes, own.client(decode_responses=True, socket_timeout=0.1))
    started = time.monotonic()
    with pytest.raises((recipes.LockLost, redis.RedisError)), recipes.held("job:3", ttl_ms=400) as hold:
        own.pause()
        while True:
            hold.check()
            assert time.monotonic() < started + 5
            time.sleep(0.01)
    own.resume()


def test_a_job_that_another_runs_is_not_run(recipes: SimpleNamespace, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job:4", "another", 60_000)
    with pytest.raises(TimeoutError), recipes.held("job:4", wait_ms=10):
        pytest.fail("the block was entered")


def test_the_jobs_own_error_is_not_hidden_by_the_release(
    recipes: SimpleNamespace, make_server: MakeServer
) -> None:
    own = make_server()
    _connect_to(recipes, own.client(decode_responses=True, socket_timeout=1))
    with pytest.raises(KeyError), recipes.held("job:5"):
        own.kill9()
        raise KeyError


def test_after_a_wait_the_job_has_its_whole_ttl(recipes: SimpleNamespace, client: redis.Redis) -> None:
    before = time.monotonic()
    client.execute_command("SLOCK.LOCK", "job:6", "another", 300)
    with recipes.held("job:6", ttl_ms=5000) as hold:
        assert hold._until >= before + 5 + 0.25
        assert hold._until <= time.monotonic() + 5


# --- leaders


@pytest.fixture
def connect(recipes: SimpleNamespace, server: Server) -> Iterator[Callable[..., redis.Redis]]:
    made = []

    def one(**options: object) -> redis.Redis:
        made.append(recipes.connect(port=server.port, **options))
        return made[-1]

    yield one
    for connection in made:
        connection.close()


def _campaign(recipes: SimpleNamespace, server: Server, name: str) -> Callable[[], tuple]:
    return lambda: recipes.campaign("election", name, port=server.port)


def test_the_next_candidate_leads_when_the_leader_has_gone(
    recipes: SimpleNamespace, server: Server, client: redis.Redis, connect: Callable[..., redis.Redis]
) -> None:
    pulse = connect(timeout=2)
    connection, first, fence = _campaign(recipes, server, "first")()
    assert recipes.still_leads(pulse, "election", first)
    thread, result = _in_thread(_campaign(recipes, server, "second"))
    wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
    connection.close()
    thread.join(10)
    second_connection, second, second_fence = result[0]
    assert second_fence > fence
    assert recipes.still_leads(pulse, "election", second)
    assert not recipes.still_leads(pulse, "election", first)
    second_connection.close()


def test_a_candidate_whose_connection_is_cut_asks_again_with_a_new_token(
    recipes: SimpleNamespace, server: Server, client: redis.Redis
) -> None:
    client.execute_command("SLOCK.LOCK", "election", "another", 60_000)
    thread, result = _in_thread(_campaign(recipes, server, "first"))
    wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
    (waiter,) = [one["id"] for one in client.client_list() if "b" in one["flags"]]
    client.execute_command("CLIENT", "KILL", "ID", waiter)
    wait_until(lambda: client.info("clients")["blocked_clients"] == 0)
    client.execute_command("SLOCK.UNLOCK", "election", "another")
    thread.join(10)
    connection, token, _ = result[0]
    assert client.execute_command("SLOCK.PTTL", "election", token) > 0
    connection.close()
    wait_until(lambda: not client.exists("election"))


def test_only_temporary_problems_are_asked_again(
    recipes: SimpleNamespace, server: Server, client: redis.Redis
) -> None:
    client.set("election", "a string")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        _campaign(recipes, server, "first")()
    client.delete("election")
    client.execute_command("SLOCK.LOCK", "election", "another", 60_000)
    thread, result = _in_thread(_campaign(recipes, server, "first"))
    wait_until(lambda: client.info("clients")["blocked_clients"] == 1)
    (waiter,) = [one["id"] for one in client.client_list() if "b" in one["flags"]]
    client.execute_command("CLIENT", "UNBLOCK", waiter, "ERROR")
    client.execute_command("SLOCK.UNLOCK", "election", "another")
    thread.join(10)
    result[0][0].close()
    for name in ("ReadOnlyError", "BusyLoadingError", "TryAgainError", "ConnectionError"):
        kind = getattr(redis.exceptions, name)
        assert recipes.is_temporary(kind("")), name
    assert recipes.is_temporary(redis.ResponseError("GRACE the server has just started"))
    assert not recipes.is_temporary(redis.ResponseError("QUEUEFULL too many"))
    assert not recipes.is_temporary(redis.AuthenticationError("wrong password"))


# --- the cache


def test_a_missing_value_is_built_once(recipes: SimpleNamespace, server: Server) -> None:
    builds = []

    def build() -> str:
        builds.append(1)
        time.sleep(0.05)
        return "value"

    readers = [_in_thread(lambda: recipes.cached("page", build)) for _ in range(8)]
    for thread, _ in readers:
        thread.join(20)
    assert [result for _, result in readers] == [["value"]] * 8
    assert len(builds) == 1
    assert not server.client().exists("lock:page")


# --- moving from other locks


def test_old_and_new_clients_exclude_each_other(recipes: SimpleNamespace, client: redis.Redis) -> None:
    assert client.set("x", "old", nx=True, px=60_000)
    assert recipes.lock_both("x", "new", 60_000) == 0
    assert not client.exists("slock:x")
    assert recipes.unlock_both("x", "new") == 0
    assert client.get("x") == b"old"
    client.delete("x")
    assert recipes.lock_both("x", "new", 60_000) > 0
    assert client.set("x", "old", nx=True, px=60_000) is None
    assert recipes.unlock_both("x", "new") == 1
    assert not client.exists("x", "slock:x")


def test_both_locks_can_be_asked_for_again_and_extended(
    recipes: SimpleNamespace, client: redis.Redis
) -> None:
    fence = recipes.lock_both("x", "new", 1000)
    assert recipes.lock_both("x", "new", 30_000) == fence
    assert 1000 < client.pttl("x") <= 30_000
    assert recipes.lock_both("x", "newer", 30_000) == 0
    assert recipes.extend_both("x", "new", 60_000) == 1
    assert client.pttl("x") > 30_000 and client.execute_command("SLOCK.PTTL", "slock:x", "new") > 30_000
    client.set("x", "old")
    assert recipes.extend_both("x", "new", 60_000) == 0
    assert recipes.lock_both("x", "new", 60_000) == 0
    assert not client.exists("slock:x")


def test_a_quorum_needs_more_than_half(recipes: SimpleNamespace, make_server: MakeServer) -> None:
    servers = [make_server(name=f"independent{number}") for number in range(3)]
    clients = [server.client(socket_timeout=1) for server in servers]
    clients[0].execute_command("SLOCK.LOCK", "k", "another", 60_000)
    assert 0 < recipes.quorum_lock(clients, "k", "a", 10_000) <= 9898
    assert recipes.quorum_lock(clients, "k", "b", 10_000) == 0
    assert recipes.quorum_unlock(clients, "k", "a") == 2
    servers[1].kill9()
    clients[1] = redis.Redis(port=servers[1].port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    assert recipes.quorum_lock(clients, "k", "a", 10_000) == 0
    assert [clients[n].execute_command("SLOCK.PTTL", "k", "a") for n in (0, 2)] == [-2, -2]
    clients[0].delete("k")
    assert recipes.quorum_lock(clients, "k", "a", 10_000) > 0


def test_a_plain_string_of_the_same_name_is_told_apart(client: redis.Redis) -> None:
    client.set("k", "token", nx=True, px=60_000)
    with pytest.raises(redis.ResponseError, match=re.escape("wrong kind of value")):
        client.execute_command("SLOCK.LOCK", "k", "token", 60_000)
