# SPDX-License-Identifier: MIT OR Apache-2.0

"""The agent of the conformance scenarios: it calls the library and does nothing else.

The protocol is in clients/conformance/README.md. The field `api` of `open` and `open_quorum` is `asyncio`, which is the
default, or `sync`. Operations of the synchronous library run in a thread each. An operation is written once for both
halves: `settled` takes what a function or a coroutine gives.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import gc
import inspect
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "src"))

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

import slock_client
import slock_client.asyncio
from slock_client.testing import MemoryServer

# The name of the tasks and threads of operations, which are not counted.
OPERATION = "operation"
META = "host=example pid=12345"


class Cancelled(BaseException):
    """What a cancelled thread gets, as Ctrl-C would raise it in the main thread."""


_starting = threading.Lock()


def _start_alone(start: Any, *arguments: Any) -> Any:
    """A thread that begins has its starter's identity for a moment, and would get an exception for that."""
    with _starting:
        return start(*arguments)


def _start_and_wait(function: Any, arguments: Any) -> int:
    begun = threading.Semaphore(0)

    def begin() -> None:
        begun.release()
        function(*arguments)

    identity = _start_new_thread(begin, ())
    begun.acquire()
    return identity


# The library, which looks it up when it starts a thread, and what the standard library starts, which waits by itself.
_start_new_thread, _start = _thread.start_new_thread, threading.Thread.start
_thread.start_new_thread = partial(_start_alone, _start_and_wait)
threading.Thread.start = lambda thread: _start_alone(_start, thread)  # type: ignore[method-assign]


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Events:
    """What the hooks have reported."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self.hooks = slock_client.Hooks(
            waited=lambda label, _, outcome: self._add(event="waited", label=label, outcome=outcome),
            held=lambda label, _: self._add(event="held", label=label),
            lost=lambda label, error: self._add(event="lost", label=label, keys=list(error.keys), reason=error.reason),
            renewal_failed=lambda label, error: self._add(event="renewal failed", label=label, error=str(error)),
            release_failed=lambda label, error: self._add(event="release failed", label=label, error=str(error)),
        )

    def take(self) -> list[dict[str, Any]]:
        events, self._events = self._events, []
        return events

    def _add(self, **event: Any) -> None:
        self._events.append(event)


class PasswordFile(redis.CredentialProvider):
    """Reads the password at each login."""

    def __init__(self, user: str, file: str) -> None:
        self._user, self._file = user, Path(file)

    def get_credentials(self) -> tuple[str, str]:
        return self._user, self._file.read_text().strip()


class Opened:
    """A `Locks` or a `Quorum`, with what belongs to it."""

    def __init__(self, fields: dict[str, Any], locks: Any, events: Events, clients: list[Any]) -> None:
        self.fields, self.locks, self.events, self.clients = fields, locks, events, clients
        self.is_async = fields.get("api", "asyncio") == "asyncio"
        self.half: Any = slock_client.asyncio if self.is_async else slock_client


def given(**options: Any) -> dict[str, Any]:
    """The options that the operation names; the library's defaults stand for the others."""
    return {name: value for name, value in options.items() if value is not None}


