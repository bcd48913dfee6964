"""`slock run` in a terminal: Ctrl-C, Ctrl-Z, and who reads what is typed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import redis

from harness import Locks, wait_until
from harness.cli import LIMIT, Cli, Terminal, ending, ends, hold, number_in, until_free, until_held


@pytest.fixture
def shell(cli: Cli) -> Terminal:
    with Terminal(cli, "PS1='ready> ' bash --norc --noprofile -i") as terminal:
        terminal.shows("ready>")
        yield terminal


def to_foreground(shell: Terminal) -> None:
    """Returns when the shell has set the terminal up for the job: what is typed before may be lost."""
    shell.press("fg", "Enter")
    shell.shows("fg\nslock run")


def test_a_person_is_told_who_is_waited_for_and_ends_the_command(
    shell: Terminal, client: redis.Redis, locks: Locks
) -> None:
    hold(client, "job:42", "other", "backup")
    shell.press("slock run job:42 -- sh -c 'echo r$((1+1))n; exec sleep 100'", "Enter")
    shell.shows("slock: waiting for job:42, held for write by 'backup' for ")
    assert locks.unlock("job:42", "other") == 1
    assert shell.shows("r2n").count("waiting for") == 1
    shell.press("C-c")
    until_free(client, "job:42")
    shell.press("echo status $?", "Enter")
    shell.shows("status 130")


def test_ctrl_c_reaches_the_script_that_called(shell: Terminal) -> None:
    """Its shell would have got it too if the command had been started without slock."""
    command = "sh -c 'echo b$((1+1))gins; exec sleep 100'"
    script = f"trap 'echo c$((1+1))t; exit 9' INT; slock run job -- {command}; echo on$((1+1))"
    shell.press(f'sh -c "{script}"'.replace("$", "\\$"), "Enter")
    # The command has the terminal then, so that slock and the script do not get the Ctrl-C.
    shell.shows("b2gins")
    shell.press("C-c")
    assert "on2" not in shell.shows("c2t")


def test_the_command_reads_the_terminal_ctrl_z_stops_it_and_fg_goes_on(
    shell: Terminal, client: redis.Redis
) -> None:
    shell.press("slock run job -- sh -c 'read x; echo got $x; read y; echo and $y'", "Enter")
    until_held(client, "job")
    shell.press("one", "Enter")
    shell.shows("got one")
    shell.press("C-z")
    shell.shows("Stopped")
    to_foreground(shell)
    shell.press("two", "Enter")
    shell.shows("and two")
    until_free(client, "job")
    shell.press("echo a$((1+1))", "Enter")
    shell.shows("a2")


def test_a_script_keeps_its_terminal_when_there_is_no_such_program(cli: Cli) -> None:
    script = "slock run job -- no-such-program; read x; echo got $x; sleep 100"
    with Terminal(cli, f"sh -c '{script}'") as terminal:
        terminal.shows("no such program")
        terminal.press("words", "Enter")
        terminal.shows("got words")


def test_ctrl_z_without_a_shell_does_not_stop_for_ever(cli: Cli, client: redis.Redis) -> None:
    """As in a container: nobody could type `fg`."""
    # tmux would let it go on by itself; script does not.
    command = "script -qc \"slock run job -- sh -c 'read x; echo got \\$x; sleep 100'\" /dev/null"
    with Terminal(cli, command) as terminal:
        until_held(client, "job")
        terminal.press("C-z")
        terminal.shows("^Z")
        terminal.press("words", "Enter")
        terminal.shows("got words")
        terminal.press("C-c")
        until_free(client, "job")


def test_a_stop_without_a_shell_does_not_last(cli: Cli, tmp_path: Path) -> None:
    """The kernel does not stop slock then, so its command goes on."""
    # A stop between vfork and exec of a further program would leave the shell waiting.
    script = 'trap "exit 7" CONT; echo 1 >"$0"; while :; do :; done'
    with ending(running := cli.start("run", "job", "--", "sh", "-c", script, tmp_path / "ready")):
        number_in(tmp_path / "ready")
        running.send_signal(signal.SIGTSTP)
        assert ends(running) == 7


def test_a_command_that_was_stopped_for_longer_than_the_ttl_ends(
    shell: Terminal, client: redis.Redis
) -> None:
    script = 'trap "echo asked; exit 3" TERM; echo b$((1+1))gins; read x; echo went on with $x'
    shell.press(f"slock run --ttl 1s job -- sh -c '{script}'", "Enter")
    # If it stopped between the grant and this, slock would take the lock once more.
    shell.shows("b2gins")
    shell.press("C-z")
    shell.shows("Stopped")
    until_free(client, "job")
    to_foreground(shell)
    shell.shows("gets SIGTERM")
    shell.press("echo status $?", "Enter")
    assert "\nwent on" not in shell.shows("status 76")


@pytest.mark.parametrize("job", ["{} | {}", "sh -c '{} & {}; wait'"])
def test_both_commands_of_a_job_stop_and_go_on(shell: Terminal, tmp_path: Path, job: str) -> None:
    """One of them has the terminal, the other one learns of the stop from its slock."""
    work = tmp_path / "work"
    work.write_text('echo $PPID >"$0.slock.$1"; echo $$ >"$0.$1"; exec sleep 100')
    shell.press(job.format(*(f"slock run {key} -- sh {work} {key}" for key in "ab")), "Enter")
    commands = [number_in(tmp_path / f"work.{key}") for key in "ab"]
    slocks = [number_in(tmp_path / f"work.slock.{key}") for key in "ab"]

    def until_stopped(*expected: int) -> None:
        def is_so() -> bool:
            stats = {pid: Path(f"/proc/{pid}/stat").read_text() for pid in (*commands, *slocks)}
            return {pid for pid, stat in stats.items() if ") T " in stat} == {*expected}

        wait_until(is_so, LIMIT, f"{expected} of {commands} under {slocks} to be stopped")

    ways = (lambda: shell.press("C-z"), lambda: os.killpg(os.getpgid(slocks[0]), signal.SIGTSTP))
    for number, stop in enumerate(ways, 1):
        stop()
        until_stopped(*commands, *slocks)
        wait_until(lambda now=number: shell.screen().count("Stopped") == now, LIMIT, "the shell to tell")
        shell.press("fg", "Enter")
        until_stopped()
    for command, slock in zip(commands, slocks, strict=True):
        os.kill(slock, signal.SIGTSTP)
        until_stopped(command, slock)
        os.kill(slock, signal.SIGCONT)
        until_stopped()


def test_a_background_command_gets_the_terminal_by_fg(shell: Terminal, client: redis.Redis) -> None:
    shell.press("slock run job -- sh -c 'read x; echo got $x' &", "Enter")
    until_held(client, "job")

    def is_stopped() -> bool:
        shell.press("Enter")  # the shell tells before it prompts
        return "Stopped" in shell.screen()

    wait_until(is_stopped, LIMIT, "the shell to tell that the job is stopped")
    to_foreground(shell)
    shell.press("words", "Enter")
    shell.shows("got words")
