"""What operators look at shows what clients have sent, and nothing that the module has asked the server.

That is SLOWLOG and COMMANDLOG, INFO commandstats, total_commands_processed and MONITOR.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from harness import MakeServer, RawConnection, RespError, Server, now_ms, wait_past
from harness.bound import hang_up, take_bound
from harness.connection_state import ConnectionState
from harness.many import many
from harness.notify import NotifiedClient
from harness.waiting import HOUR, Line, at_once

# The beginning of a command as it is sent: its name and its first argument.
_SENT = re.compile(rb"\*\d+\r\n\$\d+\r\n([^\r\n]+)\r\n(?:\$\d+\r\n([^\r\n]*)\r\n)?")
_WITH_SUBCOMMANDS = {b"acl", b"client", b"cluster", b"commandlog", b"config", b"pubsub", b"slowlog"}
LISTENERS = "pubsub|shardnumsub"

LOGS = ["slowlog-log-slower-than", "commandlog-execution-slower-than"]


def _name(words: list[bytes]) -> str:
    """The name of a command as commandstats shows it."""
    lower = [word.lower() for word in words[:2]]
    return b"|".join(lower if lower[0] in _WITH_SUBCOMMANDS else lower[:1]).decode()


def _logs(raw: RawConnection) -> list[list[list[bytes]]]:
    """The words of what SLOWLOG has kept, and COMMANDLOG if there is one."""
    replies = [raw.ok("SLOWLOG", "GET", -1), raw.call("COMMANDLOG", "GET", -1, "slow")]
    return [[entry[3] for entry in reversed(log)] for log in replies if not isinstance(log, RespError)]


def _fields(raw: RawConnection, section: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in raw.ok("INFO", section).decode().splitlines() if ":" in line)


def _calls(raw: RawConnection) -> tuple[Counter[str], Counter[str]]:
    """How often each command has been called, and how often rejected."""
    stats = {name.removeprefix("cmdstat_"): value for name, value in _fields(raw, "commandstats").items()}
    numbers = {name: dict(part.split("=") for part in value.split(",")) for name, value in stats.items()}
    calls, rejected = (
        {name: int(one[of]) for name, one in numbers.items()} for of in ("calls", "rejected_calls")
    )
    return Counter(calls), Counter(rejected)


class Traces:
    """What all clients send from `begin` on, and what the server shows of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: Counter[str] = Counter()
        note = ConnectionState.note

        def count(state: ConnectionState, data: bytes) -> None:
            self.sent.update(_name([word for word in words if word]) for words in _SENT.findall(data))
            note(state, data)

        monkeypatch.setattr(ConnectionState, "note", count)

    def begin(self, server: Server) -> None:
        self.raw, self.monitor = server.raw(), server.raw()
        self.sent.clear()
        at_once(server, ("CONFIG", "RESETSTAT"), ("CONFIG", "SET", "hz", 10), ("SLOWLOG", "RESET"))
        self.raw.ok("CONFIG", "SET", "slowlog-max-len", 100_000)
        for name in LOGS:
            self.raw.call("CONFIG", "SET", name, 0)
        assert self.monitor.ok("MONITOR") == b"OK"

    def check(self) -> None:
        """The server shows what was sent, and no more."""
        expected = self.sent.copy()
        calls, rejected = _calls(self.raw)
        if self.sent["ssubscribe"]:  # there is no other way to ask who listens
            assert calls[LISTENERS] > 0
            expected[LISTENERS] = calls[LISTENERS]
        assert calls + rejected == expected
        calls, _ = _calls(self.raw)
        # A command is counted when it has run, as the INFO of the line before has by now.
        assert int(_fields(self.raw, "stats")["total_commands_processed"]) == calls.total() + 1
        self.raw.ok("ECHO", "the end")
        shown = []
        while b"the end" not in (line := self.monitor.read()):
            shown.append([word.strip(b'"') for word in line.split(b"] ", 1)[1].split(b" ")])
        for log in (shown, *_logs(self.raw)):
            names = Counter(map(_name, log))
            assert names["slock.lock"] and not names - (expected + self.sent)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    return Traces(monkeypatch)


def _load(server: Server, traces: Traces) -> None:
    """Locks of all kinds: waiting, time-outs, grants, expiry."""
    line, raw = Line(server, "k"), server.raw()
    assert raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    waiting = [line.write("b"), line.read("c"), line.read("d")]
    assert line.write("brief", wait=20).reply() == 0
    withdrawn = line.write("withdrawn")
    assert NotifiedClient.for_write(server, "k", "told", 20).reply() == 0
    told = NotifiedClient.for_write(server, "k", "told")
    assert raw.ok("SLOCK.CANCEL", "k", "withdrawn") == 1 and withdrawn.reply() == 0
    assert raw.ok("SLOCK.UNLOCK", "k", "a") == 1 and waiting[0].fence()
    assert raw.ok("SLOCK.CANCEL", "k", "told") == 1 and told.reply() == 0
    assert raw.ok("SLOCK.EXTEND", "k", "b", 20) == 1
    assert all(reader.fence() for reader in waiting[1:])
    bound = take_bound(server, key="bound")
    assert raw.ok(*many("MLOCK", "p q", "a", 20))
    several = line.ask("e", *many("MLOCK", "bound p", "e", HOUR, "WAIT", 0))
    hang_up(server, bound)
    assert several.fence()
    assert raw.error("SLOCK.LOCK", "k", "c", HOUR) and raw.error("SLOCK.LOCK", "k", "c")
    assert raw.pipeline([("MULTI",), ("SLOCK.LOCK", "m", "a", 20), ("EXEC",)])[-1]
    assert raw.ok("EVAL", "return redis.call('SLOCK.LOCK', KEYS[1], 'a', 20)", 1, "s")
    traces.sent["slock.lock"] += 1  # which the server counts, too
    wait_past(line.client, now_ms(line.client) + 20)
    assert raw.ok("SLOCK.QUEUES") == [b"0", []] and raw.ok("SLOCK.INFO", "k", "FULL")
    for number in range(3):
        raw.ok("CONFIG", "SET", "slock.max-waiters", 100 + number, "maxmemory-policy", "noeviction")
    raw.ok("FLUSHALL")


def test_a_load_of_locks_shows_no_command_of_the_module(make_server: MakeServer, traces: Traces) -> None:
    server = make_server()
    for _ in range(2):
        traces.begin(server)
        _load(server, traces)
        traces.check()


def test_a_start_leaves_what_the_start_of_a_bare_server_leaves(make_server: MakeServer) -> None:
    def words(module: bool) -> set[tuple[bytes, ...]]:
        server = make_server(module=module, slowlog_log_slower_than=0, appendonly=True)
        return {tuple(words) for words in _logs(server.raw())[0]}

    assert words(True) == words(False)
