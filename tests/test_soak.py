"""Clients at work for long, killed and unblocked at random, judged by what they were told (test_torture.py).

After each round nobody is blocked and nothing is held, the counters agree with what the clients were told,
and the server has its memory back.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

import pytest
import redis

from harness import MakeServer, RawConnection, wait_until
from harness.histories import judge
from harness.lock_model import GIVES, Call, Times
from harness.recorded import Crowd
from harness.waiting import blocked_clients

SECONDS = float(os.environ.get("SLOCK_SOAK_SECONDS", "60"))
PROCESSES = 2
# Bytes of the clients' notes, and how many clients are disturbed meanwhile: of histories in which much is
# unknown the search would be given up.
OF_A_ROUND, DISTURBED = 100_000, 10
LIMIT_S = 60
# How much more memory the server may use after a round than after the first: for tables that have grown.
SLACK_BYTES = 500_000
COUNTERS = ("grants", "releases", "expirations")
LENGTHS = [0.0, pytest.param(SECONDS, marks=pytest.mark.soak)]


def _disturb(control: RawConnection, chance: random.Random) -> None:
    """Kills a client, or ends the wait of one, if it is still there."""
    ids = [line.split()[0].removeprefix(b"id=") for line in control.ok("CLIENT", "LIST").splitlines()]
    victim = chance.choice(ids)
    if victim != b"%d" % control.client_id():
        control.call("CLIENT", *chance.choice([("KILL", "ID", victim), ("UNBLOCK", victim, "ERROR")]))


def _counters_agree(before: dict[str, int], now: dict[str, int], calls: list[Call]) -> None:
    """Of what was sent on a connection that was lost, the clients do not know whether it came about."""
    unknown = sum(call.is_unknown for call in calls)
    grants = [call for call in calls if call.name in GIVES and isinstance(call.reply, int) and call.reply]
    told = {call.reply for call in grants}
    grew = {name: now[f"slock_{name}"] - before[f"slock_{name}"] for name in COUNTERS}
    assert 0 <= grew["grants"] - len(told) <= unknown, (grew, len(told), unknown)
    # The hold that an upgrade or a downgrade gives replaces another.
    changed = {call.reply for call in grants if call.name in ("UPGRADE", "DOWNGRADE")}
    assert grew["releases"] + grew["expirations"] + unknown >= len(told - changed), (grew, unknown)


def _used(client: redis.Redis) -> int:
    return client.info("memory")["used_memory"]


@pytest.mark.parametrize("seconds", LENGTHS, ids=["a round", "long"])
def test_clients_at_work(make_server: MakeServer, seconds: float) -> None:
    chance = random.Random(seed := random.SystemRandom().randrange(10**6))
    print(f"seed {seed}")
    server = make_server(slowlog_max_len=0, latency_tracking=False)
    client, control, seen, used = server.client(), server.raw(), Counter[str](), []
    end = time.monotonic() + seconds
    while not used or time.monotonic() < end:
        before = client.info("slock")
        crowd = Crowd([server.port], PROCESSES, chance.randrange(10**6))
        try:
            for number in range(1, DISTURBED + 1):
                goal = number * OF_A_ROUND // DISTURBED
                wait_until(lambda goal=goal, crowd=crowd: crowd.size() > goal, LIMIT_S, "work")
                _disturb(control, chance)
            crowd.stop()
            calls, done = crowd.calls(Times())
        finally:
            crowd.discard()
        seen += done
        verdict = judge(calls)
        assert not verdict.problems, "\n\n".join(verdict.problems)
        assert verdict.undecided <= 1 + verdict.parts // 20
        wait_until(lambda: blocked_clients(client) == 0, LIMIT_S, "no client to be blocked")
        wait_until(lambda: client.dbsize() == 0, LIMIT_S, "the holds to end")
        now = client.info("slock")
        assert now["slock_waiters"] == now["slock_locks"] == now["slock_waiting_users"] == 0
        _counters_agree(before, now, calls)
        used.append(_used(client))
        # The server frees what belonged to clients little by little.
        wait_until(lambda: _used(client) < used[0] + SLACK_BYTES, LIMIT_S, f"{used[0]} bytes")
    print(f"{dict(seen)}, memory {used}")
    assert seconds == 0 or (seen["UNBLOCKED"] and seen["unanswered"])
