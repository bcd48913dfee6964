"""Tests that are known to fail with a language.

Each entry is strict: a test that passes has to be taken off the list.
"""

from __future__ import annotations

import pytest

# Why, with which of them, and the tests that show it.
KNOWN: list[tuple[str, set[str], list[str]]] = [
    (
        "a client that can connect: its time limit is also that of the login",
        {"rueidis", "valkey-go"},
        ["replies take longer than the time limit of the program's client"],
    ),
]


def marks(language: str, test: str) -> list[pytest.MarkDecorator]:
    """The mark of a test that is known to fail with this language."""
    reasons = [reason for reason, languages, tests in KNOWN if language in languages and test in tests]
    text = "it lacks {}. If it passes now, take it off the list in driver/known.py"
    return [pytest.mark.xfail(strict=True, reason=text.format(reason)) for reason in reasons]
