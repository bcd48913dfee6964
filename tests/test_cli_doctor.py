"""`slock doctor`: finds one fault and only it, nothing on a right server, and says what to set."""

from __future__ import annotations

import json
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness import Clock, Cluster, MakeServer, Server, replica_of
from harness.acl_lines import example_lines
from harness.cli import Cli
from harness.sentinel import SERVICE, sentinel
from harness.settings import REPOSITORY, module_path

RIGHT = {"appendonly": True, "appendfsync": "everysec", "slock_restart_grace_ms": 1}
RIGHT_PRIMARY = {**RIGHT, "min_replicas_to_write": 1}


def faults(cli: Cli, *words: object) -> list[dict[str, Any]]:
    """The faults, after a check that both forms of the output and the status say the same."""
    done = cli("doctor", *words, "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    for_people = cli("doctor", *words)
    assert done.returncode == for_people.returncode == (1 if found else 0)
    assert [f"[{fault['check']}]" in for_people.stdout for fault in found] == [True] * len(found)
    assert for_people.stdout.splitlines()[-1].startswith(
        "1 fault on " if len(found) == 1 else f"{len(found)} faults on "
    )
    return found


def test_nothing_on_a_right_server(make_server: MakeServer) -> None:
    assert faults(Cli(make_server(**RIGHT))) == []


def test_nothing_on_the_example(make_server: MakeServer) -> None:
    server = Server(name="example")
    text = (REPOSITORY / "redis.conf.example").read_text()
    text = text.replace("./target/release/libslock.so", str(module_path()))
    server.config_text = text.replace("port 6379", f"port {server.port}").replace(
        "dir ./", f"dir {server.directory}"
    )
    try:
        server.start()
        assert faults(Cli(server)) == []
    finally:
        server.stop()
        server.discard()


@pytest.mark.parametrize("settings,check", [
    ({"maxmemory_policy": "allkeys-lru"}, "eviction"),
    ({"maxmemory_policy": "volatile-ttl", "maxmemory": "1gb"}, "eviction"),
    ({"appendonly": False}, "persistence"),
    ({"appendfsync": "no"}, "fsync"),
    ({"slock_restart_grace_ms": 0}, "grace"),
    ({"save": "3600 1"}, "snapshots"),
    ({"timeout": 60}, "timeout"),
    ({"tcp_keepalive": 0}, "keepalive"),
    ({"slock_allow_apply": True}, "apply"),
    ({"slock_max_waiters": 0}, "waiters"),
])  # fmt: skip
def test_one_fault_and_what_to_set(make_server: MakeServer, settings: dict[str, Any], check: str) -> None:
    server = make_server(**{**RIGHT, **settings})
    cli = Cli(server)
    (fault,) = faults(cli)
    assert (fault["check"], fault["server"]) == (check, f"127.0.0.1:{server.port}")
    line = fault["set"].removeprefix("set: ").split()
    server.client().config_set(line[0], line[1])
    assert faults(cli) == []


def test_a_missing_module(make_server: MakeServer) -> None:
    (fault,) = faults(Cli(make_server(module=False, appendonly=True, appendfsync="everysec")))
    assert fault["check"] == "module"
    assert "/usr/lib/redis/modules/slock.so" in fault["set"]


@pytest.mark.parametrize("version", [b"000", b"999"])
def test_an_older_module_than_another(make_server: MakeServer, version: bytes) -> None:
    """Than the program, or than the module of the primary, which seems to have this version."""
    primary, replica = make_server(**RIGHT_PRIMARY), make_server(**RIGHT)
    replica_of(replica, primary)
    with telling_version(primary.port, version) as port:
        (fault,) = faults(Cli(f"redis://127.0.0.1:{port}"))
    assert (fault["check"], fault["server"].endswith(f":{replica.port}")) == ("version", version == b"999")
    assert ("0.9.99 is in use" in fault["found"]) == (version == b"999")


@contextmanager
def telling_version(port: int, version: bytes) -> Iterator[int]:
    """A port where the server of another port seems to have this version of the module, instead of 0.1.0."""

    class Client(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as upstream:
                ends = {self.request: upstream, upstream: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(1 << 20)
                        if not data:
                            return
                        ends[end].sendall(data.replace(b"ver\r\n:100\r\n", b"ver\r\n:%s\r\n" % version))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Client) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield proxy.server_address[1]
        finally:
            proxy.shutdown()


def test_replicas_are_not_waited_for(make_server: MakeServer) -> None:
    primary, replica = make_server(**RIGHT), make_server(**RIGHT)
    replica_of(replica, primary)
    cli = Cli(primary)
    (fault,) = faults(cli)
    assert (fault["check"], fault["server"]) == ("min-replicas", f"127.0.0.1:{primary.port}")
    primary.client().config_set("min-replicas-to-write", 1)
    assert faults(cli) == []
    primary.client().config_set("min-replicas-to-write", 2)
    (fault,) = faults(cli)
    assert "no lock is granted" in fault["found"]


def test_a_replica_with_a_fault(make_server: MakeServer) -> None:
    """It is found from the primary alone."""
    primary, replica = make_server(**RIGHT_PRIMARY), make_server(**RIGHT, maxmemory_policy="allkeys-lfu")
    replica_of(replica, primary)
    (fault,) = faults(Cli(primary))
    assert (fault["check"], fault["server"]) == ("eviction", f"127.0.0.1:{replica.port}")


@pytest.mark.parametrize("ahead", [-2, 2])
def test_clocks_that_differ(make_server: MakeServer, make_clock: Callable[..., Clock], ahead: int) -> None:
    clock = make_clock()
    primary, replica = make_server(**RIGHT_PRIMARY), make_server(**RIGHT, environment=clock.environment)
    replica_of(replica, primary)
    cli = Cli(primary)
    assert faults(cli) == []
    clock.step(ahead)
    (fault,) = faults(cli)
    assert (fault["check"], fault["server"]) == ("clock", f"127.0.0.1:{replica.port}")
    assert ("ahead of" in fault["found"]) == (ahead > 0)


NEEDED = [
    "slock.lock",
    "slock.rlock",
    "slock.unlock",
    "slock.runlock",
    "slock.munlock",
    "slock.extend",
    "slock.cancel",
    "ssubscribe",
]


@pytest.mark.parametrize("command", NEEDED)
def test_permissions_of_another_user(make_server: MakeServer, command: str) -> None:
    server = make_server(**RIGHT)
    cli, client = Cli(server), server.client()
    allowed = [f"+{name}" for name in [*NEEDED, "ping"]]
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~lock:*", "&{*}.waits:*", *allowed)
    assert faults(cli, "--for", "app", "--key", "lock:1") == []
    client.execute_command("ACL", "SETUSER", "app", f"-{command}")
    (fault,) = faults(cli, "--for", "app", "--key", "lock:1")
    assert (fault["check"], fault["set"]) == ("permissions", f"run: ACL SETUSER app +{command}")
    (fault,) = faults(cli, "--for", "app", "--key", "other")
    assert "--key" in fault["set"]


def test_own_permissions(make_server: MakeServer) -> None:
    server = make_server(**RIGHT)
    client = server.client()
    client.execute_command(
        "ACL", "SETUSER", "watcher", "on", ">secret", "~*", "&*", "+@all", "-slock.cancel", "-slock.unlock"
    )
    cli = Cli(f"redis://watcher:secret@127.0.0.1:{server.port}")
    (fault,) = faults(cli)
    assert fault["set"] == "run: ACL SETUSER watcher +slock.unlock +slock.cancel"
    assert client.dbsize() == 0


BY_CONFIG = {"eviction", "persistence", "fsync", "grace", "snapshots", "min-replicas", "timeout", "keepalive"}
BY_CONFIG |= {"apply", "waiters", "connections"}
BY_INFO = {"disk", "replication", "min-replicas", "connections", "cluster"}


@pytest.mark.parametrize("denied,unchecked", [
    ("-config", BY_CONFIG),
    ("-info", BY_INFO),
    ("-module", {"module", "version"}),
    ("-time", {"clock"}),
    ("-acl", {"permissions"}),
])  # fmt: skip
def test_what_may_not_be_checked_is_neither_a_fault_nor_a_clean_bill(
    make_server: MakeServer, denied: str, unchecked: set[str]
) -> None:
    """On a primary whose settings have no fault, and one that would be seen otherwise: it has a replica."""
    server, replica = make_server(**RIGHT_PRIMARY), make_server(**RIGHT)
    replica_of(replica, server)
    client = server.client()
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", denied)
    replica.client().execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    cli = Cli(f"redis://app:secret@127.0.0.1:{server.port}")
    done, for_people = cli("doctor", "--json"), cli("doctor")
    here = [one for one in json.loads(done.stdout) if one["server"].endswith(f":{server.port}")]
    assert {one["check"] for one in here} == unchecked
    assert all("not-checked" in one for one in here)
    assert done.returncode == for_people.returncode == 3
    assert all(check in for_people.stdout for check in unchecked)
    assert for_people.stdout.splitlines()[-1].endswith(", and not all was checked")
    assert done.stderr == for_people.stderr == ""


def test_an_application_that_may_only_lock_checks_next_to_nothing(make_server: MakeServer) -> None:
    server = make_server(appendonly=False, maxmemory_policy="allkeys-lru")
    line = example_lines()["library"].split()
    server.client().execute_command("ACL", "SETUSER", "app", *line)
    done = Cli(f"redis://app:secret@127.0.0.1:{server.port}")("doctor", "--key", "lock:1")
    assert done.returncode == 3
    assert done.stdout.endswith("0 faults on 1 server, and not all was checked\n")
    for check in [*BY_CONFIG, *BY_INFO, "module", "clock", "permissions"]:
        assert check in done.stdout


def test_it_changes_nothing(make_server: MakeServer) -> None:
    server = make_server(**RIGHT)
    client = server.client()
    client.execute_command("SLOCK.LOCK", "slock-doctor", "t", 60_000)
    offset = client.info("replication")["master_repl_offset"]
    assert faults(Cli(server)) == []
    assert client.info("replication")["master_repl_offset"] == offset
    assert client.execute_command("SLOCK.UNLOCK", "slock-doctor", "t") == 1


def test_all_nodes_of_a_cluster() -> None:
    cluster = Cluster(**RIGHT)
    try:
        cli = Cli(f"redis+cluster://127.0.0.1:{cluster.start().nodes[0].port}")
        assert faults(cli) == []
        cluster.nodes[2].client().config_set("timeout", 5)
        (fault,) = faults(cli)
        assert (fault["check"], fault["server"]) == ("timeout", f"127.0.0.1:{cluster.nodes[2].port}")
    finally:
        cluster.discard()


def test_all_servers_of_a_sentinel(make_server: MakeServer) -> None:
    primary, replica = make_server(**RIGHT_PRIMARY), make_server(**RIGHT)
    replica_of(replica, primary)
    with sentinel(primary, replicas=1) as port:
        cli = Cli(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}")
        assert faults(cli) == []
        replica.client().config_set("appendonly", "no")
        (fault,) = faults(cli)
        assert (fault["check"], fault["server"]) == ("persistence", f"127.0.0.1:{replica.port}")