def s(fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    return None if value is None else value / 1000


def strategy(poll: dict[str, Any]) -> Callable[[int], float | None]:
    first, most = s(poll, "pause_ms") or 0, s(poll, "most_ms") or 0.1
    limit = 0 if poll["kind"] == "none" else poll.get("limit")

    def pause(attempt: int) -> float | None:
        if limit is not None and attempt >= limit:
            return None
        return first if poll["kind"] == "constant" else min(first * 2.0**attempt, most) * random.uniform(0.5, 1)

    return pause


def client_of(fields: dict[str, Any], **options: Any) -> Any:
    """The program's client."""
    is_async = fields.get("api", "asyncio") == "asyncio"
    package = redis.asyncio if is_async else redis
    addresses = [(host, int(port)) for host, _, port in (node.rpartition(":") for node in fields["nodes"])]
    options |= given(username=fields.get("user"), password=fields.get("password"))
    if "password_file" in fields:
        options = {"credential_provider": PasswordFile(fields["user"], fields["password_file"])}
    if "read_timeout_ms" in fields:
        options["socket_timeout"] = s(fields, "read_timeout_ms") or None
    kind = fields.get("kind", "single")
    if kind == "cluster":
        nodes = [package.cluster.ClusterNode(*address) for address in addresses]
        return package.RedisCluster(startup_nodes=nodes, **options)
    options.setdefault("max_connections", fields.get("pool_size", 2))
    if kind == "sentinel":
        return package.sentinel.Sentinel(addresses).master_for(fields["service"], **options)
    return package.Redis(host=addresses[0][0], port=addresses[0][1], **options)


def request(opened: Opened, fields: dict[str, Any]) -> Any:
    options = given(
        ttl=s(fields, "ttl_ms"),
        wait=s(fields, "wait_ms"),
        limit=fields.get("limit"),
        metadata=fields.get("metadata"),
        renew=fields.get("renew"),
        max_hold=s(fields, "max_hold_ms"),
        at_least=s(fields, "at_least_ms"),
        token=fields.get("token"),
        min_replicas=fields.get("min_replicas"),
        replica_timeout=s(fields, "replica_timeout_ms"),
        label=fields.get("label"),
    )
    keys = fields["keys"] if "keys" in fields else [fields["key"]]
    return getattr(opened.locks, fields.get("mode", "write"))(*keys, **options)


def granted(hold: Any) -> dict[str, Any]:
    answer = {"token": hold.token, "fence": hold.fence, "remaining_ms": int(hold.remaining * 1000)}
    return answer if hold.fence else {**answer, "fences": hold.fences}


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


def as_json(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode(errors="replace")
    if isinstance(reply, (list, tuple)):
        return [as_json(one) for one in reply]
    return reply


class Operations:
    """The operations, with either half. In the synchronous one nothing suspends."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    # --- of locks

    async def acquire(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return self._keep(opened, fields, await settled(request(opened, fields).acquire()))

    async def try_acquire(self, opened: Opened, fields: dict[str, Any]) -> Any:
        hold = await settled(request(opened, fields).try_acquire())
        return {"refused": True} if hold is None else self._keep(opened, fields, hold)

    async def adopt(self, opened: Opened, fields: dict[str, Any]) -> Any:
        options = given(ttl=s(fields, "ttl_ms"), renew=fields.get("renew"), metadata=fields.get("metadata"))
        adopted = opened.locks.adopt(fields["keys"], fields["token"], fields.get("mode", "write"), **options)
        return self._keep(opened, fields, await settled(adopted))

    def _keep(self, opened: Opened, fields: dict[str, Any], hold: Any) -> Any:
        self._agent.holds[fields["hold"]] = (opened, hold)
        return hold

    async def release_token(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return {"released": await settled(opened.locks.release(fields["keys"], fields["token"]))}

    async def info(self, opened: Opened, fields: dict[str, Any]) -> Any:
        info = await settled(opened.locks.info(fields["key"]))
        return {
            **{"key": info.key, "mode": info.mode, "readers": info.readers, "waiters": info.waiters},
            **{"holders": len(info.holders), "queue": len(info.queue)},
            "tokens": [holder.token for holder in info.holders],
        }

    async def queues(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return {"names": [one.key for one in await settled(opened.locks.queues())]}

    async def block(self, opened: Opened, fields: dict[str, Any]) -> Any:
        if opened.is_async:
            async with request(opened, fields):
                await asyncio.sleep(fields["work_ms"] / 1000)
            return {}
        with request(opened, fields) as hold:
            end = time.monotonic() + fields["work_ms"] / 1000
            while time.monotonic() < end:
                hold.check()
                time.sleep(min(0.01, max(0.0, end - time.monotonic())))
        return {}

    async def raw(self, opened: Opened, fields: dict[str, Any]) -> Any:
        try:
            [client] = opened.clients
            if isinstance(client, MemoryServer):
                reply = client.execute(*fields["command"])
            else:
                reply = await settled(client.execute_command(*fields["command"]))
        except Exception as error:
            reply = str(error)
        return {"reply": as_json(reply)}

    async def fill_pool(self, opened: Opened, fields: dict[str, Any]) -> Any:
        [client] = opened.clients
        size, key, seconds = opened.fields.get("pool_size", 2), f"occupied:{fields['locks']}", fields["ms"] / 1000
        arguments = client.connection_pool.connection_kwargs
        watcher = redis.Redis(host=arguments["host"], port=arguments["port"])
        before = watcher.info("clients")["blocked_clients"]
        for _ in range(size):
            if opened.is_async:
                self._agent.tasks.add(asyncio.ensure_future(client.blpop(key, seconds)))
            else:
                threading.Thread(target=client.blpop, args=(key, seconds), name=OPERATION, daemon=True).start()
        while watcher.info("clients")["blocked_clients"] < before + size:
            await (asyncio.sleep(0.001) if opened.is_async else settled(time.sleep(0.001)))
        watcher.close()
        return {}

    async def close(self, opened: Opened, fields: dict[str, Any]) -> Any:
        await settled(opened.locks.close(release=bool(fields.get("release"))))
        return {}

    # --- of a hold

    async def release(self, hold: Any, fields: dict[str, Any]) -> Any:
        await settled(hold.release())
        return {}

    async def extend(self, hold: Any, fields: dict[str, Any]) -> Any:
        await settled(hold.extend(fields["ttl_ms"] / 1000))
        return {"remaining_ms": granted(hold)["remaining_ms"]}

    async def upgrade(self, hold: Any, fields: dict[str, Any]) -> Any:
        await settled(hold.upgrade(**given(wait=s(fields, "wait_ms"))))
        return {"fence": hold.fence, "mode": hold.mode}

    async def downgrade(self, hold: Any, fields: dict[str, Any]) -> Any:
        await settled(hold.downgrade())
        return {"fence": hold.fence, "mode": hold.mode}

    async def await_lost(self, hold: Any, fields: dict[str, Any]) -> Any:
        assert await settled(hold.wait_lost())
        return {"reason": hold.reason}

    # --- many at once

    async def work(self, opened: Opened, fields: dict[str, Any]) -> Any:
        counter, seen = fields["counter"], [1]
        client = client_of(opened.fields, max_connections=None)

        async def step() -> None:
            if fields.get("limit") is None:
                number = int(await settled(client.get(counter)) or 0) + 1
                await settled(client.set(counter, number))
            else:
                seen.append(await settled(client.incr(counter)))
                await settled(client.decr(counter))

        async def task(_: int) -> None:
            for _ in range(fields["additions"]):
                if opened.is_async:
                    async with request(opened, fields):
                        await step()
                else:
                    with request(opened, fields):
                        await step()

        await self._at_once(opened, fields["tasks"], task)
        await settled(getattr(client, "aclose", client.close)())
        return {"done": fields["tasks"] * fields["additions"], "most": max(seen)}

    async def wait_many(self, opened: Opened, fields: dict[str, Any]) -> Any:
        async def task(_: int) -> None:
            hold = await settled(request(opened, fields).acquire())
            await settled(hold.release())

        await self._at_once(opened, fields["tasks"], task)
        return {"done": fields["tasks"]}

    async def _at_once(self, opened: Opened, count: int, task: Callable[[int], Any]) -> None:
        if opened.is_async:
            await asyncio.gather(*(task(number) for number in range(count)))
            return
        problems: list[BaseException] = []

        def guarded(number: int) -> None:
            try:
                complete(task(number))
            except BaseException as problem:
                problems.append(problem)

        threads = [
            threading.Thread(target=guarded, args=(number,), name=OPERATION, daemon=True) for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    # --- measurements: the library beside the same commands by redis-py, with clients of their own and without hooks

    async def cost(self, opened: Opened, fields: dict[str, Any]) -> Any:
        client = client_of(opened.fields)
        locks = opened.half.Locks(client)
        asked = locks.write("cost", renew=False)

        async def library() -> None:
            hold = await settled(asked.acquire())
            await settled(hold.release())

        async def raw() -> None:
            token = raw_token()
            await settled(client.execute_command("SLOCK.LOCK", "cost", token, 10000, "META", META))
            await settled(client.execute_command("SLOCK.MUNLOCK", 1, "cost", token, "REFUSE", 120000))

        times: dict[Any, list[float]] = {library: [], raw: []}
        for turn in range(max(2, fields["rounds"] // 50)):
            for _ in range(100):
                began = time.perf_counter()
                work = (library, raw)[turn % 2]
                await work()
                times[work].append(time.perf_counter() - began)
        await settled(locks.close())
        return {"client_us": statistics.median(times[library]) * 1e6, "raw_us": statistics.median(times[raw]) * 1e6}

    async def pairs(self, opened: Opened, fields: dict[str, Any]) -> Any:
        return await self._compare(opened, fields, lambda number: f"pairs:{number}")

    async def handoffs(self, opened: Opened, fields: dict[str, Any]) -> Any:
        """By redis-py each task that waits has a connection of its own."""
        return await self._compare(opened, fields, lambda _: fields["key"], "WAIT", 0)

    async def _compare(self, opened: Opened, fields: dict[str, Any], key: Callable[[int], str], *wait: Any) -> Any:
        """Both by turns, five times after a first one that makes the connections; the medians of the whole time."""
        client = client_of(opened.fields, max_connections=2 * fields["tasks"], socket_timeout=60)
        locks, rounds = opened.half.Locks(client), fields["rounds"] // 5 + 1

        async def library(number: int) -> None:
            asked = locks.write(key(number), renew=False)
            for _ in range(rounds):
                hold = await settled(asked.acquire())
                await settled(hold.release())

        async def raw(number: int) -> None:
            name = key(number)
            for _ in range(rounds):
                token = raw_token()
                await settled(client.execute_command("SLOCK.LOCK", name, token, 10000, "META", META, *wait))
                await settled(client.execute_command("SLOCK.MUNLOCK", 1, name, token, "REFUSE", 120000))

        times: dict[Any, list[float]] = {library: [], raw: []}
        for turn in range(6):
            for work in (library, raw):
                began = time.perf_counter()
                await self._at_once(opened, fields["tasks"], work)
                if turn:
                    times[work].append(time.perf_counter() - began)
        await settled(locks.close())
        await settled(getattr(client, "aclose", client.close)())
        return {"library_us": statistics.median(times[library]) * 5e6, "raw_us": statistics.median(times[raw]) * 5e6}


def raw_token() -> str:
    """As long as a token of the library, and another one for each pair, as those are."""
    return f"raw:{time.perf_counter_ns():018}"


def complete(coroutine: Any) -> Any:
    """Runs an operation of the synchronous half, which suspends nowhere."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the operation was suspended")


class Agent:
    """Reads operations, starts each at once, and writes the answers."""

    def __init__(self) -> None:
        self.opened: dict[str, Opened] = {}
        self.holds: dict[str, tuple[Opened, Any]] = {}
        self.tasks: set[Any] = set()
        self._memory: dict[str, MemoryServer] = {}
        self._running: dict[int, asyncio.Task[None] | threading.Thread | None] = {}  # None: interrupted
        self._operations = Operations(self)
        self._writing = threading.Lock()
        self._cancelling = threading.Lock()
        self._started: set[int] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        # A collection in a thread that is being cancelled would run finalizers, which swallow the exception.
        gc.disable()
        self.tasks.add(loop.create_task(self._collect(), name=OPERATION))
        reader = asyncio.StreamReader(limit=1 << 24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            self._start(json.loads(line))

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(1)
            gc.collect()

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
                opened = subject = self.opened[fields["locks"]]
            else:
                opened, subject = self.holds[fields["hold"]]
            work = getattr(self._operations, op)
            if opened.is_async:
                task = asyncio.get_running_loop().create_task(
                    self._in_task(number, work, subject, fields), name=OPERATION
                )
                self._running[number] = task
                task.add_done_callback(lambda _: self._answer_if_it_never_began(number))
            else:
                thread = threading.Thread(
                    target=self._in_thread, args=(number, work, subject, fields), name=OPERATION, daemon=True
                )
                self._running[number] = thread
                thread.start()
        except Exception as problem:
            self._answer(number, **error_of(problem))

    def _simple(self, op: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of an operation that waits for nothing; None for others."""
        if op in ("open", "open_quorum"):
            self.opened[fields["locks"]] = self._open(fields)
            return {}
        if op == "detach":
            self.holds[fields["hold"]][1].detach()
            return {}
        if op == "check":
            self.holds[fields["hold"]][1].check()
            return {}
        if op == "state":
            hold = self.holds[fields["hold"]][1]
            more = {"mode": hold.mode, "keys": list(hold.keys), "metadata": hold.metadata}
            return {**granted(hold), **more, "lost": hold.lost, "reason": hold.reason}
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

    def _open(self, fields: dict[str, Any]) -> Opened:
        events = Events()
        half: Any = slock_client.asyncio if fields.get("api", "asyncio") == "asyncio" else slock_client
        if fields["op"] == "open_quorum":
            clients = [client_of({**fields, "nodes": [node]}, max_connections=None) for node in fields["nodes"]]
            options = given(
                node_timeout=s(fields, "node_timeout_ms"),
                drift_factor=fields.get("drift_factor"),
                fail_fast=fields.get("fail_fast"),
                poll=strategy(fields["poll"]) if fields.get("poll") else None,
            )
            return Opened(fields, half.Quorum(clients, hooks=events.hooks, **options), events, clients)
        if fields.get("kind") == "memory":
            client: Any = self._memory.setdefault(fields["nodes"][0], MemoryServer())
        else:
            client = client_of(fields)
        options = given(
            retry_for=s(fields, "retry_for_ms"),
            retry_wait_for=s(fields, "retry_wait_for_ms"),
            prefix=fields.get("prefix"),
        )
        return Opened(fields, half.Locks(client, hooks=events.hooks, **options), events, [client])

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
        """A cancellation that comes when the work has ended changes nothing: a hold that the library has returned is
        answered, or nobody would release it.
        """
        outcome: Any = None
        while number in self._running:
            try:
                self._started.add(number)
                if outcome is None:
                    try:
                        outcome = complete(work(subject, fields))
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
