"""Crowds that once slowed the server: no command and no turn of the event loop grows with them.

How it is measured is said in `scenario.py` and `prober.py`. Nearly all requests wait by NOTIFY, so that a few
connections ask for all of them. One more waiter is measured as the mean of many, each of which is withdrawn
before the next, on two servers in turns.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common import (
    Pipe,
    RawConnection,
    Server,
    batches,
    encode_command,
    percentile,
    private_server,
    wait_until,
)
from scenario import AFTERWARDS_S, COMMAND_LIMIT_S, TTL_MS, Bench, Scenario, many, run

PLACES = 1024  # of one token
PAIRS = PLACES // 2  # as many requests of two keys may one token have
SIDE = 32  # or as many of as many keys
KEYS = 1024
FEW, MANY = 1000, 100_000
GROWTH_LIMIT = 2.0
ONE_MORE = 256  # further waiters, one after the other
ONE_MORE_TURNS = 15
RANDOM_SETS = 300
READERS = 50_000
CHANNELS = 100_000
CHANNELS_GONE_LIMIT_S = 3.0
HAND_OFF_LIMIT_MS = 1.0
NAMES = 100_000
USERS = 20_000
USERS_LIMIT_KB = 300.0

CHANNEL = "crowd"
TAKE_MANY = {"slock_max_waiters": 1_000_000, "client_output_buffer_limit": "pubsub 0 0 0"}


# --- asking


def token(name: str) -> str:
    """A token as programs have them, drawn by chance: those in the order of numbers are found faster."""
    return hashlib.md5(name.encode()).hexdigest()[:22]


def lock(key: str, token: str) -> bytes:
    return encode_command("SLOCK.LOCK", key, token, TTL_MS)


def notify(key: str, token: str, channel: str = CHANNEL, name: str = "LOCK") -> bytes:
    return encode_command(f"SLOCK.{name}", key, token, TTL_MS, "WAIT", 0, "NOTIFY", channel, token)


def notify_many(keys: list[str], token: str, tag: str) -> bytes:
    return many("MLOCK", keys, token, TTL_MS, "WAIT", 0, "NOTIFY", CHANNEL, tag)


def ask(bench: Bench, commands: list[bytes], at_once: int = 1000) -> None:
    """Requests of which each has to wait."""
    pipe = Pipe(bench.server)
    pipe.socket.settimeout(COMMAND_LIMIT_S)
    for batch in batches(commands, at_once):
        if pipe.exchange(batch) != b"$-1\r\n" * len(batch):
            raise SystemExit("a request does not wait")
    pipe.close()


def subscribe(server: Server, channels: list[str]) -> RawConnection:
    connection = server.raw()
    for batch in batches(channels, 1000):
        connection.send_bytes(b"".join(encode_command("SSUBSCRIBE", channel) for channel in batch))
        for _ in batch:
            connection.read()
    return connection


def waiters(bench: Bench) -> int:
    return int(bench.info("slock")["slock_waiters"])


def wait_for_nobody(bench: Bench, limit_s: float = 120) -> None:
    wait_until(lambda: waiters(bench) == 0, limit_s, "nobody to wait any more")


# --- one token that waits often


def cancel_of_one_token(bench: Bench) -> None:
    """All that one token may have is withdrawn by a command: two keys each, blocked clients, one request."""
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    listener = subscribe(bench.server, [CHANNEL])
    ask(bench, [notify_many(["k", f"x{n}"], "T", str(n)) for n in range(PAIRS)])
    bench.watched("two keys each", "SLOCK.CANCEL", "k", "T")
    wait_for_nobody(bench)

    connections = bench.connect(PLACES)
    bench.wait_for(connections, [encode_command("SLOCK.LOCK", "k", "T", TTL_MS, "WAIT", 0)] * PLACES)
    bench.watched("blocked clients", "SLOCK.CANCEL", "k", "T")
    for connection in connections:
        connection.close()
    wait_for_nobody(bench)

    ask(bench, [notify_many(["k", *(f"y{n}" for n in range(KEYS - 1))], "T", "tag")])
    bench.watched(f"one request for {KEYS} keys", "SLOCK.CANCEL", "k", "T")
    listener.close()


def same_request_again(bench: Bench) -> None:
    """A request of many keys, which differs from others of its token in the last key, is asked again."""
    bench.control.ok("SLOCK.LOCK", "y0", "holder", TTL_MS)
    listener = subscribe(bench.server, [CHANNEL])
    common = [f"y{n}" for n in range(SIDE - 1)]
    commands = [notify_many([*common, f"x{n}"], "T", str(n)) for n in range(SIDE)]
    ask(bench, commands)
    bench.control.ok("CONFIG", "RESETSTAT")
    with bench.prober.watch() as turns:
        bench.control.send_bytes(commands[-1])
        bench.control.read()
        time.sleep(AFTERWARDS_S)
    bench.longest["asked again: command"] = bench.taken_by("SLOCK.MLOCK")
    bench.longest["asked again: turn"] = turns.longest_ms
    listener.close()


def grants_to_one_token(bench: Bench) -> None:
    """All requests of one token can be granted at once."""
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    listener = subscribe(bench.server, [CHANNEL])
    ask(bench, [notify_many(["k", f"x{n}"], "T", str(n)) for n in range(PAIRS)])
    with bench.prober.watch() as turns:
        start = time.perf_counter()
        took = bench.command("SLOCK.UNLOCK", "k", "holder")
        wait_for_nobody(bench)
        served = time.perf_counter() - start
        time.sleep(AFTERWARDS_S)
    bench.longest["UNLOCK: command"] = took
    bench.longest["until all are served: longest turn"] = turns.longest_ms
    bench.other["until all are served, ms"] = served * 1000
    listener.close()


# --- one more waiter


def one_more(bench: Bench, key: str) -> float:
    """The mean of many more requests, each of a new token and withdrawn at once, in microseconds."""
    pipe = Pipe(bench.server)
    pipe.socket.settimeout(COMMAND_LIMIT_S)
    bench.control.ok("CONFIG", "RESETSTAT")
    for number in range(ONE_MORE):
        new = token(f"new{number}")
        pipe.exchange([notify(key, new), encode_command("SLOCK.CANCEL", key, new)])
    pipe.close()
    return bench.taken_by("SLOCK.LOCK") * 1000 / ONE_MORE


def hub(bench: Bench, names: int) -> str:
    """All wait for one key, each for one of its own too."""
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    ask(bench, [notify_many(["k", f"x{n}"], token(f"t{n}"), token(f"t{n}")) for n in range(names)])
    return "k"


def chain(bench: Bench, names: int) -> str:
    """Each holds a key and waits for that of the next."""
    bench.hold([lock(f"x{n}", token(f"t{n}")) for n in range(names + 1)]).close()
    # From the end of the chain on: so the search that looks whether it closes a cycle is short.
    ask(bench, [notify(f"x{n + 1}", token(f"t{n}")) for n in reversed(range(names))])
    return "x0"


def random_sets(bench: Bench, names: int) -> str:
    """Sets of very many keys, chosen by chance, with one key in common."""
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    chance = random.Random(names)
    sets = RANDOM_SETS * names // MANY or 1
    size = min(KEYS, names) - 1
    keys = [f"x{n}" for n in range(max(names, size))]
    tokens = [token(f"t{n}") for n in range(sets)]
    ask(bench, [notify_many(["k", *chance.sample(keys, size)], own, own) for own in tokens], 4)
    return "k"


def readers_that_wait(bench: Bench, names: int) -> str:
    """The readers of one lock each wait for another."""
    count = min(names, READERS)
    bench.hold([encode_command("SLOCK.RLOCK", "k", token(f"t{n}"), TTL_MS) for n in range(count)]).close()
    bench.hold([lock(f"x{n}", "holder") for n in range(count)]).close()
    ask(bench, [notify(f"x{n}", token(f"t{n}")) for n in range(count)])
    return "k"


def one_more_waiter(crowd: Callable[[Bench, int], str]) -> Callable[[Bench], None]:
    """What it costs that very many names are waited for, when one more request comes.

    Two servers, one with a small crowd and one with a large one, are asked in turns, and the ratio is taken
    in each turn: so other load on the machine is in both.
    """

    def measure(bench: Bench) -> None:
        with private_server(maxclients=20_000, **TAKE_MANY) as server:
            small = Bench(server, bench.prober, server.raw())
            small.control.socket.settimeout(COMMAND_LIMIT_S)
            listeners = [subscribe(one.server, [CHANNEL]) for one in (small, bench)]
            key = [crowd(small, FEW), crowd(bench, MANY)][1]
            turns_taken = [(one_more(small, key), one_more(bench, key)) for _ in range(ONE_MORE_TURNS)]
            with bench.prober.watch() as turns:
                ask(bench, [notify(key, "the last")])
                time.sleep(AFTERWARDS_S)
            for listener in listeners:
                listener.close()
        few, very_many = (statistics.median(column) for column in zip(*turns_taken, strict=True))
        growth = statistics.median(many / few for few, many in turns_taken)
        bench.longest[f"behind {MANY}: command"] = very_many / 1000
        bench.longest[f"behind {MANY}: turn"] = turns.longest_ms
        bench.limited[f"behind {MANY} / behind {FEW}"] = growth, GROWTH_LIMIT
        bench.other[f"behind {FEW}, microseconds"] = few
        bench.other[f"behind {MANY}, microseconds"] = very_many

    return measure


# --- channels


class HandOffs(threading.Thread):
    """Two clients that hand a lock on to each other: how long each took, from the release to the answer."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.took_ms: list[float] = []
        self._ends = threading.Event()
        self._clients = [server.raw() for _ in range(2)]
        for client in self._clients:
            client.socket.settimeout(COMMAND_LIMIT_S)

    def run(self) -> None:
        holder, waiter = self._clients
        holder.ok("SLOCK.LOCK", "handed on", "0", TTL_MS)
        number = 0
        while not self._ends.is_set():
            number += 1
            waiter.send("SLOCK.LOCK", "handed on", number, TTL_MS, "WAIT", 0)
            time.sleep(0.002)
            start = time.perf_counter()
            holder.send("SLOCK.UNLOCK", "handed on", number - 1)
            waiter.read()
            self.took_ms.append((time.perf_counter() - start) * 1000)
            holder.read()
            holder, waiter = waiter, holder

    def end(self) -> None:
        self._ends.set()
        self.join()


