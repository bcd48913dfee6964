"""A crowd that locks, waits, dies and times out at random on a few keys, judged by what it was told.

Afterwards nobody is blocked, nothing is held, and the server has its memory back.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
import redis

from harness import Server, encode_command, wait_until
from harness.oracle import Oracle
from harness.waiting import blocked_clients

CLIENTS = 200
KEYS = 20

# Nobody who means to release dies while he holds: his ttl never ends before the test.
LONG = 3_600_000

# How much more memory the server may use afterwards: for tables that have grown, and no leak.
SLACK = 500_000

# A reply that takes so long was forgotten; a wait of the test is short.
FORGOTTEN = 20.0


class Gone(Exception):
    """The connection was closed, by whoever."""


def _request(key: str, token: str, mode: str, ttl: int, wait: int | None) -> tuple[str | int, ...]:
    command = "SLOCK.LOCK" if mode == "write" else "SLOCK.RLOCK"
    return (command, key, token, ttl, *(() if wait is None else ("WAIT", wait)))


class Client:
    """One after the other of the things that clients do to locks, each on the connection that is left."""

    def __init__(self, number: int, port: int, oracle: Oracle, chance: random.Random, end: float) -> None:
        self.number = number
        self.port = port
        self.oracle = oracle
        self.chance = chance
        self.end = end
        self.seen: Counter[str] = Counter()
        self.turn = 0
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None
        self.id = 0

    async def run(self) -> None:
        while time.monotonic() < self.end:
            self.turn += 1
            try:
                if self.writer is None:
                    await self._connect()
                await self._one_turn()
            except (Gone, ConnectionError):
                self.seen["connections lost"] += 1
                await self._hang_up()
        await self._hang_up()

    async def _one_turn(self) -> None:
        plan = self.chance.choices(["work", "nest", "upgrade", "die", "leave"], [65, 15, 10, 5, 5])[0]
        key = f"k{self.chance.randrange(KEYS)}"
        token = f"{self.number}:{self.turn}"
        mode = "read" if plan == "upgrade" else self.chance.choice(["read", "write"])
        if plan == "leave":
            # Perhaps in the moment of its grant, so it must not be for long.
            self._send(*_request(key, token, mode, 20, wait=0))
            await asyncio.sleep(self.chance.uniform(0, 0.03))
            raise Gone
        # Who will not release must not hold for long.
        ttl = self.chance.randrange(5, 60) if plan == "die" else LONG
        if not await self._take(key, token, mode, ttl, self.chance.choice([None, 0, 3, 20, 200])):
            return
        await asyncio.sleep(self.chance.choice([0, 0, 0.0005, 0.003]))
        if plan == "die":
            raise Gone
        if plan == "nest":
            await self._take_another(key, token)
        if plan == "upgrade":
            mode = await self._up_and_down(key, token)
        await self._release(key, token, mode)

    async def _take(self, key: str, token: str, mode: str, ttl: int, wait: int | None) -> bool:
        asked_at, now = self.oracle.asks(key), time.monotonic()
        reply = await self._insist(key, token, *_request(key, token, mode, ttl, wait))
        if isinstance(reply, str):
            self.seen[reply.split(" ")[0]] += 1
            return False
        if reply == 0:
            self.seen["refused" if wait is None else "timed out"] += 1
            return False
        self.seen[mode] += 1
        # Deadlines are whole milliseconds: a hold may be shorter by the part of one in which it began.
        self.oracle.granted(key, token, mode, reply, asked_at, now + (ttl - 1) / 1000)
        return True

    async def _take_another(self, key: str, token: str) -> None:
        """Waits, for ever if need be, while it holds: nobody may hang, because no cycle may close."""
        other = f"k{self.chance.randrange(KEYS)}"
        if other == key:
            return
        mode = self.chance.choice(["read", "write"])
        try:
            if await self._take(other, token, mode, LONG, self.chance.choice([0, 0, 50])):
                await self._release(other, token, mode)
        except (Gone, ConnectionError):
            self.oracle.leaves(key, token)
            await self._forget(key, token)
            raise

    async def _up_and_down(self, key: str, token: str) -> str:
        """Becomes the writer if it can, and sometimes a reader again; returns the mode it ends in."""
        asked_at = self.oracle.asks(key)
        reply = await self._insist(
            key, token, "SLOCK.UPGRADE", key, token, LONG, "WAIT", self.chance.choice([1, 30])
        )
        if not isinstance(reply, int) or reply == 0:
            self.seen["upgrades refused"] += 1
            return "read"
        self.seen["upgrades"] += 1
        self.oracle.leaves(key, token)
        self.oracle.granted(key, token, "write", reply, asked_at)
        if self.chance.random() < 0.5:
            return "write"
        asked_at = self.oracle.asks(key)
        self.oracle.leaves(key, token)
        reply = await self._insist(key, token, "SLOCK.DOWNGRADE", key, token, LONG)
        self.oracle.granted(key, token, "read", reply, asked_at)
        return "read"

    async def _release(self, key: str, token: str, mode: str) -> None:
        must_hold = self.oracle.leaves(key, token)
        command = ("SLOCK.UNLOCK" if mode == "write" else "SLOCK.RUNLOCK", key, token)
        released = await self._insist(key, token, *command)
        if must_hold and released != 1:
            self.oracle.violations.append(f"{token} held {key} and was told {released!r} by its release")

    async def _insist(self, key: str, token: str, *command: str | int) -> int | str:
        """Like `_ask`; a client whose reply was lost may hold or not, and gives back what it can."""
        try:
            return await self._ask(*command)
        except (Gone, ConnectionError):
            self.oracle.leaves(key, token)
            await self._forget(key, token)
            raise

    async def _forget(self, key: str, token: str) -> None:
        """By its token it is still the owner, on whichever connection."""
        for _ in range(20):
            try:
                await self._hang_up()
                await self._connect()
                await self._ask("SLOCK.UNLOCK", key, token)
                await self._ask("SLOCK.RUNLOCK", key, token)
                return
            except (Gone, ConnectionError):
                continue

    # --- the connection

    async def _connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.id = int(await self._ask("CLIENT", "ID"))

    async def _hang_up(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None
        self.id = 0

    def _send(self, *command: str | int) -> None:
        assert self.writer is not None
        self.writer.write(encode_command(*command))

    async def _ask(self, *command: str | int) -> int | str:
        """The integer, or the text of the error."""
        assert self.reader is not None
        self._send(*command)
        try:
            line = await asyncio.wait_for(self.reader.readline(), FORGOTTEN)
        except TimeoutError:
            self.oracle.violations.append(f"{command} was never answered")
            raise Gone from None
        if not line:
            raise Gone
        assert line[:1] in (b":", b"-"), line
        return int(line[1:]) if line[:1] == b":" else line[1:].decode().strip()


async def _disturb(clients: list[Client], server: Server, chance: random.Random, end: float) -> None:
    """Kills and unblocks whoever it meets."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    while time.monotonic() < end:
        victim = chance.choice(clients).id
        if victim:
            how = chance.choice(["KILL", "TIMEOUT", "ERROR"])
            command = (
                ("CLIENT", "KILL", "ID", victim) if how == "KILL" else ("CLIENT", "UNBLOCK", victim, how)
            )
            writer.write(encode_command(*command))
        await asyncio.sleep(0.002)
    writer.close()


