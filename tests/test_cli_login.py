"""How `slock` gets its server, user, password and prefix, and what it says of those that are wrong."""

from __future__ import annotations

import socketserver
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from harness import MakeServer, Server, replica_of, wait_until
from harness.cli import LIMIT, Cli, Terminal, ending, hold, listening, until_waiters


@pytest.fixture
def closed(make_server: MakeServer) -> Iterator[Server]:
    """A server that asks for a password: `secret` of the default user, `hidden` of the user `app`."""
    server = make_server()
    client = server.client()
    client.execute_command("ACL", "SETUSER", "app", "on", ">hidden", "~*", "&*", "+@all")
    client.config_set("requirepass", "secret")
    yield server
    server.client(password="secret").config_set("requirepass", "")


def test_passwords_from_the_environment_and_from_a_file(closed: Server, tmp_path: Path) -> None:
    """Each is enough for each kind of command, and neither the command nor `ps` has it."""
    file = tmp_path / "password"
    file.write_text("secret\n")
    for words, environment in [
        ([], {"SLOCK_PASSWORD": "secret"}),
        ([], {"REDISCLI_AUTH": "secret"}),
        (["--password-file", file], {"SLOCK_PASSWORD": "wrong"}),
        ([], {"SLOCK_PASSWORD": "secret", "REDISCLI_AUTH": "wrong"}),
        ([], {"SLOCK_USER": "app", "SLOCK_PASSWORD": "hidden"}),
        (["--user", "app"], {"SLOCK_USER": "nobody", "SLOCK_PASSWORD": "hidden"}),
    ]:
        cli = Cli(closed)
        cli.environment |= environment
        assert cli(*words, "ls").returncode == 0
        done = cli(*words, "run", "job", "--", "sh", "-c", "env; ps -e -o args")
        assert done.returncode == 0, done.stderr
        assert "SLOCK_FENCE=" in done.stdout
        for word in ("secret", "hidden", "wrong", "SLOCK_USER", "SLOCK_PASSWORD", "REDISCLI_AUTH"):
            assert word not in done.stdout


def test_doctor_logs_in_as_one_user_and_checks_another(closed: Server) -> None:
    closed.client(password="secret").execute_command("ACL", "SETUSER", "checked", "on", "~*", "&*", "+@all")
    for words, environment in [(["--user", "app"], {}), ([], {"SLOCK_USER": "app"})]:
        cli = Cli(closed)
        cli.environment |= {"SLOCK_PASSWORD": "hidden", **environment}
        done = cli(*words, "doctor", "--for", "checked")
        assert (done.returncode, done.stderr) == (1, "")
        assert "[persistence]" in done.stdout and "[permissions]" not in done.stdout