@contextmanager
def hand_offs(server: Server) -> Iterator[list[float]]:
    thread = HandOffs(server)
    thread.start()
    try:
        yield thread.took_ms
    finally:
        thread.end()


def channels(bench: Bench) -> None:
    """A subscriber closes on each of whose channels one request waits. The server itself ends so many
    subscriptions in one turn, which is not counted.
    """
    names = [f"channel:{n}" for n in range(CHANNELS)]
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    listener = subscribe(bench.server, names)
    ask(bench, [notify("k", f"t{n}", channel) for n, channel in enumerate(names)])
    start = time.perf_counter()
    listener.close()
    wait_until(
        lambda: not bench.control.ok("PUBSUB", "SHARDNUMSUB", names[-1])[1], 60, "the server to see it"
    )
    with bench.prober.watch() as turns:
        wait_for_nobody(bench, 240)
    gone_s = time.perf_counter() - start
    bench.longest["longest turn"] = turns.longest_ms
    bench.limited["until all requests are gone, s"] = gone_s, CHANNELS_GONE_LIMIT_S


def hand_offs_meanwhile(bench: Bench) -> None:
    """The same; what hand-offs elsewhere take meanwhile. There is no prober: it would be in their way."""
    names = [f"channel:{n}" for n in range(CHANNELS)]
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    listener = subscribe(bench.server, names)
    ask(bench, [notify("k", f"t{n}", channel) for n, channel in enumerate(names)])
    with hand_offs(bench.server) as took:
        time.sleep(1)
        before = took[:]
        first = len(took)
        listener.close()
        wait_until(lambda: waiters(bench) <= 1, 240, "the requests to go")
        meanwhile = took[first:]
    bench.limited["hand-offs meanwhile, ms"] = statistics.median(meanwhile), HAND_OFF_LIMIT_MS
    bench.other["hand-offs before, ms"] = statistics.median(before)
    bench.other["hand-offs meanwhile, 99 of 100 within ms"] = percentile(meanwhile, 99)
    bench.other["hand-offs meanwhile, the longest ms"] = max(meanwhile)


