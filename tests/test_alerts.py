"""The alerts of docs/monitoring.md: each fires where it should, and no other does.

It is made to happen on a server, which is read as the exporter reads it. What has happened once is then
taken to happen so many times a minute, and promtool, which comes with Prometheus, evaluates the rules of the
page over an hour of that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import MakeServer, RawConnection, Server, wait_until
from harness.commands import as_text
from harness.docs import DOCS, blocks
from harness.notify import Listener
from harness.waiting import HOUR

(RULES,) = blocks(DOCS / "monitoring.md", "yaml")
ALERTS = re.findall(r"- alert: (\w+)", RULES.text)

# Until then the server is quiet; then things happen, and so long after it the alerts are looked at.
QUIET_MINUTES, BUSY_MINUTES = 20, 35
IS_UP = "redis_up"

Values = dict[str, float]


@pytest.fixture
def promtool() -> str:
    found = os.environ.get("SLOCK_PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip("no promtool in the PATH: it comes with Prometheus (Debian: prometheus)")
    return found


# --- what happens on the server, once


def _evicted(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    raw.ok("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory", 1)
    wait_until(lambda: raw.ok("DBSIZE") == 0, what="the lock to be evicted")


def _queue_full(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    raw.ok("CONFIG", "SET", "slock.max-waiters", 0)
    assert raw.error("SLOCK.LOCK", "k", "b", HOUR, "WAIT", 0).startswith("QUEUEFULL ")


def _many_wait(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    listener = Listener(server)
    words = ("WAIT", 0, "NOTIFY", listener.channel)
    asked = [("SLOCK.LOCK", "k", f"t{number}", HOUR, *words, number) for number in range(1001)]
    assert listener.connection.pipeline(asked) == [None] * 1001


def _long_wait(server: Server, raw: RawConnection) -> None:
    """A holder of an hour, and three who wait: nobody has been granted, and nobody's wait has run out."""
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    listener = Listener(server)
    for token in ("b", "c", "d"):
        assert listener.ask("SLOCK.LOCK", "k", token, HOUR, tag=token) is None
    wait_until(lambda: _read(raw)["slock_oldest_wait_ms"] > 1000, what="the first to wait for a second")


def _held_long(server: Server, raw: RawConnection) -> None:
    """Nobody waits. Readers count one by one, as `slock old` lists them."""
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    raw.ok("SLOCK.RLOCK", "j", "b", HOUR)
    raw.ok("SLOCK.RLOCK", "j", "c", HOUR)
    wait_until(lambda: _read(raw, old_ms=1)["slock_old_holds"] == 3, what="three leases to be old")


