"""Metrics of OpenTelemetry from the hooks. Without the package it prints them: it need not be installed.

python opentelemetry_hooks.py --port 6379
"""

from __future__ import annotations

import argparse
from typing import Any

import redis

import slock_client

try:
    from opentelemetry import metrics
except ImportError:
    metrics = None


class Printed:
    """Stands for an instrument of OpenTelemetry."""

    def __init__(self, name: str) -> None:
        self._name = name

    def record(self, value: float, attributes: dict[str, str]) -> None:
        print(self._name, attributes)

    def add(self, value: int, attributes: dict[str, str]) -> None:
        print(self._name, attributes)


def hooks() -> slock_client.Hooks:
    """Hooks that record how long waits and holds took, and count what went wrong."""
    meter: Any = metrics.get_meter("slock_client") if metrics else None
    waits = meter.create_histogram("slock.wait", "s") if meter else Printed("slock.wait")
    holds = meter.create_histogram("slock.hold", "s") if meter else Printed("slock.hold")
    problems = meter.create_counter("slock.problems") if meter else Printed("slock.problems")

    def waited(label: str, duration: float, outcome: str) -> None:
        waits.record(duration, {"lock": label, "outcome": outcome})

    def held(label: str, duration: float) -> None:
        holds.record(duration, {"lock": label})

    return slock_client.Hooks(
        waited=waited,
        held=held,
        lost=lambda label, error: problems.add(1, {"lock": label, "problem": error.reason}),
        renewal_failed=lambda label, error: problems.add(1, {"lock": label, "problem": "renewal failed"}),
        release_failed=lambda label, error: problems.add(1, {"lock": label, "problem": "release failed"}),
    )


def main(port: int) -> None:
    locks = slock_client.Locks(redis.Redis(port=port), hooks=hooks())
    with locks, locks.write("example:report", label="report"):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=6379)
    main(parser.parse_args().port)
