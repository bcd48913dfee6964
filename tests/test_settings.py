"""The module's settings: where they are set and refused, and that they hold at once.

Their names, defaults and bounds are those of docs/operating.md: tests/test_docs.py compares these.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from harness import Locks, RawConnection, Server
from harness.configured import configured
from harness.docs import DOCS, sections, table
from harness.waiting import HOUR, Line, at_once

pytest_plugins = ["harness.cleanup"]

MakeServer = Callable[..., Server]


class Setting(NamedTuple):
    name: str
    good: str
    bad: list[str]

    @property
    def full(self) -> str:
        return f"slock.{self.name}"

    @property
    def keyword(self) -> str:
        return self.full.replace(".", "_").replace("-", "_")


def _setting(name: str, allowed: str) -> Setting:
    bounds = [int(number) for number in re.findall(r"\d+", allowed)]
    if not bounds:
        return Setting(name, "yes", ["maybe", "1", "2", "yes please"])
    least, greatest = bounds
    bad = [greatest + 1, least - 1, "soon", "1.5", "1h", 2**63, 2**64]
    return Setting(name, str(least + 5), [str(value) for value in bad])


ROWS = table(sections(DOCS / "operating.md")["Settings"])
SETTINGS = [_setting(row[0].strip("`").removeprefix("slock."), row[2]) for row in ROWS]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)

PLACES: dict[str, Callable[[Setting, str], dict[str, object]]] = {
    "loadmodule": lambda setting, value: {"module_args": [setting.full, value]},
    "loadmodule, short name": lambda setting, value: {"module_args": [setting.name, value]},
    "configuration file": lambda setting, value: {setting.keyword: value},
}


@pytest.fixture
def own(make_server: MakeServer) -> RawConnection:
    return make_server().raw()


def _shown(raw: RawConnection) -> dict[str, str]:
    words = [word.decode() for word in raw.ok("CONFIG", "GET", "slock.*")]
    return {name.removeprefix("slock."): value for name, value in zip(words[::2], words[1::2], strict=True)}


def _refused(**settings: object) -> list[str]:
    """Tries to start a server that should not start, and returns the lines that it wrote."""
    server = Server(name="refused", **settings)
    try:
        assert not server.starts(), f"the server started with {settings}"
        return server.log().splitlines()
    finally:
        server.discard()


def test_a_bad_value_is_refused_at_config_set_and_changes_nothing(own: RawConnection) -> None:
    before = _shown(own)
    for setting in SETTINGS:
        for value in setting.bad:
            assert setting.name in own.error("CONFIG", "SET", setting.full, value), value
        own.error("CONFIG", "SET", "hz", 50, setting.full, setting.bad[0])
    assert _shown(own) == before
    assert own.ok("CONFIG", "GET", "hz")[1] != b"50", "all or nothing"


@pytest.mark.parametrize("place", PLACES)
def test_settings_are_set_at_the_start(make_server: MakeServer, place: str) -> None:
    settings: dict[str, object] = {"module_args": []}
    for setting in SETTINGS:
        for name, value in PLACES[place](setting, setting.good).items():
            settings[name] = [*settings[name], *value] if name == "module_args" else value
    shown = _shown(make_server(**settings).raw())
    assert shown == {setting.name: setting.good for setting in SETTINGS}


@each_setting
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_value_at_load_is_refused_with_a_clear_line(setting: Setting, place: str) -> None:
    for bad in setting.bad[:3] if place == "loadmodule" else setting.bad[:1]:
        lines = [line for line in _refused(**PLACES[place](setting, bad)) if setting.name in line]
        assert lines, f"{bad}: no line names the setting"
        if bad == setting.bad[0] and bad.isdigit():
            assert any(str(int(bad) - 1) in line for line in lines), f"no line names the range: {lines}"


@pytest.mark.parametrize(
    "words", ["no-such-setting 5", "max-ttl-ms", "slock.max-ttl-ms", "5", "max-waiters 5 max-ttl-ms"]
)
def test_arguments_that_make_no_sense_are_refused_at_load(words: str) -> None:
    named = "no-such-setting" if "such" in words else words.split()[-1]
    assert any("<slock>" in line and named in line for line in _refused(module_args=words.split()))


def test_config_rewrite_keeps_settings_over_a_restart(make_server: MakeServer) -> None:
    server = make_server(module_args=["max-waiters", 1])
    raw = server.raw()
    for setting in SETTINGS:
        raw.ok("CONFIG", "SET", setting.full, setting.good)
    raw.ok("CONFIG", "REWRITE")
    rewritten = (server.directory / "server.conf").read_text()
    server.stop()
    shown = _shown(configured(server, rewritten).start().raw())
    assert shown == {setting.name: setting.good for setting in SETTINGS}


# --- what each of them does, at once


def test_the_greatest_ttl_is_obeyed_at_once(own: RawConnection) -> None:
    fence = own.ok("SLOCK.LOCK", "k", "a", 60_000)
    own.ok("CONFIG", "SET", "slock.max-ttl-ms", 5000)
    for words in ("LOCK j", "RLOCK j", "EXTEND k", "DOWNGRADE k", "UPGRADE k", "MLOCK 1 j", "MEXTEND 1 k"):
        text = own.error(*f"SLOCK.{words} a 5001".split())
        assert text.startswith("ERR ") and "ttl" in text and "5000" in text
    assert own.ok("SLOCK.PTTL", "k", "a") > 5000, "present holds are left alone"
    assert own.ok("SLOCK.CHECK", "k", fence) == 1
    assert own.ok("SLOCK.LOCK", "j", "a", 5000)
    a_year = 365 * 24 * HOUR
    own.ok("CONFIG", "SET", "slock.max-ttl-ms", a_year)
    assert own.ok("SLOCK.EXTEND", "j", "a", a_year) == 1 and own.ok("SLOCK.PTTL", "j", "a") > a_year - 60_000


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
    waiting.append(line.write("c"))
    raw.ok("CONFIG", "SET", "slock.max-waiters", 0)
    assert all(waiter.is_waiting() for waiter in waiting), "who waits already goes on waiting"
    assert raw.error("SLOCK.LOCK", "j", "c", HOUR, "WAIT", 0).startswith("QUEUEFULL ")
    assert raw.ok("SLOCK.LOCK", "j", "c", HOUR) == 0, "without WAIT nothing is full"
    assert raw.ok("SLOCK.LOCK", "free", "c", HOUR, "WAIT", 0), "nor where there is nothing to wait for"
    at_once(server, ("SLOCK.UNLOCK", "k", "x"))
    for waiter in waiting:
        waiter.fence()
        line.release(waiter.token)


def test_the_grace_can_be_ended_at_once(make_server: MakeServer) -> None:
    server = make_server(slock_restart_grace_ms=HOUR)
    raw, locks = server.raw(), Locks(server.client())
    assert raw.error("SLOCK.LOCK", "k", "a", HOUR).startswith("GRACE ")
    waiting = Line(server).write("a")
    assert waiting.is_waiting()
    raw.ok("CONFIG", "SET", "slock.restart-grace-ms", 0)
    waiting.fence()
    assert locks.lock("j", "a", HOUR)


# --- the log at load


@pytest.mark.parametrize(
    ("policy", "warned"), [("noeviction", False), ("allkeys-lru", True), ("volatile-ttl", True)]
)
def test_the_version_is_logged_and_a_policy_that_can_evict_locks_is_warned_of(
    make_server: MakeServer, policy: str, warned: bool
) -> None:
    log = make_server(maxmemory_policy=policy, maxmemory="100mb").log().splitlines()
    lines = [line for line in log if "<slock>" in line]
    assert len([line for line in lines if "SLOCK" in line and "ready" in line]) == 1, lines
    assert len([line for line in lines if "maxmemory-policy" in line]) == warned, lines
