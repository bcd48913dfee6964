"""The agent of the conformance scenarios: it calls the library and does nothing else.

The protocol is in clients/conformance/README.md. The field `api` of `open` and `open_quorum` is `asyncio`,
which is the default, or `sync`. Operations of the synchronous library run in a thread each.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "src"))

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import slock_client
import slock_client.asyncio
from slock_client import polling

# The name of the tasks and threads of operations, which are not counted.
OPERATION = "operation"
# As long as a token of the library.
RAW_TOKEN = "raw:000000000000000000"


class Cancelled(BaseException):
    """What a cancelled thread gets, as Ctrl-C would raise it in the main thread."""


_starting = threading.Lock()
_start = threading.Thread.start


def _start_alone(thread: threading.Thread) -> None:
    """A thread that begins has its starter's identity for a moment, and would get an exception for that."""
    with _starting:
        _start(thread)


threading.Thread.start = _start_alone  # type: ignore[method-assign]


class Events:
    """What the hooks have told."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._changing = threading.Lock()
        self.hooks = slock_client.Hooks(
            waited=self._waited,
            held=self._held,
            lost=self._lost,
            renewal_failed=lambda label, error: self._failed("renewal", label, error),
            release_failed=lambda label, error: self._failed("release", label, error),
        )

    def take(self) -> list[dict[str, Any]]:
        with self._changing:
            events, self._events = self._events, []
            return events

    def _waited(self, label: str, duration: timedelta, outcome: str) -> None:
        self._add(event="waited", label=label, ms=to_ms(duration), outcome=outcome.removesuffix("Error"))

    def _held(self, label: str, duration: timedelta) -> None:
        self._add(event="held", label=label, ms=to_ms(duration))

    def _lost(self, label: str, reason: str) -> None:
        self._add(event="lost", label=label, reason=reason)

    def _failed(self, what: str, label: str, error: BaseException) -> None:
        self._add(event=f"{what} failed", label=label, error=str(error))

    def _add(self, **event: Any) -> None:
        with self._changing:
            self._events.append(event)


class Opened:
    """A `Locks` or a `Quorum`, with what belongs to it."""

    def __init__(self, api: str, locks: Any, events: Events, clients: list[Any]) -> None:
        self.api, self.locks, self.events, self.clients = api, locks, events, clients
        self.plain: Any = None  # the same `Locks` without hooks, once a cost has been measured


def to_ms(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


def ms(fields: dict[str, Any], name: str) -> timedelta | None:
    value = fields.get(name)
    return None if value is None else timedelta(milliseconds=value)


def given(**options: Any) -> dict[str, Any]:
    """The options that the operation names; the library's defaults stand for the others."""
    return {name: value for name, value in options.items() if value is not None}


def strategy(fields: dict[str, Any]) -> polling.Strategy:
    poll = fields.get("poll") or {"kind": "exponential"}
    made: polling.Strategy
    if poll["kind"] == "none":
        made = polling.Once()
    elif poll["kind"] == "constant":
        made = polling.Constant(ms(poll, "pause_ms") or timedelta(milliseconds=50))
    else:
        first = ms(poll, "pause_ms") or timedelta(milliseconds=10)
        made = polling.Exponential(first, ms(poll, "most_ms") or timedelta(seconds=1))
    return made if poll.get("limit") is None else made.limit(poll["limit"])


def client_of(fields: dict[str, Any], api: str) -> Any:
    addresses = [(host, int(port)) for host, _, port in (node.rpartition(":") for node in fields["nodes"])]
    login = given(username=fields.get("user"), password=fields.get("password"))
    asynchronous = api == "asyncio"
    kind = fields.get("kind", "single")
    if kind == "cluster":
        if asynchronous:
            nodes = [redis.asyncio.cluster.ClusterNode(*address) for address in addresses]
            return redis.asyncio.RedisCluster(startup_nodes=nodes, **login)
        return redis.RedisCluster(
            startup_nodes=[redis.cluster.ClusterNode(*address) for address in addresses], **login
        )
    if kind == "sentinel":
        package = redis.asyncio.sentinel if asynchronous else redis.sentinel
        return package.Sentinel(addresses).master_for(fields["service"], **login)
    host, port = addresses[0]
    return (redis.asyncio if asynchronous else redis).Redis(host=host, port=port, **login)


