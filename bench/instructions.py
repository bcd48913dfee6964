"""How many instructions the server carries out for an operation, counted by callgrind.

Other load on the machine does not change them. Each case is played twice, once longer, on a new server each
time; the difference counts, so that start and end do not. Work that goes by time (ten times a second while
somebody waits, the server's cron) counts too much in a server that runs fifty times slower: what INFO and the
cron took is taken off. Builds of the module are compared by naming them: `--module old.so new.so`.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from common import COMPARE_AND_DELETE, Pipe, Server, arguments, batches, encode_command, private_server
from harness.settings import module_path, server_binary

TTL_MS = 3_600_000
AT_ONCE = 16
SHORT, LONG = 500, 2500
CLIENTS = 16
BY_TIME = ("RM_GetServerInfo", "serverCron")

Play = Callable[[Server, int], None]


def pipelined(*commands: Callable[[int], bytes]) -> Play:
    def play(server: Server, count: int) -> None:
        pipe = Pipe(server)
        for some in batches(list(range(count)), AT_ONCE):
            pipe.exchange([command(number) for number in some for command in commands])
        pipe.close()

    return play


def of_key(*words: object) -> Callable[[int], bytes]:
    """A command; `K` stands for the key and `T` for the token."""

    def encode(number: int) -> bytes:
        names = {"K": f"key-{number % 50:013}", "T": f"token-{number:016}"}
        return encode_command(*(names.get(str(word), word) for word in words))

    return encode


def hand_off(server: Server, count: int) -> None:
    """Blocked clients hand one lock on; each asks again when the next one has it, so that turns are alike."""
    clients = [server.raw() for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        client.send("SLOCK.LOCK", "k", f"t{number}", TTL_MS, "WAIT", 0)
        if number == 0:
            client.read()
    control = server.raw()
    for number in range(count):
        here, there = number % CLIENTS, (number + 1) % CLIENTS
        clients[here].ok("SLOCK.UNLOCK", "k", f"t{here}")
        clients[there].read()
        clients[here].send("SLOCK.LOCK", "k", f"t{here}", TTL_MS, "WAIT", 0)
        control.ok("PING")


def hand_off_by_notify(server: Server, count: int) -> None:
    """The same with requests that wait by NOTIFY, all over one connection, and one that listens."""
    listener, client = server.raw(), server.raw()
    listener.ok("SSUBSCRIBE", "answers")

    def ask(number: int) -> None:
        client.send("SLOCK.LOCK", "k", f"t{number}", TTL_MS, "WAIT", 0, "NOTIFY", "answers", number)
        client.read()

    for number in range(CLIENTS):
        ask(number)
    for number in range(count):
        here = number % CLIENTS
        client.ok("SLOCK.UNLOCK", "k", f"t{here}")
        listener.read()
        ask(here)


CASES: dict[str, Play] = {
    "two PINGs": pipelined(of_key("PING"), of_key("PING")),
    "SET NX PX, DEL": pipelined(of_key("SET", "K", "T", "NX", "PX", TTL_MS), of_key("DEL", "K")),
    "SET NX PX, EVAL": pipelined(
        of_key("SET", "K", "T", "NX", "PX", TTL_MS), of_key("EVAL", COMPARE_AND_DELETE, 1, "K", "T")
    ),
    "LOCK, UNLOCK": pipelined(of_key("SLOCK.LOCK", "K", "T", TTL_MS), of_key("SLOCK.UNLOCK", "K", "T")),
    "RLOCK, RUNLOCK": pipelined(of_key("SLOCK.RLOCK", "K", "T", TTL_MS), of_key("SLOCK.RUNLOCK", "K", "T")),
    "hand-off": hand_off,
    "hand-off by NOTIFY": hand_off_by_notify,
}


def instructions(module: str, play: Play, count: int) -> int:
    with tempfile.TemporaryDirectory(prefix="slock-instructions-") as folder:
        out, server = Path(folder, "out"), Path(folder, "server")
        server.write_text(
            f'#!/bin/sh\nexec valgrind --tool=callgrind --callgrind-out-file={out} {SERVER} "$@"\n'
        )
        server.chmod(0o755)
        os.environ |= {"SERVER": str(server), "SLOCK_MODULE": module}
        with private_server(hz=1) as running:
            play(running, count)
        return counted(out)


def counted(out: Path) -> int:
    words = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(out)]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    figures = [
        (int(line.split()[0].replace(",", "")), line) for line in lines if line[:15].strip()[:1].isdigit()
    ]
    total = next(number for number, line in figures if "PROGRAM TOTALS" in line)
    return total - sum(number for number, line in figures if any(f":{name} " in line for name in BY_TIME))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--module", nargs="+", default=[str(module_path())], help="builds of the module")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        print("valgrind is not installed: nothing is counted")
        return 0
    for case in options.only:
        each: dict[str, list[float]] = {module: [] for module in options.module}
        for _ in range(options.rounds):
            for module, costs in each.items():
                few, many = (instructions(module, CASES[case], count) for count in (SHORT, LONG))
                costs.append((many - few) / (LONG - SHORT))
        for module, costs in each.items():
            ends = f"{min(costs):,.0f} to {max(costs):,.0f}"
            print(f"{case}: {statistics.median(costs):,.0f} ({ends}) by {Path(module).name}", flush=True)
    return 0


SERVER = server_binary()

if __name__ == "__main__":
    sys.exit(main())
