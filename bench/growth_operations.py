"""Every command of the module, and every event that concerns those who hold or wait, once each.

An operation is done at the place that each crowd of `growth_crowds` has. What it may cost is not said here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from growth_crowds import HOUR, Place, request

# How long until a wait runs out or a hold ends that does so while it is measured.
SOON_MS = 60
# Within half a second it is noticed that nobody listens to a channel any more.
NOTICED_S = 0.6

numbers = count(1)


@dataclass(frozen=True)
class Operation:
    # The command or event, by which the table of docs/costs.md knows it.
    name: str
    # What tells it from others of that name.
    case: str
    run: Callable[[Place], object]
    # What has to be done before, and is not measured.
    prepare: Callable[[Place], object] = lambda place: None
    # What makes the crowd what it was; without it the crowd is built anew.
    undo: Callable[[Place], object] | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.case})" if self.case else self.name


def send(*words: object) -> Callable[[Place], object]:
    """One command; `@keys` stands for what commands for several keys name. Its reply may be an error."""

    def run(place: Place) -> object:
        said = [[len(place.keys), *place.keys] if word == "@keys" else [word] for word in words]
        return place.control.call(*(word for some in said for word in some))

    return run


def nothing(_: Place) -> None:
    """The crowd is what it was."""


def keeps(name: str, case: str, *words: object) -> Operation:
    return Operation(name, case, send(name, *words), undo=nothing)


def spends(name: str, case: str, *words: object) -> Operation:
    return Operation(name, case, send(name, *words))


def adds(name: str, case: str, *words: object) -> Operation:
    """A request that waits, which is withdrawn."""
    return Operation(name, case, send(name, *words), undo=send("SLOCK.CANCEL", "k", "new"))


def ask_as_stranger(place: Place) -> object:
    return place.stranger.ok("SLOCK.QUEUES", "COUNT", 0)


NOTIFY = ("WAIT", 0, "NOTIFY", "crowd", "new")

COMMANDS: dict[str, list[Operation]] = {
    name: [make(f"SLOCK.{name}", *words) for make, *words in cases]
    for name, cases in {
        "LOCK": [
            (keeps, "refused", "k", "new", HOUR),
            (adds, "waits", "k", "new", HOUR, *NOTIFY),
            (keeps, "asked again", "k", "waiter", HOUR, "WAIT", 0, "NOTIFY", "crowd", "waiter"),
            (keeps, "refreshed", "k", "holder", HOUR),
            (spends, "granted", "free", "new", HOUR),
            (spends, "granted to who waits", "free", "waiter", HOUR),
        ],
        "RLOCK": [
            (keeps, "refreshed", "k", "holder", HOUR),
            (adds, "waits", "k", "new", HOUR, *NOTIFY),
            (keeps, "refused", "k", "new", HOUR, "LIMIT", 2),
            (adds, "waits with a limit", "k", "new", HOUR, "LIMIT", 2000, *NOTIFY),
            (spends, "granted", "free", "new", HOUR),
        ],
        "UNLOCK": [(keeps, "refused", "k", "new"), (spends, "released", "k", "holder")],
        "RUNLOCK": [(keeps, "refused", "k", "new"), (spends, "released", "k", "holder")],
        "EXTEND": [(keeps, "refused", "k", "new", HOUR), (keeps, "extended", "k", "holder", HOUR)],
        "PTTL": [(keeps, "", "k", "holder")],
        "CHECK": [(keeps, "", "k", 7)],
        "UPGRADE": [
            (keeps, "refused", "k", "new", HOUR),
            (spends, "upgraded or refused", "k", "holder", HOUR),
            (spends, "waits", "k", "holder", HOUR, *NOTIFY),
        ],
        "DOWNGRADE": [(keeps, "refused", "k", "new", HOUR), (spends, "downgraded", "k", "holder", HOUR)],
        "MLOCK": [
            (keeps, "refused", "@keys", "new", HOUR),
            (adds, "waits", "@keys", "new", HOUR, *NOTIFY),
            (spends, "waits once more", "@keys", "waiter", HOUR, *NOTIFY),
        ],
        "MRLOCK": [(keeps, "refused", "@keys", "new", HOUR), (adds, "waits", "@keys", "new", HOUR, *NOTIFY)],
        "MUNLOCK": [(keeps, "refused", "@keys", "new"), (spends, "released", "@keys", "holder")],
        "MEXTEND": [(keeps, "", "@keys", "holder", HOUR)],
        "MPTTL": [(keeps, "", "@keys", "holder")],
        "QUEUES": [(keeps, ""), (keeps, "all", "COUNT", 0)],
        "CANCEL": [(keeps, "nothing", "k", "new"), (spends, "withdrawn", "k", "waiter")],
        "INFO": [
            (keeps, "", "k"),
            (keeps, "one", "k", "FULL", "COUNT", 1),
            (keeps, "all", "k", "FULL", "COUNT", 0),
        ],
        "APPLY": [(keeps, "", "k", "EXTEND 1 9007199254740000 holder")],
    }.items()
}  # fmt: skip
COMMANDS["QUEUES"].append(
    Operation(
        "SLOCK.QUEUES",
        "unreadable",
        ask_as_stranger,
        undo=nothing,
    )
)


# --- events


def note_ids(place: Place) -> None:
    """Those of connections that are going to be killed or unblocked."""
    for name in ("owner", "blocked"):
        place.ids[name] = place.connection(getattr(place, name))["id"]


def kill(name: str) -> Callable[[Place], object]:
    return lambda place: place.control.ok("CLIENT", "KILL", "ID", place.ids[name])


def unblock(place: Place) -> None:
    assert place.control.ok("CLIENT", "UNBLOCK", place.ids["blocked"]) == 1


def unsubscribe(place: Place) -> None:
    place.subscriber.send("SUNSUBSCRIBE")
    time.sleep(NOTICED_S)


def wait_briefly(place: Place) -> None:
    place.wait([request("k", "brief", wait=SOON_MS)])


def end_soon(place: Place) -> None:
    # Readers and writer alike: the hold that all others wait for, or one of many.
    assert place.control.ok("SLOCK.EXTEND", "k", "holder", SOON_MS) == 1


def let_pass(_: Place) -> None:
    time.sleep((SOON_MS + 15) / 1000)


def deny_user(place: Place) -> None:
    """The first in the queue may no longer have what it is about to be granted, where it is that user's."""
    place.control.ok("ACL", "SETUSER", "u0", "-@all")
    place.control.ok("SLOCK.UNLOCK", "k", "holder")


