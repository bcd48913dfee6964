"""Many clients that want one lock: a queue on the server against clients that poll with SET NX PX.

Each client takes the lock, holds it for a while, releases it, and wants it again at once. What counts is how
many turns the luckiest and the unluckiest client get, and what a turn costs the server.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import select
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from common import (
    RawConnection,
    Report,
    Server,
    ServerClock,
    arguments,
    encode_command,
    private_server,
)
from scripts import SCRIPTS

TTL_MS = 30_000


class State(enum.Enum):
    ASKING = enum.auto()
    PAUSING = enum.auto()
    HOLDING = enum.auto()
    RELEASING = enum.auto()


@dataclass
class Client:
    connection: RawConnection
    take: bytes
    release: bytes
    state: State = State.PAUSING
    turns: int = 0
    wanted_at: float = 0.0
    waits: list[float] = field(default_factory=list)


class Fleet:
    """All clients in one loop: sockets that have a reply, and times at which a client does its next step."""

    def __init__(self, clients: list[Client], hold_s: float, pause_s: float) -> None:
        self._hold_s, self._pause_s = hold_s, pause_s
        self._clients = {client.connection.socket.fileno(): client for client in clients}
        self._agenda: list[tuple[float, int, Client]] = []
        self._order = itertools.count()

    def run(self, seconds: float) -> None:
        with select.epoll() as poll:
            for descriptor, client in self._clients.items():
                poll.register(descriptor, select.EPOLLIN)
                self._want(client)
            end = time.perf_counter() + seconds
            while (now := time.perf_counter()) < end:
                until = min(self._agenda[0][0], end) if self._agenda else end
                for descriptor, _ in poll.poll(max(0.0, until - now)):
                    self._hear(self._clients[descriptor])
                while self._agenda and self._agenda[0][0] <= time.perf_counter():
                    self._continue(heapq.heappop(self._agenda)[2])
        for client in self._clients.values():
            if client.state in (State.ASKING, State.PAUSING):
                client.waits.append(time.perf_counter() - client.wanted_at)

    def _want(self, client: Client) -> None:
        client.wanted_at = time.perf_counter()
        self._ask(client)

    def _ask(self, client: Client) -> None:
        client.state = State.ASKING
        client.connection.send_bytes(client.take)

    def _hear(self, client: Client) -> None:
        reply = client.connection.read()
        if client.state is State.RELEASING and reply == 1:
            self._want(client)
        elif client.state is State.ASKING and not reply and not isinstance(reply, Exception):
            client.state = State.PAUSING
            self._later(self._pause_s, client)
        elif client.state is State.ASKING and (reply == b"OK" or isinstance(reply, int)):
            if any(other.state is State.HOLDING for other in self._clients.values()):
                raise SystemExit("two clients hold the lock")
            client.state = State.HOLDING
            client.turns += 1
            client.waits.append(time.perf_counter() - client.wanted_at)
            self._later(self._hold_s, client)
        else:
            raise SystemExit(f"a client that is {client.state.name} was answered {reply!r}")

    def _later(self, seconds: float, client: Client) -> None:
        heapq.heappush(self._agenda, (time.perf_counter() + seconds, next(self._order), client))

    def _continue(self, client: Client) -> None:
        if client.state is State.HOLDING:
            client.state = State.RELEASING
            client.connection.send_bytes(client.release)
        else:
            self._ask(client)


def queueing(server: Server, key: str, number: int) -> Client:
    token = f"client-{number}"
    return Client(
        server.raw(),
        encode_command("SLOCK.LOCK", key, token, TTL_MS, "WAIT", 0),
        encode_command("SLOCK.UNLOCK", key, token),
    )


def polling(server: Server, key: str, number: int) -> Client:
    connection, token = server.raw(), f"client-{number}"
    digest = connection.ok("SCRIPT", "LOAD", SCRIPTS["delete"])
    return Client(
        connection,
        encode_command("SET", key, token, "NX", "PX", TTL_MS),
        encode_command("EVALSHA", digest, 1, key, token),
    )


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--hold-ms", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=10, help="for each way of waiting")
    parser.add_argument("--poll-ms", type=float, nargs="+", default=[100, 10], help="pauses between tries")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the turns of each client as SVG")
    options = parser.parse_args()

    report = Report(options)
    ways = [("SLOCK.LOCK ... WAIT 0", queueing, 0.0)]
    ways += [(f"SET NX PX every {ms:g} ms", polling, ms / 1000) for ms in options.poll_ms]
    with private_server() as server:
        report.server(server)
        print(f"{options.clients} clients, {options.hold_ms:g} ms hold, {options.seconds:g} s each:")
        clock, turns = ServerClock(server), {}
        for name, connect, pause_s in ways:
            clients = [connect(server, f"turns:{name}", number) for number in range(options.clients)]
            start = clock.read()
            Fleet(clients, options.hold_ms / 1000, pause_s).run(options.seconds)
            used = clock.read() - start
            for client in clients:
                client.connection.close()
            tell(name, clients, used)
            turns[name] = sorted((client.turns for client in clients), reverse=True)
    if options.picture:
        what = f"{options.clients} clients want one lock, each for {options.hold_ms:g} ms"
        options.picture.write_text(draw(f"{what}: turns of each in {options.seconds:g} s", turns))
    return report.status()


def draw(title: str, turns: dict[str, list[int]]) -> str:
    """Bars for the clients of each way of waiting, all to one scale, from the luckiest to the unluckiest."""
    width, height, bar, left = 720, 110, 12, 124
    most = max(max(row) for row in turns.values())
    parts = [f'<text x="8" y="20" font-weight="bold">{title}</text>']
    for number, (name, row) in enumerate(turns.items()):
        base = 44 + (number + 1) * height + number * 30
        colour = "#4878a8" if number == 0 else "#d08a3c"
        parts.append(f'<text x="8" y="{base - height + 8}">{name}</text>')
        parts.append(f'<text x="8" y="{base}" fill="#666">{min(row)} to {max(row)} turns</text>')
        parts.append(f'<line x1="{left}" y1="{base}" x2="{width - 8}" y2="{base}" stroke="#bbb"/>')
        for at, count in enumerate(row):
            size, x = (height - 24) * count / most, left + at * (width - left - 8) / len(row)
            parts.append(
                f'<rect x="{x:.1f}" y="{base - size:.1f}" width="{bar - 3}" height="{size:.1f}" '
                f'fill="{colour}"/>'
            )
    total = 44 + len(turns) * (height + 30)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {total}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="#fff"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])


def tell(name: str, clients: list[Client], used_us: float) -> None:
    turns = [client.turns for client in clients]
    longest = max(max(client.waits, default=0.0) for client in clients)
    print(
        f"  {name:24} {sum(turns):5} turns, {min(turns):3} to {max(turns):3} a client; "
        f"longest wait {longest:6.2f} s; server CPU {used_us / max(1, sum(turns)):7.1f} microseconds a turn"
    )


if __name__ == "__main__":
    sys.exit(main())
