"""Faults under load: clients in several processes, and a primary and its replica to which everything happens.

What the clients were told is judged by `harness.histories`: whether a lock that never fails can have said so.
`make torture` does it for SLOCK_TORTURE_SECONDS, kills the server SLOCK_TORTURE_KILLS times, and does
SLOCK_TORTURE_FAILOVERS planned failovers.
"""

from __future__ import annotations

import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import redis

from harness import MakeServer, Server, replica_of, rewrite_aof, stays, wait_until
from harness.histories import judge, overlaps
from harness.load import level
from harness.lock_model import MS, Times
from harness.recorded import Crowd, now
from harness.replication import role
from harness.waiting import HOUR, blocked_clients

# Without them each fault comes once, and the server is killed a few times.
SECONDS = float(os.environ.get("SLOCK_TORTURE_SECONDS", "0"))
KILLS = int(os.environ.get("SLOCK_TORTURE_KILLS", "4"))
FAILOVERS = int(os.environ.get("SLOCK_TORTURE_FAILOVERS", "4"))

PROCESSES = 2
# Locks that are held all the time.
KEPT = 20
# How long a fault lasts that lasts as long as one likes.
FOR_A_WHILE_S = 0.3
# How long a server may take after a stall to do what it had put off: a cron run, on a loaded machine.
AFTERWARDS = 1000 * MS
# So many bytes of the clients' notes are about a hundred calls.
SOME = 20_000
LIMIT_S = 60
OF_A_ROUND = 20


