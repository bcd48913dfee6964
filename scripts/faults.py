"""Checks the tests: each planted fault of tests/faults/ must make one of them fail.

    scripts/faults            every fault
    scripts/faults 03 17      these (or FAULTS="03 17")
    scripts/faults --check    no fault: all tests that the faults name must pass

A fault is a patch. Its first lines say what it breaks and which tests must notice, the cheapest first:

    # A hold is still in force at the millisecond of its deadline.
    # Caught by: core a_hold_ends_at_its_very_millisecond     cargo test -p slock-core <filter>
    # Caught by: module the_form_is_pinned                    cargo test -p slock <filter>
    # Caught by: pytest tests/test_queue_wake.py -k swapdb

The work is done in a copy of the tree, in target/faults, which is kept: so builds are incremental.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests/faults"
WORK = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "faults"
TREE, TARGET = WORK / "tree", WORK / "target"

# The tests that a fault names take seconds. A fault that makes one hang is noticed too.
TEST_SECONDS = 240

ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": str(TARGET),
    "CARGO_TERM_COLOR": "never",
    "SLOCK_MODULE": str(TARGET / "release/libslock.so"),
    "SLOCK_CLI": str(TARGET / "release/slock"),
    # Without the checks of a debug build, as it is released, but quickly built.
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_INCREMENTAL": "true",
    "PYTHONDONTWRITEBYTECODE": "1",
    # The copy may lie inside the repository and is no part of it.
    "GIT_CEILING_DIRECTORIES": str(WORK),
}


class Problem(Exception):
    """Neither caught nor missed: the fault or the test that it names is wrong."""


class Test(NamedTuple):
    kind: str
    words: list[str]

    def __str__(self) -> str:
        return " ".join([self.kind, *self.words])

    def build(self) -> list[str]:
        if self.kind == "pytest":
            return ["cargo", "build", "--release", "--quiet"]
        return ["cargo", "test", "--quiet", "--package", PACKAGES[self.kind], "--lib", "--no-run"]

    def command(self) -> list[str]:
        if self.kind == "pytest":
            python = str(ROOT / ".venv/bin/python")
            return [python, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *self.words]
        return ["cargo", "test", "--package", PACKAGES[self.kind], "--lib", "--", *self.words]


PACKAGES = {"core": "slock-core", "module": "slock"}


class Fault(NamedTuple):
    name: str
    path: Path
    tests: list[Test]
    files: list[str]


def read_fault(path: Path) -> Fault:
    text = path.read_text()
    tests = []
    for line in re.findall(r"^# Caught by: (.+)$", text, re.MULTILINE):
        kind, *words = shlex.split(line)
        if not words or kind not in {*PACKAGES, "pytest"}:
            raise SystemExit(f"{path.name}: what is '{line}'?")
        tests.append(Test(kind, words))
    if not tests:
        raise SystemExit(f"{path.name} names no test")
    return Fault(path.stem, path, tests, re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE))


def is_named(fault: Fault, word: str) -> bool:
    """By its number, or by the beginning of its name."""
    return fault.name.startswith(word if "-" in word else f"{word}-")


def copy_tree() -> None:
    """Makes the copy equal to the tree. What is equal keeps its time, so that it is not built again."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {name for name in output.split("\0") if name and (ROOT / name).is_file()}
    for name in files:
        source, copy = ROOT / name, TREE / name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    for path in list(TREE.rglob("*")):
        if path.is_file() and str(path.relative_to(TREE)) not in files:
            path.unlink()


def run(command: list[str], seconds: int | None = None) -> tuple[int | None, str]:
    """The exit status (None: it hangs) and what was said. Nothing of it is left running."""
    process = subprocess.Popen(
        command,
        cwd=TREE,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def passes(test: Test) -> bool:
    status, output = run(test.build())
    if status != 0:
        raise Problem("does not build", output)
    status, output = run(test.command(), TEST_SECONDS)
    if test.kind == "pytest":
        # 0 all passed, 1 some failed; anything else is no answer, as 5: no test was found.
        ran = status is None or (status in (0, 1) and not re.search(r"^no tests ran", output, re.MULTILINE))
        ran = ran and (status != 0 or re.search(r"\b\d+ passed\b", output) is not None)
    else:
        counts = re.findall(r"^running (\d+) test", output, re.MULTILINE)
        ran = any(int(count) > 0 for count in counts)
    if not ran:
        raise Problem(f"ran no test: {test}", output)
    return status == 0


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    before = {name: (TREE / name).read_bytes() for name in fault.files if (TREE / name).exists()}
    status, output = run(["git", "apply", "--whitespace=nowarn", str(fault.path)])
    if status != 0:
        raise Problem("does not apply", output)
    try:
        yield
    finally:
        for name, content in before.items():
            (TREE / name).write_bytes(content)


def caught_by(fault: Fault) -> str | None:
    with planted(fault):
        return next((str(test) for test in fault.tests if not passes(test)), None)


def try_faults(faults: list[Fault]) -> int:
    bad = 0
    width = max(len(fault.name) for fault in faults)
    for fault in faults:
        started, details = time.monotonic(), ""
        try:
            test = caught_by(fault)
            verdict = f"caught by {test}" if test else "NOT CAUGHT"
            bad += test is None
        except Problem as problem:
            verdict, details = f"ERROR: {problem.args[0]}", problem.args[1]
            bad += 1
        print(f"{fault.name:{width}}  {time.monotonic() - started:4.0f} s  {verdict}", flush=True)
        if details:
            print("\n".join(details.splitlines()[-30:]), flush=True)
    print(f"{len(faults) - bad} of {len(faults)} faults were caught")
    return 1 if bad else 0


def check_tests(faults: list[Fault]) -> int:
    bad = 0
    tests = {str(test): test for fault in faults for test in fault.tests}
    for name, test in tests.items():
        started = time.monotonic()
        try:
            verdict = "passes" if passes(test) else "FAILS"
        except Problem as problem:
            verdict = f"ERROR: {problem.args[0]}"
        bad += verdict != "passes"
        print(f"{time.monotonic() - started:4.0f} s  {verdict}  {name}", flush=True)
    print(f"{len(tests) - bad} of {len(tests)} named tests pass without a fault")
    return 1 if bad else 0


def main() -> int:
    words = sys.argv[1:] or os.environ.get("FAULTS", "").split()
    is_check = "--check" in words
    wanted = [word for word in words if word != "--check"]
    faults = [read_fault(path) for path in sorted(FAULTS.glob("*.patch"))]
    for word in wanted:
        if not any(is_named(fault, word) for fault in faults):
            raise SystemExit(f"there is no fault {word}")
    faults = [fault for fault in faults if not wanted or any(is_named(fault, word) for word in wanted)]
    copy_tree()
    return check_tests(faults) if is_check else try_faults(faults)


if __name__ == "__main__":
    sys.exit(main())
