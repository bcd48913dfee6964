"""`slock break` in an incident: which holds it ends, what it says of each; and what an operator may do."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest
import redis

from harness import Cluster, MakeServer, Server, wait_until
from harness.cli import LIMIT, Cli, waiters
from harness.settings import REPOSITORY


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


def hold(
    client: redis.Redis, key: str, token: bytes | str, meta: str = "", command: str = "SLOCK.LOCK"
) -> int:
    return client.execute_command(command, key, token, 600_000, "META", meta)


def test_it_says_what_it_ended(cli: Cli, client: redis.Redis) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    fence = hold(client, "job", "alice", "web-1")
    done = cli("break", "--yes", "job")
    after = datetime.now(UTC)
    assert done.returncode == 0
    shown = re.fullmatch(
        rf"job: ended the hold of 'web-1' since (\S+): write, fencing token {fence}, owner token alice\n",
        done.stdout,
    )
    assert shown, done.stdout
    assert before <= datetime.fromisoformat(shown[1]) <= after
    assert cli("break", "--yes", "job").stdout == "no hold is ended\n"


def test_several_keys(cli: Cli, client: redis.Redis) -> None:
    for key in "abc":
        hold(client, key, f"token-{key}")
    ended = json.loads(cli("break", "--yes", "--json", "a", "b", "free").stdout)
    assert [(hold["key"], hold["token"], hold["mode"]) for hold in ended] == [
        ("a", "token-a", "write"),
        ("b", "token-b", "write"),
    ]
    assert client.keys() == [b"c"]


def test_all_of_a_holder(cli: Cli, client: redis.Redis) -> None:
    """Fifty locks that one process leaked, in both modes, and of shared ones only its part."""
    for number in range(25):
        hold(client, f"job:{number}", "leaked")
        hold(client, f"shared:{number}", "leaked", command="SLOCK.RLOCK")
        hold(client, f"shared:{number}", "other", command="SLOCK.RLOCK")
        hold(client, f"other:{number}", "other")
    some = json.loads(cli("break", "--yes", "--json", "--holder", "leaked", "job:*").stdout)
    assert len(some) == 25
    assert {hold["token"] for hold in some} == {"leaked"}
    done = cli("break", "--yes", "--holder", "leaked")
    assert len(done.stdout.splitlines()) == 25
    assert len(json.loads(cli("ls", "--json").stdout)) == 50
    assert cli("break", "--yes", "--holder", "leaked").returncode == 1


def test_all_that_is_held_for_long(cli: Cli, client: redis.Redis) -> None:
    """Also more readers of one lock than `old` shows; not those who came later."""
    for number in range(150):
        hold(client, "shared", f"old-{number}", command="SLOCK.RLOCK")
    hold(client, "job", "old")
    hold(client, "other", "old")
    age = ["old", "--held-for", "3s", "--json"]
    wait_until(lambda: len(json.loads(cli(*age).stdout)) == 102, LIMIT, "the holds to be old")
    hold(client, "shared", "young", command="SLOCK.RLOCK")
    client.execute_command("SLOCK.UNLOCK", "other", "old")
    fence = hold(client, "other", "young")
    ended = json.loads(cli("break", "--yes", "--json", "--held-for", "3s").stdout)
    assert sorted(hold["token"] for hold in ended) == sorted(["old", *(f"old-{n}" for n in range(150))])
    assert cli("check", "other", fence).returncode == 0
    assert json.loads(cli("info", "shared", "--json").stdout)["readers"] == 1


@pytest.mark.parametrize("words", [[], ["--holder", "t", "a", "b"], ["--held-for", "1d", "a", "b"]])
def test_wrong_usage(cli: Cli, words: list[str]) -> None:
    assert cli("break", "--yes", *words).returncode == 2


def test_who_waits_gets_the_lock(cli: Cli, client: redis.Redis, server: Server) -> None:
    hold(client, "job", b"\xff\x00'")
    raw = server.raw()
    raw.send("SLOCK.LOCK", "job", "bob", 60_000, "WAIT", 60_000)
    wait_until(lambda: waiters(client, "job") == 1, LIMIT, "bob to wait")
    assert cli("break", "--yes", "--held-for", "0").returncode == 0
    assert cli("check", "job", raw.read()).returncode == 0


# --- permissions

README = (REPOSITORY / "cli/README.md").read_text()


def operator() -> list[str]:
    (line,) = re.findall(r"^user operator (.+)$", README, re.MULTILINE)
    return line.split()


def looks(token: str) -> list[tuple[int, list[str]]]:
    """What an operator does, and the exit codes."""
    return [
        (0, ["ls"]),
        (0, ["old"]),
        (0, ["queues"]),
        (0, ["info", "job"]),
        (1, ["check", "job", "1"]),
        (0, ["doctor", "--for", "app", "--key", "job"]),
        (0, ["break", "--yes", "--holder", token, "jo*"]),
        (1, ["break", "--yes", "--held-for", "1d"]),
        (1, ["break", "--yes", "job"]),
    ]


def test_the_line_of_an_operator_is_enough_and_has_nothing_else(make_server: MakeServer) -> None:
    server = make_server(appendonly=True, appendfsync="everysec", slock_restart_grace_ms=1)
    client = server.client()
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    client.execute_command("ACL", "SETUSER", "operator", *operator())
    cli = Cli(f"redis://operator:secret@127.0.0.1:{server.port}")

    def fails() -> bool:
        hold(client, "job", "t")
        return any(cli(*words).returncode != code for code, words in looks("t"))

    assert not fails()
    for permission in [word for word in operator() if word.startswith("+") and "cluster" not in word]:
        client.execute_command("ACL", "SETUSER", "operator", f"-{permission[1:]}")
        assert fails(), f"{permission} is not needed"
        client.execute_command("ACL", "SETUSER", "operator", permission)
    assert cli("run", "job", "--", "true").returncode == 69


def test_the_line_of_an_operator_on_a_cluster(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.client().execute_command("ACL", "SETUSER", "operator", *operator())
    cli = Cli(f"redis+cluster://operator:secret@127.0.0.1:{cluster.nodes[0].port}")
    hold(cluster.node_of("job").client(), "job", "t")
    for code, words in looks("t"):
        done = cli(*words)
        assert done.returncode == code or "doctor" in words, (words, done.stderr)
        assert "refuses" not in done.stderr + done.stdout


def test_the_help_has_the_permissions(cli: Cli, client: redis.Redis) -> None:
    """A user with just these may do it."""
    hold(client, "job", "t")
    for command, words in {
        "ls": [["ls"]],
        "old": [["old", "--held-for", "0"]],
        "break": [["break", "--yes", "--held-for", "1d"], ["break", "--yes", "--holder", "t"]],
    }.items():
        text = cli(command, "--help").stdout.split("Permissions:")[1]
        rights = re.findall(r"\+[a-z.|]+", text)
        client.execute_command(
            "ACL",
            "SETUSER",
            "looker",
            "reset",
            "on",
            ">secret",
            "~*" if command == "break" else "%R~*",
            *rights,
        )
        looker = Cli(cli.url.replace("://", "://looker:secret@"))
        for one in words:
            done = looker(*one)
            assert "refuses" not in done.stderr and done.returncode in (0, 1), done.stderr
    client.execute_command("ACL", "DELUSER", "looker")
    assert client.dbsize() == 0
