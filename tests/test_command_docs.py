"""What the server knows of each command: COMMAND INFO, DOCS and GETKEYS, and what follows from its flags."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import redis

from harness import Locks, RawConnection, Server, wait_until
from harness.many import many

HOUR = 3_600_000


class Spec(NamedTuple):
    arity: int
    flags: str
    example: str
    keys: str
    # The parts of the syntax line: what redis-cli shows as a hint.
    arguments: str

    @property
    def access(self) -> bytes:
        return b"RO" if "readonly" in self.flags else b"RW"


TAKE = "[WAIT] [META] [EPHEMERAL]"
COMMANDS = {
    "slock.lock": Spec(-4, "write denyoom blocking fast", "K t 1", "K", f"key token ttl-ms {TAKE}"),
    "slock.rlock": Spec(-4, "write denyoom blocking fast", "K t 1", "K", f"key token ttl-ms {TAKE}"),
    "slock.unlock": Spec(3, "write fast", "K t", "K", "key token"),
    "slock.runlock": Spec(3, "write fast", "K t", "K", "key token"),
    "slock.extend": Spec(4, "write fast", "K t 1", "K", "key token ttl-ms"),
    "slock.pttl": Spec(3, "readonly fast", "K t", "K", "key token"),
    "slock.check": Spec(3, "readonly fast", "K 7", "K", "key fence"),
    "slock.upgrade": Spec(-4, "write denyoom blocking fast", "K t 1", "K", "key token ttl-ms [WAIT]"),
    "slock.downgrade": Spec(4, "write fast", "K t 1", "K", "key token ttl-ms"),
    "slock.mlock": Spec(
        -5, "write denyoom blocking", "2 K J t 1", "K J", f"numkeys key+ token ttl-ms {TAKE}"
    ),
    "slock.mrlock": Spec(
        -5, "write denyoom blocking", "2 K J t 1", "K J", f"numkeys key+ token ttl-ms {TAKE}"
    ),
    "slock.munlock": Spec(-4, "write", "3 K J L t", "K J L", "numkeys key+ token"),
    "slock.mextend": Spec(-5, "write", "2 K J t 1", "K J", "numkeys key+ token ttl-ms"),
    "slock.mpttl": Spec(-4, "readonly", "2 K J t", "K J", "numkeys key+ token"),
    "slock.info": Spec(-2, "readonly", "K FULL COUNT 3", "K", "key [FULL]"),
}
# Flags that are said of none of them, unless their specification says so.
TELLING = {b"write", b"readonly", b"fast", b"denyoom", b"admin", b"noscript", b"blocking", b"pubsub"}


def _dictionary(reply: Any) -> dict[str, Any]:
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def _docs(raw: RawConnection, name: str) -> dict[str, Any]:
    return _dictionary(_dictionary(raw.ok("COMMAND", "DOCS", name))[name])


@pytest.fixture
def fields(raw: RawConnection) -> Callable[[str], list]:
    return lambda name: raw.ok("COMMAND", "INFO", name)[0]


def test_every_command_of_the_module_is_described_here(raw: RawConnection) -> None:
    listed = raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock")
    assert {name.decode() for name in listed} == set(COMMANDS) | {"slock.apply"}


@pytest.mark.parametrize("name", COMMANDS)
def test_arity_and_flags_are_told(fields: Callable[[str], list], name: str) -> None:
    _, arity, flags, *_ = fields(name)
    assert arity == COMMANDS[name].arity
    assert set(flags) & TELLING == {flag.encode() for flag in COMMANDS[name].flags.split()}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_key_specification_tells_how_keys_are_used(fields: Callable[[str], list], name: str) -> None:
    (spec,) = fields(name)[8]
    spec = _dictionary(spec)
    assert COMMANDS[name].access in spec["flags"]
    find = _dictionary(spec["find_keys"])
    assert find["type"] == (b"keynum" if name.startswith("slock.m") else b"range")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_keys_of_a_call_are_found(raw: RawConnection, name: str) -> None:
    spec = COMMANDS[name]
    words = (name, *spec.example.split())
    keys = [key.encode() for key in spec.keys.split()]
    assert raw.ok("COMMAND", "GETKEYS", *words) == keys
    described = raw.ok("COMMAND", "GETKEYSANDFLAGS", *words)
    assert [key for key, _ in described] == keys
    assert all(spec.access in flags for _, flags in described)


@pytest.mark.parametrize("count", [0, -1, 4, 1025, "x"])
def test_a_call_that_names_too_few_keys_has_none(raw: RawConnection, count: object) -> None:
    """The server's own words: no keys, or arguments that make no sense."""
    assert raw.error("COMMAND", "GETKEYS", "SLOCK.MLOCK", count, "a", "t", 1).startswith("ERR ")
    assert raw.ok("PING") == b"PONG"