def open_locks(fields: dict[str, Any]) -> Opened:
    api, events = fields.get("api", "asyncio"), Events()
    client = client_of(fields, api)
    waiting = fields.get("waiting")
    options = given(
        waiting=strategy(fields) if waiting == "poll" else waiting,
        retry_for=ms(fields, "retry_for_ms"),
        retry_wait_for=ms(fields, "retry_wait_for_ms"),
        hooks=events.hooks,
    )
    kind = slock_client.asyncio.Locks if api == "asyncio" else slock_client.Locks
    return Opened(api, kind(client, **options), events, [client])


def open_quorum(fields: dict[str, Any]) -> Opened:
    api, events = fields.get("api", "asyncio"), Events()
    clients = [client_of({"nodes": [node]}, api) for node in fields["nodes"]]
    options = given(
        node_timeout=ms(fields, "node_timeout_ms"),
        drift_factor=fields.get("drift_factor"),
        fail_fast=fields.get("fail_fast"),
        poll=strategy(fields) if fields.get("poll") else None,
        hooks=events.hooks,
    )
    kind = slock_client.asyncio.Quorum if api == "asyncio" else slock_client.Quorum
    return Opened(api, kind(clients, **options), events, clients)


def request(opened: Opened, fields: dict[str, Any]) -> Any:
    mode = fields.get("mode", "write")
    options = given(
        ttl=ms(fields, "ttl_ms"),
        wait=ms(fields, "wait_ms"),
        limit=fields.get("limit"),
        metadata=fields.get("metadata"),
        renew=fields.get("renew"),
        longest_lease=ms(fields, "longest_lease_ms"),
        token=fields.get("token"),
        min_replicas=fields.get("min_replicas"),
        replica_timeout=ms(fields, "replica_timeout_ms"),
        label=fields.get("label"),
    )
    return getattr(opened.locks, mode)(*fields["keys"], **options)


def granted(hold: Any) -> dict[str, Any]:
    answer = {"token": hold.token, "valid_ms": int(hold.time_left / timedelta(milliseconds=1))}
    if hasattr(hold, "fences"):
        answer["fences"] = hold.fences
    else:
        answer["fence"] = hold.fence
    return answer


def state(hold: Any) -> dict[str, Any]:
    return {
        **granted(hold),
        "mode": hold.mode,
        "keys": list(hold.keys),
        "metadata": hold.metadata,
        "lost": hold.lost,
        "reason": hold.reason,
    }


def error_of(problem: BaseException) -> dict[str, Any]:
    if isinstance(problem, (asyncio.CancelledError, Cancelled)):
        name = "Cancelled"
    elif isinstance(problem, slock_client.SlockError):
        name = type(problem).__name__.removesuffix("Error")
    else:
        name = "Other"
    return {"error": name, "text": str(problem) or type(problem).__name__}


def answer_of(outcome: Any) -> dict[str, Any]:
    """What is said of what an operation gave: an error, a hold, or the answer itself."""
    if isinstance(outcome, BaseException):
        return error_of(outcome)
    return {"ok": outcome if isinstance(outcome, dict) else granted(outcome)}


