"""The recipes work: the snippets of docs/recipes.md and docs/migrating.md are run as they are.

So are the programs in examples/clients/redis-py that do with commands alone what a client library does.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness import MakeServer, Server, wait_until
from harness.docs import DOCS, Block, blocks
from harness.settings import REPOSITORY

RECIPES, MIGRATING = DOCS / "recipes.md", DOCS / "migrating.md"
EXAMPLES = REPOSITORY / "examples/clients/redis-py"
PLENTY = 60_000
MANY = 500  # steps, of which a job that has lost its lock takes few


@pytest.fixture
def recipes(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """All Python of the pages, with its clients connected to the server under test."""
    monkeypatch.syspath_prepend(REPOSITORY / "clients/python/src")
    names: dict = {}
    for block in blocks(RECIPES, "python") + blocks(MIGRATING, "python"):
        code = "\n" * block.line + block.text  # so that a traceback names the line of the page
        exec(compile(code, str(block.path), "exec"), names)
    names["r"] = server.client(decode_responses=True)
    names["locks"] = names["slock_client"].Locks(redis.Redis(port=server.port))
    yield SimpleNamespace(**names, names=names)
    names["locks"].close()


@pytest.fixture
def by_commands(server: Server) -> SimpleNamespace:
    """The names of the programs that use no library, connected to the server under test."""
    names: dict = {}
    for path in (EXAMPLES / "job_runner.py", EXAMPLES / "leader.py"):
        exec(compile(path.read_text(), str(path), "exec"), names)
    names["r"] = names["blocking"] = server.client(decode_responses=True)
    return SimpleNamespace(**names, names=names)


def _under(heading: str, language: str) -> list[Block]:
    found = [block for block in blocks(RECIPES, language) if block.heading == heading]
    assert found, f"no {language} under {heading!r}"
    return found


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


# --- fences


def test_a_report_is_not_saved_over_a_later_one(recipes: SimpleNamespace, client: redis.Redis) -> None:
    create, write = (block.text for block in _under("Fenced writes to a database", "sql"))
    with sqlite3.connect(":memory:") as database:
        database.execute(create)
        recipes.save(database, write, "a", "first")
        ((body, fence),) = database.execute("SELECT body, fence FROM report")
        assert body == "first" and fence > 0 and not client.exists("report:a")
        database.execute("UPDATE report SET fence = ?", (2**53,))  # as another's later write leaves it
        with pytest.raises(RuntimeError, match="a later owner"):
            recipes.save(database, write, "a", "late")
    assert not client.exists("report:a")


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


# --- the end of an acquisition, and permits


@pytest.mark.parametrize("is_granted", [False, True])
def test_an_acquisition_that_was_ended_neither_waits_nor_holds(
    by_commands: SimpleNamespace, server: Server, client: redis.Redis, is_granted: bool
) -> None:
    """Its connection stays open, as some libraries leave it."""
    client.execute_command("SLOCK.LOCK", "k2", "another", 60_000)
    token = f"me-{is_granted}"
    with server.raw() as waiter:
        request = ("SLOCK.MLOCK", 2, "k1", "k2", token, 60_000, "WAIT", 0)
        waiter.send(*request)
        wait_until(lambda: _blocked(client))
        if is_granted:
            client.execute_command("SLOCK.UNLOCK", "k2", "another")
            assert waiter.read() > 0
        assert [by_commands.end(token, "k1", "k2") for _ in range(2)] == [2 * is_granted] * 2
        if not is_granted:
            assert waiter.read() == 0
        assert waiter.error(*request).startswith("REFUSED "), "what comes later is refused"
        if not is_granted:
            client.execute_command("SLOCK.UNLOCK", "k2", "another")
        assert client.execute_command("SLOCK.MLOCK", 2, "k1", "k2", "next", 60_000) > 0


def test_no_more_than_n_have_a_permit_and_a_writer_drains_it(
    recipes: SimpleNamespace, client: redis.Redis, threads: ThreadPoolExecutor
) -> None:
    present, seen = [], []

    def work(number: int) -> None:
        with recipes.permit("api", 3):
            present.append(number)
            seen.append(len(present))
            time.sleep(0.01)
            present.remove(number)

    jobs = [threads.submit(work, number) for number in range(24)]
    wait_until(lambda: seen)
    assert client.execute_command("SLOCK.LOCK", "api", "drain", PLENTY, "WAIT", 0) > 0
    assert not present
    client.execute_command("SLOCK.UNLOCK", "api", "drain")
    for job in jobs:
        job.result(20)
    assert max(seen) == 3 and not client.exists("api")
    with recipes.permit("api", 1), pytest.raises(TimeoutError), recipes.permit("api", 1, wait=0.01):
        pytest.fail("the block was entered")


# --- the job runner


def test_a_job_keeps_its_lock_beyond_the_ttl(by_commands: SimpleNamespace, client: redis.Redis) -> None:
    ttl_ms = 2000
    with by_commands.held("job:1", ttl_ms=ttl_ms) as hold:
        end = time.monotonic() + 1.5 * ttl_ms / 1000
        while time.monotonic() < end:
            hold.check()
            assert client.execute_command("SLOCK.CHECK", "job:1", hold.fence) == 1
            time.sleep(0.02)
    assert not client.exists("job:1")


def test_a_job_that_lost_its_lock_is_stopped(by_commands: SimpleNamespace, client: redis.Redis) -> None:
    steps = []

    def step(fence: int) -> None:
        steps.append(fence)
        client.delete("job:2")
        time.sleep(0.02)

    with pytest.raises(by_commands.LockLost):
        by_commands.run(2, repeat(step, MANY))
    assert len(set(steps)) == 1 and steps[0] > 0 and len(steps) < MANY


def test_a_job_without_a_server_is_stopped(by_commands: SimpleNamespace, make_server: MakeServer) -> None:
    own = make_server()
    client = own.client(decode_responses=True, socket_timeout=0.1)
    by_commands.names.update(r=client, blocking=client)
    started = time.monotonic()
    with (
        pytest.raises((by_commands.LockLost, redis.RedisError)),
        by_commands.held("job:3", ttl_ms=400) as hold,
    ):
        own.pause()
        while True:
            hold.check()
            assert time.monotonic() < started + 5
            time.sleep(0.01)
    own.resume()


# --- the same with the library


def test_the_job_of_a_library_has_its_lock(recipes: SimpleNamespace, client: redis.Redis) -> None:
    def step(fence: int) -> None:
        assert client.execute_command("SLOCK.CHECK", "job:1", fence) == 1

    recipes.run(1, repeat(step, 3), ttl=2.0)
    assert not client.exists("job:1") and client.info("slock")["slock_last_fence"] > 0


def test_of_two_within_the_period_one_does_the_work(recipes: SimpleNamespace, client: redis.Redis) -> None:
    done = []
    assert recipes.once("nightly", lambda: done.append(1), period=60)
    assert not recipes.once("nightly", lambda: done.append(2), period=60)
    assert done == [1] and 50_000 < client.pttl("nightly") <= 60_000


def test_several_keys_are_locked_and_released_together(recipes: SimpleNamespace, client: redis.Redis) -> None:
    fences = []

    def move(fence: int) -> None:
        fences.append(fence)
        assert [client.execute_command("SLOCK.CHECK", f"{{bank}}:{name}", fence) for name in "ab"] == [1, 1]

    recipes.transfer("a", "b", move)
    assert fences and not client.exists("{bank}:a", "{bank}:b")
    client.execute_command("SLOCK.LOCK", "{bank}:b", "another", PLENTY)
    with pytest.raises(recipes.slock_client.TimedOutError):
        recipes.transfer("a", "b", move)
    assert len(fences) == 1 and not client.exists("{bank}:a")


def test_what_one_process_has_taken_another_finishes(recipes: SimpleNamespace, client: redis.Redis) -> None:
    token, fences = recipes.begin("upload"), []
    recipes.finish("upload", token, lambda hold: fences.append(hold.fence))
    assert fences[0] > 0 and not client.exists("upload")
    with pytest.raises(recipes.slock_client.NotHeldError):
        recipes.finish("upload", token, lambda _: pytest.fail("it is not held"))


# --- leaders


@pytest.fixture
def campaign(
    by_commands: SimpleNamespace, server: Server, threads: ThreadPoolExecutor
) -> Callable[[str], Future]:
    """Starts a candidate's campaign in a thread; its result is the connection, the token and the fence."""
    return lambda name: threads.submit(by_commands.campaign, "election", name, port=server.port)


