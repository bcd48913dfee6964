"""The examples of waiting by NOTIFY in client libraries: nothing is lost of what they do under the lock."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Server, wait_until
from harness.settings import REPOSITORY

EXAMPLES = REPOSITORY / "examples/notify"
CONTENDERS, TIMES = 2, 100
ENVIRONMENT = {**os.environ, "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}


def _python(name: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / "python" / f"{name}.py")]


def _go(directory: Path) -> list[str]:
    if not shutil.which("go"):
        pytest.skip("no go in the PATH")
    program = directory / "notify"
    shutil.copytree(EXAMPLES / "go", directory / "source")

    def go(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["go", *arguments]
        return subprocess.run(
            command, cwd=directory / "source", env=ENVIRONMENT, capture_output=True, text=True
        )

    if go("mod", "download").returncode:
        pytest.skip("go-redis is neither in the module cache nor to be had")
    built = go("build", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr
    return [str(program)]


def _node() -> list[str]:
    """The package is found beside the example, after `npm install` there."""
    if not shutil.which("node"):
        pytest.skip("no node in the PATH")
    if not (EXAMPLES / "node/node_modules/redis").is_dir():
        pytest.skip("node-redis is not installed in examples/notify/node")
    return ["node", str(EXAMPLES / "node/notify.js")]


@pytest.mark.parametrize("example", ["one_connection", "two_connections", "go", "node"])
def test_two_contenders_lose_nothing(server: Server, example: str, tmp_path: Path) -> None:
    """Also when all who have subscribed lose their connection in the middle of it."""
    program = {"go": lambda: _go(tmp_path), "node": _node}.get(example, lambda: _python(example))()
    client = server.client()
    words = [*program, str(server.port), "example", "counter", str(TIMES)]
    running = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(CONTENDERS)]
    try:
        for part in (4, 2):
            enough = CONTENDERS * TIMES // part

            def is_there(enough: int = enough) -> bool:
                return int(client.get("counter") or 0) >= enough or any(one.poll() for one in running)

            wait_until(is_there, 60, "the contenders to add")
            client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        errors = [one.communicate(timeout=60)[1] for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert [one.returncode for one in running] == [0] * CONTENDERS, errors
    assert int(client.get("counter")) == CONTENDERS * TIMES
    assert client.execute_command("SLOCK.INFO", "example") is None
