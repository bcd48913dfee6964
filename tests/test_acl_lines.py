"""The users that redis.conf.example and docs/operating.md give: each may do what it is for, and nothing else.

That the client libraries need what theirs has, and no more, is shown by clients/conformance.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from harness import MakeServer, RawConnection, Server, wait_until
from harness.acl_lines import add_user, allowed, example_lines, given, page_lines
from harness.commands import as_text, commands
from harness.docs import DOCS
from harness.notify import Listener
from harness.settings import REPOSITORY
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
        call, keys = every[command].call, [KEY] if "key" in every[command].required else []
        assert not app.is_not_permitted(*call(*keys)), command
        assert not keys or app.is_not_permitted(*call(OTHER)), command
    assert raw.ok("EXISTS", OTHER) == 0
    raw.ok("FLUSHALL")
    # It waits, and gives up. After that the token gets nothing for a while.
    token = f"the owner of {name}"
    raw.ok("SLOCK.LOCK", KEY, "other", HOUR)
    app.send("SLOCK.LOCK", KEY, token, HOUR, "WAIT", 0)
    wait_until(lambda: raw.ok("INFO", "slock").count(b"slock_waiters:1\r\n"), what="it to wait")
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
        assert app.is_not_permitted(*request, channel, "tag") != listens
        assert app.is_not_permitted("SSUBSCRIBE", channel) != listens
        assert app.is_not_permitted("SPUBLISH", channel, "1 tag")
        assert not listens or app.ok("SUNSUBSCRIBE", channel)
        others.connection.close()
    others = Listener(server)
    assert app.is_not_permitted(*request, others.channel, "tag")
    assert app.is_not_permitted("SSUBSCRIBE", others.channel)


def test_the_page_of_slock_has_the_line_of_the_operator() -> None:
    # What it needs is shown by tests/test_cli_break.py.
    lines = re.findall(r"^user operator (.+)$", (REPOSITORY / "cli/README.md").read_text(), re.MULTILINE)
    assert lines == [example_lines()["operator"]]


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
