"""The users that redis.conf.example and docs/operating.md give: each may do what it is for, and nothing else.

That the client libraries need what theirs has, and no more, is shown by clients/conformance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness import MakeServer, RawConnection, Server, wait_until
from harness.acl_lines import add_user, allowed, example_lines, given, page_lines
from harness.cli import Cli
from harness.commands import as_text, commands
from harness.docs import DOCS
from harness.notify import Listener
from harness.waiting import HOUR

USERS = ["raw", "notify", "library"]  # which take locks
OTHERS = ["operator", "exporter", "replica", "sentinel"]
KEY, OTHER = "lock:1", "secret:1"

Login = Callable[[str], RawConnection]

each_user = pytest.mark.parametrize("name", USERS)
each_line = pytest.mark.parametrize("name", USERS + OTHERS)


@pytest.fixture
def login(server: Server, raw: RawConnection) -> Iterator[Login]:
    def login(name: str, protocol: int = 2) -> RawConnection:
        add_user(raw, name)
        connection = server.raw(protocol)
        connection.ok("AUTH", name, "secret")
        return connection

    yield login
    for name in USERS + OTHERS:
        raw.call("ACL", "DELUSER", name)


def _is_refused(connection: RawConnection, *words: object) -> bool:
    reply = connection.call(*words)
    return isinstance(reply, Exception) and reply.prefix == "NOPERM"


def test_the_page_and_the_example_have_the_same_lines() -> None:
    assert list(example_lines()) == USERS + OTHERS
    assert page_lines() == example_lines()


@each_line
def test_a_user_may_run_what_its_line_names_and_nothing_else(
    login: Login, raw: RawConnection, name: str
) -> None:
    login(name)
    assert allowed(raw, name) == given(name)


@each_user
def test_a_user_may_use_its_commands_on_its_names_and_on_no_others(
    server: Server, login: Login, raw: RawConnection, name: str
) -> None:
    app, every = login(name), commands(server)
    for command in sorted(given(name) & set(every)):
        call = every[command].call
        keyed = "key" in every[command].required
        assert not _is_refused(app, *(call(KEY) if keyed else call())), command
        assert not keyed or _is_refused(app, *call(OTHER)), command
    assert app.ok("PING") == b"PONG"
    assert raw.ok("EXISTS", OTHER) == 0


@each_user
def test_a_user_takes_waits_gives_up_and_releases(login: Login, raw: RawConnection, name: str) -> None:
    app, token = login(name), f"the owner of {name}"
    raw.ok("SLOCK.LOCK", KEY, "other", HOUR)
    app.send("SLOCK.LOCK", KEY, token, HOUR, "WAIT", 0)
    assert not app.has_reply(0.02)
    assert raw.ok("SLOCK.UNLOCK", KEY, "other") == 1
    assert (fence := app.read()) > 0
    assert app.ok("SLOCK.EXTEND", KEY, token, HOUR, "GT", "FENCE", fence) == 1
    assert app.ok("SLOCK.MUNLOCK", 1, KEY, token, "REFUSE", 1000) == 1


@pytest.mark.parametrize(("name", "listens"), [("raw", False), ("notify", True), ("library", True)])
def test_who_may_listen_has_channels_of_both_forms_and_no_others(
    server: Server, login: Login, name: str, listens: bool
) -> None:
    app = login(name, 3)
    request = ("SLOCK.LOCK", KEY, "me", HOUR, "WAIT", 0, "NOTIFY")
    for channel in ("waits:5f0c2a9be1", "{lock:1}.waits:5f0c2a9be1"):
        others = Listener(server, channel=channel.encode())
        assert _is_refused(app, *request, channel, "tag") != listens
        assert _is_refused(app, "SSUBSCRIBE", channel) != listens
        assert _is_refused(app, "SPUBLISH", channel, "1 tag")
        assert not listens or app.ok("SUNSUBSCRIBE", channel)
        others.connection.close()
    others = Listener(server)
    assert _is_refused(app, *request, others.channel, "tag")
    assert _is_refused(app, "SSUBSCRIBE", others.channel)


@pytest.mark.parametrize("command", ["ls", "info", "queues", "old", "break", "doctor"])
def test_the_operator_may_do_all_that_slock_does(
    server: Server, login: Login, raw: RawConnection, command: str
) -> None:
    login("operator")
    raw.ok("ACL", "LOG", "RESET")
    raw.ok("SLOCK.LOCK", KEY, "web-1", HOUR)
    words = {"info": [KEY], "break": [KEY, "--yes"], "old": ["--held-for", "1ms"]}.get(command, [])
    done = Cli(f"redis://operator:secret@127.0.0.1:{server.port}")(command, *words)
    assert KEY in done.stdout + done.stderr or command in ("queues", "doctor"), done
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in as_text(raw.ok("ACL", "LOG"))]
    # The doctor tries out by ACL DRYRUN what a library needs, which leaves entries in the log. Redis 7.0 does
    # not know the command by which newer servers are told the name of a library.
    denied = [entry["object"] for entry in entries if command != "doctor"]
    denied = [command for command in denied if command != "client|setinfo"]
    assert not denied, denied
    assert "refuses" not in done.stderr and "not checked" not in done.stdout, done
    assert (raw.ok("SLOCK.INFO", KEY) is None) == (command == "break")
    raw.call("DEL", KEY)


def test_the_exporter_may_run_its_script(login: Login, raw: RawConnection) -> None:
    app = login("exporter")
    values = as_text(app.ok("EVAL", (DOCS / "redis_exporter.lua").read_text(), 0))
    assert "slock_waiters" in values and app.ok("INFO") and app.ok("CONFIG", "GET", "*")
    refused = app.error("EVAL", "return redis.call('SLOCK.LOCK', 'k', 't', 1000)", 0)
    assert "can't run this command" in refused or "has no permissions to run" in refused


def test_a_replica_follows_as_the_user_for_replicas(make_server: MakeServer) -> None:
    primary = make_server(name="primary")
    add_user(primary.raw(), "replica")
    fence = primary.raw().ok("SLOCK.LOCK", KEY, "a", HOUR)
    where = {"replicaof": f"127.0.0.1 {primary.port}", "masterauth": "secret"}
    replica = make_server(name="replica", masteruser="replica", **where)
    wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up", 20)
    assert replica.raw().ok("SLOCK.CHECK", KEY, fence) == 1
    stranger = make_server(name="stranger", masteruser="nobody", **where)
    wait_until(lambda: "WRONGPASS" in stranger.log(), 20, "the primary to refuse it")