# --- QUEUES, users


def queues_unreadable(bench: Bench) -> None:
    """The names that are waited for may not be read by who asks for them, or they all may."""
    bench.control.ok("ACL", "SETUSER", "stranger", "on", "nopass", "+@all", "~other:*")
    listener = subscribe(bench.server, [CHANNEL])
    bench.hold([lock(f"k{n}", "holder") for n in range(NAMES)]).close()
    ask(bench, [notify(f"k{n}", f"t{n}") for n in range(NAMES)])
    bench.watched("COUNT 0 by who may read all", "SLOCK.QUEUES", "COUNT", 0)
    bench.control.ok("AUTH", "stranger", "any")
    bench.watched("by who may read none", "SLOCK.QUEUES")
    bench.watched("COUNT 0 by who may read none", "SLOCK.QUEUES", "COUNT", 0)
    listener.close()


def users_that_come_and_go(bench: Bench) -> None:
    """Users wait, are withdrawn and deleted, one after the other, while somebody waits all the time."""
    bench.control.ok("SLOCK.LOCK", "k", "holder", TTL_MS)
    listener = subscribe(bench.server, [CHANNEL])
    ask(bench, [notify("k", "stays")])
    pipe = Pipe(bench.server)

    def come_and_go(numbers: range) -> None:
        for number in numbers:
            user, token = f"user-{number}", f"t{number}"
            replies = pipe.exchange(
                [
                    encode_command("ACL", "SETUSER", user, "on", "nopass", "+@all", "~*", "&*"),
                    encode_command("AUTH", user, "any"),
                    notify("k", token),
                    encode_command("SLOCK.CANCEL", "k", token),
                    encode_command("AUTH", "default", ""),
                    encode_command("ACL", "DELUSER", user),
                ]
            )
            if replies != b"+OK\r\n+OK\r\n$-1\r\n:1\r\n+OK\r\n:1\r\n":
                raise SystemExit(f"not what was expected: {replies!r}")

    come_and_go(range(100))
    before = bench.memory()
    come_and_go(range(100, 100 + USERS))
    bench.limited["memory kept, kB"] = (bench.memory() - before) / 1000, USERS_LIMIT_KB
    bench.watched("the last request is withdrawn", "SLOCK.CANCEL", "k", "stays")
    listener.close()


