"""Every argument of every command wrong in turn: the error that names it, and nothing changed anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from harness import Events, RawConnection, ReplicationStream, Server, digest

MAX_TTL = 86_400_000
MAX_META = 1024
MAX_TOKEN = 255
TTL = 60_000

# The commands by what they take.
TAKES_TTL = ("LOCK", "RLOCK", "EXTEND", "UPGRADE", "DOWNGRADE")
TAKES_TOKEN = (*TAKES_TTL, "UNLOCK", "RUNLOCK", "PTTL")
TAKES_META = ("LOCK", "RLOCK")
TAKES_NO_OPTION = ("EXTEND", "DOWNGRADE", "UNLOCK", "RUNLOCK", "PTTL", "CHECK")
EVERY = (*TAKES_TOKEN, "CHECK", "INFO")

NOT_A_TTL = {
    "empty": "",
    "a word": "soon",
    "a fraction": "1.5",
    "an exponent": "1e3",
    "hexadecimal": "0x10",
    "with a blank": " 5",
    "with a unit": "5s",
    "with a null byte": b"5\x00",
    "not UTF-8": b"\xff\xfe",
    "zero": 0,
    "negative": -1,
    "above the limit": MAX_TTL + 1,
    "the greatest integer": 2**63 - 1,
    "the least integer": -(2**63),
    "an overflow": 2**63,
    "an overflow of unsigned": 2**64 + 1,
    "a long number": "9" * 400,
}

NOT_A_FENCE = {k: NOT_A_TTL[k] for k in ("empty", "a word", "a fraction", "an overflow", "a long number")}
NOT_A_COUNT = {**NOT_A_FENCE, "negative": -1}


class Call(NamedTuple):
    """A call that must be answered by an ERR, and the words, in lower case, that the error must have."""

    name: str
    args: tuple[object, ...]
    words: tuple[str, ...]


def right_arguments(command: str) -> tuple[object, ...]:
    """What the command takes after its key."""
    if command == "CHECK":
        return (1,)
    if command == "INFO":
        return ()
    return ("a", TTL) if command in TAKES_TTL else ("a",)


ARITY = ("wrong number of arguments",)
SYNTAX = ("syntax error",)
TTL_RANGE = ("ttl", str(MAX_TTL))
TOKEN_RANGE = ("token", str(MAX_TOKEN))
META_RANGE = ("meta", str(MAX_META))


def bad_calls() -> Iterator[tuple[str, Call]]:
    """Name and call of every case. The key is put in front of the arguments when the case is run."""
    for command in EVERY:
        if right := right_arguments(command):
            yield f"{command} lacks its last argument", Call(command, right[:-1], ARITY)
    for command in TAKES_NO_OPTION:
        for extra in (("extra",), ("META", "m"), ("WAIT", "5")):
            yield f"{command} {' '.join(extra)}", Call(command, (*right_arguments(command), *extra), ARITY)
    for command in TAKES_TOKEN:
        for kind, token in (("an empty", b""), ("too long a", b"x" * (MAX_TOKEN + 1))):
            args = (token, *right_arguments(command)[1:])
            yield f"{command} with {kind} token", Call(command, args, TOKEN_RANGE)
    for command in TAKES_TTL:
        for kind, ttl in NOT_A_TTL.items():
            yield f"{command} with a ttl that is {kind}", Call(command, ("a", ttl), TTL_RANGE)
    yield from bad_options()
    for kind, fence in NOT_A_FENCE.items():
        yield f"CHECK with a fence that is {kind}", Call("CHECK", (fence,), ("fence",))
    for kind, count in NOT_A_COUNT.items():
        yield f"INFO with a count that is {kind}", Call("INFO", ("FULL", "COUNT", count), ("count",))


def bad_options() -> Iterator[tuple[str, Call]]:
    for command in TAKES_META:
        for options in (("META",), ("META", "m", "META", "n"), ("META", "m", "X")):
            yield f"{command} {' '.join(options)}", Call(command, ("a", TTL, *options), SYNTAX)
        long_meta = ("META", b"m" * (MAX_META + 1))
        yield f"{command} with too long META", Call(command, ("a", TTL, *long_meta), META_RANGE)
    for command in (*TAKES_META, "UPGRADE"):
        for option in ("NX", ""):
            yield f"{command} with the option {option!r}", Call(command, ("a", TTL, option), SYNTAX)
        for wait in ((), ("soon",), (-1,), (2**63,), ("",)):
            yield f"{command} WAIT {wait}", Call(command, ("a", TTL, "WAIT", *wait), ())
    yield "UPGRADE with META", Call("UPGRADE", ("a", TTL, "META", "m"), SYNTAX)
    for options in (("HALF",), ("",), ("COUNT", 1), ("FULL", "COUNT")):
        yield f"INFO {options}", Call("INFO", options, SYNTAX)
    yield "INFO with one more", Call("INFO", ("FULL", "COUNT", 1, "X"), ())


CASES = dict(bad_calls())

# What a bad call meets: nothing, and locks in both modes that "a", whose token the calls use, holds.
LOCKED = {"w": "LOCK", "r": "RLOCK"}


@pytest.fixture(scope="module")
def stream(_shared_server: Server) -> Iterator[ReplicationStream]:
    stream = ReplicationStream(_shared_server)
    yield stream
    stream.close()


@pytest.fixture
def events(server: Server) -> Iterator[Events]:
    events = Events(server)
    yield events
    events.close()


def state_of(server: Server) -> dict[str, tuple[str, int]]:
    client = server.client()
    state = {key: (digest(client, key), client.pexpiretime(key)) for key in ("free", "w", "r", "string")}
    client.close()
    return state


@pytest.fixture
def scene(server: Server, raw: RawConnection) -> RawConnection:
    for key, command in LOCKED.items():
        raw.ok(f"SLOCK.{command}", key, "a", TTL, "META", "m")
    raw.ok("SLOCK.RLOCK", "r", "b", TTL)
    raw.ok("SET", "string", "value")
    return raw


@pytest.mark.parametrize("name", CASES)
def test_a_bad_argument_is_named_and_nothing_changes(
    server: Server, scene: RawConnection, stream: ReplicationStream, events: Events, name: str
) -> None:
    call = CASES[name]
    before = state_of(server)
    stream.commands()
    for key in ("free", *LOCKED):
        text = scene.error(f"SLOCK.{call.name}", key, *call.args)
        assert text.startswith("ERR "), text
        missing = [word for word in call.words if word not in text.lower()]
        assert not missing, f"{text!r} should mention {missing}"
        assert "\n" not in text and "\r" not in text
    assert state_of(server) == before
    assert stream.commands() == []
    assert events.so_far() == []


@pytest.mark.parametrize("command", EVERY)
def test_a_command_without_arguments_is_an_arity_error(raw: RawConnection, command: str) -> None:
    text = raw.error(f"SLOCK.{command}")
    assert text.startswith("ERR wrong number of arguments for 'slock."), text


@pytest.mark.parametrize("command", EVERY)
@pytest.mark.parametrize("other", ["string", "list", "hash"])
def test_a_key_of_another_type_is_a_wrongtype(
    server: Server,
    scene: RawConnection,
    stream: ReplicationStream,
    events: Events,
    command: str,
    other: str,
) -> None:
    scene.ok("RPUSH", "list", "x")
    scene.ok("HSET", "hash", "f", "x")
    before = state_of(server)
    stream.commands(), events.so_far()
    text = scene.error(f"SLOCK.{command}", other, *right_arguments(command))
    assert text.startswith("WRONGTYPE "), text
    assert state_of(server) == before
    assert stream.commands() == [] and events.so_far() == []


REFUSED = {
    "LOCK of a held lock": (("SLOCK.LOCK", "w", "b", TTL), 0),
    "LOCK of a read lock": (("SLOCK.LOCK", "r", "c", TTL, "META", "x"), 0),
    "RLOCK of a held lock": (("SLOCK.RLOCK", "w", "b", TTL), 0),
    "UNLOCK by a stranger": (("SLOCK.UNLOCK", "w", "b"), 0),
    "UNLOCK of a free lock": (("SLOCK.UNLOCK", "free", "a"), 0),
    "UNLOCK by a reader": (("SLOCK.UNLOCK", "r", "a"), 0),
    "RUNLOCK by a stranger": (("SLOCK.RUNLOCK", "r", "c"), 0),
    "RUNLOCK of a free lock": (("SLOCK.RUNLOCK", "free", "a"), 0),
    "RUNLOCK by the writer": (("SLOCK.RUNLOCK", "w", "a"), 0),
    "EXTEND by a stranger": (("SLOCK.EXTEND", "w", "b", TTL), 0),
    "EXTEND of a free lock": (("SLOCK.EXTEND", "free", "a", TTL), 0),
    "UPGRADE among readers": (("SLOCK.UPGRADE", "r", "a", TTL), 0),
    "PTTL of a stranger": (("SLOCK.PTTL", "w", "b"), -2),
    "CHECK of a wrong fence": (("SLOCK.CHECK", "w", 1), 0),
    "INFO of a free lock": (("SLOCK.INFO", "free", "FULL"), None),
    "LOCK in the other mode": (("SLOCK.LOCK", "r", "a", TTL), "WRONGMODE"),
    "RLOCK in the other mode": (("SLOCK.RLOCK", "w", "a", TTL), "WRONGMODE"),
    "UPGRADE by a stranger": (("SLOCK.UPGRADE", "r", "c", TTL), "NOTHELD"),
    "DOWNGRADE by a stranger": (("SLOCK.DOWNGRADE", "w", "b", TTL), "NOTHELD"),
    "DOWNGRADE of a free lock": (("SLOCK.DOWNGRADE", "free", "a", TTL), "NOTHELD"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_replicates_and_notifies_nothing(
    server: Server, scene: RawConnection, stream: ReplicationStream, events: Events, name: str
) -> None:
    command, expected = REFUSED[name]
    before = state_of(server)
    stream.commands(), events.so_far()
    if isinstance(expected, str):
        assert scene.error(*command).startswith(expected + " ")
    else:
        assert scene.ok(*command) == expected
    assert state_of(server) == before
    assert stream.commands() == []
    assert events.so_far() == []


def test_the_bounds_themselves_are_allowed(raw: RawConnection) -> None:
    assert raw.ok("SLOCK.LOCK", "short", "a", 1) > 0
    assert raw.ok("SLOCK.LOCK", "w", b"x" * MAX_TOKEN, MAX_TTL, "META", b"m" * MAX_META) > 0
    assert raw.ok("SLOCK.EXTEND", "w", b"x" * MAX_TOKEN, MAX_TTL) == 1
    assert raw.ok("SLOCK.CHECK", "w", 2**63 - 1) == 0
    assert raw.ok("SLOCK.LOCK", "", "a", TTL) > 0  # an empty key is a key
