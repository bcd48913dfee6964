"""The example programs in other languages, built from what `scripts/clients-examples` has fetched.

Nothing is fetched here. Where the toolchain or a package is missing, the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.settings import REPOSITORY

FETCH = "scripts/clients-examples fetches it"
OFFLINE = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-mod=mod"}


def go_program(folder: Path, directory: Path) -> list[str]:
    """The command that runs the Go program of a folder, built into the directory."""
    _need("go")
    source, program = directory / "source", directory / "program"
    shutil.copytree(folder, source, ignore=shutil.ignore_patterns("target"))

    def go(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **OFFLINE}
        return subprocess.run(["go", *arguments], cwd=source, env=environment, capture_output=True, text=True)

    if go("mod", "download").returncode:
        pytest.skip(f"the package of {_name(folder)} is not in the module cache of Go: {FETCH}")
    built = go("build", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr
    return [str(program)]


def node_program(source: Path) -> list[str]:
    """The command that runs a program of Node.js."""
    _need("node")
    packages = source.parent / "node_modules"
    if not packages.is_dir():
        pytest.skip(f"no {_name(packages)}: {FETCH}")
    return ["node", str(source)]


def java_program(folder: Path, directory: Path) -> list[str]:
    """The command that runs the class Lock of a folder, compiled into the directory."""
    _need("javac")
    packages = folder / "target/dependency"
    if not packages.is_dir():
        pytest.skip(f"no {_name(packages)}: {FETCH}")
    source = folder / "src/main/java/Lock.java"
    words = ["javac", "-d", str(directory), "-cp", f"{packages}/*", str(source)]
    built = subprocess.run(words, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return ["java", "-cp", f"{directory}:{packages}/*", "Lock"]


def _need(tool: str) -> None:
    if not shutil.which(tool):
        pytest.skip(f"no {tool} in the PATH")


def _name(path: Path) -> Path:
    return path.relative_to(REPOSITORY)
