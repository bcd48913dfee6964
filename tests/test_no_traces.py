"""What operators look at shows what clients have sent, and nothing that the module has asked the server.

That is SLOWLOG and COMMANDLOG, INFO commandstats, total_commands_processed and MONITOR.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest

from harness import MakeServer, RawConnection, RespError, Server, now_ms, wait_past, wait_until
from harness.bound import hang_up, take_bound
from harness.causes import commands_of
from harness.connection_state import ConnectionState
from harness.many import many
from harness.notify import NotifiedClient
from harness.settings import free_port
from harness.waiting import HOUR, Line, at_once

# The beginning of a command as it is sent: its name and its first argument.
_SENT = re.compile(rb"\*\d+\r\n\$\d+\r\n([^\r\n]+)\r\n(?:\$\d+\r\n([^\r\n]*)\r\n)?")
_WITH_SUBCOMMANDS = {b"acl", b"client", b"cluster", b"commandlog", b"config", b"pubsub", b"slowlog"}
LISTENERS = "pubsub|shardnumsub"

LOGS = ["slowlog-log-slower-than", "commandlog-execution-slower-than"]
LOGS += ["commandlog-request-larger-than", "commandlog-reply-larger-than"]
KINDS = ["slow", "large-request", "large-reply"]


def _name(words: list[bytes]) -> str:
    """The name of a command as commandstats shows it."""
    lower = [word.lower() for word in words[:2]]
    return b"|".join(lower if lower[0] in _WITH_SUBCOMMANDS else lower[:1]).decode()


def _logs(raw: RawConnection) -> list[list[list[bytes]]]:
    """The words of what each log has kept: of SLOWLOG, and those of COMMANDLOG if there is one."""
    replies = [raw.ok("SLOWLOG", "GET", -1), *(raw.call("COMMANDLOG", "GET", -1, kind) for kind in KINDS)]
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
        for name in LOGS[:2]:
            self.raw.call("CONFIG", "SET", name, 0)
        assert self.monitor.ok("MONITOR") == b"OK"

    def check(self, asked: str = "") -> None:
        """The server shows what was sent, and no more.

        `asked`: what has to be asked meanwhile. It is counted where a command cannot be checked without
        running it: on Redis 7.0.
        """
        expected = self.sent.copy()
        calls, rejected = _calls(self.raw)
        if asked and _fields(self.raw, "server")["redis_version"].startswith("7.0."):
            assert calls[asked] > self.sent[asked]
            expected[asked] = calls[asked]
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
        for log in (shown, *_logs(self.raw)[:2]):
            names = Counter(map(_name, log))
            assert names["slock.lock"] and not names - (expected + self.sent)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    return Traces(monkeypatch)


def _load(server: Server, traces: Traces) -> None:
    """Locks of all kinds: waiting, time-outs, grants, expiry. In a cluster all keys are in one slot."""
    line, raw = Line(server, "{x}k"), server.raw()
    assert raw.ok("SLOCK.LOCK", "{x}k", "a", HOUR)
    waiting = [line.write("b"), line.read("c"), line.read("d")]
    assert line.write("brief", wait=20).reply() == 0
    withdrawn = line.write("withdrawn")
    assert NotifiedClient.for_write(server, "{x}k", "told", 20).reply() == 0
    told = NotifiedClient.for_write(server, "{x}k", "told")
    assert raw.ok("SLOCK.CANCEL", "{x}k", "withdrawn") == 1 and withdrawn.reply() == 0
    assert raw.ok("SLOCK.UNLOCK", "{x}k", "a") == 1 and waiting[0].fence()
    assert raw.ok("SLOCK.CANCEL", "{x}k", "told") == 1 and told.reply() == 0
    assert raw.ok("SLOCK.EXTEND", "{x}k", "b", 20) == 1
    assert all(reader.fence() for reader in waiting[1:])
    bound = take_bound(server, key="{x}bound")
    assert raw.ok(*many("MLOCK", "{x}p {x}q", "a", 20))
    several = line.ask("e", *many("MLOCK", "{x}bound {x}p", "e", HOUR, "WAIT", 0))
    hang_up(server, bound)
    assert several.fence()
    assert raw.error("SLOCK.LOCK", "{x}k", "c", HOUR) and raw.error("SLOCK.LOCK", "{x}k", "c")
    assert raw.pipeline([("MULTI",), ("SLOCK.LOCK", "{x}m", "a", 20), ("EXEC",)])[-1]
    assert raw.ok("EVAL", "return redis.call('SLOCK.LOCK', KEYS[1], 'a', 20)", 1, "{x}s")
    traces.sent["slock.lock"] += 1  # which the server counts, too
    wait_past(line.client, now_ms(line.client) + 20)
    assert raw.ok("SLOCK.QUEUES") == [b"0", []] and raw.ok("SLOCK.INFO", "{x}k", "FULL")
    for number in range(3):
        raw.ok("CONFIG", "SET", "slock.max-waiters", 100 + number, "maxmemory-policy", "noeviction")
    raw.ok("FLUSHALL")


def test_a_load_of_locks_shows_no_command_of_the_module(make_server: MakeServer, traces: Traces) -> None:
    server = make_server()
    for _ in range(2):
        traces.begin(server)
        _load(server, traces)
        traces.check()


def test_nor_does_a_node_of_a_cluster(make_server: MakeServer, traces: Traces) -> None:
    """Redis 7.0 runs and counts the PEXPIREAT that asks whether the node still has the slot."""
    node = make_server(cluster_enabled=True, cluster_port=free_port())
    raw = node.raw()
    raw.ok("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    wait_until(lambda: b"cluster_state:ok" in raw.ok("CLUSTER", "INFO"), what="the cluster")
    traces.begin(node)
    _load(node, traces)
    line = Line(node, "{x}k")
    assert raw.ok("SLOCK.LOCK", line.key, "a", HOUR)
    assert line.write("b", wait=1200).reply() == 0, "meanwhile it is looked after"
    traces.check(asked="pexpireat")


@pytest.mark.parametrize(
    ("setting", "stop", "go_on"),
    [("min-replicas-to-write", 1, 0), ("stop-writes-on-bgsave-error", "yes", "no")],
)
def test_nor_does_a_server_that_refuses_writes(
    make_server: MakeServer, traces: Traces, setting: str, stop: object, go_on: object
) -> None:
    """Redis 7.0 counts the CONFIG GET that asks what the setting is."""
    server = make_server(save="3600 1", stop_writes_on_bgsave_error=False)
    line, raw = Line(server), server.raw()
    if stop == "yes":
        (server.directory / "dump.rdb").mkdir()  # what cannot be replaced by a file
        raw.ok("SET", "changed", 1)
        raw.ok("BGSAVE")
        wait_until(lambda: _fields(raw, "persistence")["rdb_last_bgsave_status"] == "err", what="the failure")
    traces.begin(server)
    assert raw.ok("SLOCK.LOCK", "k", "a", HOUR)
    waiting, brief = line.write("waiting"), line.write("brief", wait=400)
    assert at_once(server, ("SLOCK.EXTEND", "k", "a", 20), ("CONFIG", "SET", setting, stop)) == [1, b"OK"]
    assert brief.reply() == 0 and waiting.is_waiting(), "the deadline has passed meanwhile"
    raw.ok("CONFIG", "SET", setting, go_on)
    assert waiting.fence()
    traces.check(asked="config|get")


def test_a_start_leaves_what_the_start_of_a_bare_server_leaves(make_server: MakeServer) -> None:
    def words(module: bool) -> set[tuple[bytes, ...]]:
        server = make_server(module=module, slowlog_log_slower_than=0, appendonly=True)
        return {tuple(words) for words in _logs(server.raw())[0]}

    assert words(True) == words(False)


# --- the gist of the servers' own tests of these logs

THRESHOLD = "CONFIG SET slowlog-log-slower-than"
SCRIPTS = {
    "what is slow": f"{THRESHOLD} 100000 | SLOWLOG RESET | CONFIG SET hz 50 | PING | SLOWLOG LEN | "
    "DEBUG SLEEP 0.12 | SLOWLOG LEN | MULTI | DEBUG SLEEP 0.12 | EXEC | SLOWLOG LEN | "
    f"{THRESHOLD} -1 | DEBUG SLEEP 0.12 | SLOWLOG LEN",
    "as much as fits": f"CONFIG SET slowlog-max-len 0{' | PING' * 20} | SLOWLOG LEN | "
    f"CONFIG SET slowlog-max-len 10{' | PING' * 20} | SLOWLOG LEN | CONFIG SET hz 10 | INCR a | INCR b",
    "no secrets": "ACL SETUSER 'a user' +get +set | CONFIG SET masteruser '' | CONFIG SET masterauth '' | "
    "CONFIG SET requirepass '' | ACL SETUSER user +get +set | ACL GETUSER user | ACL DELUSER user nobody | "
    f"{THRESHOLD} 0 | {THRESHOLD} -1",
    "as it was sent": "SADD set a b | SPOP set 10 | GEOADD g -122.3 47.6 there | SET A 5 | GETSET A 5 | "
    "INCRBYFLOAT A 1.0 | CONFIG SET maxmemory 0 | NO-SUCH-COMMAND | GET | "
    "EVAL \"return redis.call('SET', 'x', 1)\" 0",
    "trimmed": f"SADD set {' '.join(map(str, range(100)))} | CONFIG SET hz 10 | SET k {'A' * 500} | GET k",
}


def _play(server: Server, script: str) -> tuple[object, ...]:
    """What is counted, what the logs have and how their entries are numbered after these commands."""
    raw = server.raw()
    raw.pipeline([("CONFIG", "RESETSTAT"), *[("CONFIG", "SET", name, 0) for name in LOGS]])
    raw.ok("CONFIG", "SET", "slowlog-max-len", 128)
    raw.pipeline([("SLOWLOG", "RESET"), *[("COMMANDLOG", "RESET", kind) for kind in KINDS]])
    replies = [raw.call(*words) for words in commands_of(script)]
    numbers = [entry[0] for entry in raw.ok("SLOWLOG", "GET", -1)]
    counted = [reply for reply in replies if isinstance(reply, int)], numbers, _calls(raw)
    return *counted, _fields(raw, "stats")["total_commands_processed"], _logs(raw)


def test_the_logs_are_those_of_a_server_without_the_module(make_server: MakeServer) -> None:
    servers = make_server(), make_server(module=False)
    for what, script in SCRIPTS.items():
        with_module, without = (_play(server, script) for server in servers)
        assert with_module == without and without[1], what
