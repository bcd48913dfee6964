"""Access control: by command, by key pattern, and by category where the server lets a module have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from harness import RawConnection, Server
from harness.commands import Command, commands
from harness.many import many

HOUR = 3_600_000
KEY, OTHER = "lock:1", "secret:1"
LOCK = ("SLOCK.LOCK", KEY, "me", HOUR)

Login = Callable[..., RawConnection]


@pytest.fixture
def every(server: Server) -> list[Command]:
    return list(commands(server).values())


@pytest.fixture
def user(server: Server, client: redis.Redis) -> Iterator[Login]:
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


def _on(command: Command, key: str) -> tuple:
    """Of several keys, all but this one are allowed."""
    return command.call("lock:9", key) if command.takes_many else command.call(key)


def test_who_may_only_read_a_pattern_looks_at_its_locks_and_changes_none(
    user: Login, raw: RawConnection, every: list[Command]
) -> None:
    app = user("+@all", "%R~lock:*")
    for command in every:
        assert _is_refused(app, *_on(command, KEY)) == ("write" in command.flags), command.name
        assert _is_refused(app, *_on(command, OTHER)), command.name
        is_allowed = raw.call("ACL", "DRYRUN", "app", *_on(command, KEY)) == b"OK"
        assert is_allowed == ("readonly" in command.flags), command.name
    assert raw.ok("DBSIZE") == 0


def test_who_may_use_a_pattern_has_no_other_key(
    user: Login, raw: RawConnection, every: list[Command]
) -> None:
    app = user("+@all", "~lock:*")
    assert not [command.name for command in every if _is_refused(app, *_on(command, KEY))]
    raw.ok("FLUSHALL")
    assert all(_is_refused(app, *_on(command, OTHER)) for command in every)
    assert raw.ok("DBSIZE") == 0, "a set with one forbidden key takes none"


def test_taking_a_lock_needs_both_reading_and_writing(user: Login) -> None:
    for rules in (["%W~lock:*"], ["%R~lock:*", "%W~other:*"]):
        assert _is_refused(user("+@all", *rules), *LOCK)


def test_who_lacks_a_command_cannot_use_it(user: Login) -> None:
    app = user("~*", "+slock.rlock", "+slock.runlock", "+slock.mlock")
    assert app.ok("SLOCK.RLOCK", KEY, "me", HOUR)
    assert app.ok("SLOCK.RUNLOCK", KEY, "me") == 1
    assert app.ok(*many("MLOCK", "a b", "me", HOUR))
    for words in (LOCK, ("SLOCK.UNLOCK", KEY, "me"), ("SLOCK.INFO", KEY), many("MUNLOCK", "a b", "me")):
        assert _is_refused(app, *words)


def test_a_waiting_user_needs_no_more_than_the_command(user: Login, raw: RawConnection) -> None:
    app = user("~lock:*", "+slock.lock")
    raw.ok("SLOCK.LOCK", KEY, "other", HOUR)
    app.send(*LOCK, "WAIT", 0)
    assert not app.has_reply(0.02)
    assert raw.ok("SLOCK.UNLOCK", KEY, "other") == 1
    assert app.read() > 0


def test_the_categories_hold_the_commands(user: Login, raw: RawConnection, every: list[Command]) -> None:
    if b"slock.info" in raw.ok("ACL", "CAT", "read"):
        for rule, refused in (("+@read", [True, False]), ("+@write", [False, True])):
            app = user("~*", rule)
            assert [_is_refused(app, *words) for words in (LOCK, ("SLOCK.INFO", KEY))] == refused
    if b"slock" not in raw.ok("ACL", "CAT"):
        pytest.skip("this server does not let a module add an ACL category")
    # Not ACL CAT slock: there are servers whose list of a module's category stays empty.
    app = user("~lock:*", "+@slock")
    for command in every:
        assert "@slock" in command.categories and not _is_refused(app, *_on(command, KEY)), command.name
    assert _is_refused(app, "GET", KEY)
    app = user("~*", "+@all", "-@slock")
    assert all(_is_refused(app, *_on(command, KEY)) for command in every)
