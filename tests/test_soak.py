"""A crowd that locks, waits, dies and times out at random on a few keys, judged by what it was told.

Meanwhile its resident memory grows no more. Afterwards nobody is blocked, nothing is held, the server has its
memory back, and its counters agree with what the clients were told.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import count, pairwise, takewhile

import pytest
import redis

from harness import MakeServer, Server, encode_command, wait_until
from harness.oracle import Oracle
from harness.waiting import blocked_clients

CLIENTS = 200
KEYS = [f"k{number}" for number in range(20)]

# Nobody who means to release dies while he holds: his ttl never ends before the test.
LONG = 3_600_000

# How much more memory the server may use afterwards: for tables that have grown, and no leak.
SLACK = 500_000

# In a long run, after a third of it: by how much resident memory may change from one tenth to another.
FLAT = 1.05
LONG_S = 30.0
PARTS = 10

# A reply that takes so long was forgotten; a wait of the test is short.
FORGOTTEN = 20.0

# What has to happen. A slow machine has so much longer for it.
OUTCOMES = ("upgrades", "timed out", "refused", "UNBLOCKED", "DEADLOCK")
LATER_S = 30.0


class Gone(Exception):
    """The connection was closed, by whoever."""


COMMANDS = {"write": ("SLOCK.LOCK", "SLOCK.UNLOCK"), "read": ("SLOCK.RLOCK", "SLOCK.RUNLOCK")}
MODES = list(COMMANDS)


class Client:
    """One after the other of the things that clients do to locks, each on the connection that is left."""

    def __init__(
        self, number: int, port: int, oracle: Oracle, chance: random.Random, seen: Counter[str]
    ) -> None:
        self.number, self.port, self.oracle, self.chance, self.seen = number, port, oracle, chance, seen
        self.id = 0
        self.mine: set[str] = set()
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def run(self, goes_on: Callable[[], bool]) -> None:
        for turn in takewhile(lambda _: goes_on(), count(1)):
            self.token = f"{self.number}:{turn}"
            try:
                await self._one_turn()
            except (Gone, ConnectionError):
                self.seen["connections lost"] += 1
                await self._give_back()
        self._hang_up()

    async def _one_turn(self) -> None:
        plan = self.chance.choices(["work", "nest", "upgrade", "die", "leave"], [65, 15, 10, 5, 5])[0]
        key, other = self.chance.sample(KEYS, 2)
        mode = "read" if plan == "upgrade" else self.chance.choice(MODES)
        if plan == "leave":
            # Perhaps in the moment of its grant, so it must not be for long.
            await self._send(COMMANDS[mode][0], key, self.token, 20, "WAIT", 0)
            await asyncio.sleep(self.chance.uniform(0, 0.03))
            raise Gone
        # Who will not release must not hold for long.
        ttl = self.chance.randrange(5, 60) if plan == "die" else LONG
        if not await self._take(key, mode, ttl, self.chance.choice([None, 0, 3, 20, 200])):
            return
        await asyncio.sleep(self.chance.choice([0, 0, 0.0005, 0.003]))
        if plan == "die":
            self.mine.clear()
            raise Gone
        if plan == "nest":
            # Waits, for ever if need be, while it holds: nobody may hang, because no cycle may close.
            as_what = self.chance.choice(MODES)
            if await self._take(other, as_what, LONG, self.chance.choice([0, 50])):
                await self._release(other, as_what)
        if plan == "upgrade":
            mode = await self._up_and_down(key)
        await self._release(key, mode)

    async def _take(self, key: str, mode: str, ttl: int, wait: int | None) -> bool:
        asked_at, now = self.oracle.asks(key), time.monotonic()
        self.mine.add(key)
        waiting = () if wait is None else ("WAIT", wait)
        reply = await self._ask(COMMANDS[mode][0], key, self.token, ttl, *waiting)
        if isinstance(reply, str) or reply == 0:
            self.mine.discard(key)
            self.seen[reply.split(" ")[0] if reply else "refused" if wait is None else "timed out"] += 1
            return False
        self.seen[mode] += 1
        # Deadlines are whole milliseconds: a hold may be shorter by the part of one in which it began.
        self.oracle.granted(key, self.token, mode, reply, asked_at, now + (ttl - 1) / 1000)
        return True

    async def _up_and_down(self, key: str) -> str:
        """Becomes the writer if it can, and sometimes a reader again; returns the mode it ends in."""
        asked_at = self.oracle.asks(key)
        reply = await self._ask("SLOCK.UPGRADE", key, self.token, LONG, "WAIT", self.chance.choice([1, 30]))
        if not isinstance(reply, int) or reply == 0:
            self.seen["upgrades refused"] += 1
            return "read"
        self.seen["upgrades"] += 1
        self.oracle.leaves(key, self.token)
        self.oracle.granted(key, self.token, "write", reply, asked_at)
        if self.chance.random() < 0.5:
            return "write"
        asked_at = self.oracle.asks(key)
        self.oracle.leaves(key, self.token)
        reply = await self._ask("SLOCK.DOWNGRADE", key, self.token, LONG)
        self.seen["downgrades"] += 1
        self.oracle.granted(key, self.token, "read", reply, asked_at)
        return "read"

    async def _release(self, key: str, mode: str) -> None:
        must_hold = self.oracle.leaves(key, self.token)
        released = await self._ask(COMMANDS[mode][1], key, self.token)
        self.mine.discard(key)
        if must_hold and released != 1:
            self.oracle.violations.append(f"{self.token} held {key} and its release answered {released!r}")

    async def _give_back(self) -> None:
        """What it may hold, its reply being lost: by its token it is still the owner, on any connection."""
        self._hang_up()
        for key in self.mine:
            self.oracle.leaves(key, self.token)
        while self.mine:
            try:
                key = next(iter(self.mine))
                await self._ask("SLOCK.UNLOCK", key, self.token)
                await self._ask("SLOCK.RUNLOCK", key, self.token)
                self.mine.discard(key)
            except (Gone, ConnectionError):
                self._hang_up()

    # --- the connection

    def _hang_up(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
        self.writer, self.id = None, 0

    async def _send(self, *command: str | int) -> None:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.id = int(await self._ask("CLIENT", "ID"))
        self.writer.write(encode_command(*command))

    async def _ask(self, *command: str | int) -> int | str:
        """The integer, or the text of the error."""
        await self._send(*command)
        try:
            line = await asyncio.wait_for(self.reader.readline(), FORGOTTEN)
        except TimeoutError:
            self.oracle.violations.append(f"{command} was never answered")
            raise Gone from None
        if not line:
            raise Gone
        assert line[:1] in (b":", b"-"), line
        return int(line[1:]) if line[:1] == b":" else line[1:].decode().strip()


async def _disturb(
    clients: list[Client], server: Server, chance: random.Random, goes_on: Callable[[], bool]
) -> None:
    """Kills and unblocks whoever it meets."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    while goes_on():
        victim = chance.choice(clients).id
        if victim:
            how = chance.choice(["KILL ID {}", "UNBLOCK {} TIMEOUT", "UNBLOCK {} ERROR"])
            writer.write(encode_command("CLIENT", *how.format(victim).split()))
        await asyncio.sleep(0.002)
    writer.close()


