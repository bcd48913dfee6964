"""`slock run`: a command under a lock. What it gets and says, its exit codes, and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from harness import Locks, stays, wait_until
from harness.cli import (
    LIMIT,
    Cli,
    ending,
    ends,
    hold,
    holders,
    is_running,
    number_in,
    until_free,
    until_waiters,
)

# Appends its start and its end to a file; in between another could.
WORK = 'echo "start $1" >>"$2"; sleep 0.05; echo "end $1" >>"$2"'

# Whether a command goes on, when it has said that it is ready.
UNTIL_GO = 'echo 1 >"$1/ready"; while ! [ -e "$1/go" ]; do sleep 0.02; done'


@pytest.mark.parametrize("limit", [1, 3])
def test_ten_shells_work_at_most_so_many_at_a_time(
    cli: Cli, client: redis.Redis, locks: Locks, tmp_path: Path, limit: int
) -> None:
    """One by one they work in the order in which they came."""
    file, words = tmp_path / "lines", ["--limit", limit] if limit > 1 else []
    hold(client, "job", "first")
    shells = []
    for number in range(10):
        shells.append(cli.start("run", *words, "job", "--", "sh", "-c", WORK, "sh", number, file))
        until_waiters(client, "job", number + 1)
    with ending(*shells):
        assert locks.unlock("job", "first") == 1
        assert [ends(shell) for shell in shells] == [0] * 10
    lines = file.read_text().splitlines()
    now = [sum(1 if line.startswith("start") else -1 for line in lines[:end]) for end in range(1, 21)]
    assert now[-1] == 0 and min(limit, 2) <= max(now) <= limit
    in_order = [f"{word} {number}" for number in range(10) for word in ("start", "end")]
    assert limit > 1 or lines == in_order


def test_readers_share_and_exclude_a_writer(cli: Cli) -> None:
    script = "slock run --no-wait --read job -- true && ! slock run --no-wait job -- true 2>/dev/null"
    assert cli("run", "--read", "job", "--", "sh", "-c", script).returncode == 0


def test_the_same_key_of_another_database_is_another_lock(cli: Cli) -> None:
    script = f"slock run job -- slock --url {cli.url}/5 run job -- echo ran"
    assert cli("run", "other", "--", "sh", "-c", script).stdout == "ran\n"


def test_the_command_knows_its_lock(cli: Cli) -> None:
    script = 'echo "$SLOCK_KEY"; slock check "$SLOCK_KEY" "$SLOCK_FENCE"; slock release job "$SLOCK_TOKEN"'
    done = cli("run", "job", "--", "sh", "-c", script)
    assert done.stdout.splitlines() == ["job", "a live holder of job has this fence", "job is released"]
    # Somebody released it, so the command ran without a lock at its end.
    assert done.returncode == 76, done.stderr


def test_input_and_output_are_untouched(cli: Cli) -> None:
    data = bytes(range(256)) * 4096
    done = cli("run", "job", "--", "cat", input=data, text=False)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"", 0)


def test_several_keys_all_or_none(cli: Cli, client: redis.Redis, locks: Locks) -> None:
    hold(client, "b", "other", "backup on web-2")
    refused = cli("run", "--no-wait", "a", "b", "c", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "b is held for write by 'backup on web-2' for" in refused.stderr
    assert client.dbsize() == 1
    assert locks.unlock("b", "other") == 1
    done = cli("run", "--no-wait", "a", "b", "c", "--", "sh", "-c", 'echo "$SLOCK_KEY"; slock ls --json')
    assert done.stdout.startswith("a\nb\nc\n")
    assert all(done.stdout.count(f'"key": "{key}"') == 1 for key in "abc")
    assert client.dbsize() == 0


def test_what_others_see_and_what_verbose_says(cli: Cli) -> None:
    assert "deploy 7" in cli("run", "--meta", "deploy 7", "job", "--", "slock", "info", "job").stdout
    shown = cli("run", "job", "--", "sh", "-c", "slock info job; : secret").stdout
    assert os.uname().nodename in shown and " sh" in shown and "secret" not in shown
    done = cli("run", "--verbose", "job", "--", "sh", "-c", "echo $SLOCK_FENCE; exit 4")
    assert done.returncode == 4
    granted, released = done.stderr.splitlines()
    assert granted.startswith("slock: job is held for write after ")
    assert granted.endswith(f"with the fencing token {done.stdout.strip()}")
    assert released == "slock: the command ended with status 4; job is released"
    stays_held = cli("run", "--verbose", "--at-least", "1m", "other", "--", "true").stderr
    assert "the command ended with status 0; other stays held for 59s more" in stays_held


def test_a_run_under_another_lock_or_that_does_not_wait_is_allowed(cli: Cli) -> None:
    runs = ["run b -- echo one", "--prefix app: run a -- echo two", "--url redis://localhost:1 run a -- true"]
    runs.append("run --no-wait a -- echo three")
    done = cli("run", "a", "--", "sh", "-c", "; ".join(f"slock {run}" for run in runs))
    assert (done.stdout.split(), done.returncode) == (["one", "two"], 75)
    assert "localhost:1" in done.stderr and "a is held for write" in done.stderr


# --- exit codes


@pytest.mark.parametrize("command,code", [
    (["true"], 0),
    (["sh", "-c", "exit 3"], 3),
    (["sh", "-c", "kill -9 $$"], 137),
    (["sh", "-c", "kill -INT $$"], 130),
    (["sh", "-c", "kill -TERM $$"], 143),
    (["/nowhere/no-such-program"], 127),
    (["/etc/passwd"], 126),
])  # fmt: skip
def test_exit_code(cli: Cli, client: redis.Redis, command: list[str], code: int) -> None:
    assert cli("run", "-E", "9", "job", "--", *command).returncode == code
    assert client.dbsize() == 0


def test_not_obtained_says_who_holds_it(cli: Cli, client: redis.Redis) -> None:
    hold(client, "job", "t", "backup on web-2")
    for limit in (["--no-wait"], ["--wait", "100ms"], ["--wait", "0"]):
        for given, code in (([], 75), (["-E", "0", "--verbose"], 0), (["--conflict-exit-code", "200"], 200)):
            done = cli("run", *limit, *given, "job", "--", "echo", "ran")
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
            assert "job is held for write by 'backup on web-2' for" in done.stderr
        # A conflict that is no failure: cron mails nothing.
        done = cli("run", *limit, "-E", "0", "job", "--", "echo", "ran")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(
    cli: Cli, client: redis.Redis, tmp_path: Path, number: signal.Signals
) -> None:
    """A log file says who is waited for, and what ended the wait."""
    hold(client, "job", "other", "backup")
    log = tmp_path / "log"
    with log.open("w") as file, ending(waiting := cli.start("run", "job", "--", "echo", "ran", stderr=file)):
        wait_until(lambda: log.read_text(), LIMIT, "the line about the wait")
        waiting.send_signal(number)
        output, _ = waiting.communicate(timeout=LIMIT)
        assert (waiting.returncode, output) == (128 + number, "")
    first, last = log.read_text().splitlines()
    assert first.startswith("slock: waiting for job, held for write by 'backup' for ")
    assert last.startswith(f"slock: {number.name} ended the wait for job after ")
    until_waiters(client, "job", 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(cli: Cli, client: redis.Redis, tmp_path: Path, number: int) -> None:
    ready = tmp_path / "ready"
    # By exec: dash may lose a SIGINT that comes while it starts another program.
    with ending(running := cli.start("run", "job", "--", "sh", "-c", f"echo 1 >{ready}; exec sleep 100")):
        number_in(ready)
        running.send_signal(number)
        assert ends(running) == 128 + number
    assert client.dbsize() == 0


def test_the_command_decides_what_a_signal_means(cli: Cli, client: redis.Redis, tmp_path: Path) -> None:
    """It ignores TERM, and goes on under its lock."""
    script = f"trap '' TERM; {UNTIL_GO}; exit 4"
    with ending(running := cli.start("run", "job", "--", "sh", "-c", script, "sh", tmp_path)):
        number_in(tmp_path / "ready")
        running.terminate()
        running.terminate()
        assert holders(client, "job") == 1
        (tmp_path / "go").touch()
        assert ends(running) == 4


def test_what_was_ignored_stays_ignored(cli: Cli, tmp_path: Path) -> None:
    """As nohup does."""
    words = ["sh", "-c", 'trap "" HUP; exec slock run job -- sh -c "$1" sh "$2"', "sh", UNTIL_GO, tmp_path]
    with ending(running := subprocess.Popen(words, env=cli.environment, text=True, start_new_session=True)):
        number_in(tmp_path / "ready")
        running.send_signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        assert ends(running) == 0


def test_the_status_is_known_where_the_end_of_children_was_ignored(cli: Cli) -> None:
    script = (
        "import signal, os; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        "os.execvp('slock', ['slock', 'run', 'job', '--', 'sh', '-c', 'exit 3'])"
    )
    done = subprocess.run([sys.executable, "-c", script], env=cli.environment, timeout=LIMIT)
    assert done.returncode == 3


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize("detach", [False, True])
def test_the_command_dies_with_a_killed_slock(
    cli: Cli, client: redis.Redis, tmp_path: Path, detach: bool
) -> None:
    words = ["--detach"] if detach else []
    script = f"echo $$ >{tmp_path}/ready; exec sleep 100"
    with ending(running := cli.start("run", "--ttl", "2s", *words, "job", "--", "sh", "-c", script)):
        child = number_in(tmp_path / "ready")
        # Longer than the thread that starts a command could live by chance.
        stays(lambda: is_running(child), 0.2, "the command")
        running.kill()
        if not detach:
            wait_until(lambda: not is_running(child), LIMIT, "the command to end")
        until_free(client, "job")
        assert is_running(child) == detach


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has namespaces of processes")
def test_as_the_first_process_it_takes_the_ends_of_orphans(
    cli: Cli, client: redis.Redis, tmp_path: Path
) -> None:
    """As in a container. A signal to it reaches the command once, and its status is the command's."""
    new = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*new, "true"], capture_output=True).returncode != 0:
        pytest.skip("the user may not make a namespace of processes")
    # An orphan ends; then no process is left that has ended and that nobody has waited for.
    script = """
        trap 'echo term >>$0/terms; exit 5' TERM
        sh -c 'sleep 0.05 & echo $! >$0/orphan' $0
        while [ -e /proc/$(cat $0/orphan) ]; do sleep 0.02; done
        echo 1 >$0/ready
        while :; do sleep 0.02; done
    """
    as_first = f'echo $$ >{tmp_path}/pid; exec slock run job -- sh -c "$0" {tmp_path}'
    words = [*new, "sh", "-c", as_first, script]
    running = subprocess.Popen(words, env=cli.environment, start_new_session=True, stderr=subprocess.PIPE)
    with ending(running):
        number_in(tmp_path / "ready")
        assert number_in(tmp_path / "pid") == 1
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", children[0]], check=True)
        assert running.wait(timeout=LIMIT) == 5
    assert (tmp_path / "terms").read_text() == "term\n"
    assert client.dbsize() == 0
