"""The Spring Boot programs: two processes of each answer requests, and run the task of each second once."""

from __future__ import annotations

import os
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import Server, wait_until
from harness.settings import free_port

FOLDER = Path(__file__).parent
REQUESTS = 120
TICKS = 5

pytestmark = pytest.mark.skipif(
    "SLOCK_ALL_LIBRARIES" not in os.environ, reason="Java is tested where SLOCK_ALL_LIBRARIES is set"
)


def _maven(folder: Path, *goals: str) -> None:
    command = ["mvn", "-q", "-B", "-Dmaven.test.skip", "-Dmaven.javadoc.skip", "-Dmaven.source.skip", *goals]
    subprocess.run(command, cwd=folder, check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def library() -> None:
    _maven(FOLDER.parents[1], "install")


@pytest.fixture
def start() -> Iterator[Callable[..., int]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(jar: Path, server: Server) -> int:
        port = free_port()
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        settings = [
            f"--server.port={port}",
            f"--spring.data.redis.port={server.port}",
            "--server.address=127.0.0.1",
        ]
        processes.append(
            subprocess.Popen(["java", *options, "-jar", str(jar), *settings], stdin=subprocess.DEVNULL)
        )
        return port

    yield start
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait(30)


def _post(port: int, path: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=b"", timeout=60) as reply:
        return int(reply.read())


def _is_up(port: int) -> bool:
    try:
        return _post(port, "/add") > 0
    except OSError:
        return False


@pytest.mark.parametrize("version", ["3.3", "4.1"])
def test_requests_and_ticks(version: str, library: None, start: Callable[..., int]) -> None:
    _maven(FOLDER / version, "package")
    jar = FOLDER / version / "target" / f"spring-boot-{version}-0.1.0.jar"
    server = Server().start()
    try:
        ports = [start(jar, server) for _ in range(2)]
        for port in ports:
            wait_until(lambda port=port: _is_up(port), 90, f"{port} to answer")
        client = server.client()
        client.delete("count", "ticks")
        with ThreadPoolExecutor(16) as threads:
            paths = [(ports[n % 2], "/add" if n % 4 < 2 else "/add-by-registry") for n in range(REQUESTS)]
            counts = list(threads.map(lambda one: _post(*one), paths))
        assert sorted(counts) == list(range(1, REQUESTS + 1))
        wait_until(lambda: client.llen("ticks") > TICKS, 60, "some ticks")
        ticks = [int(tick) for tick in client.lrange("ticks", 0, -1)]
        assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))
    finally:
        server.discard()
