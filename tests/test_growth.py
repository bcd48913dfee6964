"""No crowd slows the server: whatever grows with one is in the table of docs/costs.md with its bound.

The long form is bench/growth.py.
"""

from __future__ import annotations

import pytest

from harness import Server
from harness.commands import as_text
from harness.crowd import CROWDS
from harness.growth import LIBRARY, find, rows, unexplained
from harness.operations import COMMANDS, OPERATIONS

# Of the smaller crowd, where it has no size of its own.
SIZE = 200
# Each crowd has every so many operations only, and so each operation every so many crowds.
EVERY = 6

# What grows does so each time it is measured; what else the machine does shows once.
TRIES = 3

ROWS = rows()


def test_each_command_is_measured(server: Server) -> None:
    """A new command needs cases in harness/operations.py."""
    with server.raw() as raw:
        listed = {name.upper() for name in as_text(raw.ok("COMMAND", "LIST", "FILTERBY", "MODULE", "slock"))}
    assert listed == {f"SLOCK.{name}" for name in COMMANDS}
    names = [str(operation) for operation in OPERATIONS]
    assert len(names) == len({*names}), "no two are told alike"


def test_the_table_names_what_is_measured() -> None:
    """Each row of the table is about commands or events that there are, and each of these has a row."""
    measured = {operation.name for operation in OPERATIONS}
    named = {name for row in ROWS for name in row.operations}
    assert named == measured
    said = {crowd for row in ROWS for crowd in row.crowds}
    assert said <= CROWDS.keys(), "the table tells of crowds that are not measured"


@pytest.mark.growth
@pytest.mark.skipif(not LIBRARY.exists(), reason="tests/turn-meter is not built")
@pytest.mark.parametrize("name", CROWDS)
def test_what_grows_with_a_crowd_is_in_the_table(name: str) -> None:
    number = list(CROWDS).index(name)
    operations = [operation for place, operation in enumerate(OPERATIONS) if (place + number) % EVERY == 0]
    for _ in range(TRIES):
        found = unexplained(find(name, operations, SIZE, ROWS), ROWS)
        if not found:
            return
    assert not found, "it grows, and docs/costs.md does not say why:\n" + "\n".join(map(str, found))
