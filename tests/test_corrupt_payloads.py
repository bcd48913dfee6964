"""Payloads that nobody's DUMP made: refused, or loaded into a lock that makes sense; the server lives.

What the decoder refuses is in the core's tests; here it is the server that has to live with it.
"""

from __future__ import annotations

import random

import redis

from harness import Locks, MakeServer, RespError, Server, digest, lock_state, rewrite_aof, rounds
from harness.damage import (
    HEAD,
    HUGE,
    LONG,
    assert_makes_sense,
    lasting_states,
    mutated,
    originals,
    restore_all,
    use_all,
)
from harness.payloads import FOOTER, body_of, plain_dump, sealed, with_number
from harness.replication import ReplicationStream, replica_of, wait_synced
from harness.samples import take_samples
from harness.settings import amount

BATCH = 400
# Every so many batches all that was accepted goes through a snapshot, the log, and the rewritten log.
RESTARTS_EVERY = 50

FIRST_SEED = 20260101

EXTREMES = (2**53 - 2, 2**53 - 1, 2**53, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1)


def test_a_mutated_payload_is_refused_or_loads_into_a_consistent_lock(make_server: MakeServer) -> None:
    server = make_server(appendonly=True)
    client = server.client()
    payloads = originals(client)
    bodies = [body_of(payload) for payload in payloads]
    accepted = 0
    batches = amount(BATCH * rounds(8, 50)) // BATCH
    for seed in range(FIRST_SEED, FIRST_SEED + batches):
        chance = random.Random(seed)
        batch = [sealed(mutated(chance.choice(bodies), bodies, chance), payloads[0]) for _ in range(BATCH)]
        client.flushall()
        print(f"seed {seed}")
        keys = restore_all(client, batch)
        if (seed - FIRST_SEED) % RESTARTS_EVERY == 0:
            _assert_stored(server)
            client = server.client()
        use_all(client, keys, batch)
        accepted += len(keys)
        server.check()
    assert 0 < accepted < batches * BATCH, "the mutations are all alike"
    print(f"{batches * BATCH} payloads, {accepted} of them accepted")


def _assert_stored(server: Server) -> None:
    """What was accepted comes back from a snapshot, from the log, and from the log that was rewritten."""
    states = lasting_states(server)
    assert states
    server.client().execute_command("DEBUG", "RELOAD")
    assert lasting_states(server) == states
    server.restart()
    assert lasting_states(server) == states
    rewrite_aof(server)
    server.restart()
    assert lasting_states(server) == states


def test_a_payload_cut_short_or_with_huge_numbers_takes_no_memory(make_server: MakeServer) -> None:
    """Where less is cut off than the footer is long, the server takes the footer for what is missing.

    It may then happen to be a lock; elsewhere nothing can make up for what is not there.
    """
    client = make_server().client()
    payloads = originals(client)
    before = client.info("memory")["used_memory_peak"]
    for payload in payloads:
        body = body_of(payload)
        cuts = [sealed(body[:length], payload) for length in range(HEAD, len(body))]
        client.flushall()
        keys = restore_all(client, cuts)
        assert not [key for key in keys if int(key[1:]) < len(cuts) - FOOTER]
        use_all(client, keys, cuts)
    body = body_of(payloads[3])
    for huge in HUGE:
        client.flushall()
        places = range(HEAD, len(body))
        restore_all(client, [sealed(body[:at] + huge + body[at + len(huge) :], payloads[3]) for at in places])
    assert client.info("memory")["used_memory_peak"] - before < 64 << 20


def test_no_fence_that_is_accepted_leads_to_one_that_is_not(make_server: MakeServer) -> None:
    """The next fence is above the greatest one seen. It too must fit into a log, a snapshot and a replica."""
    primary, replica = make_server(name="primary", appendonly=True), make_server(name="replica")
    client = primary.client()
    locks = Locks(client)
    replica_of(replica, primary)
    fence = locks.lock("k", "a", LONG)
    payloads = [with_number(plain_dump(client, "k"), fence, extreme) for extreme in EXTREMES]
    accepted = restore_all(client, payloads)
    fences = [fence, *sorted(locks.info(key).fence for key in accepted)]
    fences += [locks.lock(f"next{number}", "a", LONG) for number in range(3)]
    assert fences == sorted(set(fences))
    wait_synced(primary, replica)
    before = {key: lock_state(client, key) for key in client.keys("*")}
    assert {key: lock_state(replica.client(), key) for key in before} == before
    primary.restart()
    assert {key: lock_state(primary.client(), key) for key in before} == before
    primary.client().execute_command("DEBUG", "RELOAD")
    assert {key: lock_state(primary.client(), key) for key in before} == before


def test_no_deadline_that_is_accepted_harms(client: redis.Redis, locks: Locks) -> None:
    locks.lock("k", "a", LONG)
    payload, deadline = plain_dump(client, "k"), client.pexpiretime("k")
    damaged = [with_number(payload, deadline, extreme) for extreme in (0, 1, *EXTREMES)]
    for key in restore_all(client, damaged):
        assert_makes_sense(locks.full(key), damaged[int(key[1:])])
        client.restore("kept", 0, client.dump(key), replace=True)
        assert digest(client, "kept") == digest(client, key)
        if locks.info(key) is None:
            assert locks.lock(key, "b", LONG)
        else:
            assert locks.extend(key, "a", 5000) == 1
            assert 0 < client.pttl(key) <= 5000


def test_a_mutated_effect_is_refused_or_leaves_a_consistent_lock(make_server: MakeServer) -> None:
    server = make_server(slock_allow_apply=True)
    stream, raw, locks = ReplicationStream(server), server.raw(), Locks(server.client())
    take_samples(server)
    effects = [command for command in stream.commands() if command[0] == b"SLOCK.APPLY"]
    words = [word for effect in effects for word in effect[2:]]
    words += [b"", b"0", b"-1", b"x" * 2000, *(b"%d" % extreme for extreme in EXTREMES)]
    chance = random.Random(20260101)
    for _ in range(min(amount(rounds(1500, 6000)), 100_000)):
        effect = list(chance.choice(effects))
        for _ in range(chance.randrange(4)):
            effect[chance.randrange(2, len(effect))] = chance.choice(words)
        if chance.random() < 0.2:
            effect = effect[: chance.randrange(1, len(effect))]
        reply = raw.call(effect[0], b"k", *effect[2:])
        assert not isinstance(reply, RespError) or reply.prefix == "ERR", (effect, reply.text)
        assert_makes_sense(locks.full("k"), repr(effect).encode())
    server.client().execute_command("DEBUG", "RELOAD")
