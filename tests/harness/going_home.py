"""A fixture for tests that park clients: `pytest_plugins = ["harness.going_home"]` in their file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.parked import Line, Parked


@pytest.fixture(autouse=True)
def everybody_goes_home() -> Iterator[None]:
    """After each test no client of it waits any more, also when it has failed."""
    yield
    while Parked.every:
        Parked.every.pop().connection.close()
    while Line.every:
        Line.every.pop().client.close()
