"""`slock run`: a command under a lock, its exit codes, signals and terminal, and an outage of its server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from harness import Locks, MakeServer, Server, wait_until
from harness.cli import LIMIT, Cli, Terminal, ending, ends, holders, is_running, number_in, waiters

# Appends its start and its end to a file; in between another could.
WORK = 'echo "start $1" >>"$2"; sleep 0.05; echo "end $1" >>"$2"'


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


# --- one after the other


def test_ten_shells_one_after_the_other_in_order(
    cli: Cli, client: redis.Redis, locks: Locks, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    client.execute_command("SLOCK.LOCK", "job", "first", 60_000)
    shells = []
    for number in range(10):
        shells.append(cli.start("run", "job", "--", "sh", "-c", WORK, "sh", number, file))
        wait_until(lambda n=number: waiters(client, "job") == n + 1, LIMIT, f"{number + 1} to wait")
    with ending(*shells):
        client.execute_command("SLOCK.UNLOCK", "job", "first")
        assert [ends(shell) for shell in shells] == [0] * 10
    expected = [f"{word} {number}" for number in range(10) for word in ("start", "end")]
    assert file.read_text().splitlines() == expected


def test_limit_3_is_never_more_than_three(cli: Cli, client: redis.Redis, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    client.execute_command("SLOCK.LOCK", "job", "first", 60_000)
    shells = [
        cli.start("run", "--limit", 3, "job", "--", "sh", "-c", WORK, "sh", number, file)
        for number in range(10)
    ]
    with ending(*shells):
        wait_until(lambda: waiters(client, "job") == 10, LIMIT, "all to wait")
        client.execute_command("SLOCK.UNLOCK", "job", "first")
        assert [ends(shell) for shell in shells] == [0] * 10
    now, most = 0, 0
    for line in file.read_text().splitlines():
        now += 1 if line.startswith("start") else -1
        most = max(most, now)
    assert 2 <= most <= 3
    assert now == 0


def test_readers_share_and_exclude_a_writer(cli: Cli, client: redis.Redis) -> None:
    script = "slock run --no-wait --read job -- true && ! slock run --no-wait job -- true 2>/dev/null"
    assert cli("run", "--read", "job", "--", "sh", "-c", script).returncode == 0


# --- what the command gets, and what it leaves


def test_the_command_knows_its_lock(cli: Cli, client: redis.Redis) -> None:
    script = 'echo "$SLOCK_KEY"; slock check "$SLOCK_KEY" "$SLOCK_FENCE"; slock release job "$SLOCK_TOKEN"'
    done = cli("run", "job", "--", "sh", "-c", script)
    assert done.stdout.splitlines() == ["job", "a live holder of job has this fence", "job is released"]
    # Somebody released it, so the command ran without a lock at its end.
    assert done.returncode == 76, done.stderr


def test_input_and_output_are_untouched(cli: Cli) -> None:
    data = bytes(range(256)) * 4096
    done = cli("run", "job", "--", "cat", input=data, text=False)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"", 0)


def test_several_keys_all_or_none(cli: Cli, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "b", "other", 60_000, "META", "backup on web-2")
    refused = cli("run", "--no-wait", "a", "b", "c", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "b is held for write by 'backup on web-2' for" in refused.stderr
    assert client.dbsize() == 1
    client.execute_command("SLOCK.UNLOCK", "b", "other")
    done = cli("run", "--no-wait", "a", "b", "c", "--", "sh", "-c", 'echo "$SLOCK_KEY"; slock ls --json')
    assert done.stdout.startswith("a\nb\nc\n")
    assert [done.stdout.count(f'"key": "{key}"') for key in "abc"] == [1, 1, 1]
    assert client.dbsize() == 0


def test_others_see_what_it_says(cli: Cli) -> None:
    shown = cli("run", "--meta", "deploy 7", "job", "--", "slock", "info", "job").stdout
    assert "deploy 7" in shown
    shown = cli("run", "job", "--", "sh", "-c", "slock info job; : secret").stdout
    assert os.uname().nodename in shown
    assert " sh" in shown
    assert "secret" not in shown


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
    assert cli("run", "job", "--", *command).returncode == code
    assert client.dbsize() == 0


def test_not_obtained_says_who_holds_it(cli: Cli, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "t", 60_000, "META", "backup\x1b[2J on web-2")
    for limit in (["--no-wait"], ["--wait", "100ms"], ["--wait", "0"]):
        done = cli("run", *limit, "job", "--", "echo", "ran")
        assert (done.returncode, done.stdout) == (75, "")
        assert "job is held for write by 'backup\\u{1b}[2J on web-2' for" in done.stderr
        assert done.stderr.count("\n") == 1


def test_wrong_usage(cli: Cli) -> None:
    for words in (["run", "job"], ["run", "--", "true"], ["run", "--ttl", "1w", "job", "--", "true"]):
        assert cli(*words).returncode == 2
    assert cli("run", "--ttl", "1ms", "job", "--", "true").returncode == 2


@pytest.mark.parametrize("words", [["run", "job", "--", "true"], ["ls"], ["doctor"]])
def test_errors_say_in_one_line_what_to_do(server: Server, words: list[str]) -> None:
    for url, said in {
        f"redis://nobody:hidden@127.0.0.1:{server.port}": "refuses the user or the password",
        "redis://127.0.0.1:1": "nobody listens at 127.0.0.1:1: start the server there, or name",
    }.items():
        done = Cli(url)(*words)
        assert (done.returncode, done.stdout) == (69, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
        assert "hidden" not in done.stderr


def test_a_missing_module_says_how_to_load_it(make_server: MakeServer) -> None:
    cli = Cli(make_server(module=False))
    for words in (
        ["run", "job", "--", "true"],
        ["info", "job"],
        ["queues"],
        ["ls"],
        ["ls", "--json"],
        ["old"],
    ):
        done = cli(*words)
        assert (done.returncode, done.stdout) == (69, "")
        assert "--loadmodule /path/to/libslock.so" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [["run", "job", "--", "true"], ["ls"], ["doctor"]])
def test_how_to_give_a_password(make_server: MakeServer, words: list[str]) -> None:
    server = make_server()
    server.client().config_set("requirepass", "secret")
    try:
        for login, said in {"": "asks for a password", ":hidden@": "refuses the user or"}.items():
            done = Cli(f"redis://{login}127.0.0.1:{server.port}")(*words)
            assert done.returncode == 69
            assert said in done.stderr
            assert "give it by SLOCK_PASSWORD or --password-file" in done.stderr
            assert "hidden" not in done.stderr
        assert Cli(f"redis://:secret@127.0.0.1:{server.port}")("ls").returncode == 0
    finally:
        server.client(password="secret").config_set("requirepass", "")


def test_a_key_that_is_no_lock_is_named(cli: Cli, client: redis.Redis) -> None:
    client.set("job", "no lock")
    for words in (
        ["run", "job", "--", "true"],
        ["info", "job"],
        ["release", "job", "t"],
        ["break", "job", "--yes"],
        ["check", "job", "1"],
        ["wait", "job"],
    ):
        done = cli(*words)
        assert done.returncode == 69
        assert "job holds something else than a lock of SLOCK" in done.stderr


def test_a_forgotten_separator_is_told(cli: Cli) -> None:
    for words in (["run", "job", "true"], ["run", "job", "ls", "-l"]):
        done = cli(*words)
        assert done.returncode == 2
        assert "slock run [OPTIONS] <KEY>... -- <COMMAND>" in done.stderr
        assert "slock: the command comes after `--`: slock run KEY -- COMMAND\n" in done.stderr
    assert "after `--`" not in cli("run", "--", "true").stderr


def test_help_and_man_page_say_what_the_command_gets(cli: Cli) -> None:
    for text in (cli("run", "--help").stdout, cli("man", "run").stdout.replace("\\-", "-")):
        for word in ("SLOCK_KEY", "SLOCK_TOKEN", "SLOCK_FENCE", "<KEY>... -- <COMMAND> [ARGS]..."):
            assert word in text


# --- signals


def test_a_signal_ends_the_wait(cli: Cli, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "other", 60_000)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        waiting = cli.start("run", "job", "--", "echo", "ran")
        with ending(waiting):
            wait_until(lambda: waiters(client, "job") == 1, LIMIT, "the request to wait")
            waiting.send_signal(number)
            output, _ = waiting.communicate(timeout=LIMIT)
            assert (waiting.returncode, output) == (128 + number, "")
            wait_until(lambda: waiters(client, "job") == 0, LIMIT, "the request to be withdrawn")


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
    ready, go = tmp_path / "ready", tmp_path / "go"
    script = (
        f"trap '' TERM; trap 'exit 5' USR1; echo 1 >{ready}; while ! [ -e {go} ]; do sleep 0.02; done; exit 4"
    )
    with ending(running := cli.start("run", "job", "--", "sh", "-c", script)):
        number_in(ready)
        running.terminate()
        running.terminate()
        assert holders(client, "job") == 1
        go.touch()
        assert ends(running) == 4


def test_what_was_ignored_stays_ignored(cli: Cli, tmp_path: Path) -> None:
    """As nohup does."""
    ready, go = tmp_path / "ready", tmp_path / "go"
    script = f"echo 1 >{ready}; while ! [ -e {go} ]; do sleep 0.02; done"
    words = ["sh", "-c", 'trap "" HUP; exec slock run job -- sh -c "$1"', "sh", script]
    with ending(running := subprocess.Popen(words, env=cli.environment, text=True, start_new_session=True)):
        number_in(ready)
        running.send_signal(signal.SIGHUP)
        go.touch()
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
    ready = tmp_path / "ready"
    words = ["--detach"] if detach else []
    script = f"echo $$ >{ready}; exec sleep 100"
    running = cli.start("run", "--ttl", "2s", *words, "job", "--", "sh", "-c", script)
    with ending(running):
        child = number_in(ready)
        # Longer than the thread that starts a command could live by chance.
        time.sleep(0.2)
        assert is_running(child)
        running.kill()
        if not detach:
            wait_until(lambda: not is_running(child), LIMIT, "the command to end")
        wait_until(lambda: client.execute_command("SLOCK.INFO", "job") is None, 5, "the lease to end")
        assert is_running(child) == detach


# --- the terminal


def in_shell(cli: Cli) -> Terminal:
    terminal = Terminal(cli, "PS1='ready> ' bash --norc --noprofile -i")
    terminal.shows("ready>")
    return terminal


def test_ctrl_c_ends_the_command_and_frees_the_lock(cli: Cli, client: redis.Redis) -> None:
    with in_shell(cli) as terminal:
        terminal.press("slock run job -- sleep 100", "Enter")
        wait_until(lambda: holders(client, "job") == 1, LIMIT, "the lock to be held")
        terminal.press("C-c")
        wait_until(lambda: client.dbsize() == 0, LIMIT, "the lock to be free")
        terminal.press("echo status $?", "Enter")
        terminal.shows("status 130")


def test_a_person_is_told_who_is_waited_for(cli: Cli, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job:42", "other", 60_000, "META", "backup")
    with in_shell(cli) as terminal:
        terminal.press("slock run job:42 -- echo r$((1+1))n", "Enter")
        terminal.shows("slock: waiting for job:42, held for write by 'backup' for ")
        client.execute_command("SLOCK.UNLOCK", "job:42", "other")
        assert terminal.shows("r2n").count("waiting for") == 1


def test_ctrl_c_reaches_the_script_that_called(cli: Cli, client: redis.Redis) -> None:
    """Its shell would have got it too if the command had been started without slock."""
    command = "sh -c 'echo b$((1+1))gins; exec sleep 100'"
    script = f"trap 'echo c$((1+1))t; exit 9' INT; slock run job -- {command}; echo on$((1+1))"
    with in_shell(cli) as terminal:
        terminal.press(f'sh -c "{script}"'.replace("$", "\\$"), "Enter")
        # The command has the terminal then, so that slock and the script do not get the Ctrl-C.
        terminal.shows("b2gins")
        terminal.press("C-c")
        assert "on2" not in terminal.shows("c2t")


def test_the_command_reads_the_terminal(cli: Cli, client: redis.Redis) -> None:
    with in_shell(cli) as terminal:
        terminal.press("slock run job -- sh -c 'read x; echo got $x'; echo and the shell again", "Enter")
        wait_until(lambda: holders(client, "job") == 1, LIMIT, "the lock to be held")
        terminal.press("words", "Enter")
        terminal.shows("got words")
        terminal.shows("\nand the shell again")
        terminal.press("echo a$((1+1))", "Enter")
        terminal.shows("a2")


def test_a_script_keeps_its_terminal_when_there_is_no_such_program(cli: Cli) -> None:
    with Terminal(
        cli, "sh -c 'slock run job -- no-such-program; read x; echo got $x; sleep 100'"
    ) as terminal:
        terminal.shows("no such program")
        terminal.press("words", "Enter")
        terminal.shows("got words")


def test_ctrl_z_stops_and_fg_goes_on(cli: Cli, client: redis.Redis) -> None:
    with in_shell(cli) as terminal:
        terminal.press("slock run job -- sh -c 'read x; echo got $x; read y; echo and $y'", "Enter")
        wait_until(lambda: holders(client, "job") == 1, LIMIT, "the lock to be held")
        terminal.press("one", "Enter")
        terminal.shows("got one")
        terminal.press("C-z")
        terminal.shows("Stopped")
        terminal.press("fg", "Enter")
        terminal.press("two", "Enter")
        terminal.shows("and two")
        wait_until(lambda: client.dbsize() == 0, LIMIT, "the lock to be free")


def test_ctrl_z_without_a_shell_does_not_stop_for_ever(cli: Cli, client: redis.Redis) -> None:
    """As in a container: nobody could type `fg`."""
    # tmux would let it go on by itself; script does not.
    command = "script -qc \"slock run job -- sh -c 'read x; echo got \\$x; sleep 100'\" /dev/null"
    with Terminal(cli, command) as terminal:
        wait_until(lambda: holders(client, "job") == 1, LIMIT, "the lock to be held")
        terminal.press("C-z")
        terminal.shows("^Z")
        terminal.press("words", "Enter")
        terminal.shows("got words")
        terminal.press("C-c")
        wait_until(lambda: client.dbsize() == 0, LIMIT, "the lock to be free")


def test_a_command_that_was_stopped_for_longer_than_the_ttl_ends(cli: Cli, client: redis.Redis) -> None:
    with in_shell(cli) as terminal:
        script = 'trap "echo asked; exit 3" TERM; read x; echo went on with $x'
        terminal.press(f"slock run --ttl 1s job -- sh -c '{script}'", "Enter")
        wait_until(lambda: holders(client, "job") == 1, LIMIT, "the lock to be held")
        terminal.press("C-z")
        terminal.shows("Stopped")
        wait_until(lambda: holders(client, "job") == 0, LIMIT, "the lease to end")
        terminal.press("fg", "Enter")
        terminal.shows("gets SIGTERM")
        terminal.press("echo status $?", "Enter")
        assert "\nwent on" not in terminal.shows("status 76")


def test_a_background_command_gets_the_terminal_by_fg(cli: Cli, client: redis.Redis) -> None:
    with in_shell(cli) as terminal:
        terminal.press("slock run job -- sh -c 'read x; echo got $x' &", "Enter")
        wait_until(lambda: holders(client, "job") == 1, LIMIT, "the lock to be held")

        def is_stopped() -> bool:
            terminal.press("Enter")  # the shell tells before it prompts
            return "Stopped" in terminal.screen()

        wait_until(is_stopped, LIMIT, "the shell to tell that the job is stopped")
        terminal.press("fg", "Enter")
        terminal.press("words", "Enter")
        terminal.shows("got words")
