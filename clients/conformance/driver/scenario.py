"""The table of scenarios, as `scenarios.json` has it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import rounds

TABLE = Path(__file__).resolve().parents[1] / "scenarios.json"

Step = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """One row of the table. The README says what the fields mean."""

    name: str
    steps: list[Step]
    world: str = "shared"
    open: dict[str, Any] = field(default_factory=dict)
    proxy: bool = False
    waiting: list[str] = field(default_factory=list)
    own_agent: bool = False
    thorough: bool = False

    @property
    def waitings(self) -> list[str | None]:
        """Ways of waiting with which it is played; None is the library's default."""
        return list(self.waiting) or [None]


def scenarios() -> list[Scenario]:
    with TABLE.open() as table:
        rows = [Scenario(**row) for row in json.load(table)]
    names = [row.name for row in rows]
    assert len(set(names)) == len(names), "two scenarios have one name"
    return [row for row in rows if not row.thorough or rounds(0, 1)]
