"""Waiting for many keys at once: one order of arrival in all queues together, and never half a set."""

from __future__ import annotations

import random

from harness import MakeServer, ReplicationStream, digest, replica_of, wait_synced, wait_until
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR

KEYS = [f"key:{number}" for number in range(10)]


def test_fifty_clients_get_their_overlapping_sets_in_order_of_arrival(queues: Queues) -> None:
    dice = random.Random(7)
    wanted = {f"t{number}": dice.sample(KEYS, dice.randint(1, 6)) for number in range(50)}
    assert queues.raw.ok(*many("MLOCK", KEYS, "first", HOUR))
    waiting = [dice.choice([queues.mlock, queues.mrlock])(token, keys) for token, keys in wanted.items()]
    for key in KEYS:
        assert queues.queued(key) == [token for token, keys in wanted.items() if key in keys]
    queues.free("first", KEYS)
    fences = {}
    while waiting:
        wait_until(lambda: any(waiter.is_answered() for waiter in waiting), what="one of them to be granted")
        for waiter in [waiter for waiter in waiting if waiter.is_answered()]:
            fences[waiter.token] = waiter.fence()
            waiting.remove(waiter)
            assert queues.free(waiter.token, wanted[waiter.token]) == len(wanted[waiter.token])
    for key in KEYS:
        order = [fences[token] for token, keys in wanted.items() if key in keys]
        assert order == sorted(set(order)), f"somebody was overtaken at {key}"
    assert queues.client.dbsize() == 0


# --- replicas


def test_a_set_is_granted_in_one_unit_and_a_replica_never_has_half_of_it(make_server: MakeServer) -> None:
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    queues, stream, watcher = Queues(primary), ReplicationStream(primary), replica.raw()
    queues.hold("x", "a b c")
    waiting = [queues.mlock(f"w{number}", "a b c") for number in range(20)]
    stream.commands()
    queues.free("x", "a b c")
    for waiter in waiting:
        waiter.fence()
        released, granted = stream.units()
        for unit in (released, granted):
            assert sorted(effect[1] for effect in unit) == [b"a", b"b", b"c"]
        assert all(effect[2].endswith(b" " + waiter.token.encode()) for effect in granted)
        seen = [("SLOCK.PTTL", key, waiter.token) for key in "abc"]
        held = [left > 0 for left in watcher.pipeline([("MULTI",), *seen, ("EXEC",)])[-1]]
        assert held in ([False] * 3, [True] * 3), "half a set"
        queues.free(waiter.token, "a b c")
    queues.raw.ok(*many("MRLOCK", "a b c", "last", HOUR))
    wait_synced(primary, replica)
    for key in "abc":
        assert digest(primary.client(), key) == digest(replica.client(), key)
