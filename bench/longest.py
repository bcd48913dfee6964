"""The longest command and the longest turn of the event loop, where very many hold, wait or have expired.

How it is measured is said in `scenario.py` and `prober.py`. The prober on an idle server tells the noise. The
crowds that once slowed the server are in `crowds.py`, many clients that are woken at once in `waking.py`.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common import (
    Pipe,
    ServerClock,
    batches,
    encode_command,
    wait_until,
)
from scenario import AFTERWARDS_S, SLOW_US, TTL_MS, Bench, Command, Scenario, many, run

MANY_KEYS_LIMIT_MS = 10.0

SETTLE_S = 5.0  # after which a server has given back the buffers of clients that are idle

HOLDS = 100_000
READERS = 200_000
READERS_LIVE_MS = 8000
SWAPS, SWAP_WAITERS = 5000, 1000
IDLE_WAITERS, IDLE_S = 8000, 5.0
REQUESTS, KEYS = 1000, 64


def idle(bench: Bench) -> None:
    with bench.prober.watch() as turns:
        time.sleep(2)
    bench.longest["longest turn"] = turns.longest_ms


def closing(bench: Bench) -> None:
    """A connection closes to which very many holds are bound."""
    lock = ("SLOCK.LOCK", "hold:{0}", "token:{0}", TTL_MS, "EPHEMERAL")
    words = [[str(word).format(number) for word in lock] for number in range(HOLDS)]
    pipe = bench.hold([encode_command(*command) for command in words])
    with bench.prober.watch() as turns:
        start = time.perf_counter()
        pipe.close()
        wait_until(lambda: bench.control.ok("DBSIZE") == 0, 60, "the holds to end")
        took = time.perf_counter() - start
    bench.longest["longest turn"] = turns.longest_ms
    bench.other["until all have ended, ms"] = took * 1000


AMONG_EXPIRED: list[tuple[str, Command]] = [
    ("INFO", ("SLOCK.INFO", "<key>")),
    ("INFO FULL COUNT 1", ("SLOCK.INFO", "<key>", "FULL", "COUNT", 1)),
    ("EXTEND", ("SLOCK.EXTEND", "<key>", "alive", TTL_MS)),
    ("RLOCK of a new reader", ("SLOCK.RLOCK", "<key>", "new", TTL_MS)),
    ("RUNLOCK", ("SLOCK.RUNLOCK", "<key>", "alive too")),
    ("LOCK refused", ("SLOCK.LOCK", "<key>", "new", TTL_MS)),
]
ALL_EXPIRED: list[tuple[str, Command]] = [
    ("LOCK by a new writer", ("SLOCK.LOCK", "<key>", "new", TTL_MS)),
    ("DEL", ("DEL", "<key>")),
]


def expired(bench: Bench) -> None:
    """Readers of one lock that have expired. Each command has a copy of the lock for itself."""
    control = bench.control
    control.ok("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US, "slowlog-max-len", READERS)
    due = time.time() + READERS_LIVE_MS / 1000
    for token in ("alive", "alive too"):
        control.ok("SLOCK.RLOCK", "crowd", token, TTL_MS)
    pipe = Pipe(bench.server)
    for numbers in batches(list(range(READERS)), 1000):
        left_ms = int((due - time.time()) * 1000)
        pipe.exchange(
            [encode_command("SLOCK.RLOCK", "crowd", f"r{n}", max(1, left_ms - n % 500)) for n in numbers]
        )
    slow = control.ok("SLOWLOG", "GET", -1)
    bench.slow["RLOCK while they join"] = {
        words[2].decode(): microseconds / 1000
        for _, _, microseconds, words, *_ in slow
        if words[0] == b"SLOCK.RLOCK"
    }
    control.ok("CONFIG", "SET", "slowlog-log-slower-than", -1)

    for what, _ in AMONG_EXPIRED:
        control.ok("COPY", "crowd", what)
    for token in ("alive", "alive too"):
        control.ok("SLOCK.RUNLOCK", "crowd", token)
    for what, _ in ALL_EXPIRED:  # their keys stay, and no holder is alive
        control.ok("COPY", "crowd", what)
        control.ok("PERSIST", what)
    if time.time() > due - 0.6:
        raise SystemExit("the readers joined too slowly: some had expired before all were there")

    keys = control.ok("DBSIZE")
    with bench.prober.watch() as turns:
        wait_until(lambda: control.ok("DBSIZE") == keys - 1, 60, "the server to collect the expired key")
    bench.longest["the server collects the key: turn"] = turns.longest_ms
    for what, command in AMONG_EXPIRED + ALL_EXPIRED:
        bench.watched(what, *[what if word == "<key>" else word for word in command])


def swapping(bench: Bench) -> None:
    """Databases that are swapped again and again in one script, while many wait."""
    control = bench.control
    script = f"for i = 1, {SWAPS} do redis.call('SWAPDB', 0, 1) end"
    status = Path(f"/proc/{bench.server.pid}/status")

    def resident(which: str) -> float:
        line = next(line for line in status.read_text().splitlines() if line.startswith(which))
        return int(line.split()[1]) / 1024

    def run() -> tuple[float, float, float, float]:
        before = resident("VmRSS")
        control.ok("CONFIG", "RESETSTAT")
        with bench.prober.watch() as during:
            control.ok("EVAL", script, 0)
        with bench.prober.watch() as after:
            took = bench.taken_by("EVAL")
            time.sleep(AFTERWARDS_S)
        return took, during.longest_ms, after.longest_ms, resident("VmHWM") - before

    names = range(SWAP_WAITERS)
    bench.hold([encode_command("SLOCK.LOCK", f"k:{n}", "holder", TTL_MS) for n in names])
    run()
    alone = run()
    commands = [encode_command("SLOCK.LOCK", f"k:{n}", f"w{n}", TTL_MS, "WAIT", 0) for n in names]
    bench.wait_for(bench.connect(SWAP_WAITERS), commands)
    waited = run()
    bench.other["the script alone, ms"] = alone[0]
    bench.longest["the script: added by waiters"] = waited[0] - alone[0]
    bench.longest["its turn: added by waiters"] = waited[1] - alone[1]
    bench.longest["later turns"] = waited[2]
    bench.other["greatest resident memory, MB more than before"] = waited[3]


def idle_cluster(bench: Bench) -> None:
    """Many keys of a cluster are waited for, and nothing happens."""
    bench.control.ok("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until(lambda: b"cluster_state:ok" in bench.control.ok("CLUSTER", "INFO"), 30, "the cluster")
    names, clock = range(IDLE_WAITERS), ServerClock(bench.server)

    def watch() -> tuple[float, float]:
        start = clock.read()
        with bench.prober.watch() as turns:
            time.sleep(IDLE_S)
        return turns.longest_ms, (clock.read() - start) / 1000 / IDLE_S

    connections = bench.connect(IDLE_WAITERS)
    bench.hold([encode_command("SLOCK.LOCK", f"k:{n}", "holder", TTL_MS) for n in names])
    alone = watch()
    commands = [encode_command("SLOCK.LOCK", f"k:{n}", f"w{n}", TTL_MS, "WAIT", 0) for n in names]
    bench.wait_for(connections, commands)
    waited = watch()
    bench.longest["longest turn"] = waited[0]
    bench.other["longest turn when the clients do not wait, ms"] = alone[0]
    bench.other["CPU a second, ms"] = waited[1]
    bench.other["CPU a second when the clients do not wait, ms"] = alone[1]


def many_keys(bench: Bench) -> None:
    """Very many requests for the same many keys, with different tokens and with the same."""
    keys = [f"{{k}}:{number:02}" for number in range(KEYS)]
    for tokens, what in ((1, "one token"), (2, "two tokens"), (REQUESTS, "a token each")):
        bench.control.send_bytes(many("MLOCK", keys, "holder", TTL_MS))
        bench.control.read()
        connections = bench.connect(REQUESTS)
        *first, last = [
            many("MLOCK", keys, f"w{number % tokens}", TTL_MS, "WAIT", 0) for number in range(REQUESTS)
        ]
        bench.wait_for(connections[:-1], first)
        with bench.prober.watch() as turns:
            connections[-1].send_bytes(last)
            bench.wait_blocked(REQUESTS)
        bench.longest[f"{what}: to enqueue the last, turn"] = turns.longest_ms

        replies = select.epoll()
        for connection in connections:
            replies.register(connection.socket, select.EPOLLIN)
        bench.control.ok("CONFIG", "RESETSTAT")
        with bench.prober.watch() as turns:
            start = time.perf_counter()
            bench.control.send_bytes(many("MUNLOCK", keys, "holder"))
            replies.poll(30)
            bench.longest[f"{what}: until the first grant is told"] = (time.perf_counter() - start) * 1000
            bench.control.read()
            bench.longest[f"{what}: MUNLOCK"] = bench.taken_by("SLOCK.MUNLOCK")
            time.sleep(AFTERWARDS_S)
        bench.other[f"{what}: longest turn, ms"] = turns.longest_ms
        replies.close()
        for connection in connections:
            connection.close()
        bench.wait_blocked(0)
        bench.control.ok("FLUSHALL")


def memory_of_many_keys(bench: Bench) -> None:
    """What a request for many keys takes more than one for a single key. The server keeps the words of a
    command that waits: what they take is measured with a command of its own that has as many."""
    key = "{k}:00"
    keys = [f"{{k}}:{number:02}" for number in range(KEYS)]
    bench.control.send_bytes(many("MLOCK", keys, "holder", TTL_MS))
    bench.control.read()

    def memory_of(command: Callable[[int], bytes]) -> float:
        connections = bench.connect(REQUESTS)
        time.sleep(SETTLE_S)
        before = bench.memory()
        bench.wait_for(connections, [command(number) for number in range(REQUESTS)])
        time.sleep(SETTLE_S)
        taken = (bench.memory() - before) / REQUESTS
        for connection in connections:
            connection.close()
        bench.wait_blocked(0)
        return taken

    def lock(names: list[str]) -> float:
        return memory_of(lambda number: many("MLOCK", names, f"w{number:03}", TTL_MS, "WAIT", 0))

    one = lock([key])
    words = memory_of(lambda _: encode_command("BLPOP", *["{l}:00"] * KEYS, 0)) - memory_of(
        lambda _: encode_command("BLPOP", "{l}:00", 0)
    )
    bench.other["bytes a request for one key, blocked client and all"] = one
    bench.other[f"bytes more for {KEYS} keys, without the words of the command"] = lock(keys) - one - words


SCENARIOS = {
    "noise": Scenario("an idle server, which is the noise of this measurement", idle),
    "closing": Scenario(f"a connection with {HOLDS} EPHEMERAL holds closes", closing),
    "expired": Scenario(f"{READERS} readers of one lock have expired", expired),
    "swapping": Scenario(f"{SWAP_WAITERS} waiters, {SWAPS} SWAPDB in one script", swapping),
    "cluster": Scenario(
        f"{IDLE_WAITERS} waiting keys in an idle cluster node",
        idle_cluster,
        settings={"cluster_enabled": True},
    ),
    "requests": Scenario(f"{REQUESTS} requests of {KEYS} keys each wait", many_keys, MANY_KEYS_LIMIT_MS),
    "memory": Scenario("memory of a request that waits", memory_of_many_keys, runs=1),
}

if __name__ == "__main__":
    sys.exit(run(__doc__, SCENARIOS))
