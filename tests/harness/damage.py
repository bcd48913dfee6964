"""Payloads that nobody's DUMP made, and what must be true of a lock that came from one."""

from __future__ import annotations

import random
import time

import redis

from harness.locks import Info, Locks, digest
from harness.payloads import plain_dump
from harness.server import Server

LONG = 3_600_000
# Deadlines further away than this, in milliseconds, do not pass while states are compared.
FAR = 30_000
# A module value begins with its RDB type and the number of its module type. Changing those asks for other
# types' loaders, which are the server's business.
HEAD = 1 + 9

MAX_TOKEN = 255
MAX_META = 1024

# Lengths and numbers of RDB files and of the module's own encoding, at their borders.
HUGE = [b"\xff" * 8, b"\x00" * 8, b"\x00" * 7 + b"\x80", b"\xff\xff\xff\x7f", b"\xff\xff", b"\x7f"]
HUGE += [b"\x80\x7f\xff\xff\xff", b"\x81\x7f" + b"\xff" * 7, b"\x81" + b"\xff" * 8]
HUGE += [b"\xfb\xff\xff", b"\xfc" + b"\xff" * 4, b"\xfd" + b"\xff" * 7 + b"\x7f"]


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
    keys = [f"k{number}" for number in range(len(payloads))]
    for key, payload in zip(keys, payloads, strict=True):
        pipe.restore(key, 0, payload)
    accepted = []
    for key, payload, reply in zip(keys, payloads, pipe.execute(raise_on_error=False), strict=True):
        if reply == b"OK":
            accepted.append(key)
        else:
            assert "Bad data format" in str(reply), f"{reply!r} for {payload.hex()}"
    return accepted


def assert_makes_sense(info: Info | None, payload: bytes) -> None:
    """One writer or some readers, each with a token of its own; or nobody who is alive."""
    if info is None:
        return
    tokens = [holder.token for holder in info.holders]
    why = f"{info} of {payload.hex()}"
    assert info.mode in ("write", "read"), why
    assert len(tokens) == 1 if info.mode == "write" else len(tokens) == info.readers >= 1, why
    assert len(set(tokens)) == len(tokens), why
    assert info.fence == max(holder.fence for holder in info.holders) > 0, why
    assert info.pttl == max(holder.pttl for holder in info.holders) > 0, why
    assert all(1 <= len(token) <= MAX_TOKEN for token in tokens), why
    assert all(holder.held_ms >= 0 for holder in info.holders), why
    assert all(holder.fence > 0 and len(holder.meta) <= MAX_META for holder in info.holders), why


def use_all(client: redis.Redis, keys: list[str], payloads: list[bytes]) -> None:
    """What applications and operators do with a lock, on every key that was accepted; then it is freed."""
    pipe = client.pipeline(transaction=False)
    for key in keys:
        pipe.execute_command("SLOCK.INFO", key, "FULL", "COUNT", 0)
    infos = [Info.of(reply) for reply in pipe.execute()]
    for key, info in zip(keys, infos, strict=True):
        assert_makes_sense(info, payloads[int(key[1:])])
        pipe.execute_command("DUMP", key)
        pipe.execute_command("MEMORY", "USAGE", key)
        pipe.execute_command("DEBUG", "DIGEST-VALUE", key)
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
    for key, info in zip(keys, pipe.execute(), strict=True):
        assert info is None, f"{key} is not free: {info} after {payloads[int(key[1:])].hex()}"
    for key in keys:
        pipe.execute_command("SLOCK.LOCK", key, "last", 1000)
    for key, fence in zip(keys, pipe.execute(), strict=True):
        assert fence > 0, f"{key} cannot be locked after {payloads[int(key[1:])].hex()}"


def lasting_states(server: Server) -> dict[tuple[int, bytes], str]:
    """The digests of the locks whose deadlines are far away, by database and key."""
    states = {}
    for number in (0, 1):
        client = server.client(db=number)
        for key in client.scan_iter(count=1000):
            if client.pexpiretime(key) > time.time() * 1000 + FAR:
                states[number, key] = digest(client, key)
        client.close()
    return states
