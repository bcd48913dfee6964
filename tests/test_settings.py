"""The module's settings: their defaults and bounds, where they are refused, and that they hold at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from harness import Locks, RawConnection, Server
from harness.configured import configured
from harness.waiting import HOUR, Line, at_once

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]
Refused = Callable[..., str]


class Setting(NamedTuple):
    name: str
    default: int
    least: int
    greatest: int

    @property
    def full(self) -> str:
        return f"slock.{self.name}"

    @property
    def keyword(self) -> str:
        return self.full.replace(".", "_").replace("-", "_")

    @property
    def bad(self) -> list[object]:
        return [self.least - 1, self.greatest + 1, "soon", "1.5", "1h", 2**63, 2**64]


SETTINGS = [
    Setting("max-ttl-ms", 86_400_000, 1, 31_536_000_000),
    Setting("max-waiters", 100_000, 0, 10_000_000),
    Setting("restart-grace-ms", 0, 0, 86_400_000),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)


@pytest.fixture
def refused() -> Iterator[Refused]:
    """Tries to start a server that should not start, and returns what it wrote."""
    servers: list[Server] = []

    def start(**settings: object) -> str:
        server = Server(name="refused", **settings)
        servers.append(server)
        assert not server.starts(), f"the server started with {settings}"
        return server.log()

    yield start
    for server in servers:
        server.discard()


@pytest.fixture
def own(make_server: MakeServer) -> RawConnection:
    return make_server().raw()


def _get(raw: RawConnection, setting: Setting) -> int:
    name, value = raw.ok("CONFIG", "GET", setting.full)
    assert name == setting.full.encode()
    return int(value)


def test_there_are_no_other_settings(own: RawConnection) -> None:
    listed = own.ok("CONFIG", "GET", "slock.*")
    numbers = {setting.full.encode(): b"%d" % setting.default for setting in SETTINGS}
    assert dict(zip(listed[::2], listed[1::2], strict=True)) == {**numbers, b"slock.allow-apply": b"no"}


@each_setting
def test_the_bounds_themselves_are_allowed(own: RawConnection, setting: Setting) -> None:
    for value in (setting.least, setting.greatest, setting.default):
        own.ok("CONFIG", "SET", setting.full, value)
        assert _get(own, setting) == value


@each_setting
def test_a_bad_value_is_refused_at_config_set_and_changes_nothing(
    own: RawConnection, setting: Setting
) -> None:
    for value in setting.bad:
        assert setting.name in own.error("CONFIG", "SET", setting.full, value), value
        assert _get(own, setting) == setting.default
    own.error("CONFIG", "SET", "hz", 50, setting.full, setting.least - 1)
    assert own.ok("CONFIG", "GET", "hz")[1] != b"50", "all or nothing"


@each_setting
@pytest.mark.parametrize("prefix", ["slock.", ""], ids=["full name", "short name"])
def test_a_setting_is_an_argument_of_loadmodule(
    make_server: MakeServer, setting: Setting, prefix: str
) -> None:
    value = setting.least + 5
    raw = make_server(module_args=[prefix + setting.name, value]).raw()
    assert _get(raw, setting) == value


def test_several_settings_are_arguments_of_loadmodule(make_server: MakeServer) -> None:
    words = [word for setting in SETTINGS for word in (setting.full, setting.least + 7)]
    raw = make_server(module_args=words).raw()
    assert [_get(raw, setting) for setting in SETTINGS] == [setting.least + 7 for setting in SETTINGS]


@each_setting
def test_a_setting_is_a_line_of_the_configuration(make_server: MakeServer, setting: Setting) -> None:
    raw = make_server(**{setting.keyword: setting.greatest}).raw()
    assert _get(raw, setting) == setting.greatest


@each_setting
def test_the_line_in_the_configuration_wins_or_agrees(make_server: MakeServer, setting: Setting) -> None:
    """Two values: the server takes one of them, and never a mixture or the default."""
    raw = make_server(
        module_args=[setting.full, setting.least + 1], **{setting.keyword: setting.least + 2}
    ).raw()
    assert _get(raw, setting) in (setting.least + 1, setting.least + 2)


@each_setting
def test_a_bad_value_at_load_is_refused_with_a_clear_line(refused: Refused, setting: Setting) -> None:
    for value in (setting.least - 1, setting.greatest + 1, "soon"):
        for settings in (
            {"module_args": [setting.full, value]},
            {"module_args": [setting.name, value]},
            {setting.keyword: value},
        ):
            log = refused(**settings)
            lines = [line for line in log.splitlines() if setting.name in line]
            assert lines, f"{settings}: the log does not name the setting:\n{log}"
    log = refused(module_args=[setting.full, setting.greatest + 1])
    assert any(str(setting.greatest) in line and setting.name in line for line in log.splitlines()), (
        f"no line names the setting and its range:\n{log}"
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["slock.no-such-setting", 5], "no-such-setting"),
        (["max-ttl-ms"], "max-ttl-ms"),
        (["slock.max-ttl-ms"], "max-ttl-ms"),
        (["5"], "5"),
        (["max-ttl-ms", 5, "max-waiters"], "max-waiters"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_load(
    refused: Refused, words: list[object], named: str
) -> None:
    log = refused(module_args=words)
    assert any("<slock>" in line and named in line for line in log.splitlines()), log


@each_setting
def test_config_rewrite_keeps_a_setting_over_a_restart(make_server: MakeServer, setting: Setting) -> None:
    server = make_server(module_args=[setting.full, setting.least + 1])
    raw = server.raw()
    raw.ok("CONFIG", "SET", setting.full, setting.least + 3, "slock.allow-apply", "yes")
    raw.ok("CONFIG", "REWRITE")
    rewritten = (server.directory / "server.conf").read_text()
    assert f"{setting.full} {setting.least + 3}" in rewritten and "slock.allow-apply yes" in rewritten
    server.stop()
    raw = configured(server, rewritten).start().raw()
    assert _get(raw, setting) == setting.least + 3
    assert raw.ok("CONFIG", "GET", "slock.allow-apply")[1] == b"yes"


# --- what each of them does, at once


def test_the_greatest_ttl_is_obeyed_at_once(own: RawConnection) -> None:
    fence = own.ok("SLOCK.LOCK", "k", "a", 60_000)
    own.ok("CONFIG", "SET", "slock.max-ttl-ms", 5000)
    for words in (("LOCK", "j"), ("RLOCK", "j"), ("EXTEND", "k"), ("DOWNGRADE", "k"), ("UPGRADE", "k")):
        text = own.error(f"SLOCK.{words[0]}", words[1], "a", 5001)
        assert text.startswith("ERR ") and "ttl" in text and "5000" in text
    assert "5000" in own.error("SLOCK.MLOCK", 1, "j", "a", 5001)
    assert "5000" in own.error("SLOCK.MEXTEND", 1, "k", "a", 5001)
    assert own.ok("SLOCK.PTTL", "k", "a") > 5000, "present holds are left alone"
    assert own.ok("SLOCK.CHECK", "k", fence) == 1
    assert own.ok("SLOCK.LOCK", "j", "a", 5000)
    own.ok("CONFIG", "SET", "slock.max-ttl-ms", 70_000)
    assert own.ok("SLOCK.EXTEND", "j", "a", 70_000) == 1


def test_a_year_may_be_asked_for_where_it_is_allowed(own: RawConnection) -> None:
    own.ok("CONFIG", "SET", "slock.max-ttl-ms", SETTINGS[0].greatest)
    assert own.ok("SLOCK.LOCK", "k", "a", SETTINGS[0].greatest)
    assert own.ok("SLOCK.PTTL", "k", "a") > SETTINGS[0].greatest - 60_000


def test_the_number_of_waiters_is_obeyed_at_once(make_server: MakeServer) -> None:
    server = make_server()
    line, raw = Line(server), server.raw()
    line.locks.lock("k", "x", HOUR)
    line.locks.lock("j", "y", HOUR)
    waiting = [line.write("a"), line.write("b")]
    raw.ok("CONFIG", "SET", "slock.max-waiters", 2)
    for words in (("SLOCK.LOCK", "k"), ("SLOCK.RLOCK", "j"), ("SLOCK.MLOCK", 1, "j")):
        assert raw.error(*words, "c", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    raw.ok("CONFIG", "SET", "slock.max-waiters", 3)
    third = line.write("c")
    assert third.is_waiting()
    raw.ok("CONFIG", "SET", "slock.max-waiters", 0)
    assert all(waiter.is_waiting() for waiter in [*waiting, third]), "who waits already goes on waiting"
    assert raw.error("SLOCK.LOCK", "j", "c", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    assert raw.ok("SLOCK.LOCK", "j", "c", HOUR) == 0, "without WAIT nothing is full"
    assert raw.ok("SLOCK.LOCK", "free", "c", HOUR, "WAIT", 0), "nor where there is nothing to wait for"
    at_once(server, ("SLOCK.UNLOCK", "k", "x"))
    for waiter in [*waiting, third]:
        waiter.fence()
        line.release(waiter.token)


def test_the_grace_can_be_ended_at_once(make_server: MakeServer) -> None:
    server = make_server(slock_restart_grace_ms=HOUR)
    raw, locks = server.raw(), Locks(server.client())
    assert raw.error("SLOCK.LOCK", "k", "a", HOUR).startswith("GRACE ")
    line = Line(server)
    waiting = line.write("a")
    assert waiting.is_waiting()
    raw.ok("CONFIG", "SET", "slock.restart-grace-ms", 0)
    waiting.fence()
    assert locks.lock("j", "a", HOUR)


def test_the_module_cannot_be_unloaded_from_under_its_locks(raw: RawConnection) -> None:
    fence = raw.ok("SLOCK.LOCK", "k", "a", 60_000)
    assert raw.error("MODULE", "UNLOAD", "slock").startswith("ERR ")
    assert raw.ok("SLOCK.CHECK", "k", fence) == 1


# --- the log at load


def test_one_line_tells_the_version_at_load(make_server: MakeServer) -> None:
    lines = [line for line in make_server().log().splitlines() if "<slock>" in line and "SLOCK" in line]
    assert len(lines) == 1 and "ready" in lines[0], lines


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ("noeviction", False),
        ("allkeys-lru", True),
        ("allkeys-random", True),
        ("volatile-ttl", True),
        ("volatile-lru", True),
    ],
)
def test_a_policy_that_can_evict_locks_is_warned_of(
    make_server: MakeServer, policy: str, warned: bool
) -> None:
    log = make_server(maxmemory_policy=policy, maxmemory="100mb").log()
    lines = [line for line in log.splitlines() if "<slock>" in line and "maxmemory-policy" in line]
    assert len(lines) == warned, log
