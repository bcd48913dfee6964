"""Payloads that nobody's DUMP made: refused, or loaded into a lock that makes sense; the server lives.

What the decoder refuses is in the core's tests; here it is the server that has to live with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import redis

from harness import (
    Locks,
    ReplicationStream,
    RespError,
    Server,
    digest,
    lock_state,
    now_ms,
    replica_of,
    rounds,
    wait_synced,
)
from harness.damage import HEAD, HUGE, LONG, assert_makes_sense, mutated, originals, restore_all, use_all
from harness.payloads import FOOTER, body_of, crc64, plain_dump, sealed, with_number
from harness.samples import take_samples

MakeServer = Callable[..., Server]

BATCH = 400


def test_a_mutated_payload_is_refused_or_loads_into_a_consistent_lock(make_server: MakeServer) -> None:
    server = make_server()
    client = server.client()
    payloads = originals(client)
    bodies = [body_of(payload) for payload in payloads]
    accepted = 0
    batches = rounds(8, 50)
    for seed in range(20260101, 20260101 + batches):
        chance = random.Random(seed)
        batch = [sealed(mutated(chance.choice(bodies), bodies, chance), payloads[0]) for _ in range(BATCH)]
        client.flushall()
        print(f"seed {seed}")
        keys = restore_all(client, batch)
        use_all(client, keys, batch)
        accepted += len(keys)
        server.check()
    assert 0 < accepted < batches * BATCH, "the mutations are all alike"


def test_a_payload_cut_short_anywhere_is_refused(client: redis.Redis) -> None:
    """Where less is cut off than the footer is long, the server takes the footer for what is missing.

    It may then happen to be a lock; elsewhere nothing can make up for what is not there.
    """
    for payload in originals(client):
        body = body_of(payload)
        cuts = [sealed(body[:length], payload) for length in range(HEAD, len(body))]
        client.flushall()
        keys = restore_all(client, cuts)
        assert not [key for key in keys if int(key[1:]) < len(cuts) - FOOTER]
        use_all(client, keys, cuts)


EXTREMES = (2**53 - 2, 2**53 - 1, 2**53, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1)


def test_no_fence_that_is_accepted_leads_to_one_that_is_not(make_server: MakeServer) -> None:
    """The next fence is above the greatest one seen. It too must fit into a log, a snapshot and a replica."""
    primary = make_server(name="primary", appendonly=True)
    replica = make_server(name="replica")
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


@pytest.mark.parametrize("years", [9, 11])
def test_no_lock_lives_for_ever(make_server: MakeServer, years: int) -> None:
    server = make_server(slock_allow_apply=True)
    client = server.client()
    Locks(client).lock("k", "a", LONG)
    deadline_ms = now_ms(client) + years * 365 * 24 * 3600 * 1000
    payload = with_number(plain_dump(client, "k"), client.pexpiretime("k"), deadline_ms)
    assert bool(restore_all(client, [payload])) == (years < 10)
    reply = server.raw().call("SLOCK.APPLY", "k", f"EXTEND 0 {deadline_ms} a")
    assert reply == 1 if years < 10 else "years ahead" in reply.text


def test_a_mutated_effect_is_refused_or_leaves_a_consistent_lock(make_server: MakeServer) -> None:
    server = make_server(slock_allow_apply=True)
    stream = ReplicationStream(server)
    take_samples(server)
    effects = [command for command in stream.commands() if command[0] == b"SLOCK.APPLY"]
    words = [word for effect in effects for word in effect[2:]]
    words += [b"", b"0", b"-1", b"x" * 2000, *(b"%d" % extreme for extreme in EXTREMES)]
    chance, raw = random.Random(20260101), server.raw()
    locks = Locks(server.client())
    for _ in range(rounds(1500, 6000)):
        effect = list(chance.choice(effects))
        for _ in range(chance.randrange(4)):
            effect[chance.randrange(2, len(effect))] = chance.choice(words)
        if chance.random() < 0.2:
            effect = effect[: chance.randrange(1, len(effect))]
        reply = raw.call(effect[0], b"k", *effect[2:])
        assert not isinstance(reply, RespError) or reply.prefix == "ERR", (effect, reply.text)
        assert_makes_sense(locks.full("k"), repr(effect).encode())
    server.client().execute_command("DEBUG", "RELOAD")
    stream.close()


def test_the_checksum_is_the_servers(client: redis.Redis) -> None:
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA
    payload = originals(client)[0]
    assert sealed(body_of(payload), payload) == payload
    assert client.restore("copy", 0, payload) == b"OK"
    with pytest.raises(redis.ResponseError, match="checksum"):
        client.restore("other", 0, payload[:-1] + bytes([payload[-1] ^ 1]))


def test_memory_is_not_taken_on_a_payloads_word(make_server: MakeServer) -> None:
    client = make_server().client()
    payload = originals(client)[3]
    body = body_of(payload)
    client.flushall()
    before = client.info("memory")["used_memory_peak"]
    for huge in HUGE:
        cuts = range(HEAD, len(body))
        restore_all(client, [sealed(body[:at] + huge + body[at + len(huge) :], payload) for at in cuts])
        client.flushall()
    assert client.info("memory")["used_memory_peak"] - before < 64 << 20
