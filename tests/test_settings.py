"""The module's settings that the first commands obey, and what is refused at load."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness import RawConnection, Server

MakeServer = Callable[..., Server]

TTL_LIMIT = 31_536_000_000
BAD_LIMITS = [0, -1, TTL_LIMIT + 1, "soon", 2**63]


@pytest.fixture
def refused() -> Iterator[Callable[..., str]]:
    """Tries to start a server that should not start, and returns what it wrote."""
    servers: list[Server] = []

    def start(**settings: object) -> str:
        server = Server(name="refused", **settings)
        servers.append(server)
        assert not server.starts(), "the server started"
        return server.log()

    yield start
    for server in servers:
        server.discard()


def test_the_greatest_ttl_is_a_setting(make_server: MakeServer) -> None:
    raw = make_server(slock_max_ttl_ms=5000).raw()
    text = raw.error("SLOCK.LOCK", "k", "a", 5001)
    assert text.startswith("ERR ") and "ttl" in text and "5000" in text
    assert raw.ok("SLOCK.LOCK", "k", "a", 5000)
    raw.ok("CONFIG", "SET", "slock.max-ttl-ms", 60_000)
    assert raw.ok("SLOCK.EXTEND", "k", "a", 60_000) == 1


def test_a_lower_limit_leaves_present_holds_alone(make_server: MakeServer) -> None:
    raw = make_server().raw()
    fence = raw.ok("SLOCK.LOCK", "k", "a", 60_000)
    raw.ok("CONFIG", "SET", "slock.max-ttl-ms", 1000)
    assert raw.ok("SLOCK.PTTL", "k", "a") > 1000
    assert raw.ok("SLOCK.CHECK", "k", fence) == 1
    assert raw.error("SLOCK.LOCK", "k", "a", 60_000).startswith("ERR ")


def test_a_setting_is_an_argument_of_loadmodule_too(make_server: MakeServer) -> None:
    raw = make_server(module_args=["slock.max-ttl-ms", 5000]).raw()
    assert raw.ok("CONFIG", "GET", "slock.max-ttl-ms") == [b"slock.max-ttl-ms", b"5000"]


@pytest.mark.parametrize("value", BAD_LIMITS)
def test_a_bad_limit_is_refused(raw: RawConnection, refused: Callable[..., str], value: object) -> None:
    before = raw.ok("CONFIG", "GET", "slock.max-ttl-ms")
    assert "max-ttl-ms" in raw.error("CONFIG", "SET", "slock.max-ttl-ms", value)
    assert raw.ok("CONFIG", "GET", "slock.max-ttl-ms") == before
    assert refused(slock_max_ttl_ms=value)
    assert refused(module_args=["slock.max-ttl-ms", value])


def test_the_module_cannot_be_unloaded_from_under_its_locks(raw: RawConnection) -> None:
    fence = raw.ok("SLOCK.LOCK", "k", "a", 60_000)
    assert raw.error("MODULE", "UNLOAD", "slock").startswith("ERR ")
    assert raw.ok("SLOCK.CHECK", "k", fence) == 1
