"""Access control: by command, by key pattern, and by category where the server lets a module have one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from harness import RawConnection, Server
from harness.causes import HOLDER
from harness.commands import Command, commands
from harness.many import many
from harness.waiting import HOUR, Line, WaitingClient

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


def _on(command: Command, key: str) -> tuple:
    """Of several keys, all but this one are allowed."""
    return command.call("lock:9", key) if command.takes_many else command.call(key)


def test_who_may_only_read_a_pattern_looks_at_its_locks_and_changes_none(
    user: Login, raw: RawConnection, every: list[Command]
) -> None:
    app = user("+@all", "%R~lock:*")
    for command in every:
        only_looks = "readonly" in command.flags
        assert app.is_not_permitted(*_on(command, KEY)) != only_looks, command.name
        assert app.is_not_permitted(*_on(command, OTHER)) == ("key" in command.required), command.name
        assert (raw.call("ACL", "DRYRUN", "app", *_on(command, KEY)) == b"OK") == only_looks, command.name
    for rules in (["%W~lock:*"], ["%R~lock:*", "%W~other:*"]):
        assert user("+@all", *rules).is_not_permitted(*LOCK), "who changes a lock also reads it"
    assert raw.ok("DBSIZE") == 0


def test_who_may_use_a_pattern_has_no_other_key(
    user: Login, raw: RawConnection, every: list[Command]
) -> None:
    app = user("+@all", "~lock:*")
    assert not [command.name for command in every if app.is_not_permitted(*_on(command, KEY))]
    raw.ok("FLUSHALL")
    assert all(app.is_not_permitted(*_on(command, OTHER)) for command in every if "key" in command.required)
    assert raw.ok("DBSIZE") == 0, "a set with one forbidden key takes none"


def test_who_lacks_a_command_cannot_use_it(user: Login) -> None:
    app = user("~*", "+slock.rlock", "+slock.runlock", "+slock.mlock")
    assert app.ok("SLOCK.RLOCK", KEY, "me", HOUR)
    assert app.ok("SLOCK.RUNLOCK", KEY, "me") == 1
    assert app.ok(*many("MLOCK", "a b", "me", HOUR))
    for words in (LOCK, ("SLOCK.UNLOCK", KEY, "me"), ("SLOCK.INFO", KEY), many("MUNLOCK", "a b", "me")):
        assert app.is_not_permitted(*words)


# What happens to the user that waits, and whether it may still have the lock. Without rules it is deleted.
CHANGES: dict[str, tuple[list[list[str]], bool]] = {
    "the command is lost": ([["-{command}"]], False),
    "the key is lost": ([["resetkeys", "~lock:2"]], False),
    "writing is lost": ([["resetkeys", "%R~*"]], False),
    "the user is lost": ([], False),
    "all is given back": ([["-@all", "resetkeys"], ["+@all", "~*"]], True),
    "all is given in another way": ([["-@all", "resetkeys"], ["(+{command} ~lock:*)"]], True),
}
SPELLINGS = {command: command for command in ("SLOCK.LOCK", "SLOCK.MLOCK", "SLOCK.UPGRADE")}
SPELLINGS |= {"slock.rlock": "SLOCK.RLOCK", "Slock.MRlock": "SLOCK.MRLOCK"}


def _wait_as(line: Line, user: Login, spelling: str) -> WaitingClient:
    """The request of a user that may do everything, for a lock that somebody holds."""
    user("+@all", "~*")
    command, waiter = SPELLINGS[spelling], WaitingClient(line.server, "me")
    take = line.locks.rlock if command == "SLOCK.UPGRADE" else line.locks.lock
    assert take(KEY, HOLDER, HOUR)
    assert command != "SLOCK.UPGRADE" or take(KEY, "me", HOUR)
    keys = (2, "lock:2", KEY) if ".M" in command else (KEY,)
    waiter.connection.ok("AUTH", "app", "any")
    waiter.ask(spelling, *keys, "me", HOUR, "WAIT", 0)
    line.wait_until_waiting(waiter)
    return waiter


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_what_is_lost_while_waiting_refuses_the_grant_and_the_next_is_served(
    server: Server, user: Login, spelling: str, change: str
) -> None:
    line = Line(server, KEY)
    waiting, behind = _wait_as(line, user, spelling), line.read("next")
    changes, is_granted = CHANGES[change]
    for rules in changes:
        rules = [rule.format(command=spelling.lower()) for rule in rules]
        line.client.execute_command("ACL", "SETUSER", "app", *rules)
    if not changes:
        line.client.execute_command("ACL", "DELUSER", "app")
    assert line.release(HOLDER) == 1
    if is_granted:
        assert line.locks.check(KEY, waiting.fence()) == 1
        return
    if changes:
        assert waiting.error().startswith("NOPERM ")
    else:
        assert waiting.outcome() is None, "the server closes the connections of a user that is deleted"
    assert behind.fence()
    still_reads = ["me"] if spelling == "SLOCK.UPGRADE" else []
    assert line.holders() == [*still_reads, "next"] and line.client.exists("lock:2") == 0


def test_the_categories_hold_the_commands(user: Login, raw: RawConnection, every: list[Command]) -> None:
    if b"slock.info" in raw.ok("ACL", "CAT", "read"):
        for rule, refused in (("+@read", [True, False]), ("+@write", [False, True])):
            app = user("~*", rule)
            assert [app.is_not_permitted(*words) for words in (LOCK, ("SLOCK.INFO", KEY))] == refused
    if b"slock" not in raw.ok("ACL", "CAT"):
        pytest.skip("this server does not let a module add an ACL category")
    # Not ACL CAT slock: there are servers whose list of a module's category stays empty.
    app = user("~lock:*", "+@slock")
    for command in every:
        assert "@slock" in command.categories and not app.is_not_permitted(*_on(command, KEY)), command.name
    assert app.is_not_permitted("GET", KEY)
    app = user("~*", "+@all", "-@slock")
    assert all(app.is_not_permitted(*_on(command, KEY)) for command in every)