def _soak(server: Server, seconds: float, seed: int) -> Counter[str]:
    oracle = Oracle()
    end = time.monotonic() + seconds
    clients = [
        Client(number, server.port, oracle, random.Random(seed * 1000 + number), end)
        for number in range(CLIENTS)
    ]

    async def all_of_it() -> None:
        disturbing = _disturb(clients, server, random.Random(seed), end)
        await asyncio.gather(disturbing, *(client.run() for client in clients))

    asyncio.run(all_of_it())
    assert not oracle.violations, "\n".join(oracle.violations)
    seen = sum((client.seen for client in clients), Counter())
    seen["grants"] = oracle.grants
    return seen


def _comes_to_rest(server: Server, used_before: int) -> int:
    """Waits until nobody waits, nothing is held and the memory is given back; the bytes used then."""
    client = server.client()
    wait_until(lambda: blocked_clients(client) == 0, 30, "no client to be blocked")
    wait_until(lambda: client.info("clients")["connected_clients"] == 1, 30, "all clients to be gone")
    for number in range(KEYS):
        # The last of those who died still hold, but not for long.
        wait_until(
            lambda key=f"k{number}": client.execute_command("SLOCK.INFO", key) is None, 30, "holds to end"
        )
    wait_until(lambda: client.dbsize() == 0, 30, "the last keys to expire")
    # The server frees what belonged to clients little by little.
    wait_until(lambda: _used(client) < used_before + SLACK, 30, f"memory to be near {used_before} again")
    return _used(client)


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def _run(make_server: Callable[..., Server], seconds: float) -> None:
    seed = random.SystemRandom().randrange(10_000)
    print(f"seed {seed}")
    server = make_server(slowlog_max_len=0, latency_tracking=False, maxclients=CLIENTS + 100)
    with server.client() as client:
        before = _used(client)
    seen = _soak(server, seconds, seed)
    after = _comes_to_rest(server, before)
    print(f"{dict(seen)}, memory {before} -> {after}")
    assert seen["grants"] > 50 * seconds
    assert all(seen[outcome] for outcome in ("upgrades", "timed out", "refused", "UNBLOCKED", "DEADLOCK"))


def test_a_crowd_at_work_for_a_moment(make_server: Callable[..., Server]) -> None:
    _run(make_server, 3.0)


@pytest.mark.soak
def test_a_crowd_at_work_for_long(make_server: Callable[..., Server]) -> None:
    _run(make_server, float(os.environ.get("SLOCK_SOAK_SECONDS", "60")))
