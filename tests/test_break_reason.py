"""`slock break --reason`, `SLOCK.MUNLOCK … REASON`: the log says who ended which lease, and why."""

from __future__ import annotations

import re

from harness import ReplicationStream, Server
from harness.cli import Cli
from harness.waiting import HOUR


def _lines(server: Server) -> list[str]:
    return re.findall(r"\* <slock> (user .* ended .*)", server.log())


def test_the_log_has_user_key_fence_and_reason(server: Server) -> None:
    raw, before = server.raw(), _lines(server)
    raw.ok("ACL", "SETUSER", "ops", "on", ">secret", "~*", "+@all")
    fences = {key: raw.ok("SLOCK.LOCK", key, "alice", HOUR) for key in ("job", "other")}
    cli = Cli(f"redis://ops:secret@127.0.0.1:{server.port}")
    assert cli("break", "--yes", "other").returncode == 0
    assert cli("break", "--yes", "--reason", "stuck é since the deploy", "job").returncode == 0
    shown = f'user "ops" ended the lease of "job" with fencing token {fences["job"]}'
    assert _lines(server) == [*before, f'{shown}: "stuck é since the deploy"']
    assert cli("break", "--yes", "--reason", "x" * 257, "job").returncode == 2
    # Nobody has it now, so nothing is ended.
    assert raw.ok("SLOCK.MUNLOCK", 1, "job", "alice", "FENCE", fences["job"], "REASON", "again") == 0
    assert len(_lines(server)) == len(before) + 1


def test_a_reason_can_neither_forge_a_line_nor_hide_one(server: Server) -> None:
    raw, before = server.raw(), len(_lines(server))
    for key, reason, shown in [
        ("k", b"a\n* <slock> forged\x1b[2J\x00\xff", r'"a\n* <slock> forged\u{1b}[2J\0' + '\ufffd"'),
        ("\u202e%s" + "k" * 1000, b"%s%n", '"%s%n"'),
        ("k", b"\x01" * 256, '"' + r"\u{1}" * 51 + '"...'),
    ]:
        fence = raw.ok("SLOCK.LOCK", key, "t", HOUR)
        assert raw.ok("SLOCK.MUNLOCK", 1, key, "t", "FENCE", fence, "REASON", reason) == 1
        assert f"fencing token {fence}: " in _lines(server)[-1]
        assert _lines(server)[-1].split(f"{fence}: ")[1].startswith(shown)
    assert len(_lines(server)) == before + 3
    assert "\u202e" not in server.log() and r"\u{202e}%skkk" in server.log()


def test_replicas_and_the_log_of_changes_get_what_they_get_without_it(server: Server) -> None:
    raw, stream = server.raw(), ReplicationStream(server)
    told = []
    for reason in ([], ["REASON", "why"]):
        fence = raw.ok("SLOCK.LOCK", "k", "t", HOUR)
        stream.commands()
        assert raw.ok("SLOCK.MUNLOCK", 1, "k", "t", "FENCE", fence, *reason) == 1
        told.append(stream.commands())
    assert told[0] == told[1] != []