def _syntax(arguments: list) -> str:
    words = []
    for argument in map(_dictionary, arguments):
        flags = argument.get("flags", [])
        name = argument["name"].decode()
        word = argument["token"].decode() if "token" in argument else name
        if argument["type"] == b"block" and "token" not in argument:
            word = _syntax(argument["arguments"]).split()[0]
        if b"multiple" in flags:
            word += "+"
        words.append(f"[{word}]" if b"optional" in flags else word)
    return " ".join(words)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_documentation_has_what_hints_are_made_of(raw: RawConnection, name: str) -> None:
    docs = _docs(raw, name)
    assert docs["module"] == b"slock"
    assert len(docs["summary"]) > 10 and docs["summary"].endswith(b".")
    assert re.match(rb"\d+\.\d+\.\d+$", docs["since"])
    assert docs["complexity"].startswith(b"O(")
    assert _syntax(docs["arguments"]) == COMMANDS[name].arguments
    for argument in map(_dictionary, docs["arguments"]):
        if argument["type"] == b"key":
            assert argument["key_spec_index"] == 0


def test_the_internal_command_is_described_as_such(raw: RawConnection) -> None:
    docs = _docs(raw, "slock.apply")
    assert re.search(rb"(?i)internal", docs["summary"])
    assert raw.ok("COMMAND", "GETKEYS", "SLOCK.APPLY", "k", "anything") == [b"k"]


@pytest.mark.parametrize("name", COMMANDS)
def test_names_are_case_insensitive(raw: RawConnection, name: str) -> None:
    assert "wrong number of arguments" in raw.error(name.upper())
    assert "wrong number of arguments" in raw.error(name.title())


# --- denyoom: what takes memory is refused on a full server, and what gives it back never is


def _fill(client: redis.Redis) -> None:
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)


def test_on_a_full_server_everything_but_a_new_lock_works(make_server: Callable[..., Server]) -> None:
    server = make_server()
    client, raw = server.client(), server.raw()
    locks = Locks(client)
    for key in ("w1", "w2", "w3", "w4", "w5"):
        fence = locks.lock(key, "me", HOUR)
    for key in ("r1", "r2", "r3"):
        locks.rlock(key, "me", HOUR)
    _fill(client)
    for name in ("slock.lock", "slock.rlock", "slock.mlock", "slock.mrlock"):
        words = COMMANDS[name].example.split()
        assert raw.error(name, *words).startswith("OOM "), name
    for words in (("LOCK", "new", "me", HOUR, "WAIT", 0), ("UPGRADE", "r3", "me", HOUR, "WAIT", 0)):
        assert raw.error(f"SLOCK.{words[0]}", *words[1:]).startswith("OOM "), "a waiter takes memory too"
    assert locks.extend("w1", "me", HOUR) == 1
    assert raw.ok(*many("MEXTEND", "w1 r1", "me", HOUR)) == 1
    assert locks.pttl("w1", "me") > 0 and locks.check("w5", fence) == 1
    assert locks.info("w1").mode == "write" and raw.ok(*many("MPTTL", "w1 r1", "me")) > 0
    assert locks.downgrade("w5", "me", HOUR)
    assert locks.unlock("w1", "me") == 1 and locks.runlock("r1", "me") == 1
    assert raw.ok(*many("MUNLOCK", "w2 w3 w4 w5 r2 r3", "me")) == 6
    assert client.dbsize() == 0


def test_who_waited_before_the_server_was_full_is_granted(make_server: Callable[..., Server]) -> None:
    server = make_server()
    client = server.client()
    locks = Locks(client)
    locks.lock("k", "me", HOUR)
    waiting = server.raw()
    waiting.send("SLOCK.LOCK", "k", "next", HOUR, "WAIT", 0)
    wait_until(lambda: locks.info("k").waiters == 1, what="it to wait")
    _fill(client)
    assert locks.unlock("k", "me") == 1
    assert waiting.read() > 0
    assert locks.unlock("k", "next") == 1
