"""Every argument of every command wrong in turn: the error that names it, and nothing changed anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness import Events, RawConnection, ReplicationStream, Server, digest
from harness.commands import INTERNAL, NAMES, Command, commands

MAX_TTL, MAX_META, MAX_TOKEN, MAX_NAME = 86_400_000, 1024, 255, 1024
MAX_FENCE, MAX_WAIT, MAX_LIMIT, MAX_REFUSE = 2**53 - 1, 365 * 86_400_000, 2**31 - 1, 3_600_000
MAX_CHANNEL, MAX_TAG, MAX_REASON, MAX_NUMBER = 255, 64, 256, 2**63 - 1
TTL = 60_000

each_command = pytest.mark.parametrize("name", [name for name in NAMES if name != INTERNAL])

Words = tuple[object, ...]

ARITY = "wrong number of arguments"
NOT_A_NUMBER = ["", "soon", "1.5", "1e3", "0x10", " 5", "5s", b"5\x00", b"\xff\xfe", 2**63, 2**64 + 1]
NOT_A_NUMBER += ["9" * 400]


def not_from(least: int, most: int) -> list[object]:
    return [*NOT_A_NUMBER, least - 1, -1, most + 1, -(2**63)]


# Of the options that take a number: the least and the greatest, and its unit.
NUMBERS = {
    "WAIT": (0, MAX_WAIT, " milliseconds"),
    "LIMIT": (1, MAX_LIMIT, ""),
    "COUNT": (0, MAX_NUMBER, ""),
    "CURSOR": (0, MAX_NUMBER, ""),
    "FENCE": (1, MAX_FENCE, ""),
    "REFUSE": (1, MAX_REFUSE, " milliseconds"),
}
# What stands behind each option if it is right.
OPTIONS: dict[str, Words] = {name: (5,) for name in NUMBERS} | {"META": ("m",), "NOTIFY": ("c", "t")}
OPTIONS |= {"EPHEMERAL": (), "GT": (), "XX": (), "REASON": ("r",)}
BAD_NOTIFY: dict[str, list[Words]] = {
    "option NOTIFY needs a channel and a tag": [(), ("c",)],
    f"the channel of NOTIFY must be 1 to {MAX_CHANNEL} bytes": [("", "t"), ("c" * (MAX_CHANNEL + 1), "t")],
    f"the tag of NOTIFY must be 1 to {MAX_TAG} bytes": [("c", ""), ("c", "t" * (MAX_TAG + 1))],
}
UNKNOWN = {"NX": "'NX'", "": "''", b"\r\n\xff": r"'\r\n\xff'", "x" * 100: f"'{'x' * 64}...'"}


def bad_options(command: Command) -> Iterator[tuple[Words, str]]:
    """Options that must be answered by an ERR, and what it must say of them."""
    of_info = command.name == "slock.info"
    before, known = (("FULL",), {"COUNT"}) if of_info else ((), command.options)
    for option in known:
        good = OPTIONS[option]
        yield (*before, option, *good, option.lower(), *good), f"option {option} is given twice"
        if len(good) == 1:
            yield (*before, option), f"option {option} needs a value"
    for option in known & NUMBERS.keys():
        least, most, unit = NUMBERS[option]
        for value in not_from(least, most):
            yield (*before, option, value), f"{option} must be an integer from {least} to {most}{unit}"
    for word, shown in {**UNKNOWN, **{word: f"'{word}'" for word in OPTIONS.keys() - known}}.items():
        yield (*before, word), f"unknown option {shown}"
        for option in known & {"META", "COUNT"}:
            yield (*before, option, *OPTIONS[option], word, 5), f"unknown option {shown}"
    if "META" in known:
        yield ("META", b"m" * (MAX_META + 1)), f"META must be at most {MAX_META} bytes"
    if "REASON" in known:
        for others in ((), ("REFUSE", 5)):
            yield (*others, "REASON", "r"), "option REASON needs FENCE and a single key"
        for reason in ("", "r" * (MAX_REASON + 1)):
            yield ("FENCE", 7, "REASON", reason), f"REASON must be 1 to {MAX_REASON} bytes"
    if "NOTIFY" in known:
        yield ("NOTIFY", "c", "t"), "option NOTIFY needs WAIT"
        for told, all_bad in BAD_NOTIFY.items():
            yield from ((("WAIT", 5, "NOTIFY", *bad), told) for bad in all_bad)
    if "XX" in known:
        yield ("XX", "WAIT", 5), "option XX does not go with WAIT"
        yield ("WAIT", 0, "NOTIFY", "c", "t", "XX"), "option XX does not go with WAIT"
        yield ("EPHEMERAL", "XX"), "option XX does not go with EPHEMERAL"
        yield ("XX", "NOTIFY", "c", "t"), "option NOTIFY needs WAIT"
    if of_info:
        yield ("COUNT", 1), "option COUNT needs FULL"
        yield ("FULL", "full"), "option FULL is given twice"
        yield ("HALF",), "unknown option 'HALF'"


def bad_calls(command: Command, key: str) -> Iterator[tuple[Words, Words]]:
    """Calls that must be answered by an ERR, and the words that it must have."""

    def call(**values: object) -> Words:
        return command.call(key, **{"token": "a", "ttl_ms": TTL, **values})

    if len(call()) > 1:
        yield call()[:-1], (ARITY,)
    if command.arity > 0:
        for extra in (("extra",), ("META", "m"), ("WAIT", "5")):
            yield (*call(), *extra), (ARITY,)
    elif command.options or command.name == "slock.info":
        for words, told in bad_options(command):
            yield (*call(), *words), (told,)
    else:
        yield (*call(), "NX", "5"), ("unexpected argument 'NX'",)
    if "token" in command.required:
        for token in (b"", b"x" * (MAX_TOKEN + 1)):
            yield call(token=token), ("token", MAX_TOKEN)
    if "ttl-ms" in command.required:
        for ttl in not_from(1, MAX_TTL):
            yield call(ttl_ms=ttl), ("ttl", MAX_TTL, "(slock.max-ttl-ms)")
    if "fence" in command.required:
        for fence in not_from(1, MAX_FENCE):
            yield call(fence=fence), ("fence", f"from 1 to {MAX_FENCE}")


@pytest.fixture
def scene(raw: RawConnection) -> RawConnection:
    """Locks in both modes that "a" holds, and keys of other types."""
    raw.ok("SLOCK.LOCK", "w", "a", TTL, "META", "m")
    raw.ok("SLOCK.RLOCK", "r", "a", TTL, "META", "m")
    raw.ok("SLOCK.RLOCK", "r", "b", TTL)
    for words in ("SET string value", "RPUSH list x", "HSET hash f x"):
        raw.ok(*words.split())
    return raw


@pytest.fixture
def assert_nothing_happens(server: Server, scene: RawConnection) -> Callable[[object], None]:
    """Called after a command: nothing has changed, been replicated or been announced."""
    events, client, stream = Events(server), server.client(), ReplicationStream(server)

    def state() -> dict[bytes, tuple[str, int]]:
        return {key: (digest(client, key), client.pexpiretime(key)) for key in client.keys("*")}

    before = state()

    def assert_so(what: object) -> None:
        assert (stream.commands(), events.so_far(), state()) == ([], [], before), what

    return assert_so


@each_command
def test_a_bad_argument_or_another_type_is_named_and_nothing_changes(
    server: Server, scene: RawConnection, assert_nothing_happens: Callable, name: str
) -> None:
    command = commands(server)[name]
    if command.arity != -1:
        assert scene.error(name.upper()) == f"ERR {ARITY} for '{name}' command"
    for key in ("free", "w", "r"):
        for words, named in bad_calls(command, key):
            text = scene.error(*words)
            assert text.startswith("ERR ") and "\n" not in text and "\r" not in text, (words, text)
            assert all(str(word) in text for word in named), (words, text)
        assert_nothing_happens(name)
    for key in ("string", "list", "hash"):
        if name in ("slock.queues", "slock.cancel"):  # what concerns those who wait looks at no key
            assert scene.ok(*command.call(key)) in (0, [b"0", []])
        else:
            assert scene.error(*command.call(key)).startswith("WRONGTYPE ")
    assert_nothing_happens(name)


# Of the writer "a" of w, the readers "a" and "b" of r, and free locks.
REFUSED = {
    0: """LOCK w b 9 | LOCK r c 9 META x | RLOCK w b 9 | LOCK w b 9 WAIT 1 | UNLOCK w b | UNLOCK free a |
          UNLOCK r a | RUNLOCK r c | RUNLOCK free a | RUNLOCK w a | EXTEND w b 9 | EXTEND free a 9 |
          UPGRADE r a 9 | CHECK w 1 | MLOCK 2 new w b 9 | MRLOCK 2 new w b 9 | MEXTEND 2 w new a 9 |
          MUNLOCK 2 w new b | CANCEL w a | CANCEL free b | RLOCK r c 9 LIMIT 2""",
    -2: "PTTL w b | PTTL free a | MPTTL 2 w new a",
    None: "INFO free | INFO free FULL | INFO free FULL COUNT 5",
    "WRONGMODE": "LOCK r a 9 | RLOCK w a 9 META m",
    "NOTHELD": "UPGRADE r c 9 | UPGRADE w b 9 | DOWNGRADE w b 9 | DOWNGRADE free a 9",
}
LOOKS = "PTTL w a | CHECK w 1 | INFO w FULL | MPTTL 2 w r a"


def test_what_is_refused_or_only_looks_changes_replicates_and_announces_nothing(
    scene: RawConnection, assert_nothing_happens: Callable
) -> None:
    def call(line: str) -> object:
        name, *words = line.split()
        reply = scene.call(f"SLOCK.{name}", *words)
        assert_nothing_happens(line)
        return reply

    for expected, lines in REFUSED.items():
        for line in lines.split("|"):
            reply = call(line)
            assert getattr(reply, "prefix", reply) == expected, line
    for line in LOOKS.split("|"):
        assert not isinstance(call(line), Exception), line
    assert "UPGRADE" in scene.error("SLOCK.LOCK", "r", "a", TTL)
    assert "DOWNGRADE" in scene.error("SLOCK.RLOCK", "w", "a", TTL)


def test_the_bounds_themselves_are_allowed(raw: RawConnection) -> None:
    assert raw.ok("SLOCK.LOCK", "short", "a", 1) > 0
    assert raw.ok("SLOCK.LOCK", "w", b"x" * MAX_TOKEN, MAX_TTL, "META", b"m" * MAX_META) > 0
    assert raw.ok("SLOCK.EXTEND", "w", b"x" * MAX_TOKEN, MAX_TTL) == 1
    assert MAX_TTL - 10_000 < raw.ok("SLOCK.PTTL", "w", b"x" * MAX_TOKEN) <= MAX_TTL
    assert raw.ok("SLOCK.CHECK", "w", 1) == 0 == raw.ok("SLOCK.CHECK", "w", MAX_FENCE)
    assert raw.ok("SLOCK.RLOCK", "r", "a", TTL, "LIMIT", 1, "WAIT", MAX_WAIT) > 0
    assert raw.ok("SLOCK.MRLOCK", 1, "r", "b", TTL, "limit", MAX_LIMIT) > 0
    for words in (("COUNT", 2**63 - 1), ("count", 0), ("CURSOR", 2**63 - 1), ("cursor", 7, "COUNT", 1)):
        assert raw.ok("SLOCK.QUEUES", *words) == [b"0", []]
    assert raw.ok("SLOCK.INFO", "r", "COUNT", 2**63 - 1, "FULL")
    assert raw.ok("SLOCK.LOCK", b"\0" * MAX_NAME, "a", TTL) > 0
