"""Fixtures: servers that a test may use, and what a failed test shows of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import NamedTuple

import pytest
import redis

from harness import (
    Clock,
    Cluster,
    Locks,
    MakeServer,
    RawConnection,
    Server,
    ServerError,
    replica_of,
    stalls,
    wait_until,
)
from harness.cleanup import close_connections  # noqa: F401
from harness.cli import Cli
from harness.connection_state import check_connections
from harness.queues import Queues
from harness.waiting import Line


def pytest_configure(config: pytest.Config) -> None:
    stalls.watch(config)


class Pair(NamedTuple):
    primary: Server
    replica: Server


def _end(servers: list[Server]) -> None:
    """Stops and checks every server, even when one of them has crashed, then fails for all that did."""
    problems = []
    for server in servers:
        try:
            server.stop()
        except ServerError as problem:
            problems.append(str(problem))
    for server in servers:
        server.discard()
    if problems:
        raise ServerError("\n\n".join(problems))


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[Server]:
    server = Server(name="shared", notify_keyspace_events="KEA").start()
    yield server
    _end([server])


@pytest.fixture
def server(_shared_server: Server) -> Iterator[Server]:
    """A running server without data, shared between tests: do not restart or reconfigure it."""
    if not _shared_server.is_running:
        _shared_server.kill9()
        _shared_server.start()
    client = _shared_server.client()
    # What the last test left waiting goes with its connections, which takes the server a moment.
    wait_until(
        lambda: client.info("slock")["slock_waiters"] == 0, what="the requests of the last test to leave"
    )
    client.flushall()
    yield _shared_server
    _shared_server.check()


@pytest.fixture
def client(server: Server) -> redis.Redis:
    return server.client()


@pytest.fixture
def line(server: Server) -> Line:
    """The queue of `k`."""
    return Line(server)


@pytest.fixture
def queues(server: Server) -> Queues:
    return Queues(server)


@pytest.fixture
def locks(client: redis.Redis) -> Locks:
    return Locks(client)


@pytest.fixture
def raw(server: Server) -> RawConnection:
    return server.raw()


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Starts servers with settings of the test's own; the test may restart and kill them."""
    servers: list[Server] = []

    def make(**settings: object) -> Server:
        server = Server(**{"name": f"server{len(servers) + 1}", **settings})
        servers.append(server)
        return server.start()

    yield make
    _end(servers)


@pytest.fixture
def make_clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Clock]:
    """Clocks that a test may step, for servers that it makes with `environment=clock.environment`."""
    directory = tmp_path_factory.getbasetemp() / "clock"
    directory.mkdir(exist_ok=True)
    return partial(Clock, directory)


@pytest.fixture
def primary_and_replica(make_server: MakeServer) -> Pair:
    """Two servers of this test's own, the second a replica of the first and level with it."""
    pair = Pair(make_server(name="primary"), make_server(name="replica"))
    replica_of(pair.replica, pair.primary)
    return pair


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three primaries, shared by the tests of one file. Who moves a slot does so for a slot of his own."""
    cluster = Cluster().start()
    yield cluster
    _end(cluster.nodes)


# --- what a failed test shows


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    for server in Server.every:
        server.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """A test that ends well has left all its connections as they were."""
    result = yield
    check_connections(Server.every)
    return result


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for server in Server.every:
            excerpt = server.log_excerpt()
            if excerpt:
                report.sections.append((f"log of {server}", excerpt))
