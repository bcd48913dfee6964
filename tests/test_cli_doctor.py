"""`slock doctor`: finds one fault and only it, nothing on a right server, and says what to set."""

from __future__ import annotations

import json
import select
import socket
import socketserver
from collections.abc import Callable
from typing import Any

import pytest

from harness import Clock, Cluster, MakeServer, Server, replica_of
from harness.cli import Cli, hold, listening
from harness.sentinel import SERVICE, sentinel
from harness.settings import REPOSITORY, module_path

RIGHT = {"appendonly": True, "appendfsync": "everysec", "slock_restart_grace_ms": 1}


@pytest.fixture
def right(make_server: MakeServer) -> Server:
    return make_server(**RIGHT)


@pytest.fixture
def primary(right: Server) -> Server:
    """Of a replica without a fault."""
    right.client().config_set("min-replicas-to-write", 1)
    return right


@pytest.fixture
def replica(make_server: MakeServer, primary: Server) -> Server:
    replica = make_server(**RIGHT)
    replica_of(replica, primary)
    return replica


def faults(cli: Cli, *words: object) -> list[dict[str, Any]]:
    """The faults, after a check that both forms of the output and the status say the same."""
    done = cli("doctor", *words, "--json")
    assert done.stderr == ""
    found = json.loads(done.stdout)
    for_people = cli("doctor", *words)
    assert done.returncode == for_people.returncode == (1 if found else 0)
    assert all(f"[{fault['check']}]" in for_people.stdout for fault in found)
    told = "1 fault on " if len(found) == 1 else f"{len(found)} faults on "
    assert for_people.stdout.splitlines()[-1].startswith(told)
    return found


def only_fault(cli: Cli, server: Server, *words: object) -> tuple[str, str, str]:
    """What was checked, found, and is to be set on this server."""
    (fault,) = faults(cli, *words)
    assert fault["server"] == f"127.0.0.1:{server.port}"
    return fault["check"], fault["found"], fault["set"]


def test_nothing_on_a_right_server_which_it_does_not_change(right: Server) -> None:
    client = right.client()
    hold(client, "slock-doctor", "t")
    offset = client.info("replication")["master_repl_offset"]
    assert faults(Cli(right)) == []
    assert client.info("replication")["master_repl_offset"] == offset
    assert client.execute_command("SLOCK.UNLOCK", "slock-doctor", "t") == 1


def test_nothing_on_the_example(make_server: MakeServer) -> None:
    server = make_server(name="example")
    server.stop()
    text = (REPOSITORY / "redis.conf.example").read_text()
    text = text.replace("./target/release/libslock.so", str(module_path()))
    text = text.replace("port 6379", f"port {server.port}")
    server.config_text = text.replace("dir ./", f"dir {server.directory}")
    assert faults(Cli(server.start())) == []


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
    found, _, to_set = only_fault(cli, server)
    assert found == check
    server.client().config_set(*to_set.removeprefix("set: ").split()[:2])
    assert faults(cli) == []


def test_a_missing_module(make_server: MakeServer) -> None:
    server = make_server(module=False, appendonly=True, appendfsync="everysec")
    check, _, to_set = only_fault(Cli(server), server)
    assert check == "module" and "/usr/lib/redis/modules/slock.so" in to_set


