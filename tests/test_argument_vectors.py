"""Random argument vectors, alone, in MULTI and in scripts, with the server's own commands between them."""

from __future__ import annotations

import random
from collections import Counter

from harness import Locks, MakeServer, RespError, Server, rewrite_aof
from harness.damage import assert_makes_sense, lasting_states
from harness.replication import replica_of, wait_synced
from harness.settings import amount
from harness.vectors import Vector, Vectors

BATCH = 500
# Every so many batches the locks are compared with those of the replica, the log and a snapshot.
STORED_EVERY = 100

# A command that blocks longer, in seconds, is unblocked. Where one that does not block is as slow, only the
# course of the test is another.
BLOCKS_AFTER = 0.001


def test_no_argument_vector_harms_the_server(make_server: MakeServer) -> None:
    """Nothing crashes or hangs, each lock makes sense, and the replica and the log have the same locks."""
    primary = make_server(name="primary", appendonly=True, appendfsync="no")
    replica = make_server(name="replica")
    replica_of(replica, primary)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    vectors = Vectors(primary.raw(), random.Random(seed))
    seen: Counter[str] = Counter()
    compared = 0
    for number in range(amount(4_000) // BATCH):
        _play(primary, [vectors.draw() for _ in range(BATCH)], seen)
        primary.check()
        _look(primary)
        if number % 20 == 19:
            wait_synced(primary, replica)
            replica.check()
        if number % STORED_EVERY == 0:
            # Without other commands between them more locks are there to be compared.
            primary.client().config_set("slock.max-ttl-ms", 86_400_000)
            for _ in range(20):
                _play(primary, [vectors.command() for _ in range(BATCH)], seen)
                if lasting_states(primary):
                    break
            compared += _assert_stored(primary, replica)
    assert compared > 0
    print(dict(seen), f"{compared} locks compared")


def _assert_stored(primary: Server, replica: Server) -> int:
    """How many locks the replica, the log, the rewritten log and a snapshot have as the primary."""
    wait_synced(primary, replica)
    states = lasting_states(primary)
    assert lasting_states(replica) == states
    primary.restart()
    assert lasting_states(primary) == states
    rewrite_aof(primary)
    primary.restart()
    assert lasting_states(primary) == states
    primary.client().execute_command("DEBUG", "RELOAD")
    assert lasting_states(primary) == states
    wait_synced(primary, replica)
    assert lasting_states(replica) == states
    return len(states)


def _play(server: Server, batch: list[Vector], seen: Counter[str]) -> None:
    """Sends a batch on a connection of its own. What blocks is unblocked by another."""
    raw, other = server.raw(), server.raw()
    identity = raw.client_id()
    listener = server.raw()
    listener.ok("SSUBSCRIBE", "heard")
    raw.send_bytes(b"".join(_encoded(vector) for vector in batch))
    how = (b"TIMEOUT", b"ERROR")
    for number, vector in enumerate(batch):
        while not raw.has_reply(BLOCKS_AFTER):
            seen["unblocked"] += other.ok("CLIENT", "UNBLOCK", identity, how[number % 2])
        reply = raw.read()
        assert not _is_internal(reply), (vector, reply)
        seen["refused" if isinstance(reply, RespError) else "done"] += 1
    raw.call("DISCARD")
    raw.ok("RESET")
    raw.ok("SET", "string", "x")
    raw.call("LPUSH", "list", "x")
    for connection in (raw, other, listener):
        connection.close()


def _encoded(vector: Vector) -> bytes:
    return b"*%d\r\n" % len(vector) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in vector)


def _is_internal(reply: object) -> bool:
    return isinstance(reply, RespError) and any(word in reply.text for word in ("panic", "internal", "bug"))


def _look(server: Server) -> None:
    """Each lock makes sense."""
    for number in (0, 1):
        client = server.client(db=number)
        locks = Locks(client)
        for key in client.scan_iter(count=1000):
            info = locks.full(key) if client.type(key) not in (b"string", b"list") else None
            # Where the holds have ended, requests may be there still.
            if info is not None and info.mode != "free":
                assert_makes_sense(info, key)
        client.close()
