"""`scripts/home` puts the names of a real home in place of those that stand for them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.settings import REPOSITORY

HOME = ("https://git.test/acme/slock", "test.acme.slock", "mail@acme.test")
STANDS_FOR = r"slock\.example|example[./]slock"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in git(REPOSITORY, "ls-files", "-z", "-co", "--exclude-standard").split("\0"):
        if name and (REPOSITORY / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    return tmp_path


def home(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([copy / "scripts/home", *words], capture_output=True, text=True, check=False)


def test_no_name_is_left_that_stands_for_another(copy: Path) -> None:
    if not re.search(STANDS_FOR, (copy / "clients/go/go.mod").read_text()):
        pytest.skip("the project has its home")
    done = home(copy, *HOME)
    assert done.returncode == 0, done.stderr
    git(copy, "add", "--all")
    assert not git(copy, "grep", "-nE", STANDS_FOR, "--", ".", ":!scripts/home", ":!tests/test_home.py")
    assert "module git.test/acme/slock/clients/go\n" in (copy / "clients/go/go.mod").read_text()
    locks = (copy / "clients/java/core/src/main/java/test/acme/slock/Locks.java").read_text()
    assert "package test.acme.slock;" in locks
    assert not any(path.is_file() for path in copy.glob("clients/java/**/example/slock/**"))
    # The links of packages are absolute.
    for page in [*copy.glob("clients/*/README.md"), copy / "cli/README.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            assert target.startswith(("https://", "http://", "#")), f"{page}: {target}"
            if target.startswith(HOME[0]):
                path = target.removeprefix(HOME[0]).split("#")[0].split("/HEAD/")[1]
                assert (copy / path).exists(), f"{page}: {target}"
    again = home(copy, *HOME)
    assert again.returncode == 1 and "has a home already" in again.stderr


def test_wrong_arguments_change_nothing(copy: Path) -> None:
    for words in ((), ("git.test/acme", *HOME[1:]), (HOME[0], "slock", HOME[2]), (*HOME[:2], "nobody")):
        done = home(copy, *words)
        assert done.returncode == 2 and "scripts/home https://" in done.stderr
    assert not git(copy, "diff", "--name-only")
