"""SLOCK.QUEUES: for which names somebody waits, and for how long."""

from __future__ import annotations

import random
from typing import Any

from conftest import Pair
from harness import RawConnection, Server, wait_synced, wait_until
from harness.locks import as_dict
from harness.many import many
from harness.queues import Queues
from harness.waiting import HOUR, Line, at_once

FIELDS = ["key", "waiters", "writers", "longest_wait_ms", "next", "mode", "readers", "held_ms"]


def queues(raw: RawConnection, *words: object) -> list[dict[str, Any]]:
    """The first page."""
    entries = [as_dict(entry) for entry in raw.ok("SLOCK.QUEUES", *words)[1]]
    assert all(list(entry) == FIELDS for entry in entries)
    return entries


def names(raw: RawConnection, *words: object) -> list[str]:
    return [entry["key"].decode() for entry in queues(raw, *words)]


def walk(raw: RawConnection, count: int) -> list[bytes]:
    """The names on all pages of so many, each of which must be there once."""
    found, cursor = [], b"0"
    while True:
        cursor, page = raw.ok("SLOCK.QUEUES", "COUNT", count, "CURSOR", cursor)
        assert len(page) == count or cursor == b"0"
        found += [as_dict(entry)["key"] for entry in page]
        if cursor == b"0":
            assert len(set(found)) == len(found)
            return found


def test_what_is_shown_is_what_info_shows_of_each_name(server: Server) -> None:
    """Each database shows its own. A request for several names stands at each, the longest wait first."""
    line, elsewhere, raw, chance = Queues(server), Line(server, database=1), server.raw(), random.Random(10)
    held = ["\0\xff", *(f"n{number}" for number in range(12))]
    for name in held:
        kind = chance.choice(["write", "read"])
        for number in range(1 if kind == "write" else 2):
            (line.locks.lock if kind == "write" else line.locks.rlock)(name, f"h{number}", HOUR)
    elsewhere.locks.lock("k", "h", HOUR)
    elsewhere.write("w")
    waiting = []
    for number in range(60):
        some = chance.sample(held, 1 if chance.random() < 0.8 else 3)
        command = "MLOCK" if chance.random() < 0.6 else "MRLOCK"
        waiting.append(line.ask(f"t{number}", *many(command, some, f"t{number}", HOUR, "WAIT", 0)))
    line.ask("h0", "SLOCK.UPGRADE", _read_by_several(line, held), "h0", HOUR, "WAIT", 0)
    for leaver in waiting[::4]:
        line.client.client_unblock(leaver.id)
        leaver.reply()  # 0, unless it was granted before
    shown = queues(raw, "COUNT", 0)
    assert walk(raw, 3) == [entry["key"] for entry in shown]
    assert names(raw, "count", 1) == names(raw, "COUNT", 2**63 - 1)[:1]
    expected = {name: info for name in held if (info := line.info(name)) and info.queue}
    assert {entry["key"] for entry in shown} == {name.encode() for name in expected}
    assert [entry["longest_wait_ms"] for entry in shown] == sorted(
        (entry["longest_wait_ms"] for entry in shown), reverse=True
    )
    for entry in shown:
        info = expected[entry.pop("key").decode()]
        waits = [one.waiting_ms for one in info.queue]
        assert 0 <= max(waits) - entry.pop("longest_wait_ms") < 2000
        assert 0 <= max(one.held_ms for one in info.holders) - entry.pop("held_ms") < 2000
        assert entry == {
            "waiters": len(info.queue),
            "writers": sum(one.mode != "read" for one in info.queue),
            "next": info.queue[0].token,
            "mode": info.mode.encode(),
            "readers": info.readers,
        }


def test_held_ms_is_of_the_oldest_hold(server: Server) -> None:
    line = Line(server)
    line.locks.rlock("k", "old", HOUR)
    wait_until(lambda: line.info().holders[0].held_ms > 50, what="the first hold to be older than the next")
    line.locks.rlock("k", "new", HOUR)
    line.write("w")
    old, new = line.info().holders
    (shown,) = queues(server.raw())
    assert shown["held_ms"] >= old.held_ms > new.held_ms


def _read_by_several(line: Line, held: list[str]) -> str:
    return next(name for name in held if line.info(name).readers > 1)


# --- who sees it, and where


