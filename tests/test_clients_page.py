"""The page about client libraries: its code is that of the programs in examples/clients, and they work.

`scripts/clients-examples` fetches what they need. Nothing is fetched here.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from harness import Server, wait_until
from harness.docs import DOCS, Block, blocks, sections, table
from harness.examples import go_program, java_program, node_program
from harness.settings import REPOSITORY

pytestmark = pytest.mark.programs

PAGE = DOCS / "clients.md"
EXAMPLES = REPOSITORY / "examples/clients"
STEP_SECONDS = 45
HOUR = 3_600_000

Start = Callable[..., subprocess.Popen[str]]


# --- the programs


def _command(folder: Path, directory: Path) -> list[str]:
    """What runs the program of a folder, which is built into the directory where it has to be."""
    if (folder / "go.mod").exists():
        return go_program(folder, directory)
    if (folder / "package.json").exists():
        return node_program(folder / "lock.js")
    if (folder / "pom.xml").exists():
        return java_program(folder, directory)
    return [sys.executable, str(folder / "lock.py")]


@pytest.fixture(scope="module", params=sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _command(EXAMPLES / request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def start(server: Server, program: list[str]) -> Iterator[Start]:
    """Starts the program on the lock `job`."""
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*program, str(server.port), "job", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def _end(process: subprocess.Popen[str]) -> str:
    """Ends the input of the program, waits for its end, and gives its output."""
    output, errors = process.communicate(timeout=STEP_SECONDS)
    assert process.returncode == 0, errors
    return output.strip()


def _wait_for_waiters(client: redis.Redis, count: int) -> None:
    wait_until(lambda: client.info("slock")["slock_waiters"] == count, STEP_SECONDS, f"{count} to wait")


@pytest.fixture
def held(client: redis.Redis) -> redis.Redis:
    """Somebody else has the lock until `_let_go`."""
    assert client.execute_command("SLOCK.LOCK", "job", "another", HOUR) > 0
    return client


def _let_go(client: redis.Redis) -> None:
    assert client.execute_command("SLOCK.UNLOCK", "job", "another") == 1


def _assert_unused(client: redis.Redis) -> None:
    assert client.info("slock")["slock_waiters"] == 0
    assert client.execute_command("SLOCK.INFO", "job") is None


def test_those_that_wait_work_one_after_the_other(held: redis.Redis, start: Start) -> None:
    contenders = [start("work", "counter") for _ in range(3)]
    _wait_for_waiters(held, 3)
    _let_go(held)
    for contender in contenders:
        _end(contender)
    assert int(held.get("counter")) == 3
    _assert_unused(held)


def test_who_only_tries_is_told_at_once_whether_the_lock_is_free(held: redis.Redis, start: Start) -> None:
    assert _end(start("try", "counter")) == "busy"
    assert held.get("counter") is None and held.info("slock")["slock_waiters"] == 0
    _let_go(held)
    assert _end(start("try", "counter")) == "done"
    assert int(held.get("counter")) == 1
    _assert_unused(held)


def test_a_wait_that_is_given_up_leaves_nothing(held: redis.Redis, start: Start) -> None:
    waiting = start("give-up")
    _wait_for_waiters(held, 1)
    _end(waiting)
    _let_go(held)
    _assert_unused(held)


def test_an_end_whose_connection_is_cut_is_sent_again_and_leaves_nothing(
    client: redis.Redis, start: Start
) -> None:
    """The server puts off the request and SLOCK.MUNLOCK, as it does all that changes data."""
    client.client_pause(HOUR, all=False)
    try:
        waiting = start("give-up")
        _put_off(client, "slock.lock")
        waiting.stdin.close()
        client.client_kill_filter(_id=_put_off(client, "slock.munlock"))
    finally:
        client.client_unpause()
    waiting.stdin = None
    _end(waiting)
    _assert_unused(client)


def _put_off(client: redis.Redis, command: str) -> str:
    """The connection that has sent this command."""

    def found() -> list[str]:
        return [one["id"] for one in client.client_list() if one["cmd"] == command]

    return wait_until(found, STEP_SECONDS, f"{command} to be put off")[0]


def test_a_wait_whose_connection_is_cut_leaves_nothing(held: redis.Redis, start: Start) -> None:
    """The program fails, or its library sends the request again."""
    contender = start("work", "counter")
    _wait_for_waiters(held, 1)
    (waiting,) = (one["id"] for one in held.client_list() if "b" in one["flags"])
    held.client_kill_filter(_id=waiting)

    def has_gone_on() -> bool:
        again = [one for one in held.client_list() if "b" in one["flags"] and one["id"] != waiting]
        return contender.poll() is not None or bool(again)

    wait_until(has_gone_on, STEP_SECONDS, "the program to end or to send it again")
    _let_go(held)
    contender.communicate(timeout=STEP_SECONDS)
    _assert_unused(held)
    assert int(held.get("counter") or 0) == (contender.returncode == 0)


def test_it_tells_who_holds(client: redis.Redis, start: Start) -> None:
    assert _end(start("info")) == "nobody"
    client.execute_command("SLOCK.RLOCK", "job", "alice", HOUR)
    fence = client.execute_command("SLOCK.RLOCK", "job", "bob", HOUR)
    assert fence > 2**50
    assert _end(start("info")) == f"read {fence} alice,bob"


# --- the page

CODE = [block for block in blocks(PAGE) if block.language in ("go", "js", "java", "python")]


def _own_files(pattern: str, folder: Path = EXAMPLES) -> list[Path]:
    foreign = {"node_modules", "target"}
    return [path for path in sorted(folder.rglob(pattern)) if not foreign & set(path.parts)]


@pytest.mark.parametrize("block", CODE, ids=str)
def test_the_code_of_the_page_is_that_of_its_program(block: Block) -> None:
    """Under the heading of a library stand parts of its program, in one piece each."""
    folder = EXAMPLES / block.heading.lower()
    (source,) = [path for name in ("main.go", "[lL]ock.*") for path in _own_files(name, folder)]
    lines, shown = source.read_text().splitlines(), block.text.splitlines()
    parts = ("\n".join(lines[start : start + len(shown)]) for start in range(len(lines)))
    assert any(textwrap.dedent(part) == block.text for part in parts), f"{block} is not in {source}"


def test_every_program_is_on_the_page_with_its_version() -> None:
    assert {block.heading.lower() for block in CODE} == {
        path.name for path in EXAMPLES.iterdir() if path.is_dir()
    }
    patterns = {
        "go.mod": r"^require github\.com/\S+ v(\S+)$",
        "package.json": r'"(?:redis|ioredis)": "([^"]+)"',
        "pom.xml": r"<artifactId>(?:jedis|lettuce-core)</artifactId>\s*<version>([^<]+)<",
        "requirements.txt": r"^redis==(\S+)$",
    }
    pinned = {}
    for name, pattern in patterns.items():
        for path in _own_files(name):
            (version,) = re.findall(pattern, path.read_text(), re.MULTILINE)
            pinned[path.parent.name] = version.removesuffix(".RELEASE")
    assert {row[0].lower(): row[1] for row in table(sections(PAGE)["Versions"])} == pinned
    assert {block.heading.lower() for block in CODE} == set(pinned)
