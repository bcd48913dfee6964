"""`slock ls`, `info`, `queues`, `old`, `release`, `break`, `check`, `wait`: for people and for programs.

On a single server, behind a Sentinel, on a cluster, and with TLS.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from conftest import Pair
from harness import Cluster, MakeServer, RawConnection, Server, wait_until
from harness.cli import LIMIT, Cli, Terminal, ending, ends
from harness.sentinel import SERVICE, sentinel
from harness.settings import free_port


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


def as_json(cli: Cli, *words: object) -> Any:
    done = cli(*words, "--json")
    assert done.stderr == ""
    return json.loads(done.stdout)


def hold(client: redis.Redis, key: str, token: str, *words: object, command: str = "SLOCK.LOCK") -> int:
    return client.execute_command(command, key, token, 60_000, *words)


def wait_for(server: Server, key: str, token: str, number: int = 1) -> RawConnection:
    """A connection whose request is in the queue."""
    raw = server.raw()
    raw.send("SLOCK.LOCK", key, token, 60_000, "WAIT", 60_000, "META", f"waiter {token}")
    client = server.client()

    def waiters() -> int:
        info = client.execute_command("SLOCK.INFO", key)
        return dict(zip(info[::2], info[1::2], strict=True))[b"waiters"]

    wait_until(lambda: waiters() == number, LIMIT, f"{token} to wait")
    return raw


def test_nothing_to_show(cli: Cli) -> None:
    for words, text in {
        ("ls",): "no locks are held",
        ("queues",): "nobody waits",
        ("old",): "nothing is held for 10m 0s or longer",
        ("info", "job"): "job is free",
    }.items():
        done = cli(*words)
        assert (done.stdout, done.returncode) == (f"{text}\n", 0)
    assert [as_json(cli, word) for word in ("ls", "queues", "old")] == [[], [], []]
    assert as_json(cli, "info", "job") is None


def test_ls(cli: Cli, client: redis.Redis) -> None:
    fence = hold(client, "job:1", "a", "META", "backup")
    hold(client, "job:2", "b", command="SLOCK.RLOCK")
    hold(client, "job:2", "c", command="SLOCK.RLOCK")
    hold(client, "other", "d")
    client.set("job:text", "no lock")
    hold(client, b"bytes\xff", "e")
    lines = [line.split() for line in cli("ls", "job:*").stdout.splitlines()]
    assert lines[0] == ["KEY", "MODE", "HOLDERS", "WAITERS", "HELD", "LEFT", "HOLDER"]
    assert [(line[0], line[1], line[2], line[-1]) for line in lines[1:]] == [
        ("job:1", "write", "1", "backup"),
        ("job:2", "read", "2", "b"),
    ]
    listed = as_json(cli, "ls")
    assert [lock["key"] for lock in listed] == ["bytes\ufffd", "job:1", "job:2", "other"]
    assert (listed[1]["fence"], listed[1]["holders"][0]["meta"]) == (fence, "backup")


def test_ls_is_bounded(cli: Cli, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(1200):
            pipeline.execute_command("SLOCK.LOCK", f"job:{number}", "t", 60_000)
        pipeline.execute()
    done = cli("ls", "--count", 7, "--json")
    assert len(json.loads(done.stdout)) == 7
    assert "there are more" in done.stderr
    assert len(json.loads(cli("ls", "--json").stdout)) == 1000
    assert len(as_json(cli, "ls", "--count", 0)) == 1200


def test_a_reader_that_goes_away_is_no_panic(cli: Cli, client: redis.Redis) -> None:
    for number in range(300):
        hold(client, f"a-lock-with-quite-a-long-name-to-fill-the-pipe:{number}", "t", "META", "x" * 300)
    done = subprocess.run(
        ["sh", "-c", "slock ls | head -1"], env=cli.environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.stdout.startswith("KEY")
    assert done.stderr == ""


def test_info_and_queues(cli: Cli, client: redis.Redis, server: Server) -> None:
    hold(client, "job", "alice", "META", "web-1")
    waiting = [wait_for(server, "job", "bob"), wait_for(server, "job", "carl", 2)]
    text = cli("info", "job").stdout
    assert text.startswith("job is held for write, 2 wait\n")
    assert [word in text for word in ("alice", "web-1", "bob", "waiter carl")] == [True] * 4
    info = as_json(cli, "info", "job")
    assert [waiter["token"] for waiter in info["queue"]] == ["bob", "carl"]
    queue = as_json(cli, "queues")[0]
    assert (queue["key"], queue["waiters"], queue["next"]) == ("job", 2, "bob")
    assert cli("queues").stdout.splitlines()[1].split()[:3] == ["job", "2", "2"]
    for raw in waiting:
        raw.close()


def test_names_cannot_command_the_terminal(cli: Cli, client: redis.Redis) -> None:
    hold(client, "job\x1b[2J", "t", "META", "evil\r\nline")
    for words in (["ls"], ["info", "job\x1b[2J"], ["old", "--held-for", "0"]):
        text = cli(*words).stdout
        assert "\x1b" not in text and "\r" not in text
        assert "evil\\r\\nline" in text


def test_old_shows_what_nobody_waits_for(cli: Cli, client: redis.Redis) -> None:
    hold(client, "job:1", "a", "META", "backup")
    wait_until(lambda: as_json(cli, "old", "--held-for", "300ms"), LIMIT, "the hold to be old")
    hold(client, "job:2", "b")
    old, *others = as_json(cli, "old", "--held-for", "300ms")
    assert (old["key"], old["holder"]["token"], old["waiters"]) == ("job:1", "a", 0)
    # On a busy machine the other one may be as old by now.
    assert all(other["holder"]["held-ms"] >= 300 for other in others)
    assert cli("old", "--held-for", "300ms").stdout.splitlines()[1].split()[0] == "job:1"
    assert as_json(cli, "old") == []


@pytest.mark.parametrize("given,shown", [
    ("0", "0ms"), ("500ms", "500ms"), ("1234ms", "1.2s"), ("7", "7.0s"), ("59s", "59s"), ("1m30s", "1m 30s"),
    ("192s", "3m 12s"), ("2h", "2h 0m"), ("90000s", "1d 1h"),
])  # fmt: skip
def test_durations_are_read_and_shown(cli: Cli, given: str, shown: str) -> None:
    done = cli("old", "--held-for", given)
    assert f"nothing is held for {shown} or longer" in done.stdout + done.stderr


@pytest.mark.parametrize("given", ["", "s", "1w", "1.5s", "9" * 20 + "d", "9" * 17 + "d"])
def test_what_is_no_duration(cli: Cli, given: str) -> None:
    assert cli("old", "--held-for", given).returncode == 2


def test_release_and_check(cli: Cli, client: redis.Redis) -> None:
    fence = hold(client, "job", "alice")
    assert cli("check", "job", fence).returncode == 0
    assert cli("check", "job", fence - 1).returncode == 1
    assert as_json(cli, "check", "job", fence) == {"live": True}
    assert cli("release", "job", "bob").returncode == 1
    assert cli("release", "job", "alice").returncode == 0
    assert as_json(cli, "release", "job", "alice") == {"released": False}
    assert as_json(cli, "check", "job", fence) == {"live": False}


def test_break_asks(cli: Cli, client: redis.Redis) -> None:
    hold(client, "job", "alice", "META", "web-1")
    without_terminal = cli("break", "job", stdin=subprocess.DEVNULL)
    assert without_terminal.returncode == 2
    assert "--yes" in without_terminal.stderr
    with Terminal(
        cli, "sh -c 'slock break job; echo first $?; slock break job; echo second $?; sleep 100'"
    ) as terminal:
        terminal.shows("job is held by 'web-1'")
        terminal.press("n", "Enter")
        terminal.shows("first 1")
        assert client.exists("job")
        terminal.press("y", "Enter")
        terminal.shows("second 0")
    assert not client.exists("job")
    assert cli("break", "--yes", "job").returncode == 1


def test_break_lets_the_next_in_line_on(cli: Cli, client: redis.Redis, server: Server) -> None:
    """Tokens are any bytes. Who gets the lock by it keeps it."""
    hold(client, "job", b"\xff\x00'")
    waiting = wait_for(server, "job", "bob")
    done = cli("break", "--yes", "job")
    assert done.returncode == 0
    assert done.stdout.startswith("job: ended the hold of ")
    fence = waiting.read()
    assert cli("check", "job", fence).returncode == 0
    waiting.close()


def test_wait(cli: Cli, client: redis.Redis) -> None:
    assert cli("wait", "job").returncode == 0
    hold(client, "job", "alice")
    late = cli("wait", "--wait", "200ms", "job")
    assert late.returncode == 75
    assert "job is still held" in late.stderr
    with ending(waiting := cli.start("wait", "job")):
        client.execute_command("SLOCK.UNLOCK", "job", "alice")
        assert ends(waiting) == 0
    assert client.dbsize() == 0


def test_completions_and_man_page(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = cli("completions", shell).stdout
        assert "doctor" in script and "kill-after" in script
    bash = subprocess.run(
        ["bash", "-n"], input=cli("completions", "bash").stdout, text=True, capture_output=True
    )
    assert (bash.returncode, bash.stderr) == (0, "")
    assert ".TH slock 1" in cli("man").stdout
    assert "kill\\-after" in cli("man", "run").stdout
    assert cli("man", "nothing").returncode == 2


# --- elsewhere than on one server


def test_cluster(cluster: Cluster) -> None:
    addresses = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes[:2])
    cli = Cli(f"redis+cluster://{addresses}")
    keys = [f"job:{number}" for number in range(12)]
    for key in keys:
        hold(cluster.node_of(key).client(), key, "t")
    listed = as_json(cli, "ls", "job:*")
    assert [lock["key"] for lock in listed] == sorted(keys)
    assert len({lock["node"] for lock in listed}) == 3
    assert len(as_json(cli, "old", "--held-for", "0")) == 12
    for key in keys:
        assert as_json(cli, "info", key)["mode"] == "write"
        assert cli("release", key, "t").returncode == 0
    done = cli("run", "{a}1", "{a}2", "--", "slock", "ls")
    assert "{a}2" in done.stdout, done.stderr
    other = Cli(f"redis://127.0.0.1:{cluster.nodes[0].port}")
    slot_elsewhere = next(key for key in keys if cluster.node_of(key) is not cluster.nodes[0])
    assert "redis+cluster://" in other("info", slot_elsewhere).stderr


def test_sentinel(primary_and_replica: Pair) -> None:
    with sentinel(primary_and_replica.primary, replicas=1) as port:
        cli = Cli(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{SERVICE}")
        done = cli("run", "job", "--", "slock", "ls", "--json")
        assert done.returncode == 0, done.stderr
        (lock,) = json.loads(done.stdout)
        assert lock["node"] == f"127.0.0.1:{primary_and_replica.primary.port}"
        unknown = Cli(f"redis+sentinel://127.0.0.1:{port}/nothing")
        for words in (["ls"], ["run", "job", "--", "true"]):
            done = unknown(*words)
            assert done.returncode == 69
            assert "SENTINEL MASTERS" in done.stderr


def test_tls(make_server: MakeServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    made += ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    made += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    settings = {"tls_port": port, "tls_cert_file": certificate, "tls_key_file": key}
    try:
        make_server(**settings, tls_ca_cert_file=certificate)
    except AssertionError as error:
        pytest.skip(f"the server has no TLS: {str(error)[:200]}")
    cli = Cli(f"rediss://localhost:{port}")
    known = ["--tls-ca", certificate, "--tls-cert", certificate, "--tls-key", key]
    for words in (["ls"], ["run", "job", "--", "true"]):
        done = cli(*known, *words)
        assert done.returncode == 0, done.stderr
        unknown = cli(*words)
        assert unknown.returncode == 69
        assert "--tls-ca" in unknown.stderr


@pytest.mark.parametrize("url", ["", "host", "http://host", "redis+other://host", "redis+sentinel://host",
                                 "redis+cluster://", "redis://host:port"])  # fmt: skip
def test_urls_that_are_not_understood(url: str) -> None:
    done = Cli("redis://127.0.0.1:1")("--url", url, "ls")
    assert done.returncode == 2
    assert "URL" in done.stderr or "--url" in done.stderr
