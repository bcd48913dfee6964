"""`slock top` in a real terminal."""

from __future__ import annotations

import re

import pytest

from conftest import Pair
from harness import MakeServer, Server, stays, wait_until
from harness.cli import LIMIT, Cli, Terminal, hold
from harness.notify import Listener
from harness.sentinel import SERVICE, sentinel


@pytest.fixture
def own(make_server: MakeServer) -> Server:
    return make_server(appendonly=True)


@pytest.fixture
def crowd(own: Server) -> Listener:
    """100 requests wait for five locks: 24, 22, 20, 18 and 16."""
    client, listener = own.client(), Listener(own)
    for number in range(5):
        hold(client, f"job:{number}", f"t{number}", f"holder-{number}")
        for waiter in range(24 - 2 * number):
            request = ("SLOCK.LOCK", f"job:{number}", f"w{waiter}", 600_000, "META", f"waiter-{waiter}")
            assert listener.ask(*request, tag=f"{number}-{waiter}") is None
    return listener


def rows(screen: str) -> list[list[str]]:
    """The cells of the table of locks."""
    lines = screen.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("KEY"))
    table = (line.split() for line in lines[start + 1 : -1])
    return [cells for cells in table if cells]


@pytest.mark.usefixtures("crowd")
def test_100_waiters_on_5_keys(own: Server) -> None:
    expected = [(f"job:{number}", str(24 - 2 * number), f"holder-{number}") for number in range(5)]
    with Terminal(Cli(own), "slock top", width=40, height=15) as terminal:
        screen = terminal.shows("holder-4")
        assert [(row[0], row[1], row[3]) for row in rows(screen)] == expected
        assert re.search(r"^waited p50 \S+ p99 \S+ now \d", screen, re.MULTILINE)
        assert "q quit" in screen
    with Terminal(Cli(own), "slock top") as terminal:
        screen = terminal.shows("holder-4")
        assert re.search(r"^waiters +100", screen, re.MULTILINE)
        assert [(row[0], row[1], row[5]) for row in rows(screen)] == expected
        assert {row[4] for row in rows(screen)} == {"write"}
        assert "\x1b[3" in terminal.screen(with_colors=True)
        # Grants: a lock changes hands, and the next frame counts it.
        own.client().execute_command("SLOCK.UNLOCK", "job:0", "t0")
        assert re.search(r"^waiters +99", terminal.shows("waiter-0"), re.MULTILINE)


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("command", ["slock top --no-color", "env NO_COLOR=1 slock top"])
def test_without_color(own: Server, command: str) -> None:
    with Terminal(Cli(own), command) as terminal:
        terminal.shows("holder-4")
        codes = re.findall(r"\x1b\[([0-9;]*)m", terminal.screen(with_colors=True))
        numbers = {int(number) for code in codes for number in code.split(";") if number}
        assert numbers <= {0, 1, 7, 27, 39, 49}, numbers


@pytest.mark.usefixtures("crowd")
def test_keys_sort_filter_look_and_quit(own: Server) -> None:
    with Terminal(Cli(own), "sh -c 'slock top; echo status $?; sleep 100'") as terminal:
        terminal.shows("holder-4")
        # The lock with the longest hold is waited for by nobody.
        hold(own.client(), "alone", "t", "nobody-waits")
        terminal.shows("nobody-waits")
        terminal.press("n")
        assert [row[0] for row in rows(terminal.shows("by key"))][:2] == ["alone", "job:0"]
        terminal.press("h")
        assert rows(terminal.shows("by hold"))[-1][0] == "alone"
        terminal.press("/", "a", "l", "o", "Enter")
        assert [row[0] for row in rows(terminal.shows("filter: alo  esc"))] == ["alone"]
        terminal.press("Escape")
        terminal.shows("q quit")
        terminal.press("w")
        terminal.shows("by waiters")
        terminal.press("Down", "Enter")
        screen = terminal.shows("waiter-3")
        assert "held" in screen and "job:1" in screen and "holder-1" in screen
        terminal.press("Escape")
        terminal.shows("KEY")
        terminal.press("q")
        terminal.shows("status 0")


def test_a_server_that_goes_away_and_comes_back(own: Server) -> None:
    hold(own.client(), "job", "t", "holder-1")
    with Terminal(Cli(own), "slock top") as terminal:
        terminal.shows("holder-1")
        own.kill9()
        terminal.shows("trying again")
        assert "holder-1" in terminal.shows("nobody listens at"), "what was seen last stays"
        own.start()
        terminal.shows("slock top 127.0.0.1")
        hold(own.client(), "other", "t", "holder-2")
        terminal.shows("holder-2")
        # One that does not answer, rather than none.
        own.pause()
        terminal.shows("does not answer")
        own.resume()
        terminal.shows("slock top 127.0.0.1")


def test_sentinel(primary_and_replica: Pair) -> None:
    primary, replica = primary_and_replica
    hold(primary.client(), "job", "t", "holder-1")
    with sentinel(primary, replicas=1) as port:
        cli = Cli(f"redis+sentinel://127.0.0.1:{port}/{SERVICE}")
        with Terminal(cli, "slock top") as terminal:
            screen = terminal.shows("holder-1")
            assert re.search(rf"^127.0.0.1:{primary.port} +primary", screen, re.MULTILINE)
            assert re.search(rf"^127.0.0.1:{replica.port} +replica", screen, re.MULTILINE)
            replica.kill9()
            assert "holder-1" in terminal.shows("away")


def test_the_longest_hold_is_found_among_many(own: Server) -> None:
    """And a frame stays cheap."""
    client = own.client()
    hold(client, "oldest", "t", "holder-1")
    wait_until(lambda: "old" in Cli(own)("old", "--held-for", "500ms").stdout, LIMIT, "it to be old")
    pipe = client.pipeline(transaction=False)
    for number in range(2000):
        hold(pipe, f"young:{number}", "t")
    pipe.execute()
    with Terminal(Cli(own), "slock top") as terminal:
        terminal.press("h")
        assert rows(terminal.shows("holder-1"))[0][0] == "oldest"
        client.config_resetstat()
        stays(lambda: "holder-1" in terminal.screen(), 3, "the oldest")
        used = sum(one["usec"] for one in client.info("commandstats").values())
        assert used < 3 * 20_000, f"{used} us in three seconds"
