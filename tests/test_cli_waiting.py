"""`slock run` while it waits and when it does not get the lock: what it says, and how it exits."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from harness import Server, wait_until
from harness.cli import LIMIT, Cli, ending, number_in, waiters


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


@pytest.fixture
def held(client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000, "META", "backup")


@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("code", [0, 1, 200])
def test_the_exit_code_if_the_lock_is_not_obtained(cli: Cli, code: int) -> None:
    for limit in (["--no-wait"], ["--wait", "50ms"]):
        assert cli("run", *limit, "-E", code, "job", "--", "true").returncode == code
    assert (
        cli("run", "--no-wait", "--conflict-exit-code", code, "free", "--", "sh", "-c", "exit 7").returncode
        == 7
    )


@pytest.mark.usefixtures("held")
def test_a_log_file_says_who_is_waited_for_and_what_ended_the_wait(
    cli: Cli, client: redis.Redis, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with log.open("w") as file, ending(waiting := cli.start("run", "job", "--", "true", stderr=file)):
        wait_until(lambda: log.read_text(), LIMIT, "the line about the wait")
        waiting.send_signal(signal.SIGTERM)
        assert waiting.wait(timeout=LIMIT) == 143
    first, last = log.read_text().splitlines()
    assert first.startswith("slock: waiting for job, held for write by 'backup' for ")
    assert last.startswith("slock: SIGTERM ended the wait for job after ")


def test_verbose(cli: Cli) -> None:
    done = cli("run", "--verbose", "job", "--", "sh", "-c", "echo $SLOCK_FENCE; exit 4")
    assert done.returncode == 4
    granted, released = done.stderr.splitlines()
    assert granted.startswith("slock: job is held for write after ")
    assert granted.endswith(f"with the fencing token {done.stdout.strip()}")
    assert released == "slock: the command ended with status 4; job is released"
    stays = cli("run", "--verbose", "--at-least", "1m", "other", "--", "true").stderr
    assert "the command ended with status 0; other stays held for 59s more" in stays


@pytest.mark.parametrize("words", [["job"], ["a", "job"], ["--read", "job"], ["--wait", "1m", "job"]])
def test_a_run_under_its_own_lock_is_refused(cli: Cli, words: list[str]) -> None:
    nested = ["slock", "run", *words, "--", "echo", "ran"]
    done = cli("run", "job", "other", "--", *nested)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this runs under `slock run job` already, and would wait for itself" in done.stderr
    assert "SLOCK_KEY" in done.stderr


def test_a_run_under_another_lock_is_not(cli: Cli) -> None:
    nested = (
        "slock run b -- echo one; slock --prefix app: run a -- echo two; slock run --no-wait a -- echo three"
    )
    done = cli("run", "a", "--", "sh", "-c", nested)
    assert done.stdout.split() == ["one", "two"]
    assert "a is held for write" in done.stderr
    assert done.returncode == 75


def test_what_only_the_server_knows_to_be_wrong_is_wrong_usage(cli: Cli) -> None:
    for words in (["--ttl", "25h"], ["--meta", "m" * 1025]):
        for command in (["run", *words, "job", "--", "true"], ["acquire", *words, "job"]):
            done = cli(*command)
            assert done.returncode == 2
            assert done.stderr.count("\n") == 1
            assert "must " in done.stderr
    token = cli("acquire", "job").stdout.split()[0]
    assert cli("extend", "job", token, "--ttl", "25h").returncode == 2
    assert cli("run", "k" * 1025, "--", "true").returncode == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces of processes")
def test_as_the_first_process_it_takes_the_ends_of_orphans(
    cli: Cli, client: redis.Redis, tmp_path: Path
) -> None:
    """As in a container. A signal to it reaches the command once, and its status is the command's."""
    new = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*new, "true"], capture_output=True).returncode != 0:
        pytest.skip("the user may not make a namespace of processes")
    orphan = "sh -c 'sleep 0.05 &'; sleep 0.3; "
    count = "cat /proc/[0-9]*/stat | grep -c ') Z ' >{0}/zombies"
    script = f"trap 'echo term >>{{0}}/terms; exit 5' TERM; {orphan} {count}; echo 1 >{{0}}/ready; "
    script = (script + "while :; do sleep 0.02; done").format(tmp_path)
    words = [*new, "sh", "-c", 'echo $$ >"$0"; exec slock run job -- sh -c "$1"', tmp_path / "pid", script]
    with ending(
        running := subprocess.Popen(
            list(map(str, words)), env=cli.environment, start_new_session=True, stderr=subprocess.PIPE
        )
    ):
        number_in(tmp_path / "ready")
        assert (tmp_path / "zombies").read_text() == "0\n"
        assert number_in(tmp_path / "pid") == 1
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", children[0]], check=True)
        assert running.wait(timeout=LIMIT) == 5
    assert (tmp_path / "terms").read_text() == "term\n"
    assert client.dbsize() == 0
    assert waiters(client, "job") == 0
