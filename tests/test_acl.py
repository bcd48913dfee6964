"""Access control: by command, by key pattern, and by category where the server lets a module have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from harness import RawConnection, Server
from harness.many import many

HOUR = 3_600_000
KEY, OTHER = "lock:1", "secret:1"

READS = [("INFO", KEY), ("INFO", KEY, "FULL"), ("PTTL", KEY, "me"), ("CHECK", KEY, 7)]
WRITES = [
    ("LOCK", KEY, "me", HOUR),
    ("RLOCK", KEY, "me", HOUR),
    ("LOCK", KEY, "me", HOUR, "WAIT", 0),
    ("EXTEND", KEY, "me", HOUR),
    ("UPGRADE", KEY, "me", HOUR),
    ("DOWNGRADE", KEY, "me", HOUR),
    ("UNLOCK", KEY, "me"),
    ("RUNLOCK", KEY, "me"),
]
READS_MANY = [("MPTTL", "{0} {1}", "me")]
WRITES_MANY = [
    ("MLOCK", "{0} {1}", "me", HOUR),
    ("MRLOCK", "{0} {1}", "me", HOUR),
    ("MEXTEND", "{0} {1}", "me", HOUR),
    ("MUNLOCK", "{0} {1}", "me"),
]


def _words(command: tuple, key: str = KEY) -> tuple:
    name, first, *rest = command
    if name.startswith("M"):
        return many(name, first.format("lock:9", key), *rest)
    return (f"SLOCK.{name}", key, *rest)


@pytest.fixture
def user(server: Server, client: redis.Redis) -> Iterator[Callable[..., RawConnection]]:
    def login(*rules: str) -> RawConnection:
        client.execute_command("ACL", "SETUSER", "app", "reset", "on", "nopass", *rules)
        connection = server.raw()
        connection.ok("AUTH", "app", "any")
        return connection

    yield login
    client.execute_command("ACL", "DELUSER", "app")


def _is_refused(connection: RawConnection, *words: object) -> bool:
    reply = connection.call(*words)
    return isinstance(reply, Exception) and reply.prefix == "NOPERM"


def _all(commands: list[tuple]) -> list[str]:
    return [" ".join(map(str, command)) for command in commands]


@pytest.mark.parametrize("command", READS + READS_MANY, ids=_all(READS + READS_MANY))
def test_who_may_read_a_pattern_can_look_at_its_locks(
    user: Callable[..., RawConnection], command: tuple
) -> None:
    app = user("+@all", "%R~lock:*")
    assert not _is_refused(app, *_words(command))
    assert _is_refused(app, *_words(command, OTHER))


@pytest.mark.parametrize("command", WRITES + WRITES_MANY, ids=_all(WRITES + WRITES_MANY))
def test_who_may_only_read_a_pattern_cannot_change_its_locks(
    user: Callable[..., RawConnection], raw: RawConnection, command: tuple
) -> None:
    app = user("+@all", "%R~lock:*")
    assert _is_refused(app, *_words(command))
    assert raw.ok("DBSIZE") == 0


@pytest.mark.parametrize("command", READS + READS_MANY + WRITES + WRITES_MANY)
def test_who_may_use_a_pattern_has_no_other_key(
    user: Callable[..., RawConnection], raw: RawConnection, command: tuple
) -> None:
    app = user("+@all", "~lock:*")
    assert not _is_refused(app, *_words(command))
    raw.ok("FLUSHALL")
    assert _is_refused(app, *_words(command, OTHER))
    assert raw.ok("DBSIZE") == 0, "a set with one forbidden key takes none"


@pytest.mark.parametrize("rule", ["%W~lock:*", "%R~lock:* %W~other:*"])
def test_taking_a_lock_needs_both_reading_and_writing(user: Callable[..., RawConnection], rule: str) -> None:
    app = user("+@all", *rule.split())
    assert _is_refused(app, "SLOCK.LOCK", KEY, "me", HOUR)


def test_who_lacks_a_command_cannot_use_it(user: Callable[..., RawConnection]) -> None:
    app = user("~*", "+slock.rlock", "+slock.runlock", "+slock.mlock")
    assert app.ok("SLOCK.RLOCK", KEY, "me", HOUR)
    assert app.ok("SLOCK.RUNLOCK", KEY, "me") == 1
    for words in (("LOCK", KEY, "me", HOUR), ("UNLOCK", KEY, "me"), ("INFO", KEY)):
        assert _is_refused(app, f"SLOCK.{words[0]}", *words[1:])
    assert app.ok(*many("MLOCK", "a b", "me", HOUR))
    assert _is_refused(app, *many("MUNLOCK", "a b", "me"))


def test_the_general_categories_hold_the_commands(
    user: Callable[..., RawConnection], raw: RawConnection
) -> None:
    if b"slock.info" not in raw.ok("ACL", "CAT", "read"):
        pytest.skip("this server puts no module command into its own categories")
    reader = user("~*", "+@read")
    assert not _is_refused(reader, "SLOCK.INFO", KEY)
    assert _is_refused(reader, "SLOCK.LOCK", KEY, "me", HOUR)
    writer = user("~*", "+@write")
    assert not _is_refused(writer, "SLOCK.LOCK", KEY, "me", HOUR)
    assert _is_refused(writer, "SLOCK.INFO", KEY)


def test_a_waiting_user_needs_no_more_than_the_command(
    user: Callable[..., RawConnection], raw: RawConnection
) -> None:
    app = user("~lock:*", "+slock.lock")
    raw.ok("SLOCK.LOCK", KEY, "other", HOUR)
    app.send("SLOCK.LOCK", KEY, "me", HOUR, "WAIT", 0)
    assert not app.has_reply(0.02)
    assert raw.ok("SLOCK.UNLOCK", KEY, "other") == 1
    assert app.read() > 0


def test_a_user_can_be_tried_without_logging_in(
    user: Callable[..., RawConnection], raw: RawConnection
) -> None:
    user("+@all", "%R~lock:*")
    assert raw.ok("ACL", "DRYRUN", "app", "SLOCK.INFO", KEY) == b"OK"
    assert raw.ok("ACL", "DRYRUN", "app", *_words(READS_MANY[0])) == b"OK"
    for command in (WRITES[0], *WRITES_MANY):
        assert b"no permissions" in bytes(str(raw.call("ACL", "DRYRUN", "app", *_words(command))), "utf8")


def test_the_category_holds_every_command_but_the_internal_one(
    user: Callable[..., RawConnection], raw: RawConnection
) -> None:
    if b"slock" not in raw.ok("ACL", "CAT"):
        pytest.skip("this server does not let a module add an ACL category")
    # Not ACL CAT slock: there are servers whose list of a module's category stays empty.
    commands = raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock")
    inside = {name for name in commands if b"@slock" in raw.ok("COMMAND", "INFO", name)[0][6]}
    assert set(commands) - {b"slock.apply"} <= inside
    app = user("~lock:*", "+@slock")
    for command in READS + READS_MANY + WRITES + WRITES_MANY:
        assert not _is_refused(app, *_words(command))
    assert _is_refused(app, "GET", KEY)
    app = user("~*", "+@all", "-@slock")
    assert _is_refused(app, "SLOCK.LOCK", KEY, "me", HOUR) and _is_refused(app, *_words(WRITES_MANY[0]))
