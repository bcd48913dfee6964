"""The first page: every line of code on it works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import Server
from harness.cli import Cli
from harness.docs import Block, blocks
from harness.settings import REPOSITORY

README = REPOSITORY / "README.md"
CLIENTS = REPOSITORY / "clients"
LIMIT_SECONDS = 900

# What stands around the code of the page, which takes a server of the test and some work to do.
GO = """package main

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
	slock "slock.example/go"
)

func work(ctx context.Context) error { fmt.Println("worked"); return nil }

func main() {
	ctx := context.Background()
%s
	if err != nil {
		panic(err)
	}
	locks.Close()
}
"""
RUST = """use slock_client::{Error, Locks, redis};

async fn work(fence: i64) -> i64 { println!("worked"); fence }

#[tokio::main]
async fn main() -> Result<(), Error> {
%s
    assert!(done > 0);
    locks.close().await;
    Ok(())
}
"""
# Builds what the Rust library's tests stand on, and says where it is.
CARGO = ["cargo", "build", "--example", "conformance_agent", "--message-format=json"]


def _code(language: str) -> str:
    """The one block of a language, which has five lines beside empty ones."""
    (block,) = blocks(README, language)
    assert len(block.text.split("\n")) - block.text.count("\n\n") == 5
    return block.text


def _run(command: list[object], directory: Path, **environment: str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _is_released(server: Server) -> bool:
    """It was taken, and nobody has it any more."""
    numbers = server.client().info("slock")
    return numbers["slock_last_fence"] > 0 and server.raw().ok("SLOCK.INFO", "job:42") is None


def test_the_python_works(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "readme.py"
    program.write_text(_code("python").replace("redis.Redis()", f"redis.Redis(port={server.port})"))
    said = _run([sys.executable, program], tmp_path, PYTHONPATH=str(CLIENTS / "python/src"))
    (shown,) = blocks(README, "text")
    assert re.fullmatch(re.sub(r"\d{16}", r"\\d{16}", shown.text), said.strip()) and _is_released(server)


@pytest.mark.programs
def test_the_go_works(server: Server, tmp_path: Path) -> None:
    if not shutil.which("go"):
        pytest.skip("no go in the PATH")
    program = tmp_path / "main.go"
    code = _code("go").replace("localhost:6379", f"localhost:{server.port}")
    program.write_text(GO % code)
    assert _run(["go", "run", program], CLIENTS / "go") == "worked\n" and _is_released(server)


@pytest.mark.programs
def test_the_rust_works(server: Server, tmp_path: Path) -> None:
    """With the library as its own tests have it: to compile it and what it stands on takes a minute."""
    if not shutil.which("cargo"):
        pytest.skip("no cargo in the PATH")
    built = [json.loads(line) for line in _run(CARGO, REPOSITORY).splitlines()]
    library = {one["target"]["name"]: one["filenames"][0] for one in built if "filenames" in one}
    program = tmp_path / "main.rs"
    program.write_text(RUST % _code("rust").replace("127.0.0.1/", f"127.0.0.1:{server.port}/"))
    words = [f"--extern={name}={library[name]}" for name in ("slock_client", "tokio")]
    words.append(f"-Ldependency={Path(library['tokio']).parent}")
    _run(["rustc", "--edition=2024", *words, program], tmp_path)
    assert _run([tmp_path / "main"], tmp_path) == "worked\n" and _is_released(server)


def test_the_shell_works(server: Server, tmp_path: Path) -> None:
    command = _shell()[1].text
    script = tmp_path / "deploy.sh"
    script.write_text('#!/bin/sh\necho "deployed under $SLOCK_KEY"\n')
    script.chmod(0o755)
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=Cli(server).environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "deployed under job:42\n"), done.stderr
    assert _is_released(server)


def _shell() -> list[Block]:
    return blocks(README, "sh")