async def _look(server: Server, resident: list[int], goes_on: Callable[[], bool]) -> None:
    with server.client() as client:
        while goes_on():
            resident.append(client.info("memory")["used_memory_rss"])
            await asyncio.sleep(0.5)


async def _soak(
    server: Server, oracle: Oracle, resident: list[int], seconds: float, seed: int
) -> Counter[str]:
    end, seen = time.monotonic() + seconds, Counter[str]()

    def goes_on() -> bool:
        moment = time.monotonic()
        return moment < end or (moment < end + LATER_S and not all(seen[outcome] for outcome in OUTCOMES))

    dice = [random.Random(seed * 1000 + number) for number in range(CLIENTS)]
    clients = [Client(number, server.port, oracle, dice[number], seen) for number in range(CLIENTS)]
    disturbing = _disturb(clients, server, random.Random(seed), goes_on)
    looking = _look(server, resident, goes_on)
    await asyncio.gather(disturbing, looking, *(client.run(goes_on) for client in clients))
    return seen


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


def _comes_to_rest(client: redis.Redis, used_before: int) -> None:
    """Waits until nobody waits, nothing is held and the memory is given back."""
    wait_until(lambda: blocked_clients(client) == 0, 30, "no client to be blocked")
    wait_until(lambda: client.info("clients")["connected_clients"] == 1, 30, "all clients to be gone")
    # The last of those who died still hold, but not for long.
    wait_until(lambda: client.info("slock")["slock_waiters"] == client.dbsize() == 0, 30, "holds to end")
    assert not any(client.execute_command("SLOCK.INFO", key) for key in KEYS)
    # The server frees what belonged to clients little by little.
    wait_until(lambda: _used(client) < used_before + SLACK, 30, f"memory to be near {used_before} again")


def _is_flat(resident: list[int]) -> bool:
    """Its middle in each tenth of the time: it goes up and down by what clients are sent at the moment."""
    late = resident[len(resident) // 3 :]
    bounds = [len(late) * part // PARTS for part in range(PARTS + 1)]
    middles = [sorted(late[a:b])[(b - a) // 2] for a, b in pairwise(bounds) if a < b]
    print(f"resident memory: {resident[0]} at the start, then {middles}")
    return max(middles) <= FLAT * min(middles)


def _counters_agree(client: redis.Redis, oracle: Oracle, seen: Counter[str]) -> None:
    """Of what was done on a connection that was lost, the clients do not know whether it came about."""
    counters, lost = client.info("slock"), seen["connections lost"]
    none_left = ("slock_locks", "slock_waiters", "slock_waiting_users")
    assert not any(counters[name] for name in none_left), counters
    assert 0 <= counters["slock_grants"] - oracle.grants <= lost, counters
    # Each hold ends once; an upgrade and a downgrade give a hold in the place of another.
    ended = counters["slock_releases"] + counters["slock_expirations"]
    replaced = counters["slock_grants"] - ended
    assert 0 <= replaced - seen["upgrades"] - seen["downgrades"] <= lost, counters
    assert counters["slock_handoffs"] <= counters["slock_grants"]


@pytest.mark.parametrize(
    "seconds",
    [3.0, pytest.param(float(os.environ.get("SLOCK_SOAK_SECONDS", "60")), marks=pytest.mark.soak)],
    ids=["for a moment", "for long"],
)
def test_a_crowd_at_work(make_server: MakeServer, seconds: float) -> None:
    seed = random.SystemRandom().randrange(10_000)
    print(f"seed {seed}")
    server = make_server(slowlog_max_len=0, latency_tracking=False, maxclients=CLIENTS + 100)
    client = server.client()
    before, oracle, resident = _used(client), Oracle(), []
    seen = asyncio.run(_soak(server, oracle, resident, seconds, seed))
    assert not oracle.violations, "\n".join(oracle.violations)
    _comes_to_rest(client, before)
    print(f"{dict(seen)}, {oracle.grants} grants, memory {before} -> {_used(client)}")
    _counters_agree(client, oracle, seen)
    assert _is_flat(resident) or seconds < LONG_S, resident
    assert oracle.grants > 50 * seconds
    assert all(seen[outcome] for outcome in OUTCOMES), seen
