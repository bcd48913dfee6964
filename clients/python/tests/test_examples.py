"""The examples, and the code of the README, do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Server

FOLDER = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(FOLDER / "src")}

README = (FOLDER / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(*command: object) -> list[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_addition_is_lost(server: Server) -> None:
    assert run(FOLDER / "examples/counter.py", "--port", server.port, "--additions", 600) == ["600 of 600"]


def test_a_block_with_time_out_and_expiration(server: Server) -> None:
    said = run(FOLDER / "examples/block.py", "--port", server.port)
    assert said == ["worked under fence yes", "timed out", "expired"]


def test_a_process_that_was_stopped(server: Server) -> None:
    said = run(FOLDER / "examples/stopped.py", "--port", server.port)
    assert said == [
        "the worker holds the lock",
        "the next owner has written",
        "the write of the worker: STALE the lock has been lost",
        "the worker has learned: expired",
        "the result is: in time",
    ]


def test_the_hooks_make_metrics(server: Server) -> None:
    said = run(FOLDER / "examples/opentelemetry_hooks.py", "--port", server.port)
    assert said in (
        [],  # with the package and without an exporter nothing is printed
        ["slock.wait {'lock': 'report', 'outcome': 'granted'}", "slock.hold {'lock': 'report'}"],
    )


@pytest.mark.parametrize("code", BLOCKS, ids=[block.strip().splitlines()[0] for block in BLOCKS])
def test_the_code_of_the_readme(server: Server, code: str, tmp_path: Path) -> None:
    program = tmp_path / "readme.py"
    program.write_text(code.replace("port=6379", f"port={server.port}"))
    run(program)
