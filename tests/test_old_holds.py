"""The exporter's script counts what `slock old` lists, in bounded steps."""

from __future__ import annotations

import json

from harness import Cluster, Locks, RawConnection, Server, wait_until
from harness.cli import Cli
from harness.commands import as_text
from harness.docs import DOCS
from harness.waiting import HOUR

SCRIPT = (DOCS / "redis_exporter.lua").read_text()


def _values(raw: RawConnection, **numbers: int) -> dict[str, str]:
    script = SCRIPT
    for name, number in numbers.items():
        before = {"OLD_MS": "OLD_MS = 600000", "MOST_LOCKS": "10, 1000, 200"}[name]
        after = f"OLD_MS = {number}" if name == "OLD_MS" else f"10, 10, {number}"
        assert before in script
        script = script.replace(before, after)
    reply = as_text(raw.ok("EVAL", script, 0, 0))
    return dict(zip(reply[::2], reply[1::2], strict=True))


def _old(raw: RawConnection, **numbers: int) -> int:
    return int(_values(raw, **numbers)["slock_old_holds"])


def test_it_counts_what_slock_old_lists(server: Server) -> None:
    raw = server.raw()
    assert _old(raw, OLD_MS=0) == 0
    for number in range(30):
        raw.ok("SLOCK.LOCK", f"w{number}", "t", HOUR)
        raw.ok("SLOCK.RLOCK", "r", f"t{number}", HOUR)
        raw.ok("SET", f"s{number}", "no lock")
    wait_until(lambda: _old(raw, OLD_MS=100) == 60, what="60 to be old")
    raw.ok("SLOCK.LOCK", "young", "t", HOUR)
    shown = json.loads(Cli(server)("old", "--held-for", "100ms", "--json").stdout)
    assert len(shown) >= 60
    assert _old(raw) == 0
    raw.ok("SLOCK.UNLOCK", "w0", "t")
    assert _old(raw, OLD_MS=0) == 60


def test_a_run_looks_at_some_locks_and_the_next_at_others(server: Server) -> None:
    raw = server.raw()

    def age() -> int:
        return Locks(server.client()).full("old").holders[0].held_ms

    raw.ok("SLOCK.LOCK", "old", "t", HOUR)
    wait_until(lambda: age() > 500, what="it to be older than all others")
    for number in range(200):
        raw.ok("SLOCK.LOCK", f"w{number}", "t", HOUR)
    assert {_old(raw, OLD_MS=0, MOST_LOCKS=7) for _ in range(20)} == {7}
    wait_until(lambda: _old(raw, OLD_MS=age() - 100, MOST_LOCKS=7) == 1, what="a run to find the old one")


def test_without_the_permissions_everything_else_is_there(server: Server) -> None:
    raw = server.raw()
    raw.ok("ACL", "SETUSER", "before", "on", ">secret", "+info", "+eval")
    raw.ok("SLOCK.LOCK", "k", "t", HOUR)
    app = server.raw()
    app.ok("AUTH", "before", "secret")
    rights = ["+dbsize", "+time", "+scan", "+slock.info", "%R~*"]
    for right in rights:
        values = _values(app, OLD_MS=0)
        assert values["slock_locks"] == "1" and "slock_old_holds" not in values, right
        raw.ok("ACL", "SETUSER", "before", right)
    assert _old(app, OLD_MS=0) == 1
    raw.ok("ACL", "DELUSER", "before")


def test_on_a_cluster(cluster: Cluster) -> None:
    for number in range(12):
        cluster.node_of(f"k{number}").raw().ok("SLOCK.LOCK", f"k{number}", "t", HOUR)
    assert sum(_old(node.raw(), OLD_MS=0) for node in cluster.nodes) == 12
