"""The examples of waiting by NOTIFY in client libraries: nothing is lost of what they do under the lock.

`scripts/clients-examples` fetches what those in Go and JavaScript need. Nothing is fetched here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import Server, wait_until
from harness.examples import go_program, node_program
from harness.settings import REPOSITORY

pytestmark = pytest.mark.programs

EXAMPLES = REPOSITORY / "examples/notify"
CONTENDERS, TIMES = 2, 100


def _command(example: str, directory: Path) -> list[str]:
    if example == "go":
        return go_program(EXAMPLES / "go", directory)
    if example == "node":
        return node_program(EXAMPLES / "node/notify.js")
    return [sys.executable, str(EXAMPLES / "python" / f"{example}.py")]


@pytest.mark.parametrize("example", ["one_connection", "two_connections", "go", "node"])
def test_two_contenders_lose_nothing(server: Server, example: str, tmp_path: Path) -> None:
    """Also when all who have subscribed lose their connection in the middle of it."""
    program = _command(example, tmp_path)
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
