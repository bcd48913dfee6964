"""Names that strangers chose, and the errors of servers: they neither command a terminal nor fill it."""

from __future__ import annotations

import re
import socketserver

import pytest
import redis

from harness import MakeServer
from harness.cli import LIMIT, Cli, Terminal, hold, listening

# C0, C1, bidirectional overrides, of no width, line separators, a language tag, a private one.
HIDDEN = "\r\x1b\x7f\x85\x9b\u200b\u202e\u2066\u2028\u2029\ufeff\u00ad\U000e0041\ue000"
LS, OLD = ["ls"], ["old", "--held-for", "0"]


def is_shown(text: str) -> bool:
    return not set(text) & set(HIDDEN)


def test_what_a_terminal_does_not_show_is_escaped(cli: Cli, client: redis.Redis) -> None:
    key = f"job{HIDDEN}"
    hold(client, key, "t", f"evil\nmeta{HIDDEN}")
    for words in (LS, OLD, ["info", key], ["break", "--held-for", "1d"], ["wait", "--wait", "0", key]):
        assert is_shown(cli(*words).stdout + cli(*words).stderr)
    refused = cli("run", "--no-wait", key, "--", "true")
    assert is_shown(refused.stderr) and refused.stderr.count("\n") == 1
    for words in (LS, OLD):
        shown = cli(*words).stdout
        assert "\\r\\u{1b}\\u{7f}\\u{85}\\u{9b}\\u{200b}\\u{202e}\\u{2066}\\u{2028}" in shown
        assert "evil\\nmeta" in shown
        assert is_shown(cli(*words, "--json").stdout)
        assert cli.json(*words)[0]["key"] == key
    done = cli("break", "--yes", "--held-for", "0")
    assert done.returncode == 0 and is_shown(done.stdout + done.stderr)


def test_letters_of_all_languages_are_shown_and_long_texts_are_cut(cli: Cli, client: redis.Redis) -> None:
    key = "задание-作业-काम-e\u0301-'\"\\"
    hold(client, key, "t")
    assert key in cli("ls").stdout
    assert cli.json("info", key)["key"] == key
    client.delete(key)
    hold(client, "k" * 1024, "t", "m" * 1024)
    for words in (LS, OLD):
        longest = max(cli(*words).stdout.split(), key=len)
        assert longest in ("k" * 99 + "…", "m" * 99 + "…")
        assert cli.json(*words)[0]["key"] == "k" * 1024


def test_names_that_no_command_takes_are_left_out(cli: Cli, client: redis.Redis) -> None:
    """RENAME makes them of any length."""
    for length in (1025, 65_536, 1 << 20):
        hold(client, "short", "t")
        client.rename("short", "k" * length)
    hold(client, "job", "t")
    for words in (LS, OLD):
        done = cli(*words)
        assert done.returncode == 0
        assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["job"]
        assert "3 keys longer than 1024 bytes, which no SLOCK command takes, left out" in done.stderr
    assert cli("break", "--yes", "--held-for", "0").returncode == 0
    assert client.dbsize() == 3


def test_twenty_names_of_10_mb_do_not_fill_the_memory(make_server: MakeServer) -> None:
    """slock has less memory, in kB, than all the names need."""
    server = make_server()
    client = server.client()
    for number in range(20):
        hold(client, "short", "t")
        client.rename("short", b"%02d" % number + b"k" * 10_000_000)
    for number in range(300):
        hold(client, f"job:{number}", "holder")
    script = "ulimit -v 200000; slock ls --count 0 | grep -c holder; read key; slock top"
    with Terminal(Cli(server), f"sh -c '{script}'") as terminal:
        terminal.shows("300")
        terminal.press("Enter")
        terminal.shows("320 locks", timeout=LIMIT)
        terminal.shows("job:")
        terminal.press("q")


class Wrong(socketserver.StreamRequestHandler):
    """Gives one error in reply to everything."""

    error = f"-WRONGTYPE2 \x1b]0;owned\x07{HIDDEN}".replace("\r", "") + "x" * 100_000 + "\r\n"

    def handle(self) -> None:
        while line := self.rfile.readline():
            if re.match(rb"\*\d", line):
                self.wfile.write(self.error.encode())


@pytest.mark.parametrize("words", ["run job -- true", "ls", "doctor", "acquire job"])
def test_errors_of_a_server_are_escaped(words: str) -> None:
    with listening(Wrong) as port:
        done = Cli(f"redis://127.0.0.1:{port}")(*words.split())
    assert done.returncode == 69, done.stderr
    assert is_shown(done.stderr + done.stdout)
    assert len(done.stderr) < 5000


def test_settings_of_a_server_are_escaped(make_server: MakeServer) -> None:
    server = make_server(appendonly=True, slock_restart_grace_ms=1)
    user = f"app{HIDDEN}".replace("\r", "")
    rules = ["on", ">secret", "~*", "&*", "+@all", "-slock.lock"]
    server.client().execute_command("ACL", "SETUSER", user.encode(), *rules)
    done = Cli(server)("doctor", "--for", user)
    assert done.returncode == 1
    assert "\\u{202e}" in done.stdout and is_shown(done.stdout + done.stderr)
