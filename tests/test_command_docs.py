"""What the server knows of each command, and what follows from its flags.

The table itself stands in src/commands/mod.rs, and tests/test_docs.py compares it with the pages.
"""

from __future__ import annotations

import re

import pytest

from harness import Locks, MakeServer, RawConnection, Server
from harness.commands import INTERNAL, NAMES, as_text, commands
from harness.many import many
from harness.waiting import HOUR, Line

WITHOUT_KEYS = {"slock.queues"}
# It changes who waits, and no data.
NO_WRITE = {"slock.cancel"}
each_command = pytest.mark.parametrize("name", [name for name in NAMES if name != INTERNAL])


@each_command
def test_the_flags_agree_with_the_description(server: Server, name: str) -> None:
    command = commands(server)[name]
    docs, flags = command.docs, command.flags
    assert (("write" in flags) != ("readonly" in flags)) == (name not in NO_WRITE)
    assert command.options & {"WAIT", "NOTIFY"} == ({"WAIT", "NOTIFY"} if "blocking" in flags else set())
    assert ("denyoom" in flags) == ("blocking" in flags), "what may wait is what takes memory"
    assert docs["module"] == "slock" and re.fullmatch(r"\d+\.\d+\.\d+", docs["since"])
    assert re.fullmatch(r".{10,}\.", docs["summary"]) and docs["complexity"].startswith("O(")
    keys = [arg["key_spec_index"] for arg in docs["arguments"] if arg["type"] == "key"]
    assert keys == ([] if name in WITHOUT_KEYS else [0])


@each_command
def test_the_key_specification_finds_the_keys_of_a_call(
    server: Server, raw: RawConnection, name: str
) -> None:
    command = commands(server)[name]
    if name in WITHOUT_KEYS:
        assert command.info[8] == []
        return
    (spec,) = command.info[8]
    access = "RO" if "readonly" in command.flags else "RW"
    assert access in spec["flags"]
    assert spec["find_keys"]["type"] == ("keynum" if command.takes_many else "range")
    keys = ["K", "J", "L"] if command.takes_many else ["K"]
    assert as_text(raw.ok("COMMAND", "GETKEYS", *command.call(*keys))) == keys
    described = as_text(raw.ok("COMMAND", "GETKEYSANDFLAGS", *command.call(*keys)))
    assert [key for key, _ in described] == keys and all(access in how for _, how in described)


def test_a_call_that_names_too_few_keys_has_none(raw: RawConnection) -> None:
    for count in (0, -1, 4, 1025, "x"):
        assert raw.error("COMMAND", "GETKEYS", "SLOCK.MLOCK", count, "a", "t", 1).startswith("ERR ")


def test_the_internal_command_is_described_as_such(server: Server) -> None:
    raw = server.raw(protocol=3)
    assert "internal" in as_text(raw.ok("COMMAND", "DOCS", INTERNAL))[INTERNAL]["summary"].lower()
    assert raw.ok("COMMAND", "GETKEYS", INTERNAL, "k", "anything") == [b"k"]


def test_on_a_full_server_everything_but_a_new_lock_works(make_server: MakeServer) -> None:
    """What takes memory is refused, and what gives it back never is."""
    line = Line(make_server(maxmemory_policy="noeviction"), "w2")
    raw, locks = line.server.raw(), Locks(line.client)
    for key in ("w1", "w2", "w3"):
        fence = locks.lock(key, "me", HOUR)
    for key in ("r1", "r2"):
        locks.rlock(key, "me", HOUR)
    waiting = line.write("next")
    line.client.config_set("maxmemory", 1)
    taking = {name: command for name, command in commands(line.server).items() if "denyoom" in command.flags}
    assert {*taking} == {f"slock.{name}" for name in ("lock", "rlock", "mlock", "mrlock", "upgrade")}
    for command in taking.values():
        for options in ((), ("WAIT", 0)):
            assert raw.error(*command.call("new"), *options).startswith("OOM "), command.name
    assert locks.extend("w1", "me", HOUR) == 1 == raw.ok(*many("MEXTEND", "w1 r1", "me", HOUR))
    assert locks.pttl("w1", "me") > 0 and locks.check("w3", fence) == 1
    assert locks.full("w1").mode == "write" and raw.ok(*many("MPTTL", "w1 r1", "me")) > 0
    assert locks.downgrade("w3", "me", HOUR)
    assert locks.unlock("w2", "me") == 1 and waiting.fence(), "who waited before is granted"
    assert locks.unlock("w2", "next") == locks.unlock("w1", "me") == locks.runlock("r1", "me") == 1
    assert raw.ok(*many("MUNLOCK", "w3 r2", "me")) == 2
    assert line.client.dbsize() == 0
