"""Fixtures: servers that a test may use. SLOCK_MODULE names the module if it is not in target/release."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
import redis

from harness import Cluster, Server, stalls

# A shell that runs the tests in its background has SIGINT ignored, and so would the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    stalls.watch(config)


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[Server]:
    server = Server(name="shared", unixsocket="redis.sock").start()
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
