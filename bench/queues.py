"""How long SLOCK.QUEUES takes where very many wait: by the server's own account of the command.

A connection waits with one request at a time. Where there are to be more waiters than a process may have
connections, each request asks for several names: it stands in the queue of each, as a waiter there.
"""

from __future__ import annotations

import resource
import statistics
import sys

from common import (
    Pipe,
    RawConnection,
    Report,
    arguments,
    batches,
    encode_command,
    private_server,
    wait_until,
)

LIMIT_MS = 5.0
TTL_MS = 3_600_000
ROUNDS = 21
SPARE = 500  # connections and files that are not waiters

Command = tuple[object, ...]
ALL: Command = ("SLOCK.QUEUES", "COUNT", 0)
TEN: Command = ("SLOCK.QUEUES",)


def fields(control: RawConnection, section: str) -> dict[str, str]:
    text = control.ok("INFO", section).decode()
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def time_of(control: RawConnection, command: Command) -> float:
    """Milliseconds that the command took the server by its own account."""
    control.ok("CONFIG", "RESETSTAT")
    control.ok(*command)
    stats = fields(control, "commandstats")[f"cmdstat_{str(command[0]).lower()}"]
    return int(dict(part.split("=") for part in stats.split(","))["usec"]) / 1000


def everything(control: RawConnection) -> list[list]:
    """All pages."""
    shown, cursor = [], b"0"
    while not shown or cursor != b"0":
        cursor, page = control.ok(*ALL, "CURSOR", cursor)
        shown += page
    return shown


def requests(waiters: int, names: int, connections: int) -> list[bytes]:
    """So many waiters on so many names, each with an equal share, by at most so many requests."""
    each = -(-waiters // connections)
    commands = []
    for number, start in enumerate(range(0, waiters, each)):
        wanted = [f"k:{place % names}" for place in range(start, min(start + each, waiters))]
        commands.append(encode_command("SLOCK.MLOCK", len(wanted), *wanted, f"w{number}", TTL_MS, "WAIT", 0))
    return commands


def measure(report: Report, waiters: int, names: int, commands: dict[str, Command], connections: int) -> None:
    with private_server(maxclients=connections + SPARE // 2, slock_max_waiters=2 * waiters) as server:
        control = server.raw()
        report.server(server)
        pipe = Pipe(server)
        for numbers in batches(list(range(names)), 1000):
            pipe.exchange(
                [encode_command("SLOCK.LOCK", f"k:{number}", "holder", TTL_MS) for number in numbers]
            )
        asked = requests(waiters, names, connections)
        print(f"{waiters} waiters on {names} names, by {len(asked)} connections ({ROUNDS} rounds):")
        for command in asked:
            server.raw().send_bytes(command)
        wait_until(lambda: fields(control, "slock")["slock_waiters"] == str(len(asked)), 120, "all to wait")
        shown = everything(control)
        if len(shown) != names or sum(entry[3] for entry in shown) != waiters:
            raise SystemExit(f"{len(shown)} names are shown")
        control.ok("ACL", "SETUSER", "app", "on", "nopass", "~k:0", "+@all")
        for what, command in commands.items():
            times = [time_of(control, command) for _ in range(ROUNDS)]
            ends = f"({min(times):.2f} to {max(times):.2f})"
            report.limit(f"  {what}, ms {ends}", statistics.median(times), LIMIT_MS)
        with server.raw() as app:
            app.ok("AUTH", "app", "any")
            print(f"  to a user who may read one of the names, ms: {time_of(app, TEN):.2f}")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--waiters", type=int, default=10_000, help="on a twentieth of as many names")
    parser.add_argument("--names", type=int, default=100_000, help="each with one waiter")
    options = parser.parse_args()

    report = Report(options)
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    both = {"SLOCK.QUEUES": TEN, "SLOCK.QUEUES COUNT 0": ALL}
    measure(report, options.waiters, options.waiters // 20, both, min(options.waiters, files - SPARE))
    one = {"SLOCK.QUEUES COUNT 10": ("SLOCK.QUEUES", "COUNT", 10)}
    measure(report, options.names, options.names, one, min(options.names, files - SPARE))
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
