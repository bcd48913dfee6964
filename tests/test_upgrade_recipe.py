"""The recipes of docs/operating.md: an upgrade, and the end of the module; what a lone replica replies."""

from __future__ import annotations

import re

import pytest

from conftest import Pair
from harness import Locks, MakeServer, Server, ServerError, wait_until
from harness.docs import DOCS, sections, table
from harness.waiting import HOUR

# The rows of the first table; the second is about formats.
STEPS = [row for row in table(sections(DOCS / "operating.md")["Upgrades"])][:5]
CODE = re.compile(r"`([^`]+)`")


def _wait_for(server: Server, told: str) -> None:
    client = server.client()
    for name, value in (field.split(":") for field in CODE.findall(told)):
        wait_until(
            lambda name=name, value=value: client.info("replication").get(name) == value,
            30,
            f"{name}:{value} of {server}",
        )


def _rewrite(server: Server) -> None:
    server.client().config_rewrite()
    server.config_text = (server.directory / "server.conf").read_text()


def test_locks_outlive_an_upgrade_by_the_recipe(primary_and_replica: Pair) -> None:
    old, new = primary_and_replica
    new.configure(replicaof=f"127.0.0.1 {old.port}")
    servers = {"each replica": new, "the primary": old, "the old primary": old, "the new primary": new}
    fence = Locks(old.client()).lock("k", "owner", HOUR)
    done = []
    for on, action, told in STEPS:
        server = servers[on]
        if action == "restart":
            server.restart()
        elif action == "`CONFIG REWRITE`":
            _rewrite(server)
        else:
            (words,) = CODE.findall(action)
            assert words.startswith("FAILOVER TO host port")
            server.raw().ok(*words.replace("host port", f"127.0.0.1 {new.port}").split())
        _wait_for(server, told)
        done.append(action.strip("`").split()[0])
    assert done == ["restart", "FAILOVER", "CONFIG", "CONFIG", "restart"]
    locks = Locks(new.client())
    assert locks.check("k", fence) == 1 == Locks(old.client()).check("k", fence)
    assert locks.lock("j", "owner", HOUR) > fence and locks.unlock("k", "owner") == 1


def test_a_replica_that_has_lost_its_primary_says_so_and_can_be_promoted(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    fence = Locks(primary.client()).lock("k", "owner", HOUR)
    wait_until(lambda: Locks(replica.client()).check("k", fence) == 1, what="the replica to know the lock")
    replica.client().config_set("replica-serve-stale-data", "no")
    primary.kill9()
    _wait_for(replica, "`master_link_status:down`")
    assert replica.raw().error("SLOCK.CHECK", "k", fence).startswith("MASTERDOWN ")
    replica.client().execute_command("REPLICAOF", "NO", "ONE")
    _wait_for(replica, "`role:master`")
    assert Locks(replica.client()).check("k", fence) == 1


@pytest.mark.parametrize("log", [False, True])
def test_the_module_can_be_removed_by_the_recipe(make_server: MakeServer, log: bool) -> None:
    server = make_server(appendonly=log, save="3600 1")
    locks = Locks(server.client())
    fence = locks.lock("k", "owner", HOUR)
    assert fence and locks.unlock("k", "owner") == 1 and server.client().set("kept", "value")
    server.client().save()
    server.stop()
    bare = Server(name="bare", module=False, directory=server.directory, appendonly=log, save="3600 1")
    with pytest.raises(ServerError, match=r"(?i)module|unknown command"):
        bare.start()
    server.start()
    told = CODE.findall(sections(DOCS / "operating.md")["Remove the module"])
    preamble, rewrite, begin = (code for code in told if code.startswith(("CONFIG SET", "BGREWRITE")))
    for words in (preamble, rewrite if log else begin):
        server.raw().ok(*words.split())
    name, value = next(code for code in told if "in_progress" in code).split(":")
    wait_until(lambda: server.client().info("persistence")[name] == int(value), 20, "the rewrite to end")
    server.stop()
    bare.configure(appendonly=True)
    try:
        assert bare.start().client().get("kept") == b"value"
    finally:
        bare.discard()
