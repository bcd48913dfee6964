"""`slock run`: the command is told in time that its lock ends, and how long the lock lasts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import redis

from harness import MakeServer, Server, stays, wait_until
from harness.cli import LIMIT, Cli, ending, ends, is_running, number_in, until_free
from harness.locks import Info

NOTES_TERM = (
    'trap \'date +%s%3N >"$1/term"; exit 0\' TERM; echo 1 >"$1/ready"; '
    'while ! [ -e "$1/go" ]; do sleep 0.02; done; exit 7'
)


@pytest.fixture
def own(make_server: MakeServer) -> Server:
    """A server that keeps its locks when it is killed."""
    return make_server(appendonly=True)


def deadline_ms(server: Server) -> int:
    """Of the lock `job`, by the server's clock, read at one moment with what is left."""
    (seconds, microseconds), info = (
        server.client().pipeline().time().execute_command("SLOCK.INFO", "job").execute()
    )
    return seconds * 1000 + microseconds // 1000 + Info.of(info).pttl


def just_renewed(server: Server) -> int:
    """Waits for a renewal, so that the next one is far, and gives the deadline."""
    first = deadline_ms(server)
    return wait_until(
        lambda: (now := deadline_ms(server)) > first + 300 and now, LIMIT, "a renewal of the lock"
    )


def test_a_server_away_for_longer_than_the_ttl(own: Server, tmp_path: Path) -> None:
    words = ["run", "--ttl", "4s", "--kill-after", "1s", "job", "--", "sh", "-c", NOTES_TERM, "sh", tmp_path]
    with ending(running := Cli(own).start(*words)):
        number_in(tmp_path / "ready")
        deadline = just_renewed(own)
        own.kill9()
        _, errors = running.communicate(timeout=LIMIT)
        assert running.returncode == 76, errors
    # In time: --kill-after before the lease ends.
    assert deadline - 2000 < number_in(tmp_path / "term") < deadline - 500
    assert "SIGTERM" in errors


def test_a_server_back_within_the_ttl_goes_unnoticed(own: Server, tmp_path: Path) -> None:
    words = ["run", "--ttl", "9s", "--kill-after", "1s", "job", "--", "sh", "-c", NOTES_TERM, "sh", tmp_path]
    with ending(running := Cli(own).start(*words)):
        number_in(tmp_path / "ready")
        deadline = deadline_ms(own)
        own.kill9()
        # Until the first renewal has failed, after a third of the ttl.
        stays(lambda: running.poll() is None, 3.3, "the command")
        own.start()
        wait_until(lambda: deadline_ms(own) > deadline + 1000, LIMIT, "a renewal after the outage")
        wait_until(lambda: time.time() * 1000 > deadline, LIMIT, "the old deadline to pass")
        assert not (tmp_path / "term").exists()
        (tmp_path / "go").touch()
        assert running.communicate(timeout=LIMIT) == ("", "")
        assert running.returncode == 7


@pytest.mark.parametrize("ignores_term", [False, True])
def test_what_the_command_started_does_not_outlive_the_lock(
    cli: Cli, tmp_path: Path, ignores_term: bool
) -> None:
    """The lock is broken: TERM within a second, and KILL to all that ignores it, after --kill-after."""
    first, last = (
        ("trap '' TERM;", "while :; do sleep 0.1; done") if ignores_term else ("", "wait; sleep 100")
    )
    grandchild = "trap '' TERM; echo $$ >$0/grandchild; while :; do sleep 0.1; done"
    script = f'{first} sh -c "$1" $0 & echo $$ >$0/child; {last}'
    words = ["run", "--ttl", "1s", "--kill-after", "500ms", "job", "--", "sh", "-c", script]
    with ending(running := cli.start(*words, tmp_path, grandchild)):
        pids = [number_in(tmp_path / name) for name in ("child", "grandchild")]
        assert cli("break", "--yes", "job").returncode == 0
        _, errors = running.communicate(timeout=LIMIT)
        assert running.returncode == 76
    assert "SIGTERM" in errors and "SIGKILL" in errors
    assert not is_running(pids[0])
    if ignores_term:
        # It is nobody's child any more: who has been killed needs a moment to end.
        wait_until(lambda: not is_running(pids[1]), LIMIT, "the grandchild to end")
    assert not is_running(pids[1])


def test_a_command_that_is_done_when_the_server_is_away_succeeds(own: Server, tmp_path: Path) -> None:
    words = ["run", "--ttl", "20s", "job", "--", "sh", "-c", NOTES_TERM, "sh", tmp_path]
    with ending(running := Cli(own).start(*words)):
        number_in(tmp_path / "ready")
        own.kill9()
        (tmp_path / "go").touch()
        _, errors = running.communicate(timeout=LIMIT)
        assert running.returncode == 7
    assert "was not released, and ends by its ttl" in errors


def test_a_break_is_noticed_within_a_second(cli: Cli, tmp_path: Path) -> None:
    """Also with a long ttl, whose renewals are far apart."""
    words = ["run", "--ttl", "1h", "job", "--", "sh", "-c", NOTES_TERM, "sh", tmp_path]
    with ending(running := cli.start(*words)):
        number_in(tmp_path / "ready")
        assert cli("break", "--yes", "job").returncode == 0
        broken = int(time.time() * 1000)
        _, errors = running.communicate(timeout=LIMIT)
        assert running.returncode == 76
    assert number_in(tmp_path / "term") < broken + 2500
    assert "job" in errors and "lost" in errors


def test_what_ignores_term_is_killed_before_its_lease_ends(own: Server, tmp_path: Path) -> None:
    # The file is whole at every moment: SIGKILL may come between any two system calls.
    beat = 'date +%s%3N >"$1/next"; mv "$1/next" "$1/alive"; sleep 0.02'
    script = f"trap '' TERM; echo 1 >\"$1/ready\"; while :; do {beat}; done"
    words = ["run", "--ttl", "6s", "--kill-after", "20s", "job", "--", "sh", "-c", script, "sh", tmp_path]
    with ending(running := Cli(own).start(*words)):
        number_in(tmp_path / "ready")
        deadline = just_renewed(own)
        own.kill9()
        assert ends(running) == 76
    assert deadline - 2500 < number_in(tmp_path / "alive") < deadline


def test_max_hold(cli: Cli, client: redis.Redis, tmp_path: Path) -> None:
    """The command gets SIGTERM before the end, though the server replies all the time."""
    words = ["run", "--max-hold", "4s", "--kill-after", "2s", "job"]
    began = int(time.time() * 1000)
    with ending(running := cli.start(*words, "--", "sh", "-c", NOTES_TERM, "sh", tmp_path)):
        _, errors = running.communicate(timeout=LIMIT)
        assert running.returncode == 76
    assert began + 1500 < number_in(tmp_path / "term") < began + 4000
    assert "--max-hold ends the lock job in " in errors
    assert client.dbsize() == 0


def test_at_least(cli: Cli, client: redis.Redis) -> None:
    """Two machines whose clocks differ start the same job: it runs once, and again when the time is over."""
    words = ["run", "--no-wait", "--at-least", "2s", "-E", "0", "job", "--", "echo", "ran"]
    first, second = cli(*words), cli(*words)
    assert (first.returncode, first.stdout, first.stderr) == (0, "ran\n", "")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    until_free(client, "job")
    assert cli(*words).stdout == "ran\n"
    # A command that takes longer holds no longer than it runs.
    assert cli("run", "--at-least", "500ms", "other", "--", "sleep", "0.6").returncode == 0
    assert not client.exists("other")
