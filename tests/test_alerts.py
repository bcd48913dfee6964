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
from pathlib import Path

import pytest

from harness import MakeServer, RawConnection, wait_until
from harness.commands import as_text
from harness.docs import DOCS, blocks
from harness.notify import Listener

(RULES,) = blocks(DOCS / "monitoring.md", "yaml")
ALERTS = re.findall(r"- alert: (\w+)", RULES.text)

# Until then the server is quiet; then things happen, and so long after it the alerts are looked at.
QUIET_MINUTES, BUSY_MINUTES = 20, 35
IS_UP = "redis_up"
HOUR = 3_600_000

Values = dict[str, float]

HELD = f"SLOCK.LOCK k a {HOUR}"
REQUEST = f"SLOCK.LOCK k b {HOUR} WAIT 0"
# A request that waits, of this token. The server has a client that listens to `answers`.
NOTIFIED = f"SLOCK.LOCK k {{0}} {HOUR} WAIT 0 NOTIFY answers {{0}}"
WANTS_BOTH = NOTIFIED.format("a").replace(" k ", " j ")
EVICT = "CONFIG SET maxmemory-policy allkeys-lru maxmemory 1"

# What makes each alert fire: commands, what the server counts then, and how many times a minute it happens.
STAGES: dict[str, tuple[list[str], str, int]] = {
    "LocksEvicted": ([HELD, EVICT], "slock_evicted_locks", 1),
    "LockQueueFull": ([HELD, "CONFIG SET slock.max-waiters 0", REQUEST], "errors QUEUEFULL", 1),
    "ManyWaitForLocks": ([HELD, *map(NOTIFIED.format, range(1001))], "slock_waiters", 1),
    # A holder of an hour, and three who wait: nobody has been granted, and nobody's wait has run out.
    "LockWaitsLong": ([HELD, *map(NOTIFIED.format, "bcd")], "slock_oldest_wait_ms", 1),
    # Nobody waits. Readers count one by one, as `slock old` lists them.
    "LockHeldLong": ([HELD, *(f"SLOCK.RLOCK j {token} {HOUR}" for token in "bc")], "slock_old_holds", 1),
    "LockWaitsRunOut": ([HELD, f"SLOCK.LOCK k b {HOUR} WAIT 1"], "slock_wait_timeouts", 100),
    "LockRequestsWithoutSubscriber": (
        [HELD, NOTIFIED.format("b"), "SUNSUBSCRIBE answers"],
        "slock_no_subscriber",
        100,
    ),
    "LockHoldersExpire": (["SLOCK.LOCK k a 1"], "slock_expirations", 100),
    "LockDeadlocks": ([f"SLOCK.LOCK j b {HOUR}", HELD, WANTS_BOTH, REQUEST], "errors DEADLOCK", 1),
    "LockMetricsMissing": ([], IS_UP, 1),
    "LockServerDown": ([], IS_UP, 1),
}
LEAST = {"slock_waiters": 1001, "slock_oldest_wait_ms": 1001, "slock_old_holds": 3}
# What the exporter shows of a server without the module, and of one that it cannot reach. Instead of
# `redis_script_result`, which version 1.45 lacks: the version of Debian 12.
BROKEN = {"LockMetricsMissing": {IS_UP: 1.0}, "LockServerDown": {IS_UP: 0.0}}
# As they are; all else grows.
GAUGES = {"slock_old_holds", "slock_waiters", "slock_oldest_wait_ms", "slock_locks", IS_UP}


@pytest.fixture
def promtool() -> str:
    found = os.environ.get("SLOCK_PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip("no promtool in the PATH: it comes with Prometheus (Debian: prometheus)")
    return found


def _read(raw: RawConnection, old_ms: int = 600_000) -> Values:
    """What the exporter's script gives, and the errors, which the exporter takes from the server."""
    script = (DOCS / "redis_exporter.lua").read_text()
    assert "local OLD_MS = 600000\n" in script
    reply = as_text(raw.ok("EVAL", script.replace("OLD_MS = 600000", f"OLD_MS = {old_ms}"), 0))
    values = {name: float(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}
    errors = re.findall(r"errorstat_(\w+):count=(\d+)", raw.ok("INFO", "errorstats").decode())
    return {**values, **{f"errors {code}": float(count) for code, count in errors}, IS_UP: 1}


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
    looks = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{QUIET_MINUTES + BUSY_MINUTES}m",
        "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in firing],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [looks]}
    # Prometheus reads YAML, which every JSON is.
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    (directory / "tests.yml").write_text(json.dumps(tests))
    words = [promtool, "test", "rules", "tests.yml"]
    told = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_where_it_should_and_no_other_does(
    make_server: MakeServer, promtool: str, tmp_path: Path, alert: str
) -> None:
    server = make_server()
    raw, listener = server.raw(), Listener(server, channel=b"answers")
    before = _read(raw)
    commands, metric, times = STAGES[alert]
    for command in commands:  # a connection that listens is not blocked by every server
        over = listener if "answers" in command else raw
        over.call(*command.split())
    old_ms = 1 if alert == "LockHeldLong" else 600_000
    wait_until(lambda: _read(raw, old_ms).get(metric, 0) >= LEAST.get(metric, 1), what=f"{metric} to grow")
    after = BROKEN.get(alert) or _read(raw, old_ms)
    if alert != "LockWaitsLong" and "slock_oldest_wait_ms" in after:  # however long it took
        after["slock_oldest_wait_ms"] = 0
    _check(promtool, tmp_path, _series(before, after, times), [alert])


def test_no_alert_fires_where_locks_are_taken_waited_for_and_released(
    make_server: MakeServer, promtool: str, tmp_path: Path
) -> None:
    server = make_server()
    raw, listener = server.raw(), Listener(server, channel=b"answers")
    before = _read(raw)
    for command in (HELD, f"SLOCK.LOCK k c {HOUR}", NOTIFIED.format("b"), "SLOCK.UNLOCK k a"):
        listener.call(*command.split())
    assert listener.fence(b"b")
    assert raw.ok("SLOCK.UNLOCK", "k", "b") == 1
    _check(promtool, tmp_path, _series(before, _read(raw), 1000), [])
