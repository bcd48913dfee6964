"""Payloads that nobody's DUMP made: refused, or loaded into a lock that makes sense; the server lives.

What the decoder refuses is in the core's tests; here it is the server that has to live with it.
"""

from __future__ import annotations

import random

import redis

from harness import Locks, MakeServer, RespError, digest, lock_state, rounds, wait_until
from harness.aof import debug_reload
from harness.damage import MAX_META, MAX_TOKEN, assert_makes_sense, far_ms, stored_states
from harness.locks import Info
from harness.payloads import FOOTER, body_of, plain_dump, sealed, with_number
from harness.replication import ReplicationStream, replica_of, wait_synced
from harness.samples import take_samples
from harness.settings import amount

BATCH = 400
# Every so many batches all that was accepted goes through a snapshot, the log, and the rewritten log.
RESTARTS_EVERY = 50

FIRST_SEED = 20260101
LONG = 3_600_000

# A module value begins with its RDB type and the number of its module type. Changing those asks for other
# types' loaders, which are the server's business.
HEAD = 1 + 9

# Lengths and numbers of RDB files and of the module's own encoding, at their borders.
HUGE = [b"\xff" * 8, b"\x00" * 8, b"\x00" * 7 + b"\x80", b"\xff\xff\xff\x7f", b"\xff\xff", b"\x7f"]
HUGE += [b"\x80\x7f\xff\xff\xff", b"\x81\x7f" + b"\xff" * 7, b"\x81" + b"\xff" * 8]
HUGE += [b"\xfb\xff\xff", b"\xfc" + b"\xff" * 4, b"\xfd" + b"\xff" * 7 + b"\x7f"]

EXTREMES = (2**53 - 2, 2**53 - 1, 2**53, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1)


def originals(client: redis.Redis) -> list[bytes]:
    """Values of DUMP to start from: few and many holders, with and without metadata, short and long.

    Each as it is and compressed by the server: damage must reach the module's decoder, not only the server's.
    """
    locks = Locks(client)
    locks.lock("writer", b"owner", LONG)
    locks.lock("writer with meta", b"\x00\xff" * 20, LONG, meta=b"host=a pid=1")
    locks.rlock("reader", b"r", LONG)
    for number in range(3):
        locks.rlock("readers", b"reader-%d" % number, LONG + number, meta=b"m%d" % number)
    for number in range(30):
        locks.rlock("many", b"%02d" % number, LONG + number)
    locks.lock("long", b"t" * MAX_TOKEN, LONG, meta=b"m" * MAX_META)
    keys = ("writer", "writer with meta", "reader", "readers", "many", "long")
    return [plain_dump(client, key) for key in keys] + [client.dump(key) for key in keys]


def mutated(body: bytes, bodies: list[bytes], chance: random.Random) -> bytes:
    """The value with one kind of damage; sometimes with two."""
    data = bytearray(body)
    for _ in range(chance.choice((1, 1, 1, 2))):
        at = chance.randrange(min(HEAD, len(data) - 1), len(data))
        end = min(len(data), at + chance.randrange(1, 40))
        other = chance.choice(bodies)
        match chance.randrange(10):
            case 0 | 1:
                data[at] ^= 1 << chance.randrange(8)
            case 2:
                data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 3:
                del data[at:]
            case 4:
                del data[at:end]
            case 5:
                data[at:at] = chance.randbytes(chance.randrange(1, 12))
            case 6:
                huge = chance.choice(HUGE)
                data[at : at + len(huge)] = huge
            case 7:
                data[end:end] = data[at:end]
            case 8:
                data[at:] = other[min(at, len(other)) :]
            case _:
                start = chance.randrange(min(HEAD, len(other) - 1), len(other))
                data[at:end] = other[start : start + end - at]
        if len(data) <= 2:
            break
    return bytes(data)


def restore_all(client: redis.Redis, payloads: list[bytes]) -> list[str]:
    """RESTOREs every payload under a key of its own and returns the keys that were accepted."""
    pipe = client.pipeline(transaction=False)
    for number, payload in enumerate(payloads):
        pipe.restore(f"k{number}", 0, payload)
    replies = pipe.execute(raise_on_error=False)
    refused = [str(reply) for reply in replies if reply != b"OK"]
    assert all("Bad data format" in text for text in refused), refused
    return [f"k{number}" for number, reply in enumerate(replies) if reply == b"OK"]


def use_all(client: redis.Redis, keys: list[str], payloads: list[bytes]) -> None:
    """What applications and operators do with a lock, on every key that was accepted; then it is freed."""
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.execute_command("SLOCK.INFO", key, "FULL", "COUNT", 0)
    for key, reply in zip(keys, pipe.execute(), strict=True):
        info = Info.of(reply)
        assert_makes_sense(info, payloads[int(key[1:])])
        for command in ("DUMP", "MEMORY USAGE", "DEBUG DIGEST-VALUE"):
            pipe.execute_command(*command.split(), key)
        pipe.execute_command("COPY", key, "copy", "REPLACE")
        pipe.execute_command("SLOCK.LOCK", key, "newcomer", 1000)
        pipe.execute_command("SLOCK.RLOCK", key, "another", 1000)
        for holder in info.holders if info else ():
            pipe.execute_command("SLOCK.EXTEND", key, holder.token, LONG)
            pipe.execute_command("SLOCK.CHECK", key, holder.fence)
            pipe.execute_command("SLOCK.MUNLOCK", 1, key, holder.token)
        for token in ("newcomer", "another"):
            pipe.execute_command("SLOCK.MUNLOCK", 1, key, token)
    pipe.execute()
    for key in keys:
        pipe.execute_command("SLOCK.INFO", key)
        pipe.execute_command("SLOCK.LOCK", key, "last", 1000)
    replies = pipe.execute()
    for key, info, fence in zip(keys, replies[::2], replies[1::2], strict=True):
        assert info is None and fence > 0, f"{key} is not free: {info} after {payloads[int(key[1:])].hex()}"


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
            # What RESTORE has brought gets its expiry soon after.
            wait_until(lambda client=client, keys=keys: all(client.pexpiretime(key) != -1 for key in keys))
            assert stored_states(server, far_ms())
            client = server.client()
        use_all(client, keys, batch)
        accepted += len(keys)
        server.check()
    assert 0 < accepted < batches * BATCH, "the mutations are all alike"
    print(f"{batches * BATCH} payloads, {accepted} of them accepted")


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
    debug_reload(primary)
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
    debug_reload(server)
