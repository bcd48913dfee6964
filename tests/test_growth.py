"""docs/costs.md has what bench/growth.py measures, docs/scale.md what bench/scale.py computes."""

from __future__ import annotations

import importlib

import pytest

from harness import Server
from harness.commands import as_text
from harness.settings import REPOSITORY


def test_each_command_is_measured_and_in_the_table(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new command needs cases in bench/growth_operations.py, and a row."""
    monkeypatch.syspath_prepend(REPOSITORY / "bench")
    operations, measured = (importlib.import_module(f"growth_{name}") for name in ("operations", "measured"))
    with server.raw() as raw:
        listed = {name.upper() for name in as_text(raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock"))}
    assert listed == {f"SLOCK.{name}" for name in operations.COMMANDS}
    names = [str(operation) for operation in operations.OPERATIONS]
    assert len(names) == len({*names}), "no two are told alike"
    rows = measured.rows()
    assert {name for row in rows for name in row.operations} == {one.name for one in operations.OPERATIONS}
    assert {crowd for row in rows for crowd in row.crowds} <= measured.CROWDS.keys()


def test_the_page_about_scale_has_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "bench")
    scale = importlib.import_module("scale")
    text = scale.PAGE.read_text()
    assert scale.with_tables(text) == text, "run .venv/bin/python bench/scale.py"
