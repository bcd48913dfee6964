"""Fixtures: servers that a test may use. SLOCK_MODULE names the module if it is not in target/release."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from harness import Cluster, MakeServer, Server, stalls

# A shell that runs the tests in its background has SIGINT ignored, and so would the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    stalls.watch(config)


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[Server]:
    server = Server(name="shared").start()
    yield server
    server.stop()
    server.discard()


@pytest.fixture
def server(_shared_server: Server) -> Iterator[Server]:
    """A running server without data, shared between tests: do not restart or reconfigure it."""
    _shared_server.client().flushall()
    yield _shared_server
    gc.collect()  # an asyncio connection that was forgotten says so now, in the test that forgot it
    _shared_server.check()


@pytest.fixture
def client(server: Server) -> redis.Redis:
    """A client of the test itself."""
    return server.client()


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Starts servers with settings of the test's own; the test may restart and kill them."""
    servers: list[Server] = []

    def make(**settings: Any) -> Server:
        server = Server(**{"name": f"server{len(servers) + 1}", **settings})
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.discard()


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[Cluster]:
    cluster = Cluster(3).start()
    yield cluster
    cluster.discard()


@pytest.fixture
def cluster(_shared_cluster: Cluster) -> Cluster:
    """Three primaries without data."""
    for node in _shared_cluster.nodes:
        node.client().flushall()
    return _shared_cluster


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port that accepts connections, and never replies."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


@pytest.fixture
def calls(client: redis.Redis) -> Callable[[str], int]:
    """How many commands of a name the server has carried out since the test began."""

    def count(name: str) -> int:
        stats = client.info("commandstats").get(f"cmdstat_slock.{name}", {"calls": 0})
        return int(stats["calls"])

    before: dict[str, int] = {name: count(name) for name in ("lock", "extend", "mextend", "munlock")}
    return lambda name: count(name) - before[name]
