"""The table of scenarios, as `scenarios.json` has it."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "scenarios.json"

Step = dict[str, Any]


# Commands that the memory transport of a library knows.
_MEMORY = re.compile(r"DEL|SLOCK\.(LOCK|RLOCK|MLOCK|MRLOCK|UNLOCK|RUNLOCK|MUNLOCK|INFO|CANCEL)")
_MEMORY_STEP = re.compile(r"op|await|cancel|handoff|pending|command|info|renewed|valid|repeat")


@dataclass(frozen=True)
class Scenario:
    """One row of the table. The README says what the fields mean."""

    name: str
    steps: list[Step]
    world: str = "shared"
    open: dict[str, Any] = field(default_factory=dict)
    proxy: bool = False
    other: dict[str, str] = field(default_factory=dict)
    own_agent: bool = False

    def in_memory(self) -> Scenario:
        """The same with the memory transport of the library."""
        return dataclasses.replace(self, name=f"memory: {self.name}", world="memory")

    def counts_calls(self) -> bool:
        """Its servers are new then: a command of the scenario before it may arrive after that has ended."""
        return any("calls" in step for step in self.steps)

    def runs_in_memory(self) -> bool:
        is_plain = self.world == "shared" and not (self.proxy or self.own_agent)
        return is_plain and {*self.open} <= {"prefix"} and all(map(_runs_in_memory, self.steps))


def _runs_in_memory(step: Step) -> bool:
    if step.get("op") == "tasks" or "user" in step or ("command" in step and "start" in step):
        return False
    is_known = _MEMORY_STEP.fullmatch(next(iter(step))) and (
        "command" not in step or _MEMORY.fullmatch(step["command"][0])
    )
    return bool(is_known) and all(map(_runs_in_memory, step.get("steps", [])))


def scenarios() -> list[Scenario]:
    with TABLE.open() as table:
        rows = [Scenario(**row) for row in json.load(table)]
    names = [row.name for row in rows]
    assert len(set(names)) == len(names), "two scenarios have one name"
    return rows
