"""Locks with everything in them that storage or transport could lose."""

from __future__ import annotations

from harness.locks import Locks, LockState, lock_state
from harness.server import Server

HISTORY_KEY = b"sample:history"
OTHER_DATABASE = 3

# Far enough away that no sample dies during a test, and no two alike.
TTLS_MS = (300_000, 600_000, 450_000)

Sample = tuple[int, bytes]


def take_samples(server: Server) -> dict[Sample, LockState]:
    """Takes the sample locks and returns their states by (database, key)."""
    locks = Locks(server.client())
    assert locks.lock(b"sample:writer", bytes(range(255)), TTLS_MS[0], meta=bytes(range(256)) * 4)
    assert locks.lock(b"sample:\x00\r\n\xff", b"\r\n", 86_400_000)
    readers = {b"\x00": None, b"two\r\n$3\r\n": b"", b"\xff" * 255: b"\x00\r\n\xff"}
    for (token, meta), ttl in zip(readers.items(), TTLS_MS, strict=True):
        assert locks.rlock(b"sample:readers", token, ttl, meta=meta)
    elsewhere = Locks(server.client(db=OTHER_DATABASE))
    assert elsewhere.rlock(b"sample:writer", b"same name, other database", TTLS_MS[1], meta=b"m")
    # A lock that has been through every command: what counts is the state it ended in.
    key = HISTORY_KEY
    assert locks.lock(key, b"gone", 1000)
    assert locks.unlock(key, b"gone")
    assert locks.rlock(key, b"stays", 1000, meta=b"first")
    assert locks.rlock(key, b"leaves", 500_000)
    assert locks.rlock(key, b"stays", 2000, meta=b"second")
    assert locks.runlock(key, b"leaves")
    assert locks.upgrade(key, b"stays", 3000)
    assert locks.downgrade(key, b"stays", 4000)
    assert locks.rlock(key, b"joins", 700_000)
    assert locks.extend(key, b"stays", 800_000)
    return sample_states(server)


def sample_states(server: Server) -> dict[Sample, LockState]:
    states: dict[Sample, LockState] = {}
    for database in (0, OTHER_DATABASE):
        client = server.client(db=database)
        for key in client.keys("sample:*"):
            state = lock_state(client, key)
            assert state is not None, f"{key!r} of database {database} is held by nobody"
            states[database, key] = state
        client.close()
    return states


def release_samples(server: Server) -> None:
    """Whoever holds a sample can release it, nobody else can, and the last one to leave frees the key."""
    for (database, key), state in sample_states(server).items():
        client = server.client(db=database)
        locks = Locks(client)
        release = locks.unlock if state.mode == "write" else locks.runlock
        wrong = locks.runlock if state.mode == "write" else locks.unlock
        assert release(key, b"nobody's token") == 0
        assert locks.lock(key, b"nobody's token", 1000) == 0
        for token, fence, _ in state.holders:
            assert client.exists(key) == 1
            assert locks.check(key, fence) == 1
            assert wrong(key, token) == 0
            assert release(key, token) == 1, f"{token!r} could not release {key!r}"
            assert locks.check(key, fence) == 0
        assert client.exists(key) == 0
        client.close()
