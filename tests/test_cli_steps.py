"""`slock acquire`, `extend`, `release` and `slock run --token`: one lock over several steps of a job."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import redis

from harness import Locks
from harness.cli import LIMIT, Cli, ending, hold, holders, until_waiters
from harness.settings import REPOSITORY

(PAGE,) = re.findall(r"^lease=.*\neval .*$", (REPOSITORY / "cli/README.md").read_text(), re.MULTILINE)


def shell(cli: Cli, script: str, *words: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a shell with these variables; it must succeed without a word of errors."""
    environment = {**cli.environment, **given}
    call = ["sh", "-c", script, "sh", *words]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def test_a_deploy_in_three_steps(cli: Cli, locks: Locks, tmp_path: Path) -> None:
    """Each step is a shell of its own, which gets the variables that the first one left in a file."""
    variables = tmp_path / "variables"
    shell(cli, f"slock acquire --export --ttl 1m deploy >>{variables}")
    given = dict(line.split("=") for line in variables.read_text().split())
    shell(cli, f"! slock acquire --no-wait --export deploy >>{variables} 2>&-")
    assert dict(line.split("=") for line in variables.read_text().split()) == given
    shell(cli, 'slock extend deploy "$SLOCK_TOKEN" --ttl 5m && slock check deploy "$SLOCK_FENCE"', **given)
    assert 290_000 < locks.pttl("deploy", given["SLOCK_TOKEN"]) <= 300_000
    assert cli("run", "--no-wait", "deploy", "--", "true").returncode == 75
    last = 'slock run --token "$SLOCK_TOKEN" deploy -- sh -c \'slock ls; echo "$SLOCK_FENCE"\''
    done = shell(cli, last, **given)
    assert "deploy" in done.stdout
    assert done.stdout.splitlines()[-1] == given["SLOCK_FENCE"]
    assert locks.info("deploy") is None


def test_the_metadata_of_a_lock_that_is_taken_over(cli: Cli, client: redis.Redis) -> None:
    client.execute_command("SLOCK.LOCK", "job", "t", 60_000, "META", "deploy 7")
    assert "deploy 7" in cli("run", "--token", "t", "job", "--", "slock", "info", "job").stdout


@pytest.mark.parametrize("token", ["-5eIBkhDizPQfo1n7ZN16C", "-h5"])
def test_a_token_may_begin_with_a_hyphen(cli: Cli, client: redis.Redis, locks: Locks, token: str) -> None:
    """It is not one of those that the libraries draw. As an operand it needs a `--` before it."""
    hold(client, "job", token)
    assert cli("extend", "--ttl", "1h", "job", "--", token).returncode == 0
    assert locks.pttl("job", token) > 3_500_000
    assert cli("run", "--token", token, "job", "--", "echo", "ran").stdout == "ran\n"
    hold(client, "job", token)
    assert cli("break", "--yes", "--holder", token).returncode == 0
    assert client.dbsize() == 0


def test_an_empty_token_is_wrong_usage(cli: Cli) -> None:
    """Of a variable that is not set."""
    for words in (
        ["release", "job", ""],
        ["extend", "job", "", "--ttl", "1m"],
        ["run", "--token", "", "job", "--", "true"],
    ):
        done = cli(*words)
        assert done.returncode == 2 and "TOKEN>' but none was supplied" in done.stderr


