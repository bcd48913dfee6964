"""UPGRADE and DOWNGRADE, with and without waiting. Their rules are proved in the core."""

from __future__ import annotations

import pytest

from harness import RawConnection, digest
from harness.causes import BRIEF, KEY
from harness.waiting import HOUR, Line, serve_in_order, wait_unblocked


def _readers(line: Line, *tokens: str) -> dict[str, int]:
    return {token: line.locks.rlock(KEY, token, HOUR) for token in tokens}


@pytest.mark.parametrize(("take", "change"), [("RLOCK", "UPGRADE"), ("LOCK", "DOWNGRADE")])
def test_the_mode_changes_in_one_step(line: Line, raw: RawConnection, take: str, change: str) -> None:
    old = raw.ok(f"SLOCK.{take}", KEY, "a", HOUR, "META", "m")
    fence = raw.ok(f"SLOCK.{change}", KEY, "a", 2 * HOUR)
    assert fence > old and (line.locks.check(KEY, old), line.locks.check(KEY, fence)) == (0, 1)
    info = line.info()
    expected = ("write", 0) if change == "UPGRADE" else ("read", 1)
    assert (info.mode, info.readers, info.fence) == (*expected, fence)
    assert [(h.token, h.fence, h.meta) for h in info.holders] == [(b"a", fence, b"m")]
    assert line.locks.pttl(KEY, "a") > HOUR
    assert raw.ok(f"SLOCK.{change}", KEY, "a", 3 * HOUR) == fence, "in the mode that it has: a refresh"
    assert raw.ok(f"SLOCK.{change}", KEY, "a", 5000, "FENCE", old) == fence, "and it ends no earlier for it"
    assert line.locks.pttl(KEY, "a") > 2 * HOUR and line.info().holders[0].meta == b"m"


def test_an_upgrade_waits_for_the_other_readers_in_front_of_the_queue(line: Line, raw: RawConnection) -> None:
    fences = _readers(line, "a", "b")
    queued = [line.write("w"), line.read("r")]
    before = digest(line.client, KEY)
    assert line.locks.upgrade(KEY, "a", HOUR) == 0 and digest(line.client, KEY) == before
    upgrade = line.upgrade("a", wait=HOUR)
    assert line.queued() == ["a", "w", "r"]
    assert (line.info().queue[0].mode, line.info().queue[0].timeout_ms) == ("upgrade", HOUR)
    assert raw.error("SLOCK.UPGRADE", KEY, "b", HOUR, "WAIT", 0).startswith("DEADLOCK ")
    assert raw.error("SLOCK.UPGRADE", KEY, "new", HOUR, "WAIT", 0).startswith("NOTHELD ")
    assert upgrade.is_waiting() and line.locks.check(KEY, fences["a"]) == 1, "it still reads"
    line.locks.extend(KEY, "b", BRIEF)
    assert upgrade.fence() > max(fences.values()) and line.locks.check(KEY, fences["a"]) == 0
    assert (line.info().mode, line.holders(), line.queued()) == ("write", ["a"], ["w", "r"])
    line.release("a")
    serve_in_order(line, queued)


@pytest.mark.parametrize("lose", [f"SLOCK.EXTEND {KEY} a {BRIEF}", f"DEL {KEY}", f"SET {KEY} text"])
def test_an_upgrader_that_loses_its_read_hold_is_told(line: Line, lose: str) -> None:
    _readers(line, "a", "b")
    upgrade, reader = line.upgrade("a"), line.read("r")
    line.client.execute_command(*lose.split())
    if lose.startswith("SET"):
        assert upgrade.error().startswith("WRONGTYPE ") and reader.error().startswith("WRONGTYPE ")
    else:
        assert upgrade.error().startswith("NOTHELD ") and reader.fence()
    wait_unblocked(line.client)