class AsyncioOperations:
    """The operations with the asyncio library."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def acquire(self, opened: Opened, fields: dict[str, Any]) -> Any:
        hold = await request(opened, fields).acquire()
        self._agent.holds[fields["hold"]] = (opened.api, hold)
        return hold

    async def try_acquire(self, opened: Opened, fields: dict[str, Any]) -> Any:
        hold = await request(opened, fields).try_acquire()
        if hold is None:
            return {"refused": True}
        self._agent.holds[fields["hold"]] = (opened.api, hold)
        return hold

    async def adopt(self, opened: Opened, fields: dict[str, Any]) -> Any:
        options = given(ttl=ms(fields, "ttl_ms"), renew=fields.get("renew"))
        hold = await opened.locks.adopt(
            fields["keys"], fields["token"], fields.get("mode", "write"), **options
        )
        self._agent.holds[fields["hold"]] = (opened.api, hold)
        return hold

    async def release_token(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return {"released": await opened.locks.release(fields["keys"], fields["token"])}

    async def info(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return told(await opened.locks.info(fields["key"]))

    async def queues(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return {"names": [one.key.decode() for one in await opened.locks.queues()]}

    async def release(self, hold: Any, fields: dict[str, Any]) -> Any:
        return {"released": await hold.release()}

    async def extend(self, hold: Any, fields: dict[str, Any]) -> Any:
        await hold.extend(*given(ttl=ms(fields, "ttl_ms")).values())
        return {"valid_ms": granted(hold)["valid_ms"]}

    async def upgrade(self, hold: Any, fields: dict[str, Any]) -> Any:
        await hold.upgrade(**given(wait=ms(fields, "wait_ms")))
        return {"fence": hold.fence, "mode": hold.mode}

    async def downgrade(self, hold: Any, fields: dict[str, Any]) -> Any:
        await hold.downgrade()
        return {"fence": hold.fence, "mode": hold.mode}

    async def await_lost(self, hold: Any, fields: dict[str, Any]) -> Any:
        assert await hold.wait_lost()
        return {"reason": hold.reason}

    async def block(self, opened: Opened, fields: dict[str, Any]) -> Any:
        async with request(opened, fields) as hold:
            if "hold" in fields:
                self._agent.holds[fields["hold"]] = (opened.api, hold)
            await asyncio.sleep(fields["work_ms"] / 1000)
        return {}

    async def work(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        counter, most = fields["counter"], 0

        async def task() -> None:
            nonlocal most
            for _ in range(fields["additions"]):
                async with request(opened, {**fields, "keys": [fields["key"]]}):
                    if fields.get("limit") is None:
                        await client.set(counter, int(await client.get(counter) or 0) + 1)
                    else:
                        most = max(most, await client.incr(counter))
                        await client.decr(counter)

        await asyncio.gather(*(task() for _ in range(fields["tasks"])))
        return {"done": fields["tasks"] * fields["additions"], "most": most or 1}

    async def wait_many(self, opened: Opened, fields: dict[str, Any]) -> Any:
        async def task() -> None:
            hold = await request(opened, {**fields, "keys": [fields["key"]]}).acquire()
            await hold.release()

        await asyncio.gather(*(task() for _ in range(fields["tasks"])))
        return {"done": fields["tasks"]}

    async def cost(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        asked = plain(opened).write("cost", renew=False)

        async def library() -> None:
            hold = await asked.acquire()
            await hold.release()

        async def raw() -> None:
            fence = await client.execute_command("SLOCK.LOCK", "cost", RAW_TOKEN, 10000)
            await client.execute_command("SLOCK.UNLOCK", "cost", RAW_TOKEN, "FENCE", fence)

        times: dict[Any, list[float]] = {library: [], raw: []}
        for turn in range(max(2, fields["rounds"] // 50)):
            for _ in range(100):
                began = time.perf_counter()
                work = (library, raw)[turn % 2]
                await work()
                times[work].append(time.perf_counter() - began)
        return costs(times[library], times[raw])

    async def pairs(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        tasks, rounds = fields["tasks"], fields["rounds"]
        locks = plain(opened)

        async def library(number: int) -> None:
            asked = locks.write(f"pairs:{number}", renew=False)
            for _ in range(rounds):
                await (await asked.acquire()).release()

        async def raw(number: int) -> None:
            key = f"pairs:{number}"
            for _ in range(rounds):
                fence = await client.execute_command("SLOCK.LOCK", key, RAW_TOKEN, 10000)
                await client.execute_command("SLOCK.UNLOCK", key, RAW_TOKEN, "FENCE", fence)

        return await self._side_by_side(tasks, library, raw)

    async def handoffs(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        key, tasks, rounds = fields["key"], fields["tasks"], fields["rounds"]
        asked = plain(opened).write(key, renew=False)
        arguments = client.connection_pool.connection_kwargs
        waiting = redis.asyncio.Redis(
            host=arguments["host"], port=arguments["port"], socket_timeout=None, max_connections=tasks
        )

        async def library(_: int) -> None:
            for _ in range(rounds):
                await (await asked.acquire()).release()

        async def raw(number: int) -> None:
            for _ in range(rounds):
                token = f"raw:{number:018}"
                fence = await waiting.execute_command("SLOCK.LOCK", key, token, 10000, "WAIT", 0)
                await waiting.execute_command("SLOCK.UNLOCK", key, token, "FENCE", fence)

        try:
            return await self._side_by_side(tasks, library, raw)
        finally:
            await waiting.aclose()

    async def _side_by_side(self, tasks: int, library: Any, raw: Any) -> Any:
        """The times in which so many tasks do each, after a first round of both."""
        times = {}
        for _ in range(2):
            for name, work in (("library_us", library), ("raw_us", raw)):
                began = time.perf_counter()
                await asyncio.gather(*(work(number) for number in range(tasks)))
                times[name] = (time.perf_counter() - began) * 1e6
        return times

    async def close(self, opened: Opened, fields: dict[str, Any]) -> Any:
        for locks in filter(None, (opened.locks, opened.plain)):
            await locks.close()
        for client in opened.clients:
            await client.aclose()
        return {}


class SynchronousOperations:
    """The operations with the synchronous library."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def acquire(self, opened: Opened, fields: dict[str, Any]) -> Any:
        hold = request(opened, fields).acquire()
        self._agent.holds[fields["hold"]] = (opened.api, hold)
        return hold

    def try_acquire(self, opened: Opened, fields: dict[str, Any]) -> Any:
        hold = request(opened, fields).try_acquire()
        if hold is None:
            return {"refused": True}
        self._agent.holds[fields["hold"]] = (opened.api, hold)
        return hold

    def adopt(self, opened: Opened, fields: dict[str, Any]) -> Any:
        options = given(ttl=ms(fields, "ttl_ms"), renew=fields.get("renew"))
        hold = opened.locks.adopt(fields["keys"], fields["token"], fields.get("mode", "write"), **options)
        self._agent.holds[fields["hold"]] = (opened.api, hold)
        return hold

    def release_token(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return {"released": opened.locks.release(fields["keys"], fields["token"])}

    def info(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return told(opened.locks.info(fields["key"]))

    def queues(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return {"names": [one.key.decode() for one in opened.locks.queues()]}

    def release(self, hold: Any, fields: dict[str, Any]) -> Any:
        return {"released": hold.release()}

    def extend(self, hold: Any, fields: dict[str, Any]) -> Any:
        hold.extend(*given(ttl=ms(fields, "ttl_ms")).values())
        return {"valid_ms": granted(hold)["valid_ms"]}

    def upgrade(self, hold: Any, fields: dict[str, Any]) -> Any:
        hold.upgrade(**given(wait=ms(fields, "wait_ms")))
        return {"fence": hold.fence, "mode": hold.mode}

    def downgrade(self, hold: Any, fields: dict[str, Any]) -> Any:
        hold.downgrade()
        return {"fence": hold.fence, "mode": hold.mode}

    def await_lost(self, hold: Any, fields: dict[str, Any]) -> Any:
        while not hold.wait_lost(timedelta(milliseconds=100)):
            pass  # a thread that is cancelled sees it between two calls
        return {"reason": hold.reason}

    def block(self, opened: Opened, fields: dict[str, Any]) -> Any:
        with request(opened, fields) as hold:
            if "hold" in fields:
                self._agent.holds[fields["hold"]] = (opened.api, hold)
            end = time.monotonic() + fields["work_ms"] / 1000
            while time.monotonic() < end:
                hold.check()
                time.sleep(min(0.01, max(0.0, end - time.monotonic())))
        return {}

    def work(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        counter, seen = fields["counter"], [1]

        def task(_: int) -> None:
            for _ in range(fields["additions"]):
                with request(opened, {**fields, "keys": [fields["key"]]}):
                    if fields.get("limit") is None:
                        client.set(counter, int(client.get(counter) or 0) + 1)
                    else:
                        seen.append(client.incr(counter))
                        client.decr(counter)

        in_threads(fields["tasks"], task)
        return {"done": fields["tasks"] * fields["additions"], "most": max(seen)}

    def wait_many(self, opened: Opened, fields: dict[str, Any]) -> Any:
        def task(_: int) -> None:
            request(opened, {**fields, "keys": [fields["key"]]}).acquire().release()

        in_threads(fields["tasks"], task)
        return {"done": fields["tasks"]}

    def cost(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        asked = plain(opened).write("cost", renew=False)

        def library() -> None:
            asked.acquire().release()

        def raw() -> None:
            fence = client.execute_command("SLOCK.LOCK", "cost", RAW_TOKEN, 10000)
            client.execute_command("SLOCK.UNLOCK", "cost", RAW_TOKEN, "FENCE", fence)

        times: dict[Any, list[float]] = {library: [], raw: []}
        for turn in range(max(2, fields["rounds"] // 50)):
            for _ in range(100):
                began = time.perf_counter()
                work = (library, raw)[turn % 2]
                work()
                times[work].append(time.perf_counter() - began)
        return costs(times[library], times[raw])

    def pairs(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        tasks, rounds = fields["tasks"], fields["rounds"]
        locks = plain(opened)

        def library(number: int) -> None:
            asked = locks.write(f"pairs:{number}", renew=False)
            for _ in range(rounds):
                asked.acquire().release()

        def raw(number: int) -> None:
            key = f"pairs:{number}"
            for _ in range(rounds):
                fence = client.execute_command("SLOCK.LOCK", key, RAW_TOKEN, 10000)
                client.execute_command("SLOCK.UNLOCK", key, RAW_TOKEN, "FENCE", fence)

        return self._side_by_side(tasks, library, raw)

    def handoffs(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        key, tasks, rounds = fields["key"], fields["tasks"], fields["rounds"]
        asked = plain(opened).write(key, renew=False)
        arguments = client.connection_pool.connection_kwargs
        waiting = redis.Redis(
            host=arguments["host"], port=arguments["port"], socket_timeout=None, max_connections=tasks
        )

        def library(_: int) -> None:
            for _ in range(rounds):
                asked.acquire().release()

        def raw(number: int) -> None:
            for _ in range(rounds):
                token = f"raw:{number:018}"
                fence = waiting.execute_command("SLOCK.LOCK", key, token, 10000, "WAIT", 0)
                waiting.execute_command("SLOCK.UNLOCK", key, token, "FENCE", fence)

        try:
            return self._side_by_side(tasks, library, raw)
        finally:
            waiting.close()

    def _side_by_side(self, tasks: int, library: Any, raw: Any) -> Any:
        """The times in which so many threads do each, after a first round of both."""
        times = {}
        for _ in range(2):
            for name, work in (("library_us", library), ("raw_us", raw)):
                began = time.perf_counter()
                in_threads(tasks, work)
                times[name] = (time.perf_counter() - began) * 1e6
        return times

    def close(self, opened: Opened, fields: dict[str, Any]) -> Any:
        for locks in filter(None, (opened.locks, opened.plain)):
            locks.close()
        for client in opened.clients:
            client.close()
        return {}


def told(info: slock_client.status.LockInfo) -> dict[str, Any]:
    return {
        "mode": info.mode,
        "readers": info.readers,
        "waiters": info.waiters,
        "holders": len(info.holders),
        "queue": len(info.queue),
    }


def plain(opened: Opened) -> Any:
    """`Locks` of the same client without the hooks: what is measured is the library, not what they note."""
    if opened.plain is None:
        kind = slock_client.asyncio.Locks if opened.api == "asyncio" else slock_client.Locks
        opened.plain = kind(opened.clients[0])
    return opened.plain


def costs(library: list[float], raw: list[float]) -> dict[str, float]:
    return {"client_us": statistics.median(library) * 1e6, "raw_us": statistics.median(raw) * 1e6}


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs `work`, with a number, in so many threads; the first error is raised when all have ended."""
    problems: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


class Agent:
    """Reads operations, starts each at once, and writes the answers."""

    def __init__(self) -> None:
        self.opened: dict[str, Opened] = {}
        self.holds: dict[str, tuple[str, Any]] = {}
        self._running: dict[int, asyncio.Task[None] | threading.Thread | None] = {}  # None: interrupted
        self._asyncio = AsyncioOperations(self)
        self._synchronous = SynchronousOperations(self)
        self._writing = threading.Lock()
        self._cancelling = threading.Lock()
        self._started: set[int] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=1 << 24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._start(json.loads(line))

    def _answer(self, number: int, **answer: Any) -> None:
        line = json.dumps({"id": number, **answer}) + "\n"
        with self._writing:
            sys.stdout.write(line)
            sys.stdout.flush()

    def _start(self, fields: dict[str, Any]) -> None:
        number, op = fields["id"], fields["op"]
        try:
            simple = self._simple(op, fields)
            if simple is not None:
                self._answer(number, ok=simple)
                return
            if "locks" in fields:
                subject: Any = self.opened[fields["locks"]]
                api = subject.api
            else:
                api, subject = self.holds[fields["hold"]]
            if api == "asyncio":
                work = getattr(self._asyncio, op)
                task = asyncio.get_running_loop().create_task(
                    self._in_task(number, work, subject, fields), name=OPERATION
                )
                self._running[number] = task
                task.add_done_callback(lambda _: self._answer_if_it_never_began(number))
            else:
                work = getattr(self._synchronous, op)
                thread = threading.Thread(
                    target=self._in_thread, args=(number, work, subject, fields), name=OPERATION, daemon=True
                )
                self._running[number] = thread
                thread.start()
        except Exception as problem:
            self._answer(number, **error_of(problem))

    def _simple(self, op: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of an operation that waits for nothing; None for others."""
        if op == "open":
            self.opened[fields["locks"]] = open_locks(fields)
            return {}
        if op == "open_quorum":
            self.opened[fields["locks"]] = open_quorum(fields)
            return {}
        if op == "hand_over":
            self.holds[fields["hold"]][1].hand_over()
            return {}
        if op == "check":
            self.holds[fields["hold"]][1].check()
            return {}
        if op == "state":
            return state(self.holds[fields["hold"]][1])
        if op == "cancel":
            self._cancel(fields["target"])
            return {}
        if op == "tasks":
            running = [task.get_name() for task in asyncio.all_tasks()]
            running += [thread.name for thread in threading.enumerate()]
            return {"count": len([name for name in running if name != OPERATION])}
        if op == "events":
            return {"events": self.opened[fields["locks"]].events.take()}
        return None

    def _cancel(self, number: int) -> None:
        with self._cancelling:
            target = self._running.get(number)
            if isinstance(target, asyncio.Task):
                target.cancel()
            elif target is not None:
                while number not in self._started:
                    time.sleep(0.0001)  # before that the thread could not say that it was cancelled
                with _starting:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(target.ident), ctypes.py_object(Cancelled)
                    )
                self._running[number] = None  # a second one could end the withdrawal before it has begun

    def _answer_if_it_never_began(self, number: int) -> None:
        """A task that is cancelled before its first step does nothing at all."""
        if self._running.pop(number, None) is not None:
            self._answer(number, **error_of(asyncio.CancelledError()))

    async def _in_task(self, number: int, work: Any, subject: Any, fields: dict[str, Any]) -> None:
        try:
            outcome = await work(subject, fields)
        except BaseException as problem:
            outcome = problem
        self._answer(number, **answer_of(outcome))
        del self._running[number]

    def _in_thread(self, number: int, work: Any, subject: Any, fields: dict[str, Any]) -> None:
        """A cancellation that comes when the work has ended changes nothing: a hold that the library has
        returned is answered, or nobody would release it.
        """
        outcome: Any = None
        while number in self._running:
            try:
                self._started.add(number)
                if outcome is None:
                    try:
                        outcome = work(subject, fields)
                    except BaseException as problem:
                        outcome = problem
                self._running.pop(number, None)
            except Cancelled as problem:
                outcome = problem if outcome is None else outcome
        while True:
            try:
                with self._cancelling:  # one that has begun is over
                    pass
                self._answer(number, **answer_of(outcome))
                return
            except Cancelled:
                continue


if __name__ == "__main__":
    asyncio.run(Agent().run())