def _crowd(line: Line) -> list[str]:
    """Names at which somebody waits, in the order of arrival."""
    crowd = ["b:1", "a:1", "c:1", "a:2", "b:2", *(f"b:{number}" for number in range(3, 15)), "a:3"]
    for name in crowd:
        line.locks.lock(name, "holder", HOUR)
        line.ask(f"w:{name}", "SLOCK.LOCK", name, f"w:{name}", HOUR, "WAIT", 0)
    return crowd


RULES = {"~a:*": "a:", "%R~a:*": "a:", "%R~a:* %W~*": "a:", "(+slock.info ~a:*)": "a:", "~*": "", "": None}
RULES |= {"%W~a:*": None, "%R~none:*": None, "(+get ~a:*)": None, "-slock.info ~a:*": None}


def test_a_user_sees_the_names_on_which_he_may_run_info(server: Server) -> None:
    """COUNT counts what is shown, and an error names nothing that is not."""
    line, control = Line(server), server.raw()
    crowd = _crowd(line)
    try:
        for rules, prefix in RULES.items():
            may = [name for name in crowd if prefix is not None and name.startswith(prefix)]
            rights = ["+slock.queues", "+multi", "+exec", "+slock.info"]
            control.ok("ACL", "SETUSER", "app", "reset", "on", "nopass", *rights)
            control.ok("ACL", "SETUSER", "app", *([rules] if rules[:1] == "(" else rules.split()))
            with server.raw() as app:
                app.ok("AUTH", "app", "any")
                assert names(app, "COUNT", 0) == may and names(app) == may[:10], rules
                assert names(app, "COUNT", 2) == may[:2]
                ((_, reply),) = app.pipeline([("MULTI",), ("SLOCK.QUEUES",), ("EXEC",)])[-1]
                assert [as_dict(entry)["key"].decode() for entry in reply] == may[:10]
                for bad in ("COUNT", "COUNT -1", "a:1", "COUNT 1 COUNT 1", "CURSOR", "CURSOR x", "CURSOR -1"):
                    told = app.error("SLOCK.QUEUES", *bad.split())
                    assert told.startswith("ERR ") and not any(name in told for name in {*crowd} - {bad}), (
                        told
                    )
                control.ok("ACL", "SETUSER", "app", "-slock.queues", "clearselectors")
                assert app.error("SLOCK.QUEUES").startswith("NOPERM ")
    finally:
        control.ok("ACL", "DELUSER", "app")


def test_it_is_a_flat_array_in_resp2_and_a_map_in_resp3(server: Server) -> None:
    line, old, new = Line(server), server.raw(), server.raw(protocol=3)
    assert old.ok("SLOCK.QUEUES") == [b"0", []] == new.ok("SLOCK.QUEUES", "COUNT", 0)
    line.locks.rlock("k", "holder", HOUR)
    line.write("w")
    (_, (array,)), (_, (mapping,)) = old.ok("SLOCK.QUEUES"), new.ok("SLOCK.QUEUES")
    assert isinstance(array, list) and isinstance(mapping, dict) and array[::2] == list(mapping)
    assert [type(value) for value in mapping.values()] == [bytes, int, int, int, bytes, bytes, int, int]


def test_in_a_transaction_but_not_in_a_script(server: Server) -> None:
    line, raw = Line(server), server.raw()
    line.locks.lock("k", "holder", HOUR)
    line.write("w")
    # The request of a transaction is not in the queue, and what it frees is served at its end.
    inside = [("SLOCK.QUEUES",), ("SLOCK.UNLOCK", "k", "holder"), ("SLOCK.QUEUES",)]
    (_, first), released, (_, second) = at_once(server, ("MULTI",), *inside, ("EXEC",))[-1]
    assert released == 1
    assert [as_dict(*reply)["mode"] for reply in (first, second)] == [b"write", b"free"]
    wait_until(lambda: names(raw) == [], what="the grant")
    for call in ("redis.call", "redis.pcall"):
        text = raw.error("EVAL", f"return {call}('SLOCK.QUEUES')", 0)
        assert "not allowed from script" in text


def test_a_replica_shows_nothing(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    line = Line(primary)
    crowd = _crowd(line)
    wait_synced(primary, replica)
    assert names(primary.raw(), "COUNT", 0) == crowd
    there = replica.raw()
    assert there.ok("SLOCK.INFO", "c:1") and there.ok("SLOCK.QUEUES", "COUNT", 0) == [b"0", []]
