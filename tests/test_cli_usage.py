"""What `slock` says of wrong usage; its help, man pages and completions; how durations are read and shown."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from harness.cli import Cli

SEPARATOR = "slock: the command comes after `--`: slock run KEY -- COMMAND\n"
NESTED = "this runs under `slock run job` already, and would wait for itself"

# Calls that have the status 2, and what they say.
WRONG = {
    "run job": "slock run [OPTIONS] <KEY>... -- <COMMAND>",
    "run job true": SEPARATOR,
    "run job ls -l": SEPARATOR,
    "run -- true": "<KEY>",
    "run --ttl 1w job -- true": "1w",
    "run --ttl 1ms job -- true": "must ",
    "run --max-hold 0s job -- true": "more than 0",
    # What only the server knows to be wrong.
    "run --ttl 25h job -- true": "must ",
    f"run --meta {'m' * 1025} job -- true": "must ",
    f"run {'k' * 1025} -- true": "must ",
    "acquire --ttl 25h job": "must ",
    "extend job token --ttl 25h": "must ",
    **{words: "a key is named twice" for words in ("run a a -- true", "acquire a a", "release a a t")},
    "break --yes": "<KEY>",
    "break --yes --holder t a b": "",
    "break --yes --held-for 1d a b": "",
    "top": "needs a terminal",
    "man nothing": "",
    **{f"old --held-for '{given}'": "" for given in ("", "s", "1w", "1.5s", "9" * 20 + "d", "9" * 17 + "d")},
    **{
        f"run job other -- slock run {words} -- echo ran": NESTED
        for words in ("job", "a job", "--read job", "--wait 1m job", "a -- slock run job")
    },
}


@pytest.mark.parametrize("call", WRONG)
def test_wrong_usage(cli: Cli, call: str) -> None:
    done = cli(*shlex.split(call), stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (2, "")
    assert WRONG[call] in done.stderr


@pytest.mark.parametrize("given,shown", [
    ("0", "0ms"), ("500ms", "500ms"), ("1234ms", "1.2s"), ("7", "7.0s"), ("59s", "59s"), ("1m30s", "1m 30s"),
    ("192s", "3m 12s"), ("2h", "2h 0m"), ("90000s", "1d 1h"),
])  # fmt: skip
def test_durations_are_read_and_shown(cli: Cli, given: str, shown: str) -> None:
    assert cli("old", "--held-for", given).stdout == f"nothing is held for {shown} or longer\n"


def test_help_completions_and_man_pages(cli: Cli) -> None:
    for text in (cli("run", "--help").stdout, cli("man", "run").stdout.replace("\\-", "-")):
        for word in ("SLOCK_KEY", "SLOCK_TOKEN", "SLOCK_FENCE", "<KEY>... -- <COMMAND> [ARGS]..."):
            assert word in text
    assert ".TH slock 1" in cli("man").stdout
    for shell in ("bash", "zsh", "fish"):
        script = cli("completions", shell).stdout
        assert "doctor" in script and "kill-after" in script
