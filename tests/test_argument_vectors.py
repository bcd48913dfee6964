"""Random argument vectors, alone, in MULTI and in scripts, with the server's own commands between them."""

from __future__ import annotations

import random
import time

from harness import Locks, MakeServer, RespError, Server, digest
from harness.damage import assert_makes_sense
from harness.replication import replica_of, wait_synced
from harness.settings import amount
from harness.vectors import Vector, Vectors

BATCH = 500

# A command that blocks longer, in seconds, is unblocked. Where one that does not block is as slow, only the
# course of the test is another.
BLOCKS_AFTER = 0.01

# Deadlines further away than this, in milliseconds, do not pass while states are compared.
FAR = 120_000


def test_no_argument_vector_harms_the_server(make_server: MakeServer) -> None:
    """Nothing crashes or hangs, each lock makes sense, and the replica and the log have the same locks."""
    primary = make_server(name="primary", appendonly=True, appendfsync="no")
    replica = make_server(name="replica")
    replica_of(replica, primary)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    vectors = Vectors(primary.raw(), random.Random(seed))
    for number in range(amount(4_000) // BATCH):
        _play(primary, [vectors.draw() for _ in range(BATCH)])
        primary.check()
        _look(primary)
        if number % 20 == 19:
            wait_synced(primary, replica)
            replica.check()
    wait_synced(primary, replica)
    states = _states(primary)
    assert _states(replica) == states
    replica.stop()
    primary.restart()
    assert _states(primary) == states
    primary.client().execute_command("DEBUG", "RELOAD")
    assert _states(primary) == states


def _play(server: Server, batch: list[Vector]) -> None:
    """Sends a batch on a connection of its own. What blocks is unblocked by another."""
    raw, other = server.raw(), server.raw()
    identity = raw.client_id()
    listener = server.raw()
    listener.ok("SSUBSCRIBE", "heard")
    raw.send_bytes(b"".join(_encoded(vector) for vector in batch))
    how = (b"TIMEOUT", b"ERROR")
    for number, vector in enumerate(batch):
        while not raw.has_reply(BLOCKS_AFTER):
            other.ok("CLIENT", "UNBLOCK", identity, how[number % 2])
        reply = raw.read()
        assert not _is_internal(reply), (vector, reply)
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


def _states(server: Server) -> dict[tuple[int, bytes], str]:
    """The digests of the locks whose deadlines are far away."""
    states = {}
    for number in (0, 1):
        client = server.client(db=number)
        for key in client.scan_iter(count=1000):
            if client.pexpiretime(key) > time.time() * 1000 + FAR:
                states[number, key] = digest(client, key)
        client.close()
    return states