def _blocked(client: redis.Redis) -> list[str]:
    return [one["id"] for one in client.client_list() if "b" in one["flags"]]


def test_the_next_candidate_leads_when_the_leader_has_gone(
    by_commands: SimpleNamespace, server: Server, client: redis.Redis, campaign: Callable[[str], Future]
) -> None:
    pulse = by_commands.connect(port=server.port, timeout=2)
    connection, first, fence = campaign("first").result(10)
    assert by_commands.still_leads(pulse, "election", first)
    second_campaign = campaign("second")
    wait_until(lambda: _blocked(client))
    connection.close()
    second_connection, second, second_fence = second_campaign.result(10)
    assert second_fence > fence
    assert by_commands.still_leads(pulse, "election", second)
    assert not by_commands.still_leads(pulse, "election", first)
    second_connection.close()
    pulse.close()


@pytest.mark.parametrize("command", ["CLIENT KILL ID {}", "CLIENT UNBLOCK {} ERROR"])
def test_a_candidate_whose_wait_is_ended_asks_again_with_a_new_token(
    client: redis.Redis, campaign: Callable[[str], Future], command: str
) -> None:
    client.execute_command("SLOCK.LOCK", "election", "another", 60_000)
    candidate = campaign("first")
    (waiter,) = wait_until(lambda: _blocked(client))
    client.execute_command(*command.format(waiter).split())
    client.execute_command("SLOCK.UNLOCK", "election", "another")
    connection, token, _ = candidate.result(10)
    assert client.execute_command("SLOCK.PTTL", "election", token) > 0
    connection.close()
    wait_until(lambda: not client.exists("election"))