def test_a_login_in_the_url_comes_before_the_environment_and_after_a_file(
    closed: Server, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("hidden")
    cli = Cli(f"redis://app:hidden@127.0.0.1:{closed.port}")
    cli.environment |= {"SLOCK_USER": "nobody", "SLOCK_PASSWORD": "wrong"}
    assert cli("ls").returncode == 0
    cli = Cli(f"redis://app:wrong@127.0.0.1:{closed.port}")
    assert cli("ls").returncode == 69
    assert cli("--password-file", file, "ls").returncode == 0
    missing = cli("--password-file", tmp_path / "nothing", "ls")
    assert missing.returncode == 2 and "cannot read" in missing.stderr


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_prefix_is_put_before_each_key_and_not_shown(cli: Cli, client: redis.Redis, given: str) -> None:
    """It is a text and no pattern."""
    words = ["--prefix", "app[1]:"] if given == "option" else []
    if given == "variable":
        cli.environment["SLOCK_PREFIX"] = "app[1]:"
    for other in ("other", "app1:x"):
        hold(client, other, "t")
    token, fence = cli(*words, "acquire", "job").stdout.split()
    assert client.exists("app[1]:job")
    for look in (["ls"], ["ls", "j*"], ["old", "--held-for", "0"]):
        assert [lock["key"] for lock in cli.json(*words, *look)] == ["job"]
    assert cli.json(*words, "info", "job")["key"] == "job"
    assert cli(*words, "check", "job", fence).returncode == 0
    assert cli(*words, "extend", "job", token, "--ttl", "1h").returncode == 0
    assert cli(*words, "wait", "--wait", "0", "job").returncode == 75
    with ending(cli.start(*words, "run", "job", "--", "true")):
        until_waiters(client, "app[1]:job", 1)
        assert [queue["key"] for queue in cli.json(*words, "queues")] == ["job"]
    with Terminal(cli, f"slock {' '.join(words)} top") as terminal:
        screen = terminal.shows("job")
        assert "other" not in screen and "app" not in screen
        terminal.press("Enter")
        terminal.shows(f"token {token}")
    assert cli(*words, "release", "job", token).returncode == 0
    script = 'slock check "$SLOCK_KEY" "$SLOCK_FENCE" && slock break --yes "$SLOCK_KEY"'
    assert "job: ended the hold" in cli(*words, "run", "job", "--", "sh", "-c", script).stdout
    assert sorted(client.keys()) == [b"app1:x", b"other"]


# --- a server that cannot be used

SINGLE = "redis://[USER:PASSWORD@]HOST[:PORT][/DB]"
SENTINEL = "redis+sentinel://[USER:PASSWORD@]HOST[:PORT],…/PRIMARY[/DB]"
CLUSTER = "redis+cluster://[USER:PASSWORD@]HOST[:PORT],…"


@pytest.mark.parametrize("url,part,form", [
    ("host", "it has no ://", SINGLE),
    ("http://:pw@host", "its scheme is none of redis", SINGLE),
    ("redis+other://host", "its scheme is none of redis", SINGLE),
    ("redis://", "a host is missing", SINGLE),
    ("redis://:pw@:6379", "a host is missing", SINGLE),
    ("redis://:pw@host:port", "a port is no number from 0 to 65535", SINGLE),
    ("redis://host:65536", "a port is no number from 0 to 65535", SINGLE),
    ("redis://host/zero", "the database is no number", SINGLE),
    ("redis://:p/w@host", "the user or the password has / ? or # in it", SINGLE),
    ("redis://app:pw#x@host", "the user or the password has / ? or # in it", SINGLE),
    ("redis://one,two", "it names several hosts", SINGLE),
    ("redis+sentinel://:pw@host", "the name of the primary is missing", SENTINEL),
    ("redis+sentinel://one,,two/primary", "a host is missing", SENTINEL),
    ("rediss+sentinel://one/primary/zero", "the database is no number", SENTINEL),
    ("redis+cluster://", "a host is missing", CLUSTER),
    ("redis+cluster://host/1", "it names a database, and a cluster has only one", CLUSTER),
    ("unix://run/redis.sock", "the path of the socket does not begin with /", "unix:///PATH"),
    ("unix:///run/redis.sock?password=pw", "it has a parameter that is not known", "unix:///PATH"),
    ("redis://host?db=1", "it has a parameter that is not known", SINGLE),
    ("redis://host:1?ssl=true", "no parameter turns on TLS: its scheme does, as rediss://", SINGLE),
    ("redis+sentinel://host/name?sentinel-user=a&tls=1", "no parameter turns on TLS", SENTINEL),
    ("rediss://host#insecure", "there is no #insecure: --tls-ca names the authorities", SINGLE),
    ("redis://host/0#pw", "it has a #, which is written %23", SINGLE),
])  # fmt: skip
def test_a_url_that_is_not_understood_names_the_part(url: str, part: str, form: str) -> None:
    for done in (Cli(url)("ls"), Cli("redis://127.0.0.1:1")("--url", url, "ls")):
        assert done.returncode == 2
        assert done.stderr.startswith(f"slock: the URL is not understood: {part}")
        assert f"; write it as {form}" in done.stderr
        assert "pw" not in done.stderr


@pytest.mark.parametrize("url", ["redis://[::1]:1/0", "redis://127.0.0.1:1/?protocol=3",
                                 "unix:///nowhere/at-all.sock?db=1&user=a&pass=b",
                                 "redis+cluster://127.0.0.1:1,127.0.0.1:1/",
                                 "redis+sentinel://127.0.0.1:1/primary?sentinel-password=a@b"])  # fmt: skip
def test_urls_that_are_understood(url: str) -> None:
    assert Cli(url)("ls").returncode == 69


class Http(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(1 << 16)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("words", [["run", "job", "--", "true"], ["ls"], ["doctor"]])
def test_an_error_says_in_one_line_what_to_do(server: Server, closed: Server, words: list[str]) -> None:
    give_password = "give it by SLOCK_PASSWORD or --password-file"
    with listening(Http) as http:
        for url, said in {
            "redis://127.0.0.1:1": ["nobody listens at 127.0.0.1:1: start the server there, or name"],
            f"redis://nobody:hidden@127.0.0.1:{server.port}": ["refuses the user or the password"],
            f"redis://127.0.0.1:{closed.port}": ["asks for a password", give_password],
            f"redis://:hidden@127.0.0.1:{closed.port}": ["refuses the user or", give_password],
            f"redis://127.0.0.1:{http}": [f"what answers at 127.0.0.1:{http} is no Redis or Valkey server"],
            f"rediss://127.0.0.1:{http}": [f"what answers at 127.0.0.1:{http} speaks no TLS"],
        }.items():
            done = Cli(url)(*words)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
            assert not [part for part in said if part not in done.stderr], done.stderr
            assert "hidden" not in done.stderr


def test_a_server_that_does_not_reply(make_server: MakeServer) -> None:
    (server := make_server()).pause()
    for words, limit in (["run", "job", "--", "true"], 3), (["acquire", "--wait", "1s", "job"], 1.5):
        began = time.monotonic()
        assert Cli(server)(*words).returncode == 69
        assert time.monotonic() - began < limit + 10  # a busy machine starts it late


@pytest.mark.parametrize("words", ["run job -- true", "info job", "queues", "ls", "ls --json", "old"])
def test_a_missing_module_says_how_to_load_it(make_server: MakeServer, words: str) -> None:
    done = Cli(make_server(module=False))(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (69, "", 1)
    assert "--loadmodule /path/to/libslock.so" in done.stderr


@pytest.mark.parametrize("words", ["run job -- true", "info job", "release job t", "break job --yes",
                                   "check job 1", "wait job"])  # fmt: skip
def test_a_key_that_is_no_lock_is_named(cli: Cli, client: redis.Redis, words: str) -> None:
    client.set("job", "no lock")
    done = cli(*words.split())
    assert done.returncode == 2
    assert "job holds something else than a lock of SLOCK" in done.stderr


def test_the_address_of_a_replica(make_server: MakeServer, tmp_path: Path) -> None:
    """As after a failover, if the address stays that of the former primary."""
    primary, replica = make_server(), make_server()
    replica_of(replica, primary)
    cli = Cli(replica)
    done = cli("extend", "job", "token", "--ttl", "1m")
    assert done.returncode == 69
    assert f"slock: 127.0.0.1:{replica.port} is a replica, and grants no lock: name" in done.stderr
    log = tmp_path / "log"
    with log.open("w") as file, ending(cli.start("run", "job", "--", "echo", "ran", stderr=file)):
        wait_until(lambda: log.read_text().endswith("\n"), LIMIT, "the line about the wait")
    assert log.read_text() == "slock: waiting for job, held by nobody: `slock doctor` may say why\n"