SCENARIOS = {
    "cancel": Scenario(
        f"{PLACES} places of one token are withdrawn", cancel_of_one_token, settings=TAKE_MANY
    ),
    "again": Scenario(
        f"one of {SIDE} requests of one token, for {SIDE} keys each, is asked again",
        same_request_again,
        settings=TAKE_MANY,
    ),
    "grant": Scenario(f"{PAIRS} requests of one token are granted", grants_to_one_token, settings=TAKE_MANY),
    **{
        name: Scenario(f"one more waiter, {what}", one_more_waiter(crowd), settings=TAKE_MANY)
        for name, (crowd, what) in {
            "hub": (hub, "where all wait for one key, and each for one of its own"),
            "chain": (chain, "where each waits for the key of the next"),
            "sets": (random_sets, f"where all wait for {KEYS} keys each, chosen by chance"),
            "readers": (readers_that_wait, "where the readers of the key each wait for another"),
        }.items()
    },
    "channels": Scenario(f"a subscriber closes with {CHANNELS} channels", channels, settings=TAKE_MANY),
    "handoffs": Scenario(
        f"a subscriber closes with {CHANNELS} channels, hand-offs elsewhere",
        hand_offs_meanwhile,
        settings=TAKE_MANY,
    ),
    "queues": Scenario(f"QUEUES where {NAMES} names are waited for", queues_unreadable, settings=TAKE_MANY),
    "users": Scenario(f"{USERS} users come and go", users_that_come_and_go, settings=TAKE_MANY),
}

if __name__ == "__main__":
    sys.exit(run(__doc__, SCENARIOS))