def test_the_next_leader_of_a_library_leads_when_the_first_has_lost_the_lock(
    recipes: SimpleNamespace, client: redis.Redis, threads: ThreadPoolExecutor
) -> None:
    leads: list[tuple[str, int]] = []

    def lead(hold: object) -> None:
        leads.append((threading.current_thread().name, hold.fence))
        while len(leads) < 2:
            hold.check()
            time.sleep(0.01)

    campaigns = [threads.submit(recipes.campaign, "election", lead, 5)]
    wait_until(lambda: len(leads) == 1)
    campaigns.append(threads.submit(recipes.campaign, "election", lead, 5))
    wait_until(lambda: client.info("slock")["slock_waiters"] == 1)
    client.delete("election")
    for campaign in campaigns:
        campaign.result(20)
    (first, fence), (second, later), *_ = leads
    assert first != second and later > fence and not client.exists("election")


# --- the cache


def test_a_missing_value_is_built_once(
    recipes: SimpleNamespace, client: redis.Redis, threads: ThreadPoolExecutor
) -> None:
    builds = []

    def build() -> str:
        builds.append(1)
        time.sleep(0.05)
        return "value"

    readers = [threads.submit(recipes.cached, "page", build) for _ in range(8)]
    assert [reader.result(20) for reader in readers] == ["value"] * 8
    assert len(builds) == 1 and not client.exists("lock:page")


# --- moving from other locks


def test_old_and_new_clients_exclude_each_other(recipes: SimpleNamespace, client: redis.Redis) -> None:
    """And both locks can be asked for again and extended."""
    assert client.set("x", "old", nx=True, px=60_000)
    assert recipes.lock_both("x", "new", 60_000) == 0 == recipes.unlock_both("x", "new")
    assert not client.exists("slock:x") and client.get("x") == b"old"
    client.delete("x")
    fence = recipes.lock_both("x", "new", 1000)
    assert fence > 0 and recipes.lock_both("x", "new", 30_000) == fence
    assert recipes.lock_both("x", "newer", 30_000) == 0 and 1000 < client.pttl("x") <= 30_000
    assert recipes.extend_both("x", "new", 60_000) == 1
    assert client.pttl("x") > 30_000 and client.execute_command("SLOCK.PTTL", "slock:x", "new") > 30_000
    assert client.set("x", "old", nx=True, px=60_000) is None
    assert recipes.unlock_both("x", "new") == 1 and not client.exists("x", "slock:x")
    assert recipes.lock_both("x", "new", 60_000) > 0
    client.set("x", "old")
    assert recipes.extend_both("x", "new", 60_000) == 0 == recipes.lock_both("x", "new", 60_000)
    assert not client.exists("slock:x")


def test_a_quorum_needs_more_than_half(recipes: SimpleNamespace, make_server: MakeServer) -> None:
    servers = [make_server(name=f"independent{number}") for number in range(3)]
    clients = [server.client(socket_timeout=5) for server in servers]
    clients[0].execute_command("SLOCK.LOCK", "k", "another", PLENTY)
    # A node has a twentieth of the ttl to reply.
    with recipes.agreed(clients, "k", ttl=60) as hold:
        assert 0 < hold.remaining <= 59.4
        with pytest.raises(recipes.slock_client.TimedOutError), recipes.agreed(clients, "k", 60, wait=0.1):
            pytest.fail("both have a majority")
        tokens = [one.execute_command("SLOCK.PTTL", "k", hold.token) > 0 for one in clients]
        assert tokens == [False, True, True]
    servers[1].kill9()
    clients[1] = redis.Redis(port=servers[1].port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    with pytest.raises(recipes.slock_client.SlockError), recipes.agreed(clients, "k", wait=0.1):
        pytest.fail("one of three is no majority")
    assert clients[2].execute_command("SLOCK.INFO", "k") is None


# --- many tasks that wait


def test_many_tasks_share_connections(recipes: SimpleNamespace, server: Server, client: redis.Redis) -> None:
    present, fences = [], []

    async def step(number: int, fence: int) -> None:
        present.append(number)
        await asyncio.sleep(0)
        assert present == [number]
        fences.append(fence)
        present.remove(number)

    client.execute_command("SLOCK.LOCK", "step", "another", PLENTY)
    connections = client.info("clients")["connected_clients"]

    async def run() -> None:
        async with asyncio.timeout(30), redis.asyncio.Redis(port=server.port) as own:
            await recipes.work(range(200), step, own)

    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(asyncio.run, run())
        wait_until(lambda: job.done() or client.info("slock")["slock_waiters"] == 200)
        assert not job.done(), job.exception()
        wait_until(lambda: client.info("clients")["connected_clients"] <= connections + 6)
        client.execute_command("CLIENT", "KILL", "TYPE", "PUBSUB")
        client.execute_command("SLOCK.UNLOCK", "step", "another")
        job.result()
    assert len(fences) == 200 and fences == sorted(set(fences))
    assert not client.exists("step") and client.info("slock")["slock_waiters"] == 0
