"""`slock break` in an incident: which hold it ends, what it says of each; and what an operator may do."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime

import redis

from harness import Cluster, MakeServer, ReplicationStream, Server, wait_until
from harness.cli import LIMIT, Cli, Terminal, hold, wait_for
from harness.settings import REPOSITORY
from harness.waiting import HOUR


def ended(cli: Cli, *words: str) -> list[dict]:
    return json.loads(cli("break", "--yes", "--json", *words).stdout)


def test_it_says_what_it_ended(cli: Cli, client: redis.Redis) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    fence = hold(client, "job", "alice", "web-1")
    done = cli("break", "--yes", "job")
    assert done.returncode == 0
    shown = re.fullmatch(
        rf"job: ended the hold of 'web-1' since (\S+): write, fencing token {fence}, owner token alice\n",
        done.stdout,
    )
    assert shown, done.stdout
    assert before <= datetime.fromisoformat(shown[1]) <= datetime.now(UTC)
    again = cli("break", "--yes", "job")
    assert (again.returncode, again.stdout, again.stderr) == (1, "no hold is ended\n", "")
    assert "jo? is a name here; it is a pattern with --held-for or" in cli("break", "--yes", "jo?").stderr


def test_it_asks(cli: Cli, client: redis.Redis) -> None:
    hold(client, "job", "alice", "web-1")
    without_terminal = cli("break", "job", stdin=subprocess.DEVNULL)
    assert without_terminal.returncode == 2 and "--yes" in without_terminal.stderr
    words = "slock break job; echo first $?; slock break job; echo second $?; sleep 100"
    with Terminal(cli, f"sh -c '{words}'") as terminal:
        terminal.shows("job is held by 'web-1'")
        terminal.press("n", "Enter")
        terminal.shows("first 1")
        assert client.exists("job")
        terminal.press("y", "Enter")
        terminal.shows("second 0")
    assert not client.exists("job")


def test_break_lets_the_next_in_line_on(cli: Cli, client: redis.Redis, server: Server) -> None:
    """Tokens are any bytes. Who gets the lock by it keeps it."""
    for words in (["job"], ["--held-for", "0"]):
        hold(client, "job", b"\xff\x00'")
        waiting = wait_for(server, "job", "bob")
        assert cli("break", "--yes", *words).stdout.startswith("job: ended the hold of ")
        assert cli("check", "job", waiting.read()).returncode == 0
        waiting.close()
        client.delete("job")


def test_several_keys_and_all_of_a_holder(cli: Cli, client: redis.Redis) -> None:
    """Fifty locks that one process leaked, in both modes, and of shared ones only its part."""
    for key in "abc":
        hold(client, key, f"token-{key}")
    holds = ended(cli, "a", "b", "free")
    assert [(hold["key"], hold["token"], hold["mode"]) for hold in holds] == [
        ("a", "token-a", "write"),
        ("b", "token-b", "write"),
    ]
    assert client.keys() == [b"c"]
    for number in range(25):
        hold(client, f"job:{number}", "leaked")
        hold(client, f"shared:{number}", "leaked", command="SLOCK.RLOCK")
        hold(client, f"shared:{number}", "other", command="SLOCK.RLOCK")
        hold(client, f"other:{number}", "other")
    some = ended(cli, "--holder", "leaked", "job:*")
    assert len(some) == 25 and {hold["token"] for hold in some} == {"leaked"}
    assert len(cli("break", "--yes", "--holder", "leaked").stdout.splitlines()) == 25
    assert len(cli.json("ls")) == 51
    assert cli("break", "--yes", "--holder", "leaked").returncode == 1


def test_all_that_is_held_for_long(cli: Cli, client: redis.Redis) -> None:
    """Also more readers of one lock than `old` shows; not those who came later."""
    for number in range(150):
        hold(client, "shared", f"old-{number}", command="SLOCK.RLOCK")
    hold(client, "job", "old")
    hold(client, "other", "old")
    age = ["--held-for", "3s"]
    wait_until(lambda: len(cli.json("old", *age)) == 102, LIMIT, "the holds to be old")
    hold(client, "shared", "young", command="SLOCK.RLOCK")
    client.execute_command("SLOCK.UNLOCK", "other", "old")
    fence = hold(client, "other", "young")
    tokens = sorted(hold["token"] for hold in ended(cli, *age))
    assert tokens == sorted(["old", *(f"old-{n}" for n in range(150))])
    assert cli("check", "other", fence).returncode == 0
    assert cli.json("info", "shared")["readers"] == 1


# --- permissions

README = (REPOSITORY / "cli/README.md").read_text()
OPERATOR = re.findall(r"^user operator (.+)$", README, re.MULTILINE)[0].split()

# What an operator does, and the exit codes.
LOOKS = [
    (0, ["ls"]),
    (0, ["old"]),
    (0, ["queues"]),
    (0, ["info", "job"]),
    (1, ["check", "job", "1"]),
    (0, ["doctor", "--for", "app", "--key", "job"]),
    (0, ["break", "--yes", "--holder", "t", "jo*"]),
    (1, ["break", "--yes", "--held-for", "1d"]),
    (1, ["break", "--yes", "job"]),
]


def test_the_line_of_an_operator_is_enough_and_has_nothing_else(make_server: MakeServer) -> None:
    server = make_server(appendonly=True, appendfsync="everysec", slock_restart_grace_ms=1)
    client = server.client()
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    client.execute_command("ACL", "SETUSER", "operator", *OPERATOR)
    cli = Cli(f"redis://operator:secret@127.0.0.1:{server.port}")

    def fails() -> bool:
        hold(client, "job", "t")
        return any(cli(*words).returncode != code for code, words in LOOKS)

    assert not fails()
    for permission in [word for word in OPERATOR if word.startswith("+") and "cluster" not in word]:
        client.execute_command("ACL", "SETUSER", "operator", f"-{permission[1:]}")
        assert fails(), f"{permission} is not needed"
        client.execute_command("ACL", "SETUSER", "operator", permission)
    assert cli("run", "job", "--", "true").returncode == 69


def test_the_line_of_an_operator_on_a_cluster(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.client().execute_command("ACL", "SETUSER", "operator", *OPERATOR)
    cli = Cli(f"redis+cluster://operator:secret@127.0.0.1:{cluster.nodes[0].port}")
    hold(cluster.node_of("job").client(), "job", "t")
    for code, words in LOOKS:
        done = cli(*words)
        assert done.returncode == code or "doctor" in words, (words, done.stderr)
        assert "refuses" not in done.stderr + done.stdout


def test_the_help_has_the_permissions(cli: Cli, client: redis.Redis) -> None:
    """A user with just these may do it."""
    hold(client, "job", "t")
    looker = Cli(cli.url.replace("://", "://looker:secret@"))
    for words, keys in (
        ("ls", "%R~*"),
        ("old --held-for 0", "%R~*"),
        ("break --yes --held-for 1d", "~*"),
        ("break --yes --holder t", "~*"),
    ):
        text = cli(words.split()[0], "--help").stdout.split("Permissions:")[1]
        rights = re.findall(r"\+[a-z.|]+", text)
        client.execute_command("ACL", "SETUSER", "looker", "reset", "on", ">secret", keys, *rights)
        done = looker(*words.split())
        assert "refuses" not in done.stderr and done.returncode in (0, 1), done.stderr
    client.execute_command("ACL", "DELUSER", "looker")
    assert client.dbsize() == 0


def test_what_was_ended_before_an_error_is_shown(cli: Cli, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "half", "on", ">secret", "%R~*", "~mine:*", "+@all")
    half = Cli(cli.url.replace("://", "://half:secret@"))
    for words, shown in (([], "mine:1: ended the hold of 'alice' "), (["--json"], '"key": "mine:1"')):
        for key in ("mine:1", "other", "mine:2"):
            hold(client, key, "t", "alice")
        done = half("break", "--yes", *words, "mine:1", "other", "mine:2")
        assert done.returncode == 69 and shown in done.stdout and "mine:2" not in done.stdout
        assert "slock: other: the hold of 'alice' may not have ended: " in done.stderr
        assert {*client.keys()} == {b"other", b"mine:2"}
    client.execute_command("ACL", "DELUSER", "half")


# --- the reason, in the log: who ended which lease, and why


def _lines(server: Server) -> list[str]:
    return re.findall(r"\* <slock> (user .* ended .*)", server.log())


def test_the_log_has_user_key_fence_and_reason(server: Server) -> None:
    raw, before = server.raw(), _lines(server)
    raw.ok("ACL", "SETUSER", "ops", "on", ">secret", "~*", "+@all")
    fences = {key: raw.ok("SLOCK.LOCK", key, "alice", HOUR) for key in ("job", "other")}
    cli = Cli(f"redis://ops:secret@127.0.0.1:{server.port}")
    assert cli("break", "--yes", "other").returncode == 0
    assert cli("break", "--yes", "--reason", "stuck é since the deploy", "job").returncode == 0
    shown = f'user "ops" ended the lease of "job" with fencing token {fences["job"]}'
    assert _lines(server) == [*before, f'{shown}: "stuck é since the deploy"']
    assert cli("break", "--yes", "--reason", "x" * 257, "job").returncode == 2
    # Nobody has it now, so nothing is ended.
    assert raw.ok("SLOCK.MUNLOCK", 1, "job", "alice", "FENCE", fences["job"], "REASON", "again") == 0
    assert len(_lines(server)) == len(before) + 1


def test_a_reason_can_neither_forge_a_line_nor_hide_one(server: Server) -> None:
    raw, before = server.raw(), len(_lines(server))
    for key, reason, shown in [
        ("k", b"a\n* <slock> forged\x1b[2J\x00\xff", r'"a\n* <slock> forged\u{1b}[2J\0' + '\ufffd"'),
        ("\u202e%s" + "k" * 1000, b"%s%n", '"%s%n"'),
        ("k", b"\x01" * 256, '"' + r"\u{1}" * 51 + '"...'),
    ]:
        fence = raw.ok("SLOCK.LOCK", key, "t", HOUR)
        assert raw.ok("SLOCK.MUNLOCK", 1, key, "t", "FENCE", fence, "REASON", reason) == 1
        assert f"fencing token {fence}: " in _lines(server)[-1]
        assert _lines(server)[-1].split(f"{fence}: ")[1].startswith(shown)
    assert len(_lines(server)) == before + 3
    assert "\u202e" not in server.log() and r"\u{202e}%skkk" in server.log()


def test_replicas_and_the_log_of_changes_get_what_they_get_without_it(server: Server) -> None:
    raw, stream = server.raw(), ReplicationStream(server)
    told = []
    for reason in ([], ["REASON", "why"]):
        fence = raw.ok("SLOCK.LOCK", "k", "t", HOUR)
        stream.commands()
        assert raw.ok("SLOCK.MUNLOCK", 1, "k", "t", "FENCE", fence, *reason) == 1
        told.append(stream.commands())
    assert told[0] == told[1] != []
