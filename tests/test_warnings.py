"""The libraries warn of the same thing by the same text: that of the table of docs/troubleshooting.md."""

from __future__ import annotations

import re

import pytest

from harness.docs import DOCS, sections, table
from harness.settings import REPOSITORY

SOURCES = {
    "python": ("src", ".py"),
    "go": (".", ".go"),
    "rust": ("src", ".rs"),
    "node": ("src", ".ts"),
    "java": ("core/src/main", ".java"),
}
WARNINGS = [
    text
    for cells in table(sections(DOCS / "troubleshooting.md")["Warnings of a library"])
    for text in re.findall(r"`([^`]+)`", cells[0])
]


@pytest.mark.parametrize("library", SOURCES)
def test_a_library_warns_by_the_texts_of_the_table(library: str) -> None:
    folder, ending = SOURCES[library]
    paths = (REPOSITORY / "clients" / library / folder).rglob(f"*{ending}")
    text = "\n".join(path.read_text() for path in paths if "_test" not in path.name)
    assert len(WARNINGS) >= 5
    assert not [warning for warning in WARNINGS if warning not in text]
