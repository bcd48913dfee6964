"""Crowds on a server, each in one dimension: very many wait, hold, listen or are known.

In all of them the lock `k` is held by `holder`, and two requests wait for it: that of the token `waiter`, by
NOTIFY, and that of `blocked`, whose client is blocked. So an operation finds the same at its place, whatever
the crowd.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from common import Server
from harness.raw import Argument, RawConnection, encode_command
from harness.wait import now_ms, wait_past, wait_until

HOUR = 3_600_000
CHANNEL = "crowd"
AT_ONCE = 500
BRIEF_MS = 60

Words = tuple[Argument, ...]


@dataclass
class Place:
    """A server with a crowd, and the connections that operations use or end."""

    server: Server
    size: int
    control: RawConnection
    # Who listens to the channel of the crowd.
    subscriber: RawConnection
    # With whom EPHEMERAL holds end.
    owner: RawConnection
    # Who is blocked.
    blocked: RawConnection
    # Whose user may use no key of the crowd.
    stranger: RawConnection
    # What commands for several keys name.
    keys: list[str] = field(default_factory=lambda: ["k", "free"])
    # All connections but the one that stays.
    guests: list[RawConnection] = field(default_factory=list)
    # The ids of connections, as the server knows them.
    ids: dict[str, str] = field(default_factory=dict)

    def ask(self, commands: Iterable[Words], connection: RawConnection | None = None) -> list[object]:
        """Sends all, many at once; their replies. An error ends the test."""
        asking = connection or self.control
        replies: list[object] = []
        waiting: list[bytes] = []

        def exchange() -> None:
            asking.send_bytes(b"".join(waiting))
            for _ in waiting:
                reply = asking.read()
                assert not isinstance(reply, Exception), reply
                replies.append(reply)
            waiting.clear()

        for words in commands:
            waiting.append(encode_command(*words))
            if len(waiting) == AT_ONCE:
                exchange()
        exchange()
        return replies

    def wait(self, commands: Iterable[Words], connection: RawConnection | None = None) -> None:
        """Requests of which each has to wait."""
        assert not any(self.ask(commands, connection)), "all of them have to wait"

    def connect(self) -> RawConnection:
        self.guests.append(self.server.raw())
        return self.guests[-1]

    def leave(self) -> None:
        for guest in self.guests:
            guest.close()

    def take(self, commands: Iterable[Words], connection: RawConnection | None = None) -> None:
        """Requests of which each is granted at once."""
        assert all(self.ask(commands, connection)), "all of them are free"

    def connection(self, connection: RawConnection) -> dict[str, str]:
        """What CLIENT LIST shows of it. One that is blocked cannot be asked."""
        return self.server.connections()[connection.socket.getsockname()[1]]

    def waiters(self) -> int:
        lines = self.control.ok("INFO", "slock").decode().splitlines()
        return next(int(line.split(":")[1]) for line in lines if line.startswith("slock_waiters:"))


def request(key: str, token: str, *, name: str = "LOCK", channel: str = CHANNEL, wait: int = 0) -> Words:
    return (f"SLOCK.{name}", key, token, HOUR, "WAIT", wait, "NOTIFY", channel, token)


def request_many(keys: list[str], token: str, tag: str) -> Words:
    return ("SLOCK.MLOCK", len(keys), *keys, token, HOUR, "WAIT", 0, "NOTIFY", CHANNEL, tag)


def lock(key: str, token: str, *rest: Argument, name: str = "LOCK") -> Words:
    return (f"SLOCK.{name}", key, token, HOUR, *rest)


@dataclass(frozen=True)
class Crowd:
    build: Callable[[Place, int], None]
    # The smaller of the two sizes, if it is not that of the others: bounded by the module, or slow to build.
    size: int | None = None
    # How many times more there is to do in the larger: in two dimensions at once, it is the square. A request
    # for many keys is looked at again at least every 64 steps, and each look is as long as its keys.
    times: int = 8
    # Whether `holder` reads `k`, and the crowd comes before anybody waits: then readers are let in.
    reads: bool = False


EIGHT = 8


def waiters(place: Place, size: int) -> None:
    place.wait(request("k", f"t{n}") for n in range(size))


def waiting_readers(place: Place, size: int) -> None:
    place.wait(request("k", f"t{n}", name="RLOCK") for n in range(size))


def names(place: Place, size: int) -> None:
    place.take(lock(f"x{n}", "holder") for n in range(size))
    place.wait(request(f"x{n}", f"t{n}") for n in range(size))


def owners_of_two_names(place: Place, size: int) -> None:
    place.wait(request_many(["k", f"x{n}"], f"t{n}", f"t{n}") for n in range(size))


def requests_of_a_token(place: Place, size: int) -> None:
    place.wait(request_many(["k", f"x{n}"], "waiter", f"t{n}") for n in range(size - 2))


def large_requests_of_a_token(place: Place, size: int) -> None:
    """As many keys as requests; only the last key tells them apart."""
    common = ["k", *(f"y{n}" for n in range(size - 2))]
    place.wait(request_many([*common, f"x{n}"], "waiter", f"t{n}") for n in range(size - 2))
    place.keys = [*common, "x0"]


def keys_of_a_request(place: Place, size: int) -> None:
    place.keys = ["k", *(f"y{n}" for n in range(size - 1))]
    place.wait([request_many(place.keys, "waiter", "many")])


def keys_of_an_owner(place: Place, size: int) -> None:
    """The owner of all keys but one waits for all of them."""
    place.take(lock(f"y{n}", "t") for n in range(size - 1))
    place.keys = ["k", *(f"y{n}" for n in range(size - 1))]
    place.wait([request_many(place.keys, "t", "many")])


def chain(place: Place, size: int) -> None:
    """Each holds a name and waits for that of the next; `holder` waits for the first."""
    place.take(lock(f"x{n}", f"t{n}") for n in range(size + 1))
    place.wait(request(f"x{n + 1}", f"t{n}") for n in reversed(range(size)))
    place.wait([request("x0", "holder")])


def readers(place: Place, size: int) -> None:
    place.take(lock("k", f"t{n}", name="RLOCK") for n in range(size))


def ended_readers(place: Place, size: int) -> None:
    brief(place, (f"t{n}" for n in range(size)), size)


def readers_half_of_them_ended(place: Place, size: int) -> None:
    readers(place, size)
    brief(place, (f"e{n}" for n in range(size)), size)


def ended_readers_before_others(place: Place, size: int) -> None:
    brief(place, (f"e{n}" for n in range(size)), size, then=lambda: readers(place, size))


def brief(place: Place, tokens: Iterable[str], size: int, then: Callable[[], None] = lambda: None) -> None:
    """Readers whose holds have ended when this returns, but not those of anybody else."""
    client = place.server.client()
    ends_ms = now_ms(client) + 300 + size // 4  # also on a busy machine
    # The server's clock is that of this machine.
    place.take(("SLOCK.RLOCK", "k", token, ends_ms - int(time.time() * 1000)) for token in tokens)
    then()
    wait_past(client, ends_ms + 20)
    client.close()


def readers_that_wait(place: Place, size: int) -> None:
    readers(place, size)
    names(place, size)


def channels(place: Place, size: int) -> None:
    place.subscriber.send_bytes(b"".join(encode_command("SSUBSCRIBE", f"c{n}") for n in range(size)))
    for _ in range(size):
        place.subscriber.read()
    place.wait(request("k", f"t{n}", channel=f"c{n}") for n in range(size))


def subscribers(place: Place, size: int) -> None:
    for _ in range(size):
        assert place.connect().ok("SSUBSCRIBE", CHANNEL)


def ephemeral_holds(place: Place, size: int) -> None:
    place.take((lock(f"e{n}", f"t{n}", "EPHEMERAL") for n in range(size)), place.owner)


def ephemeral_requests(place: Place, size: int) -> None:
    place.wait(((*request("k", f"t{n}"), "EPHEMERAL") for n in range(size)), place.owner)


def users(place: Place, size: int) -> None:
    def come() -> Iterable[Words]:
        for n in range(size):
            yield "ACL", "SETUSER", f"u{n}", "on", "nopass", "+@all", "~*", "&*"
            yield "AUTH", f"u{n}", "any"
            yield request("k", f"t{n}")
        yield "AUTH", "default", ""

    place.ask(come())


def databases(place: Place, size: int) -> None:
    def ask() -> Iterable[Words]:
        for n in range(1, size):
            yield "SELECT", n
            yield lock("k", "holder")
            yield request("k", f"t{n}")
        yield "SELECT", 0

    place.ask(ask())


def swapped_databases(place: Place, size: int) -> None:
    place.ask(("SWAPDB", n, n + 1) for n in range(10, size + 10, 2))
    place.take([lock("e", "owner", "EPHEMERAL")], place.owner)


def blocked_clients(place: Place, size: int) -> None:
    clients = [place.connect() for _ in range(size)]
    for n, client in enumerate(clients):
        client.send(*lock("k", f"t{n}", "WAIT", 0))
    wait_until(lambda: place.waiters() >= size, 60, "all to wait")


CROWDS: dict[str, Crowd] = {
    "waiters": Crowd(waiters),
    "waiting readers": Crowd(waiting_readers),
    "names": Crowd(names),
    "owners of two names": Crowd(owners_of_two_names),
    "requests of a token": Crowd(requests_of_a_token, 512 // EIGHT),
    "large requests of a token": Crowd(large_requests_of_a_token, 4, times=64),
    "keys of a request": Crowd(keys_of_a_request, 1000 // EIGHT, times=16),
    "keys of an owner": Crowd(keys_of_an_owner, 1024 // EIGHT, times=16),
    "chain": Crowd(chain),
    "readers": Crowd(readers, reads=True),
    "ended readers": Crowd(ended_readers, reads=True),
    "readers, half of them ended": Crowd(readers_half_of_them_ended, reads=True),
    "ended readers before others": Crowd(ended_readers_before_others, reads=True),
    "readers that wait": Crowd(readers_that_wait, reads=True),
    "channels": Crowd(channels),
    "subscribers": Crowd(subscribers, 50),
    "EPHEMERAL holds": Crowd(ephemeral_holds),
    "EPHEMERAL requests": Crowd(ephemeral_requests),
    "users": Crowd(users, 250),
    "databases": Crowd(databases, 1000),
    "swapped databases": Crowd(swapped_databases, 2000),
    "blocked clients": Crowd(blocked_clients, 100),
}


def clear(place: Place) -> None:
    """Everybody leaves, and no key is left."""
    control = place.control
    control.ok("REPLICAOF", "127.0.0.1", 1)
    control.ok("REPLICAOF", "NO", "ONE")
    control.ok("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    control.ok("CLIENT", "KILL", "TYPE", "pubsub")
    control.ok("FLUSHALL")
    wait_until(lambda: place.waiters() == 0, 60, "nobody to wait")


def occupy(server: Server, control: RawConnection, crowd: Crowd, size: int) -> Place:
    """The crowd, on a server where nobody holds or waits."""
    guests = [server.raw() for _ in range(4)]
    place = Place(server, size, control, *guests, guests=guests)
    place.subscriber.ok("SSUBSCRIBE", CHANNEL)
    place.stranger.ok("AUTH", "stranger", "any")
    place.take([lock("k", "holder", name="RLOCK" if crowd.reads else "LOCK")])
    if crowd.reads:
        crowd.build(place, size)
    place.wait([request("k", "waiter")])
    place.blocked.send(*lock("k", "blocked", "WAIT", 0))
    wait_until(lambda: "b" in place.connection(place.blocked)["flags"], 10, "the client to be blocked")
    if not crowd.reads:
        crowd.build(place, size)
    return place
