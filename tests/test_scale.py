"""docs/scale.md has the figures that bench/scale.py computes from the counts of the repository."""

from __future__ import annotations

import sys

import pytest

from harness.settings import REPOSITORY


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch):  # noqa: ANN201 - a module
    monkeypatch.setattr(sys, "path", [*sys.path, str(REPOSITORY / "bench")])
    return __import__("scale")


def test_the_page_has_what_is_computed(scale) -> None:  # noqa: ANN001
    text = scale.PAGE.read_text()
    assert scale.with_tables(text) == text, "run .venv/bin/python bench/scale.py"


def test_more_instructions_calls_or_bytes_carry_less(
    scale,  # noqa: ANN001
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = scale.Model()
    counted, calls, sizes = scale.instructions(), scale.system_calls(), scale.bytes_of()
    monkeypatch.setattr(scale, "instructions", lambda: {case: 2 * n for case, n in counted.items()})
    monkeypatch.setattr(scale, "system_calls", lambda: {case: 2 * n for case, n in calls.items()})
    monkeypatch.setattr(scale, "bytes_of", lambda: {what: 2 * n for what, n in sizes.items()})
    after = scale.Model()
    assert after.rate(scale.ONE) == pytest.approx(before.rate(scale.ONE) / 2)
    held = next(row for row in scale.shards(after) if row[0] == "locks held")
    assert held[1] == scale.rounded(scale.MEMORY / (2 * sizes["lock"]))
