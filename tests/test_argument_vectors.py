"""Random argument vectors, alone, in MULTI and in scripts, with the server's own commands between them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness import Locks, MakeServer, RawConnection, RespError, Server, encode_command
from harness.damage import assert_makes_sense, far_ms, lasting_states, stored_states
from harness.replication import replica_of, wait_synced
from harness.settings import amount

BATCH = 500
# Every so many batches the locks are compared with those of the replica, the log and a snapshot.
STORED_EVERY = 100

# A command that blocks longer, in seconds, is unblocked. Where one that does not block is as slow, only the
# course of the test is another.
BLOCKS_AFTER = 0.001

Vector = tuple[bytes, ...]

KEYS = (b"k0", b"k1", b"k2", b"k3", b"string", b"list", b"none", b"", b"k" * 300, b"\x00\xff\r\n")
TOKENS = (b"a", b"\x00\xff\r\n", b"t" * 255, b"t" * 256, b"")
NUMBERS = (
    *(b"%d" % number for number in (0, 1, 2, 3, 5, 1000, 60_000, 3_600_000, 86_400_000, 31_536_000_000)),
    *(b"%d" % number for number in (-1, 1024, 1025, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64)),
    *(b"", b"1.5", b"+1", b"01", b" 1", b"1 ", b"0x10", b"1e3", b"-0", b"nan", b"9" * 400),
)
CHANNELS = (b"heard", b"silent", b"c" * 255, b"c" * 256, b"")

# What else a client may do to the keys, and to the settings, between two commands. FLUSHDB in the background:
# Redis 8.0 blocks who flushes otherwise, and CLIENT UNBLOCK of that client crashes it.
OTHERS = [
    tuple(words.split())
    for words in b"""
        DEL k0, DEL k1, DEL k2, DEL k3, UNLINK k1 k2, FLUSHDB ASYNC, SET k0 x, LPUSH k1 x, RENAME k0 k1,
        RENAMENX k2 k3, COPY k1 k2 REPLACE, MOVE k3 1, SWAPDB 0 1, SELECT 0, SELECT 1, PERSIST k0,
        PEXPIRE k0 5, PEXPIRE k1 100000, EXPIREAT k2 1, OBJECT FREQ k0, MEMORY USAGE k1, DUMP k0,
        TOUCH k0 k1, TYPE k0, SCAN 0, INFO slock, WATCH k0, UNWATCH, MULTI, EXEC, DISCARD, RESET,
        CONFIG SET slock.max-waiters 3, CONFIG SET slock.max-waiters 100000,
        CONFIG SET slock.max-ttl-ms 5000, CONFIG SET slock.max-ttl-ms 86400000
    """.split(b",")
]


class Vectors:
    """Draws vectors of the module's commands: what COMMAND DOCS says that they take, and damage to it."""

    def __init__(self, raw: RawConnection, chance: random.Random) -> None:
        self._chance, self._drawn = chance, 0
        raw.hello(3)
        names = raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock")
        docs = raw.ok("COMMAND", "DOCS", *names)
        self._commands = {name.upper(): doc.get(b"arguments", []) for name, doc in docs.items()}

    def draw(self) -> Vector:
        """A command of the module in some context, or another one."""
        kind = self._chance.random()
        if kind < 0.15:
            return self._chance.choice(OTHERS)
        in_a_script = (b"EVAL", b"return redis.pcall(unpack(ARGV))", b"0") if kind < 0.3 else ()
        return (*in_a_script, *self.command())

    def command(self) -> Vector:
        """Often one that the documentation allows, else damaged once or more."""
        name = self._chance.choice(list(self._commands))
        words = self._words(self._commands[name])
        while words and self._chance.random() < 0.3:
            self._damage(words)
        return (name, *words)

    def _words(self, arguments: list[dict[bytes, Any]]) -> list[bytes]:
        words: list[bytes] = []
        for argument in arguments:
            flags = argument.get(b"flags", ())
            if b"optional" in flags and self._chance.random() < 0.6:
                continue
            if argument[b"name"] == b"numkeys":
                keys = self._chance.sample(KEYS[:5], self._chance.randrange(1, 4))
                words += [b"%d" % len(keys), *keys]
            elif argument[b"type"] != b"key" or b"multiple" not in flags:  # else with their number
                words += [argument[b"token"]] if b"token" in argument else []
                for _ in range(self._chance.randrange(1, 4) if b"multiple" in flags else 1):
                    words += self._value(argument)
        return words

    def _value(self, argument: dict[bytes, Any]) -> list[bytes]:
        match argument[b"type"]:
            case b"block":
                return self._words(argument[b"arguments"])
            case b"oneof":
                return self._words([self._chance.choice(argument[b"arguments"])])
            case b"pure-token":
                return []
            case b"key":
                usual, others = KEYS[:4], KEYS[:6]
            case b"integer":
                usual, others = NUMBERS[3:8], NUMBERS[:10]
            case _ if argument[b"name"] == b"channel":
                usual, others = CHANNELS[:1], CHANNELS
            case _:
                # Other tokens after a while: one that CANCEL refuses gets nothing for as long.
                self._drawn += 1
                usual, others = [b"%c%d" % (letter, self._drawn // 200) for letter in b"abc"], TOKENS
        return [self._chance.choice(usual if self._chance.random() < 0.85 else others)]

    def _damage(self, words: list[bytes]) -> None:
        at, end = (self._chance.randrange(len(words)) for _ in range(2))
        other: Sequence[bytes] = self._chance.choice((KEYS, TOKENS, NUMBERS, CHANNELS))
        match self._chance.randrange(6):
            case 0:
                del words[at]
            case 1:
                words[at] = self._chance.choice(other)
            case 2:
                words.insert(at, self._chance.choice(other))
            case 3:
                words.insert(at, words[at])
            case 4:
                words.append(words[end])
            case _:
                words[at], words[end] = words[end], words[at]


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
        _assert_all_make_sense(primary)
        if number % 20 == 19:
            wait_synced(primary, replica)
            replica.check()
        if number % STORED_EVERY == 0:
            # Without other commands between them more locks are there to be compared.
            primary.client().config_set("slock.max-ttl-ms", 86_400_000)
            for _ in range(20):
                _play(primary, [vectors.command() for _ in range(BATCH)], seen)
                if lasting_states(primary, far_ms()):
                    break
            compared += _compare_stored(primary, replica)
    assert compared > 0
    print(dict(seen), f"{compared} locks compared")


def _compare_stored(primary: Server, replica: Server) -> int:
    """How many locks the replica, the log, the rewritten log and a snapshot have as the primary."""
    wait_synced(primary, replica)
    until_ms = far_ms()
    states = lasting_states(replica, until_ms)
    assert stored_states(primary, until_ms) == states
    wait_synced(primary, replica)
    assert lasting_states(replica, until_ms) == states
    return len(states)


def _play(server: Server, batch: list[Vector], seen: Counter[str]) -> None:
    """Sends a batch on a connection of its own. What blocks is unblocked by another."""
    raw, other, listener = server.raw(), server.raw(), server.raw()
    identity = raw.client_id()
    listener.ok("SSUBSCRIBE", "heard")
    raw.send_bytes(b"".join(encode_command(*vector) for vector in batch))
    for number, vector in enumerate(batch):
        while not raw.has_reply(BLOCKS_AFTER):
            how = (b"TIMEOUT", b"ERROR")[number % 2]
            seen["unblocked"] += other.ok("CLIENT", "UNBLOCK", identity, how)
        reply = raw.read()
        is_error = isinstance(reply, RespError)
        assert not (is_error and re.search("panic|internal|bug", reply.text)), (vector, reply)
        seen["refused" if is_error else "done"] += 1
    raw.call("DISCARD")
    raw.ok("RESET")
    raw.ok("SET", "string", "x")
    raw.call("LPUSH", "list", "x")
    for connection in (raw, other, listener):
        connection.close()


def _assert_all_make_sense(server: Server) -> None:
    for number in (0, 1):
        client = server.client(db=number)
        locks = Locks(client)
        for key in client.scan_iter(count=1000):
            info = locks.full(key) if client.type(key) not in (b"string", b"list") else None
            # Where the holds have ended, requests may be there still.
            if info is not None and info.mode != "free":
                assert_makes_sense(info, key)
        client.close()
