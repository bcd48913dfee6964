"""Failovers by Sentinel under load: what clients in several processes were told, while primaries die or hang.

Replication is asynchronous, so a hold may be lost and given to another. `make torture` does
SLOCK_TORTURE_FAILOVERS of them, and says how often two owners held at a time. `test_torture.py` has the
failovers after which nothing of that may be.
"""

from __future__ import annotations

import os
import random

import redis

from harness import MakeServer, RawConnection, Server, replica_of, wait_until
from harness.histories import Times, fence_problems, overlaps
from harness.load import level
from harness.recorded import Crowd
from harness.replication import role
from harness.sentinel import SERVICE, sentinel
from harness.waiting import blocked_clients

FAILOVERS = int(os.environ.get("SLOCK_TORTURE_FAILOVERS", "2"))
PROCESSES = 2
SOME = 20_000
LIMIT_S = 60


class Watched:
    """A primary with its replica, and the Sentinel that decides which is which."""

    def __init__(self, primary: Server, replica: Server, port: int) -> None:
        self.primary, self.replica, self.port = primary, replica, port

    def fail_over(self, is_killed: bool) -> None:
        """The primary dies or hangs until the replica has its place. Then it is one for a while again."""
        old, new = self.primary, self.replica
        stop, go_on = (old.kill9, old.start) if is_killed else (old.pause, old.resume)
        stop()
        wait_until(lambda: self._primary_port() == new.port, LIMIT_S, "a failover")
        go_on()
        self.is_ready()

    def is_ready(self) -> None:
        wait_until(self._is_ready, LIMIT_S, "the Sentinel to have a primary and a replica again")

    def _primary_port(self) -> int:
        with RawConnection(self.port) as connection:
            return int(connection.ok("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def _is_ready(self) -> bool:
        """The Sentinel could fail over again. On a slow machine it may have done so once more by itself."""
        port = self._primary_port()
        if port != self.primary.port:
            self.primary, self.replica = self.replica, self.primary
        with RawConnection(self.port) as connection:
            (words,) = connection.ok("SENTINEL", "REPLICAS", SERVICE)
        fields = dict(zip(words[::2], words[1::2], strict=True))
        says = (fields[b"flags"], fields[b"role-reported"], fields[b"master-link-status"])
        is_known = says == (b"slave", b"slave", b"ok") and fields[b"master-port"] == b"%d" % port
        try:
            return is_known and (role(self.primary), role(self.replica)) == ("master", "slave")
        except redis.ConnectionError:  # a Sentinel cuts those that there are
            return False


def test_fences_rise_over_failovers_by_sentinel(make_server: MakeServer) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    settings = {"appendonly": True, "appendfsync": "always", "repl_backlog_size": "10mb"}
    first, second = (make_server(name=name, **settings) for name in ("first", "second"))
    replica_of(second, first)
    # More than a busy machine may stand still: else a server that lives would be replaced, too.
    timing = {"down_after_milliseconds": 2000, "failover_timeout": 2000}
    with sentinel(first, replicas=1, **timing) as port:
        with RawConnection(port) as connection:
            connection.ok("SENTINEL", "DEBUG", "PING-PERIOD", 100, "INFO-PERIOD", 200, "PUBLISH-PERIOD", 200)
        watched = Watched(first, second, port)
        watched.is_ready()
        crowd = Crowd([first.port, second.port], PROCESSES, seed)
        try:
            for number in range(FAILOVERS):
                _goes_on(crowd)
                watched.fail_over(is_killed=number % 2 == 0)
            _goes_on(crowd)
            crowd.stop()
            calls, seen = crowd.calls(Times())
        finally:
            crowd.discard()
    problems = fence_problems(calls)
    assert not problems, "\n\n".join(problems)
    pairs = overlaps(calls)
    for first_told, then in pairs:
        # Who asked when the other had been told has the greater fence, which refuses the writes of the other.
        assert then.reply > first_told.reply or then.start < first_told.end, (first_told, then)
    grants = sum(isinstance(call.reply, int) and call.reply > 1000 for call in calls)
    print(f"{FAILOVERS} failovers, {len(calls)} calls, {grants} grants; {dict(seen)}")
    print(f"{len(pairs)} times two owners held at a time, the later one by a greater fence")
    client = watched.primary.client()
    wait_until(lambda: blocked_clients(client) == 0, LIMIT_S, "no client to be blocked")
    wait_until(lambda: watched.primary.client().dbsize() == 0, LIMIT_S, "the holds to end")
    level(watched.primary, watched.replica)


def _goes_on(crowd: Crowd) -> None:
    goal = crowd.size() + SOME
    wait_until(lambda: crowd.size() > goal, LIMIT_S, "the clients to go on")
