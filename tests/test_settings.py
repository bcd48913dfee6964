"""The module's settings: where they are set and refused, that they hold at once, and redis.conf.example.

Their names, defaults and bounds are those of docs/operating.md: tests/test_docs.py compares these.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from harness import Locks, MakeServer, RawConnection, Server, ServerError, wait_until_logged
from harness.docs import DOCS, sections, table
from harness.settings import REPOSITORY, module_path
from harness.waiting import HOUR, Line, serve_in_order


class Setting(NamedTuple):
    name: str
    good: str
    bad: list[str]


def _setting(name: str, allowed: str) -> Setting:
    bounds = [int(number) for number in re.findall(r"\d+", allowed)]
    if not bounds:
        return Setting(name, "yes", ["maybe", "1", "2", "yes please"])
    least, greatest = bounds
    bad = [greatest + 1, least - 1, "soon", "1.5", "1h", 2**63, 2**64]
    return Setting(name, str(least + 5), [str(value) for value in bad])


ROWS = table(sections(DOCS / "operating.md")["Settings"])
SETTINGS = [_setting(row[0].strip("`"), row[2]) for row in ROWS]
GOOD = {setting.name: setting.good for setting in SETTINGS}

PLACES = ["loadmodule", "loadmodule, short name", "configuration file"]


def _at_start(place: str, values: dict[str, str]) -> dict[str, object]:
    """The arguments of a server that starts with these values of settings."""
    if place == "configuration file":
        return {name.replace(".", "_").replace("-", "_"): value for name, value in values.items()}
    prefix = "slock." if "short" in place else ""
    return {"module_args": [word for name in values for word in (name.removeprefix(prefix), values[name])]}


@pytest.fixture
def own(make_server: MakeServer) -> RawConnection:
    return make_server().raw()


def _shown(raw: RawConnection) -> dict[str, str]:
    words = [word.decode() for word in raw.ok("CONFIG", "GET", "slock.*")]
    return dict(zip(words[::2], words[1::2], strict=True))


def _refused(**settings: object) -> list[str]:
    """Tries to start a server that should not start, and returns the lines that it wrote."""
    server = Server(name="refused", **settings)
    try:
        with pytest.raises(ServerError):
            server.start()
        return server.log().splitlines()
    finally:
        server.discard()


def test_a_bad_value_is_refused_at_config_set_and_changes_nothing(own: RawConnection) -> None:
    before = _shown(own)
    for setting in SETTINGS:
        for value in setting.bad:
            assert setting.name in own.error("CONFIG", "SET", setting.name, value), value
        own.error("CONFIG", "SET", "hz", 50, setting.name, setting.bad[0])
    assert _shown(own) == before
    assert own.ok("CONFIG", "GET", "hz")[1] != b"50", "all or nothing"


@pytest.mark.parametrize("place", PLACES)
def test_settings_are_set_at_the_start(make_server: MakeServer, place: str) -> None:
    assert _shown(make_server(**_at_start(place, GOOD)).raw()) == GOOD


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("place", PLACES)
def test_a_bad_value_at_load_is_refused_with_a_clear_line(setting: Setting, place: str) -> None:
    for bad in setting.bad[:3] if place == "loadmodule" else setting.bad[:1]:
        named = setting.name.removeprefix("slock.")
        lines = [line for line in _refused(**_at_start(place, {setting.name: bad})) if named in line]
        assert lines, f"{bad}: no line names the setting"
        if bad == setting.bad[0] and bad.isdigit():
            assert any(str(int(bad) - 1) in line for line in lines), f"no line names the range: {lines}"


@pytest.mark.parametrize(
    "words", ["no-such-setting 5", "max-ttl-ms", "slock.max-ttl-ms", "5", "max-waiters 5 max-ttl-ms"]
)
def test_arguments_that_make_no_sense_are_refused_at_load(words: str) -> None:
    named = "no-such-setting" if "such" in words else words.split()[-1]
    assert any("<slock>" in line and named in line for line in _refused(module_args=words.split()))


# --- what each of them does, at once


def test_the_greatest_ttl_is_obeyed_at_once(own: RawConnection) -> None:
    fence = own.ok("SLOCK.LOCK", "k", "a", 60_000)
    own.ok("CONFIG", "SET", "slock.max-ttl-ms", 5000)
    for words in ("LOCK j", "RLOCK j", "EXTEND k", "DOWNGRADE k", "UPGRADE k", "MLOCK 1 j", "MEXTEND 1 k"):
        text = own.error(*f"SLOCK.{words} a 5001".split())
        assert text == "ERR ttl must be an integer from 1 to 5000 milliseconds (slock.max-ttl-ms)"
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
    waiting = [line.write("a")]
    for most in (2, 3):
        raw.ok("CONFIG", "SET", "slock.max-waiters", most)
        waiting.append(line.write("bc"[most - 2]))
        for words in (("SLOCK.LOCK", "k"), ("SLOCK.RLOCK", "j"), ("SLOCK.MLOCK", 1, "j")):
            told = raw.error(*words, "d", HOUR, "WAIT", 0)
            assert told.startswith("QUEUEFULL ") and f"slock.max-waiters, which is {most}, allows" in told
    raw.ok("CONFIG", "SET", "slock.max-waiters", 100, "slock.max-waiters-per-user", 3)
    told = raw.error("SLOCK.LOCK", "k", "d", HOUR, "WAIT", 0)
    assert told.startswith("QUEUEFULL ") and "slock.max-waiters-per-user, which is 3" in told
    raw.ok("CONFIG", "SET", "slock.max-waiters", 0)
    assert raw.ok("SLOCK.LOCK", "j", "c", HOUR) == 0, "without WAIT nothing is full"
    assert raw.ok("SLOCK.LOCK", "free", "c", HOUR, "WAIT", 0), "nor where there is nothing to wait for"
    assert all(waiter.is_waiting() for waiter in waiting), "who waits already goes on waiting"
    line.release("x")
    serve_in_order(line, waiting)


# --- the log at load


@pytest.mark.parametrize(
    ("policy", "warned"), [("noeviction", False), ("allkeys-lru", True), ("volatile-ttl", True)]
)
def test_the_version_and_warnings_are_logged(make_server: MakeServer, policy: str, warned: bool) -> None:
    log = make_server(maxmemory_policy=policy, maxmemory="100mb").log().splitlines()
    lines = [line for line in log if "<slock>" in line]
    assert len([line for line in lines if "SLOCK" in line and "ready" in line]) == 1, lines
    assert len([line for line in lines if "maxmemory-policy" in line]) == warned, lines


# --- redis.conf.example: it starts from the root of the repository with nothing to edit, and does as it says

EXAMPLE = (REPOSITORY / "redis.conf.example").read_text()
SHOWN = dict(line.split(None, 1) for line in EXAMPLE.splitlines() if line and not line.startswith("#"))


@pytest.fixture
def start(make_server: MakeServer) -> MakeServer:
    """Starts the example with some lines more, in a directory with the built module in its place."""

    def run(*lines: str) -> Server:
        server = make_server(name="example", module=False)
        server.stop()
        place = server.directory / "target" / "release"
        place.mkdir(parents=True)
        (place / "libslock.so").symlink_to(module_path())
        server.config_text = "\n".join([EXAMPLE, *lines, f"port {server.port}"]) + "\n"
        return server.start()

    return run


def test_the_example_is_in_force_and_a_lock_survives_a_kill(start: MakeServer) -> None:
    example = start()
    log = [line for line in example.log().splitlines() if "<slock>" in line]
    assert log and not [line for line in log if "maxmemory-policy" in line]
    client, locks = example.client(), Locks(example.client())
    for name, value in SHOWN.items():
        if name in ("loadmodule", "port", "dir"):
            continue
        (is_so,) = client.config_get(name).values()
        assert str(is_so) == (str(int(value[:-2]) << 20) if value.endswith("mb") else value), name
    assert len(SHOWN) > 15
    client.config_set("slock.restart-grace-ms", 0)
    fence = locks.lock("key", "token", 3_600_000, meta="kept")
    assert fence > 0 and locks.lock("key", "other", 5000) == 0
    deadline = client.pexpiretime("key")
    wait_until_logged(example)
    example.restart(kill=True)
    locks = Locks(example.client())
    (holder,) = locks.full("key").holders
    assert (holder.token, holder.fence, holder.meta) == (b"token", fence, b"kept")
    assert locks.client.pexpiretime("key") == deadline
    assert locks.unlock("key", "token") == 1