@pytest.mark.parametrize("take", [PAGE, 'eval "$(slock acquire --export deploy)"'])
def test_a_shell_reads_what_it_prints_or_ends(cli: Cli, client: redis.Redis, take: str) -> None:
    key, take = 'a key\'; rm -rf "$HOME"', take.replace("acquire", "acquire --no-wait -E 9")
    script = f'{take}\nslock release deploy "$SLOCK_TOKEN"'.replace("deploy", '"$1"')
    assert shell(cli, script, key).stdout == f"{key} is released\n"
    hold(client, key, "other")
    call = ["bash", *([] if "exit" in take else ["-e"]), "-c", f"{script}; echo went on", "bash", key]
    done = subprocess.run(call, env=cli.environment, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (9, "")


@pytest.mark.parametrize("words", ["--wait '' deploy", "--ttl 10x deploy", "--tls-cert x deploy"])
def test_wrong_usage_ends_the_shell(cli: Cli, words: str) -> None:
    call = ["sh", "-ec", f'eval "$(slock acquire --export {words})"; echo went on']
    done = subprocess.run(call, env=cli.environment, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr


def test_acquire_prints_both_tokens_and_extend_never_shortens(cli: Cli, locks: Locks) -> None:
    token, fence = cli("acquire", "job").stdout.split()
    assert 590_000 < locks.pttl("job", token) <= 600_000
    assert cli("check", "job", fence).returncode == 0
    assert cli.json("extend", "job", token, "--ttl", "1s") == {"extended": True}
    assert locks.pttl("job", token) > 500_000
    done = cli("extend", "job", "other", "--ttl", "1s")
    assert (done.returncode, done.stdout) == (1, "this token does not hold job\n")
    assert cli("release", "job", token).returncode == 0
    given = cli.json("acquire", "--read", "job")
    info = cli.json("info", "job")
    assert (info["mode"], info["holders"][0]["token"]) == ("read", given["token"])
    assert cli("release", "job", given["token"]).returncode == 0


def test_acquire_waits_and_is_refused_like_run(cli: Cli, client: redis.Redis, locks: Locks) -> None:
    hold(client, "job", "other")
    refused = cli("acquire", "--no-wait", "-E", "9", "job")
    assert (refused.returncode, refused.stdout) == (9, "")
    assert "not obtained: job is held for write" in refused.stderr
    with ending(waiting := cli.start("acquire", "--meta", "deploy 7", "job")):
        until_waiters(client, "job", 1)
        assert locks.unlock("job", "other") == 1
        output, _ = waiting.communicate(timeout=LIMIT)
    assert len(output.split()) == 2
    assert "deploy 7" in cli("info", "job").stdout


def test_a_lock_whose_token_nobody_learns_is_released(cli: Cli, client: redis.Redis) -> None:
    with open("/dev/full", "w") as full:
        done = cli("acquire", "job", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 69
    assert "job is released again" in done.stderr
    assert client.dbsize() == 0


def test_several_keys(cli: Cli, client: redis.Redis, locks: Locks) -> None:
    token = cli("acquire", "a", "b").stdout.split()[0]
    assert cli("extend", "a", "b", token, "--ttl", "1h").returncode == 0
    assert all(locks.pttl(key, token) > 3_500_000 for key in "ab")
    assert cli("extend", "a", "b", "c", token, "--ttl", "2h").returncode == 1
    assert locks.pttl("a", token) <= 3_600_000
    half = cli("release", "a", "c", token)
    assert (half.returncode, half.stderr) == (1, "slock: this token held 1 of 2 keys, which are released\n")
    assert cli("release", "b", token).stdout == "b is released\n"
    assert client.dbsize() == 0


@pytest.mark.parametrize("mode", [["--read"], []])
def test_run_takes_over_in_either_mode(cli: Cli, client: redis.Redis, mode: list[str]) -> None:
    """It renews what it took over, and releases it at the end."""
    token, fence = cli("acquire", *mode, "--ttl", "5s", "job").stdout.split()
    script = "sleep 1.5; slock info job --json; echo $SLOCK_FENCE >&2"
    done = cli("run", "--ttl", "20s", "--token", token, "job", "--", "sh", "-c", script)
    (holder,) = json.loads(done.stdout)["holders"]
    assert (holder["token"], done.stderr, done.returncode) == (token, f"{fence}\n", 0)
    assert holder["pttl"] > 15_000
    assert client.dbsize() == 0


def test_run_takes_no_lock_by_a_token_that_holds_nothing(cli: Cli, client: redis.Redis) -> None:
    done = cli("run", "--token", "gone", "-E", "3", "job", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "slock: this token does not hold job\n"
    assert cli("run", "--token", "gone", "job", "--", "true").returncode == 75
    assert holders(client, "job") == 0