class Stage:
    """A primary that logs with `always`, its replica, and what was done to them."""

    def __init__(self, make_server: MakeServer, directory: Path, chance: random.Random) -> None:
        self.chance = chance
        settings = {"appendonly": True, "appendfsync": "always"}
        self.primary, self.replica = (
            make_server(name=name, directory=directory / name, **settings) for name in ("primary", "replica")
        )
        replica_of(self.replica, self.primary)
        self.done: Counter[str] = Counter()
        self.parts = self.undecided = 0
        self.seen: Counter[str] = Counter()
        self.times, self.crashes = Times(), []
        self.crowd: Crowd | None = None
        self.fences: dict[str, int] = {}
        for number in range(KEPT):
            key = f"kept{number}"
            self.fences[key] = self.primary.client().execute_command("SLOCK.RLOCK", key, "owner", HOUR)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Meanwhile, and shortly afterwards, the server does not do what is due."""
        stalls, start = self.times.stalls, now()
        yield
        if stalls and stalls[-1][1] >= start:
            start = stalls.pop()[0]
        stalls.append((start, now() + AFTERWARDS))

    def goes_on(self) -> None:
        goal = self.crowd.size() + SOME
        wait_until(lambda: self.crowd.size() > goal, LIMIT_S, "the clients to go on")

    def starts_again(self) -> None:
        """A log that was cut is written anew, as docs/operating.md says."""
        primary, seen = self.primary, len(self.primary.log())
        primary.start()
        if "Truncating the AOF" in primary.log()[seen:]:
            rewrite_aof(primary)

    def lasts(self) -> None:
        stays(lambda: self.primary.is_running, FOR_A_WHILE_S, "the primary runs")

    def round(self, faults: list[Fault]) -> None:
        """These faults, one after the other under load; then all is as it should be, and was all the time."""
        seed = self.chance.randrange(10**6)
        self.times.stalls.clear()
        self.crashes.clear()
        self.crowd = Crowd([self.primary.port, self.replica.port], PROCESSES, seed)
        try:
            self.goes_on()
            for fault in faults:
                fault(self)
                self.done[fault.__name__.removeprefix("_")] += 1
                self.goes_on()
            self.crowd.stop()
            self._comes_to_rest()
            calls, seen = self.crowd.calls(self.times, self.crashes)
            verdict = judge(calls, self.times)
        finally:
            self.crowd.discard()
        self.seen += seen
        self.parts += verdict.parts
        self.undecided += verdict.undecided
        came = [fault.__name__ for fault in faults]
        assert not verdict.problems, "\n\n".join([f"seed {seed}, {came}", *verdict.problems])
        # That too where the search was given up.
        assert not overlaps(calls), f"seed {seed}, {came}: {overlaps(calls)}"

    def _comes_to_rest(self) -> None:
        """Nobody is blocked, no request is left, only what was kept is held, and the replica is level."""
        client = self.primary.client()
        wait_until(lambda: blocked_clients(client) == 0, LIMIT_S, "no client to be blocked")
        # Who was killed holds until his ttl is over.
        for server in (self.primary, self.replica):
            at = server.client()
            wait_until(lambda at=at: at.dbsize() == KEPT, LIMIT_S, f"the holds at {server} to end")
        counters = client.info("slock")
        assert (counters["slock_waiters"], counters["slock_waiting_users"]) == (0, 0)
        assert counters["slock_locks"] == KEPT
        for key, fence in self.fences.items():
            assert client.execute_command("SLOCK.CHECK", key, fence) == 1, f"{key} was lost"
        level(self.primary, self.replica)


Fault = Callable[[Stage], None]


def _kill_and_restart(stage: Stage) -> None:
    with stage.stalled():
        start = now()
        stage.primary.kill9()
        stage.crashes.append((start, now()))
        stage.starts_again()


def _stop_and_continue(stage: Stage) -> None:
    with stage.stalled():
        stage.primary.pause()
        stage.lasts()
        stage.primary.resume()


def _stop_and_continue_the_replica(stage: Stage) -> None:
    stage.replica.pause()
    stage.goes_on()
    stage.replica.resume()


def _clients_die(stage: Stage) -> None:
    stage.crowd.replace_one()


def _connections_are_cut(stage: Stage) -> None:
    client = stage.primary.client()
    for kind in ("normal", "pubsub"):
        client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


def _pause_of_writes(stage: Stage) -> None:
    with stage.stalled():
        client = stage.primary.client()
        client.execute_command("CLIENT", "PAUSE", LIMIT_S * 1000, "WRITE")
        stage.lasts()
        client.execute_command("CLIENT", "UNPAUSE")


def _pause_of_all(stage: Stage) -> None:
    with stage.stalled():
        client = stage.primary.client()
        client.execute_command("CLIENT", "PAUSE", int(FOR_A_WHILE_S * 1000), "ALL")
        client.ping()  # answered when it is over


def _background_save(stage: Stage) -> None:
    client = stage.primary.client()
    # A rewrite, or a snapshot for a replica, has to end first.
    wait_until(lambda: _is_accepted(stage.primary, "BGSAVE"), LIMIT_S, "BGSAVE")
    wait_until(lambda: not client.info("persistence")["rdb_bgsave_in_progress"], LIMIT_S, "the end of BGSAVE")
    assert client.info("persistence")["rdb_last_bgsave_status"] == "ok"


def _log_rewrite(stage: Stage) -> None:
    rewrite_aof(stage.primary)


def _full_resync(stage: Stage) -> None:
    client = stage.primary.client()
    before = client.info("stats")["sync_full"]
    client.execute_command("DEBUG", "CHANGE-REPL-ID")
    client.execute_command("CLIENT", "KILL", "TYPE", "replica")
    wait_until(lambda: client.info("stats")["sync_full"] > before, LIMIT_S, "a full resync")


def _failover(stage: Stage) -> None:
    old, new = stage.primary, stage.replica
    with stage.stalled():
        wait_until(lambda: _is_accepted(old, "FAILOVER", "TO", "127.0.0.1", new.port), LIMIT_S, "FAILOVER")
        is_over = lambda: (role(old), role(new)) == ("slave", "master")  # noqa: E731
        wait_until(is_over, LIMIT_S, "the failover")
        stage.primary, stage.replica = new, old


def _is_accepted(server: Server, *command: object) -> bool:
    """False while the server refuses it, as one whose replica is not there refuses FAILOVER."""
    with server.client() as client:
        try:
            return bool(client.execute_command(*command))
        except redis.ResponseError:
            return False


def _memory_is_full(stage: Stage) -> None:
    client = stage.primary.client()
    client.config_set("maxmemory", 1)
    stage.lasts()
    client.config_set("maxmemory", 0)


def _log_disk_is_full(stage: Stage) -> None:
    """With `always` the server ends when it cannot write its log."""
    primary = stage.primary
    with stage.stalled():
        size = max(file.stat().st_size for file in primary.directory.rglob("*.aof"))
        start = now()
        resource.prlimit(primary.pid, resource.RLIMIT_FSIZE, (size + 300, size + 300))
        wait_until(lambda: not primary.is_running, LIMIT_S, "the server to end")
        primary.kill9()
        stage.crashes.append((start, now()))
        stage.starts_again()


FAULTS: list[Fault] = [
    _kill_and_restart,
    _stop_and_continue,
    _stop_and_continue_the_replica,
    _clients_die,
    _connections_are_cut,
    _pause_of_writes,
    _pause_of_all,
    _background_save,
    _log_rewrite,
    _full_resync,
    _failover,
    _memory_is_full,
    _log_disk_is_full,
]


@pytest.fixture
def stage(make_server: MakeServer) -> Iterator[Stage]:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    # A process that is killed loses nothing that it has written: that needs no disk, which is slow.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = Path(name)
        for server in ("primary", "replica"):
            (directory / server).mkdir()
        stage = Stage(make_server, directory, random.Random(seed))
        yield stage
        for server in (stage.primary, stage.replica):
            server.stop()
    print(f"faults: {dict(stage.done)}\ncalls and errors: {dict(stage.seen)}")
    print(f"{stage.parts} histories, {stage.undecided} of them undecided")
    assert stage.undecided <= 1 + stage.parts // 20


@pytest.mark.soak
def test_faults_under_load(stage: Stage) -> None:
    faults = list(FAULTS)
    end = time.monotonic() + SECONDS
    for number in count():
        if number and time.monotonic() > end:
            break
        stage.chance.shuffle(faults)
        stage.round(faults)


@pytest.mark.parametrize(("fault", "times"), [(_kill_and_restart, KILLS), (_failover, FAILOVERS)])
def test_one_fault_under_load(stage: Stage, fault: Fault, times: int) -> None:
    """No hold that was told is lost before its deadline, none comes back, no two overlap, and fences rise."""
    for number in range(0, times, OF_A_ROUND):
        stage.round([fault] * min(OF_A_ROUND, times - number))
