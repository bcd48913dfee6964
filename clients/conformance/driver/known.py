"""Tests that are known to fail, because libraries have not moved to the contract of today.

Each entry is strict: a test that passes has to be taken off the list. To move a library, take it out of
`FORMER`.
"""

from __future__ import annotations

import pytest

FORMER = {"python-asyncio", "python-sync"}

# What is missing, in which of them, and the tests that show it.
KNOWN: list[tuple[str, set[str], list[str]]] = [
    (
        "release",
        FORMER,
        [
            "each hold has a fence and a token of its own",
            "a hold is detached, and adopted elsewhere",
            "release from elsewhere, in either mode",
            "the server restarts empty during a hold",
            "a hold without renewal ends at its ttl",
            "a hold is deleted after its last renewal",
            "another type takes the name under a hold",
            "one of many keys is deleted under a hold",
            "the process is stopped past the ttl",
            "holds without a watchdog cost no task",
        ],
    ),
    (
        "NoAnswer",
        FORMER,
        [
            "a server that refuses writes is waited for",
            "a server that was there stays away",
            "a server that was never there",
            "a server that is silent",
            "an outage while it waits",
            "the program's client has no time limit and the server is silent",
            "a request reaches the server after it was given up",
        ],
    ),
    (
        "one end",
        FORMER,
        [
            "cancelled while an upgrade waits",
            "quorum: a node that is asked again does not hold until it grants",
            "quorum: the majority has lost the hold",
        ],
    ),
    ("REFUSED", FORMER, ["a token that was revoked"]),
    ("permissions", FORMER, ["a user with the commands for one key and no channels"]),
    ("tag", FORMER - {"python-sync"}, ["a tenant forges a grant"]),
    (
        "asking again",
        FORMER - {"python-sync"},
        [
            "a message is lost",
            "a request whose process is dead leaves the queue, though its channel has a subscriber",
        ],
    ),
    ("info", FORMER, ["who holds, and what is waited for", "a wait that is over names who holds the lock"]),
    ("info", FORMER & {"rust"}, ["info lists all holders"]),
    ("metadata", FORMER, ["without metadata, host and process are shown"]),
    ("max hold", FORMER, ["the maximum hold time ends"]),
    ("at_least", FORMER, ["a release before at_least"]),
    ("keys of a loss", FORMER, ["the key is deleted under a hold"]),
    ("prefix", FORMER, ["a prefix is put before each key", "test_a_prefix_in_a_cluster"]),
    ("empty names", FORMER, ["wrong options are refused before anything is sent"]),
    ("program's client", FORMER, ["the program's pool is full"]),
    (
        "password_file",
        FORMER,
        ["the password changes, and the program knows it at once or a second later"],
    ),
    (
        "second change",
        FORMER & {"rust"},
        ["a second change of mode while one is open is refused at once"],
    ),
    ("Lost", FORMER & {"rust"}, ["an upgrade of a hold that is gone"]),
    ("closed", FORMER - {"python-sync"}, ["close releases nothing"]),
    ("close", FORMER, ["close can release what is held"]),
    (
        "a client that can connect: its time limit is also that of the login",
        {"rueidis", "valkey-go"},
        ["replies take longer than the time limit of the program's client"],
    ),
    ("memory", FORMER, ["memory: a write lock excludes writers and readers"]),
    ("failover", FORMER, ["test_a_planned_failover"]),
    ("failover", FORMER - {"rust"}, ["test_a_primary_without_replicas_is_left"]),
]


def marks(language: str, test: str) -> list[pytest.MarkDecorator]:
    """The mark of a test that is known to fail with this language."""
    reasons = [reason for reason, languages, tests in KNOWN if language in languages and test in tests]
    text = "it lacks {}. If it passes now, take it off the list in driver/known.py"
    return [pytest.mark.xfail(strict=True, reason=text.format(reason)) for reason in reasons]