@pytest.mark.parametrize("version", [b"000", b"999"])
def test_an_older_module_than_another(primary: Server, replica: Server, version: bytes) -> None:
    """Than the program, or than the module of the primary, which seems to have this version, not 0.1.0."""

    class Proxy(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", primary.port)) as upstream:
                ends = {self.request: upstream, upstream: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(1 << 20)
                        if not data:
                            return
                        ends[end].sendall(data.replace(b"ver\r\n:100\r\n", b"ver\r\n:%s\r\n" % version))

    with listening(Proxy) as port:
        (fault,) = faults(Cli(f"redis://127.0.0.1:{port}"))
    assert (fault["check"], fault["server"].endswith(f":{replica.port}")) == ("version", version == b"999")
    assert ("latest in use is 0.9.99" in fault["found"]) == (version == b"999")


def test_replicas_are_not_waited_for(primary: Server, replica: Server) -> None:
    cli, client = Cli(primary), primary.client()
    assert faults(cli) == []
    client.config_set("min-replicas-to-write", 0)
    assert only_fault(cli, primary)[0] == "min-replicas"
    client.config_set("min-replicas-to-write", 2)
    assert "no lock is granted" in only_fault(cli, primary)[1]


def test_a_replica_grants_no_lock(primary: Server, replica: Server) -> None:
    check, found, to_set = only_fault(Cli(replica), replica)
    assert check == "replication" and "it is a replica" in found
    assert to_set == f"name its primary by --url: 127.0.0.1:{primary.port}"


@pytest.mark.parametrize("ahead", [-2, 2])
def test_clocks_that_differ(
    primary: Server, make_server: MakeServer, make_clock: Callable[..., Clock], ahead: int
) -> None:
    clock = make_clock()
    replica = make_server(**RIGHT, environment=clock.environment)
    replica_of(replica, primary)
    assert faults(Cli(primary)) == []
    clock.step(ahead)
    check, found, _ = only_fault(Cli(primary), replica)
    assert check == "clock" and ("ahead of" in found) == (ahead > 0)


NEEDED = [f"slock.{name}" for name in ("lock", "rlock", "unlock", "runlock", "munlock", "extend", "cancel")]
NEEDED += ["ssubscribe"]


def test_permissions_of_another_user(right: Server) -> None:
    cli, client = Cli(right), right.client()
    allowed = [f"+{name}" for name in [*NEEDED, "ping"]]
    client.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~lock:*", "&{*}.waits:*", *allowed)
    assert faults(cli, "--for", "app", "--key", "lock:1") == []
    assert "--key" in only_fault(cli, right, "--for", "app", "--key", "other")[2]
    for command in NEEDED:
        client.execute_command("ACL", "SETUSER", "app", f"-{command}")
        check, _, to_set = only_fault(cli, right, "--for", "app", "--key", "lock:1")
        assert (check, to_set) == ("permissions", f"run: ACL SETUSER app +{command}")
        client.execute_command("ACL", "SETUSER", "app", f"+{command}")


def test_own_permissions(right: Server) -> None:
    rules = ["on", ">secret", "~*", "&*", "+@all", "-slock.cancel", "-slock.unlock"]
    right.client().execute_command("ACL", "SETUSER", "watcher", *rules)
    for rule in ("+@all", "-acl|whoami"):
        right.client().execute_command("ACL", "SETUSER", "watcher", rule, *rules[-2:])
        _, _, to_set = only_fault(Cli(f"redis://watcher:secret@127.0.0.1:{right.port}"), right)
        assert to_set.startswith("run: ACL SETUSER watcher +slock.unlock +slock.cancel; or name the user")
    assert right.client().dbsize() == 0


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
    primary: Server, replica: Server, denied: str, unchecked: set[str]
) -> None:
    """On a primary whose settings have no fault, and one that would be seen otherwise: it has a replica."""
    for server, rules in ((primary, [denied]), (replica, [])):
        rules = ["on", ">secret", "~*", "&*", "+@all", *rules]
        server.client().execute_command("ACL", "SETUSER", "app", *rules)
    cli = Cli(f"redis://app:secret@127.0.0.1:{primary.port}")
    done, for_people = cli("doctor", "--json"), cli("doctor")
    here = [one for one in json.loads(done.stdout) if one["server"].endswith(f":{primary.port}")]
    assert {one["check"] for one in here} == unchecked
    assert all("not-checked" in one for one in here)
    assert done.returncode == for_people.returncode == 3
    assert all(check in for_people.stdout for check in unchecked)
    assert for_people.stdout.splitlines()[-1].endswith(", and not all was checked")
    assert done.stderr == for_people.stderr == ""


def test_all_nodes_of_a_cluster() -> None:
    cluster = Cluster(**RIGHT)
    try:
        cli = Cli(f"redis+cluster://127.0.0.1:{cluster.start().nodes[0].port}")
        assert faults(cli) == []
        cluster.nodes[2].client().config_set("timeout", 5)
        assert only_fault(cli, cluster.nodes[2])[0] == "timeout"
    finally:
        cluster.discard()


def test_all_servers_of_a_sentinel_or_a_primary(primary: Server, replica: Server) -> None:
    with sentinel(primary, replicas=1) as port:
        by_sentinel = Cli(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}")
        assert faults(by_sentinel) == []
        replica.client().config_set("appendonly", "no")
        for cli in (by_sentinel, Cli(primary)):
            assert only_fault(cli, replica)[0] == "persistence"
