"""Checks the tests: each planted fault of tests/faults/ must make one of them fail.

    scripts/faults                        every fault
    scripts/faults queue deadline-edge    those of a subject, and one by its name (or FAULTS="queue …")
    scripts/faults --explore              those that name explore: tells a shortest history of each
    scripts/faults --torture              those that name torture: tells what the clients were told
    scripts/faults --check                none: only looks whether each still applies

tests/README.md says how a fault is written. The work is done in a copy of the tree, in target/faults, which
is kept: so builds are incremental.
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
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "faults"
TREE, TARGET = WORK / "tree", WORK / "target"

# About how long a fault takes on two cores that do nothing else; tests/README.md says the same.
SECONDS_A_FAULT = 12
# The tests that a fault names take seconds. A fault that makes one hang is noticed too.
TEST_SECONDS = 240

ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": str(TARGET),
    "CARGO_TERM_COLOR": "never",
    "SLOCK_MODULE": str(TARGET / "release/libslock.so"),
    "SLOCK_SUBSCRIBER": str(TARGET / "release/libsubscriber.so"),
    "SLOCK_CLI": str(TARGET / "debug/slock"),
    # Without the checks of a debug build, as it is released, but quickly built.
    "CARGO_PROFILE_RELEASE_LTO": "off",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
    "CARGO_PROFILE_RELEASE_DEBUG": "0",
    "CARGO_PROFILE_RELEASE_INCREMENTAL": "true",
    "SLOCK_EXPLORE_SECONDS": str(TEST_SECONDS // 2),
    "PYTHONDONTWRITEBYTECODE": "1",
    # A fault may name a test with Node or Java.
    "SLOCK_ALL_LIBRARIES": "1",
    # The copy may lie inside the repository and is no part of it.
    "GIT_CEILING_DIRECTORIES": str(WORK),
}

MODULE = "cargo build --release --quiet --package slock-module --package slock-test-subscriber"
PROGRAM = "cargo build --quiet --bin slock --example conformance_agent"
PYTEST = f"{shlex.quote(str(ROOT / '.venv/bin/python'))} -m pytest -x -q -p no:cacheprovider"
RUST = "cargo test --tests"
GO = "go -C clients/go test -count=1 -v"
NODE = 'node --test --test-reporter=spec --test-name-pattern="$1" clients/node/test/*.test.mjs'
MAVEN = (
    "mvn -B -f clients/java -pl core,lettuce,jedis,agent -Dmaven.javadoc.skip -Dmaven.source.skip"
    " -Dsurefire.failIfNoSpecifiedTests=false package"
)
# For each kind of test what builds it, and what runs it with the words that the fault gives.
RUNNERS = {
    "core": ("cargo test --package slock-core --lib --no-run", "cargo test --package slock-core --lib --"),
    "explore": (
        "cargo test --package slock-core --lib --no-run",
        "cargo test --package slock-core --lib every_state_for -- --ignored",
    ),
    # The judge of make torture, while nothing happens to the server and while it is killed.
    "torture": (
        MODULE,
        f"SLOCK_SOAK_SECONDS=20 {PYTEST} --tb=short tests/test_soak.py tests/test_torture.py"
        " -k 'long or kill'",
    ),
    "pytest": (f"{MODULE} && {PROGRAM}", PYTEST),
    "rust": (f"{MODULE} && {RUST} --no-run", f"{RUST} --"),
    "go": (f"{MODULE} && {GO} -run ^$ .", f"{GO} . -run"),
    "node": (f"{MODULE} && scripts/node-library", f"named() {{ {NODE}; }}; named"),
    "java": (f"{MODULE} && {MAVEN} -DskipTests", f"{MAVEN} -D"),
}
# What the exploration says of a fault, or the judge.
HISTORY = re.compile(
    r"^after [^\n]* a shortest history .*?(?=^note: |^stack |^$)"
    r"|^E +(?:no order|a fence|one fence).*?(?=^E +when|^E *$|^[^E])",
    re.MULTILINE | re.DOTALL,
)
# What each of them says when at least one test ran.
RAN = re.compile(
    r"^running [1-9]|\b[1-9]\d* (passed|failed|error)|^=== RUN|^\S (pass|fail) [1-9]|Tests run: [1-9]",
    re.MULTILINE,
)


class Problem(Exception):
    """Why a fault was not caught, and what a command said of it."""


def change(text: str, lines: list[str]) -> str:
    """The text with a change, whose lines begin as in a diff. The text may be indented otherwise."""
    old, new = ([line[2:] for line in lines if line[0] != other] for other in "+-")
    found = list(re.finditer(r"\s*\n\s*".join(re.escape(line.strip()) for line in old), text))
    if len(found) != 1:
        raise Problem(f"does not apply: its old text is {len(found)} times in its file")
    start, end = found[0].span()
    margin = re.match(r"\s*", text[text.rfind("\n", 0, start) + 1 :])[0]
    return text[:start] + "\n".join(margin + line for line in new).lstrip() + text[end:]


class Fault(NamedTuple):
    subject: str
    name: str
    tests: list[str]
    changes: list[tuple[str, list[str]]]  # the file and the lines of each

    def planted_in(self, root: Path) -> dict[str, str]:
        """The texts of the files that it changes."""
        if not self.tests or not self.changes:
            raise Problem("names no test or changes nothing")
        texts: dict[str, str] = {}
        for file, lines in self.changes:
            text = (root / file).read_text() if (root / file).is_file() else ""
            texts[file] = change(texts.get(file, text), lines)
        return texts


def read_faults(path: Path) -> Iterator[Fault]:
    for block in path.read_text().split("\n\n"):
        head, *lines = block.strip("\n").split("\n")
        if head[:1] in ("", "#"):
            continue
        fault = Fault(path.stem, head.partition(": ")[0], [], [])
        for line in lines:
            word, _, rest = line.partition(": ")
            if word == "caught by" and rest.split()[0] in RUNNERS:
                fault.tests.append(rest)
            elif word == "in":
                fault.changes.append((rest, []))
            elif fault.changes and line[:2].strip() in ("-", "+", ""):
                fault.changes[-1][1].append(line)
            else:
                raise SystemExit(f"{path.name}: {fault.name}: what is '{line}'?")
        yield fault


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
        shutil.copymode(source, copy)
    for path in list(TREE.rglob("*")):
        if path.is_file() and str(path.relative_to(TREE)) not in files:
            path.unlink()


def run(command: str, seconds: int | None = None) -> tuple[int | None, str]:
    """The exit status (None: it hangs) and what was said. Nothing of it is left running."""
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=TREE,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except BaseException as problem:
        if seconds:  # a build that is killed leaves what the next one cannot link: it ends first
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if isinstance(problem, subprocess.TimeoutExpired):
            return None, output
        raise


def passes(test: str) -> tuple[bool, str]:
    """Whether it does, and what it said."""
    kind, _, words = test.partition(" ")
    build, command = RUNNERS[kind]
    status, output = run(build)
    if status != 0:
        raise Problem("does not build", output)
    status, output = run(f"{command} {words}", TEST_SECONDS)
    # What hangs has run. The 2 to 5 of pytest are no answer, as 5: no test was found.
    if status is not None and (status in range(2, 6) or not RAN.search(output)):
        raise Problem(f"ran no test: {test}", output)
    return status == 0, output


def catch(fault: Fault) -> str:
    texts = fault.planted_in(TREE)
    before = {name: (TREE / name).read_bytes() for name in texts}
    try:
        for name, text in texts.items():
            (TREE / name).write_text(text)
        for test in fault.tests:
            passed, output = passes(test)
            if not passed:
                history = HISTORY.search(output)
                return f"caught by {test}" + (f"\n{history[0]}" if history else "")
        raise Problem("NOT CAUGHT")
    finally:
        for name, content in before.items():
            (TREE / name).write_bytes(content)


def check(faults: list[Fault]) -> int:
    bad = 0
    for fault in faults:
        try:
            fault.planted_in(ROOT)
        except Problem as problem:
            bad = 1
            print(f"tests/faults/{fault.subject}.txt: {fault.name} {problem}")
    return bad


def try_all(faults: list[Fault]) -> int:
    bad, started, width = 0, time.monotonic(), max(len(fault.name) for fault in faults)
    for done, fault in enumerate(faults, 1):
        began, output = time.monotonic(), ""
        try:
            verdict = catch(fault)
        except Problem as problem:
            bad += 1
            verdict, output = problem.args[0], "".join(problem.args[1:])
        now = time.monotonic()
        left_min = (now - started) / 60 / done * (len(faults) - done)
        print(f"{done:3}/{len(faults)}  {now - began:3.0f} s  {fault.name:{width}}  {verdict}", end="")
        print(f"  ({left_min:.0f} min left)", *output.splitlines()[-30:], sep="\n", flush=True)
    print(f"{len(faults) - bad} of {len(faults)} faults were caught")
    return min(bad, 1)


def main() -> int:
    words = sys.argv[1:] or os.environ.get("FAULTS", "").split()
    wanted = {word for word in words if not word.startswith("-")}
    if {*words} - wanted - {"--explore", "--torture", "--check"}:
        raise SystemExit(__doc__)
    faults = [fault for path in sorted(ROOT.glob("tests/faults/*.txt")) for fault in read_faults(path)]
    if unknown := wanted.difference(*((fault.subject, fault.name) for fault in faults)):
        raise SystemExit(f"there is no fault or subject {', '.join(unknown)}")
    faults = [fault for fault in faults if not wanted or wanted & {fault.subject, fault.name}]
    if "--check" in words:
        return check(faults)
    for kind in ("explore", "torture"):
        if f"--{kind}" in words:
            faults = [fault._replace(tests=[kind]) for fault in faults if kind in fault.tests]
    print(f"{len(faults)} faults: about {SECONDS_A_FAULT * len(faults) // 60 + 1} min", flush=True)
    copy_tree()
    for build, _ in {RUNNERS[test.split()[0]] for fault in faults for test in fault.tests}:
        if (ended := run(build))[0] != 0:
            raise SystemExit(f"{ended[1]}without a fault this fails: {build}")
    return try_all(faults)


if __name__ == "__main__":
    sys.exit(main())