def close(name: str) -> Callable[[Place], object]:
    def run(place: Place) -> None:
        getattr(place, name).close()
        if name == "subscriber":
            time.sleep(NOTICED_S)

    return run


def set_module(place: Place) -> None:
    # Another value each time: one that stays as it is changes nothing.
    place.control.ok("CONFIG", "SET", "slock.max-waiters", 1_000_000 + next(numbers))


def role_change(place: Place) -> None:
    place.control.ok("REPLICAOF", "127.0.0.1", 1)


def again_primary(place: Place) -> None:
    place.control.ok("REPLICAOF", "NO", "ONE")


def swap(place: Place) -> None:
    place.control.ok("SWAPDB", 0, 1)


def swap_there_and_back(place: Place) -> None:
    """In one turn: all locks are as before, which nobody knows who has not looked at each."""
    place.ask([("MULTI",), ("SWAPDB", 0, 1), ("SWAPDB", 0, 1), ("EXEC",)])


def event(name: str, case: str, *words: object, keeps: bool = False) -> Operation:
    return Operation(name, case, send(*words), undo=nothing if keeps else None)


EVENTS: list[Operation] = [
    Operation("time-out", "", let_pass, wait_briefly, nothing),
    Operation("deadline", "", let_pass, end_soon),
    Operation("close", "of the owner", close("owner")),
    Operation("close", "of a blocked client", close("blocked")),
    Operation("close", "of the subscriber", close("subscriber")),
    Operation("close", "of another", close("stranger"), undo=None),
    Operation("kill", "of the owner", kill("owner"), note_ids),
    Operation("kill", "of a blocked client", kill("blocked"), note_ids),
    Operation("CLIENT UNBLOCK", "", unblock, note_ids),
    Operation("unsubscribe", "", unsubscribe),
    Operation("ACL change", "of a user who waits", deny_user),
    event("ACL change", "of another", "ACL", "SETUSER", "another", "on", "+@all", keeps=True),
    Operation("CONFIG SET", "of the module", set_module, undo=nothing),
    event("CONFIG SET", "of the server", "CONFIG", "SET", "maxmemory-samples", 5, keeps=True),
    event("CONFIG RESETSTAT", "", "CONFIG", "RESETSTAT", keeps=True),
    event("INFO", "", "INFO", "slock", keeps=True),
    event("DEL", "", "DEL", "k"),
    event("UNLINK", "", "UNLINK", "k"),
    event("RENAME", "", "RENAME", "k", "renamed"),
    event("MOVE", "", "MOVE", "k", 5),
    event("COPY", "", "COPY", "k", "copied"),
    event("SET", "", "SET", "k", "of another type"),
    event("EXPIRE", "", "EXPIRE", "k", 1000),
    event("PERSIST", "", "PERSIST", "k"),
    event("DUMP", "", "DUMP", "k", keeps=True),
    event("MEMORY USAGE", "", "MEMORY", "USAGE", "k", keeps=True),
    event("DEBUG DIGEST-VALUE", "", "DEBUG", "DIGEST-VALUE", "k", keeps=True),
    event("FLUSHDB", "", "FLUSHDB"),
    event("FLUSHALL", "", "FLUSHALL"),
    Operation("SWAPDB", "", swap),
    Operation("SWAPDB", "there and back", swap_there_and_back, undo=nothing),
    Operation("role change", "to a replica", role_change),
    Operation("role change", "to a primary", again_primary, role_change),
]  # fmt: skip

OPERATIONS = [operation for cases in COMMANDS.values() for operation in cases] + EVENTS