def _run_out(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    assert raw.ok("SLOCK.LOCK", "k", "b", HOUR, "WAIT", 1) == 0


def _without_subscriber(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    listener = Listener(server)
    assert listener.ask("SLOCK.LOCK", "k", "b", HOUR) is None
    listener.connection.close()
    wait_until(lambda: _read(raw)["slock_no_subscriber"] == 1, what="the request to leave")


def _expire(server: Server, raw: RawConnection) -> None:
    raw.ok("SLOCK.LOCK", "k", "a", 1)
    wait_until(lambda: _read(raw)["slock_expirations"] == 1, what="the hold to expire")


def _deadlock(server: Server, raw: RawConnection) -> None:
    listener = Listener(server)
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    raw.ok("SLOCK.LOCK", "j", "b", HOUR)
    assert listener.ask("SLOCK.LOCK", "j", "a", HOUR) is None
    assert raw.error("SLOCK.LOCK", "k", "b", HOUR, "WAIT", 0).startswith("DEADLOCK ")


def _nothing(server: Server, raw: RawConnection) -> None:
    """What the exporter shows says it all."""


# What makes each alert fire, and how many times a minute.
STAGES: dict[str, tuple[Callable[[Server, RawConnection], None], int]] = {
    "LocksEvicted": (_evicted, 1),
    "LockQueueFull": (_queue_full, 1),
    "ManyWaitForLocks": (_many_wait, 1),
    "LockWaitsLong": (_long_wait, 1),
    "LockHeldLong": (_held_long, 1),
    "LockWaitsRunOut": (_run_out, 100),
    "LockRequestsWithoutSubscriber": (_without_subscriber, 100),
    "LockHoldersExpire": (_expire, 100),
    "LockDeadlocks": (_deadlock, 1),
    "LockMetricsMissing": (_nothing, 1),
    "LockServerDown": (_nothing, 1),
}
# What the exporter shows of a server without the module, and of one that it cannot reach. Instead of
# `redis_script_result`, which version 1.45 lacks: the version of Debian 12.
BROKEN = {"LockMetricsMissing": {IS_UP: 1.0}, "LockServerDown": {IS_UP: 0.0}}
# As they are; all else grows.
GAUGES = {"slock_old_holds", "slock_waiters", "slock_oldest_wait_ms", "slock_locks", IS_UP}


def _read(raw: RawConnection, old_ms: int = 600_000) -> Values:
    """What the exporter's script gives, and the errors, which the exporter takes from the server."""
    script = (DOCS / "redis_exporter.lua").read_text()
    assert "local OLD_MS = 600000\n" in script
    reply = as_text(raw.ok("EVAL", script.replace("OLD_MS = 600000", f"OLD_MS = {old_ms}"), 0))
    values = {name: float(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    errors = re.findall(r"errorstat_(\w+):count=(\d+)", raw.ok("INFO", "errorstats").decode())
    return {**values, **{f"errors {code}": float(count) for code, count in errors}, IS_UP: 1}


# --- an hour of it


def _series(before: Values, after: Values, times: int) -> list[dict[str, str]]:
    """A reading each minute. What the server has not shown yet is not there."""
    series = []
    for name, value in after.items():
        grown = 0.0 if name in GAUGES else (value - before.get(name, 0)) * times
        start = f"{before[name]}x{QUIET_MINUTES}" if name in before else f"_x{QUIET_MINUTES}"
        series.append({"series": _metric(name), "values": f"{start} {value}{grown:+}x{BUSY_MINUTES}"})
    return series


def _metric(name: str) -> str:
    if name == IS_UP:
        return f'{IS_UP}{{instance="a"}}'
    if name.startswith("errors "):
        return f'redis_errors_total{{err="{name.removeprefix("errors ")}",instance="a"}}'
    return f'redis_script_values{{key="{name}",instance="a"}}'


def _check(promtool: str, directory: Path, series: list[dict[str, str]], firing: list[str]) -> None:
    """Fails unless these alerts fire in the end, and no other."""
    (directory / "rules.yml").write_text(RULES.text)
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in firing]
    looks = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{QUIET_MINUTES + BUSY_MINUTES}m",
        "exp_samples": expected,
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [looks]}
    # Prometheus reads YAML, which every JSON is.
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (directory / "tests.yml").write_text(json.dumps(tests))
    words = [promtool, "test", "rules", "tests.yml"]
    told = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout + told.stderr


def test_every_alert_is_staged() -> None:
    assert list(STAGES) == ALERTS


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_where_it_should_and_no_other_does(
    make_server: MakeServer, promtool: str, tmp_path: Path, alert: str
) -> None:
    server = make_server()
    raw = server.raw()
    before = _read(raw)
    happens, times = STAGES[alert]
    happens(server, raw)
    after = BROKEN.get(alert) or _read(raw, 1 if alert == "LockHeldLong" else 600_000)
    _check(promtool, tmp_path, _series(before, after, times), [alert])


def test_no_alert_fires_where_locks_are_taken_waited_for_and_released(
    server: Server, promtool: str, tmp_path: Path
) -> None:
    raw, listener = server.raw(), Listener(server)
    before = _read(raw)
    raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    assert raw.ok("SLOCK.LOCK", "k", "c", HOUR) == 0
    assert listener.ask("SLOCK.LOCK", "k", "b", HOUR) is None
    assert raw.ok("SLOCK.UNLOCK", "k", "a") == 1
    assert listener.fence()
    assert raw.ok("SLOCK.UNLOCK", "k", "b") == 1
    _check(promtool, tmp_path, _series(before, _read(raw), 1000), [])
