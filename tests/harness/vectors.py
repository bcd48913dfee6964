"""Argument vectors drawn by chance: what COMMAND DOCS says that a command takes, and damage to it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from harness.raw import RawConnection

Vector = tuple[bytes, ...]

KEYS = (b"k0", b"k1", b"k2", b"k3", b"string", b"list", b"none", b"", b"k" * 300, b"\x00\xff\r\n")
TOKENS = (b"a", b"\x00\xff\r\n", b"t" * 255, b"t" * 256, b"")
NUMBERS = (
    *(b"%d" % number for number in (0, 1, 2, 3, 5, 1000, 60_000, 3_600_000, 86_400_000, 31_536_000_000)),
    *(b"%d" % number for number in (-1, 1024, 1025, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64)),
    *(b"", b"1.5", b"+1", b"01", b" 1", b"1 ", b"0x10", b"1e3", b"-0", b"nan", b"9" * 400),
)
CHANNELS = (b"heard", b"unheard", b"c" * 255, b"c" * 256, b"")

# What else a client may do to the keys, and to the settings, between two commands.
OTHERS: tuple[tuple[bytes, ...], ...] = (
    *((b"DEL", b"k%d" % number) for number in range(4)),
    (b"SET", b"k0", b"x"),
    (b"LPUSH", b"k1", b"x"),
    (b"RENAME", b"k0", b"k1"),
    (b"RENAMENX", b"k2", b"k3"),
    (b"COPY", b"k1", b"k2", b"REPLACE"),
    (b"MOVE", b"k3", b"1"),
    (b"SWAPDB", b"0", b"1"),
    (b"SELECT", b"0"),
    (b"SELECT", b"1"),
    (b"PERSIST", b"k0"),
    (b"PEXPIRE", b"k0", b"5"),
    (b"PEXPIRE", b"k1", b"100000"),
    (b"EXPIREAT", b"k2", b"1"),
    (b"OBJECT", b"FREQ", b"k0"),
    (b"MEMORY", b"USAGE", b"k1"),
    (b"DUMP", b"k0"),
    (b"TOUCH", b"k0", b"k1"),
    (b"UNLINK", b"k1", b"k2"),
    (b"TYPE", b"k0"),
    (b"SCAN", b"0"),
    # In the background: Redis 8.0 blocks who flushes otherwise, and CLIENT UNBLOCK of that client crashes it.
    (b"FLUSHDB", b"ASYNC"),
    (b"INFO", b"slock"),
    (b"WATCH", b"k0"),
    (b"UNWATCH",),
    (b"MULTI",),
    (b"EXEC",),
    (b"DISCARD",),
    (b"RESET",),
    (b"CONFIG", b"SET", b"slock.max-waiters", b"3"),
    (b"CONFIG", b"SET", b"slock.max-waiters", b"100000"),
    (b"CONFIG", b"SET", b"slock.max-ttl-ms", b"5000"),
    (b"CONFIG", b"SET", b"slock.max-ttl-ms", b"86400000"),
)

IN_A_SCRIPT = b"return redis.pcall(unpack(ARGV))"


class Vectors:
    """Draws vectors of the commands that this server's module has."""

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
        vector = self.command()
        if kind < 0.3:
            return (b"EVAL", IN_A_SCRIPT, b"0", *vector)
        return vector

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
            many = self._chance.randrange(1, 4) if b"multiple" in flags else 1
            if argument[b"name"] == b"numkeys":
                keys = self._chance.sample(KEYS[:5], self._chance.randrange(1, 4))
                words += [b"%d" % len(keys), *keys]
                continue
            if argument[b"type"] == b"key" and b"multiple" in flags:
                continue  # with their number
            if b"token" in argument:
                words.append(argument[b"token"])
            for _ in range(many):
                words += self._value(argument)
        return words

    def _value(self, argument: dict[bytes, Any]) -> list[bytes]:
        name, kind = argument[b"name"], argument[b"type"]
        if kind == b"block":
            return self._words(argument[b"arguments"])
        if kind == b"oneof":
            return self._words([self._chance.choice(argument[b"arguments"])])
        if kind == b"pure-token":
            return []
        if kind == b"key":
            return [self._mostly(KEYS[:4], KEYS[:6])]
        if kind == b"integer":
            return [self._mostly(NUMBERS[3:8], NUMBERS[:10])]
        if name == b"channel":
            return [self._mostly(CHANNELS[:1], CHANNELS)]
        return [self._mostly(self._tokens(), TOKENS)]

    def _tokens(self) -> list[bytes]:
        """Three, and others after a while: one that CANCEL refuses gets nothing for as long."""
        self._drawn += 1
        return [b"%c%d" % (letter, self._drawn // 200) for letter in b"abc"]

    def _mostly(self, usual: Sequence[bytes], others: Sequence[bytes]) -> bytes:
        return self._chance.choice(usual if self._chance.random() < 0.85 else others)

    def _damage(self, words: list[bytes]) -> None:
        at = self._chance.randrange(len(words))
        other = self._chance.choice((KEYS, TOKENS, NUMBERS, CHANNELS))
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
                words.append(self._chance.choice(words))
            case _:
                end = self._chance.randrange(len(words))
                words[at], words[end] = words[end], words[at]
