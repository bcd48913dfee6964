"""`slock ls`, `info`, `queues`, `old`, `release`, `check` and `wait`: for people and for programs.

On a single server, behind a Sentinel, on a cluster, and with TLS.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import redis

from conftest import Pair
from harness import Cluster, MakeServer, Server, wait_until
from harness.cli import LIMIT, Cli, ending, ends, hold, wait_for
from harness.sentinel import SERVICE, sentinel
from harness.settings import free_port


def test_nothing_to_show(cli: Cli) -> None:
    for words, text in {
        ("ls",): "no locks are held",
        ("queues",): "nobody waits",
        ("old",): "nothing is held for 10m 0s or longer",
        ("info", "job"): "job is free",
    }.items():
        done = cli(*words)
        assert (done.stdout, done.returncode) == (f"{text}\n", 0)
        assert not cli.json(*words)


def test_ls(cli: Cli, client: redis.Redis) -> None:
    fence = hold(client, "job:1", "a", "backup")
    for token in "bc":
        hold(client, "job:2", token, command="SLOCK.RLOCK")
    hold(client, "other", "d")
    client.set("job:text", "no lock")
    hold(client, b"bytes\xff", "e")
    lines = [line.split() for line in cli("ls", "job:*").stdout.splitlines()]
    assert lines[0] == ["KEY", "MODE", "HOLDERS", "WAITERS", "HELD", "LEFT", "HOLDER"]
    assert [(*line[:3], line[-1]) for line in lines[1:]] == [
        ("job:1", "write", "1", "backup"),
        ("job:2", "read", "2", "b"),
    ]
    listed = cli.json("ls")
    assert [lock["key"] for lock in listed] == ["bytes\ufffd", "job:1", "job:2", "other"]
    assert (listed[1]["fence"], listed[1]["holders"][0]["meta"]) == (fence, "backup")


def test_ls_is_bounded_and_its_reader_may_go_away(cli: Cli, client: redis.Redis) -> None:
    pipe = client.pipeline(transaction=False)
    for number in range(1200):
        hold(pipe, f"job:{number}", "t", "x" * 300)
    pipe.execute()
    done = cli("ls", "--count", 7, "--json")
    assert len(json.loads(done.stdout)) == 7
    assert "there are more" in done.stderr
    assert len(json.loads(cli("ls", "--json").stdout)) == 1000
    assert len(cli.json("ls", "--count", 0)) == 1200
    words = ["sh", "-c", "slock ls --count 0 | head -1"]
    done = subprocess.run(words, env=cli.environment, capture_output=True, text=True, timeout=LIMIT)
    assert done.stdout.startswith("KEY") and done.stderr == ""


def test_info_and_queues(cli: Cli, client: redis.Redis, server: Server) -> None:
    hold(client, "job", "alice", "web-1")
    waiting = [wait_for(server, "job", "bob"), wait_for(server, "job", "carl", 2)]
    text = cli("info", "job").stdout
    assert text.startswith("job is held for write, 2 wait\n")
    assert all(word in text for word in ("alice", "web-1", "bob", "waiter carl"))
    assert [waiter["token"] for waiter in cli.json("info", "job")["queue"]] == ["bob", "carl"]
    (queue,) = cli.json("queues")
    assert (queue["key"], queue["waiters"], queue["next"]) == ("job", 2, "bob")
    assert cli("queues").stdout.splitlines()[1].split()[:3] == ["job", "2", "2"]
    for raw in waiting:
        raw.close()


def test_old_shows_what_nobody_waits_for(cli: Cli, client: redis.Redis) -> None:
    hold(client, "job:1", "a", "backup")
    wait_until(lambda: cli.json("old", "--held-for", "300ms"), LIMIT, "the hold to be old")
    hold(client, "job:2", "b")
    old, *others = cli.json("old", "--held-for", "300ms")
    assert (old["key"], old["holder"]["token"], old["waiters"]) == ("job:1", "a", 0)
    # On a busy machine the other one may be as old by now.
    assert all(other["holder"]["held-ms"] >= 300 for other in others)
    assert cli("old", "--held-for", "300ms").stdout.splitlines()[1].split()[0] == "job:1"
    assert cli.json("old") == []


def test_release_check_and_wait(cli: Cli, client: redis.Redis) -> None:
    fence = hold(client, "job", "alice")
    for call, status in {
        f"check job {fence}": 0,
        f"check job {fence - 1}": 1,
        "release job bob": 1,
        "wait --wait 200ms job": 75,
    }.items():
        done = cli(*shlex.split(call))
        assert done.returncode == status, call
    assert "job is still held" in done.stderr
    assert cli.json("check", "job", fence) == {"live": True}
    with ending(waiting := cli.start("wait", "job")):
        assert cli("release", "job", "alice").returncode == 0
        assert ends(waiting) == 0
    assert cli("wait", "job").returncode == 0
    assert cli.json("release", "job", "alice") == {"released": False}
    assert cli.json("check", "job", fence) == {"live": False}
    assert client.dbsize() == 0


# --- elsewhere than on one server


def test_cluster(cluster: Cluster) -> None:
    addresses = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes[:2])
    cli = Cli(f"redis+cluster://{addresses}")
    keys = [f"job:{number}" for number in range(12)]
    for key in keys:
        hold(cluster.node_of(key).client(), key, "t")
    listed = cli.json("ls", "job:*")
    assert [lock["key"] for lock in listed] == sorted(keys)
    assert len({lock["node"] for lock in listed}) == 3
    assert len(cli.json("old", "--held-for", "0")) == 12
    for key in keys:
        assert cli.json("info", key)["mode"] == "write"
        assert cli("release", key, "t").returncode == 0
    done = cli("run", "{a}1", "{a}2", "--", "slock", "ls")
    assert "{a}2" in done.stdout, done.stderr
    other = Cli(cluster.nodes[0])
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
            assert done.returncode == 69 and "SENTINEL MASTERS" in done.stderr


CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    " subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE"
)


def test_tls(make_server: MakeServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, certificate, port = tmp_path / "key.pem", tmp_path / "cert.pem", free_port()
    made = [*CERTIFICATE.split(), "-keyout", key, "-out", certificate]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    files = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_cert_file": certificate}
    try:
        make_server(tls_port=port, **files)
    except AssertionError as error:
        pytest.skip(f"the server has no TLS: {str(error)[:200]}")
    cli = Cli(f"rediss://localhost:{port}")
    known = ["--tls-ca", certificate, "--tls-cert", certificate, "--tls-key", key]
    for words in (["ls"], ["run", "job", "--", "true"]):
        done = cli(*known, *words)
        assert done.returncode == 0, done.stderr
        unknown = cli(*words)
        assert unknown.returncode == 69 and "--tls-ca" in unknown.stderr
