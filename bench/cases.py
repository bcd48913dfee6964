"""What is measured beside each other: locks of this module, and what programs do without it."""

from __future__ import annotations

from dataclasses import dataclass, field

from load import FORMERLY, NOBODY, OTHER_KEY, SOMEBODY, WITHOUT_MODULE, Case

TTL_MS = 3_600_000
TEN_KEYS = " ".join(f"{{key}}:{number}" for number in range(10))
SET = f"SET {{key}} {{token}} NX PX {TTL_MS}"

PINGS = Case("two PINGs", "PING / PING")
NOTHINGS = Case("two module commands that do nothing", "subscriber.nothing / subscriber.nothing")
SET_DEL = Case("SET NX PX, DEL", f"{SET} / DEL {{key}}")
SET_EVALSHA = Case("SET NX PX, EVALSHA", f"{SET} / EVALSHA @delete 1 {{key}} {{token}}")
SET_DELIFEQ = Case("SET NX PX, DELIFEQ", f"{SET} / DELIFEQ {{key}} {{token}}", needs="DELIFEQ")
LOCK = Case("LOCK, UNLOCK", f"SLOCK.LOCK {{key}} {{token}} {TTL_MS} / SLOCK.UNLOCK {{key}} {{token}}")
MUNLOCK = Case(
    "LOCK, MUNLOCK of one key",
    f"SLOCK.LOCK {{key}} {{token}} {TTL_MS} / SLOCK.MUNLOCK 1 {{key}} {{token}}",
)
REFUSE = Case("LOCK, MUNLOCK of one key with REFUSE", f"{MUNLOCK.commands} REFUSE 120000")
RLOCK = Case("RLOCK, RUNLOCK", f"SLOCK.RLOCK {{key}} {{token}} {TTL_MS} / SLOCK.RUNLOCK {{key}} {{token}}")
LUA_READ = Case(
    "read lock in Lua",
    f"EVALSHA @read 2 {{key}} {{key}}:{{token}} {{token}} {TTL_MS} {{token}}:write"
    " / EVALSHA @unread 2 {key} {key} {token} channel:{key}",
)
LUA_TEN = Case(
    "10 keys in Lua",
    f"EVALSHA @obtain 10 {TEN_KEYS} {{token}} {TTL_MS} / EVALSHA @release 10 {TEN_KEYS} {{token}}",
)
MLOCK_TEN = Case(
    "MLOCK, MUNLOCK of 10 keys",
    f"SLOCK.MLOCK 10 {TEN_KEYS} {{token}} {TTL_MS} / SLOCK.MUNLOCK 10 {TEN_KEYS} {{token}}",
)
PAIRS = [PINGS, NOTHINGS, SET_DEL, SET_EVALSHA, SET_DELIFEQ, LOCK, RLOCK]


def pop(contenders: int, locks: int = 1) -> Case:
    return hand_off("BLPOP, LPUSH", contenders, locks, "ring", "BLPOP N 0 / LPUSH N item")


def blocked(contenders: int, locks: int = 1) -> Case:
    commands = f"SLOCK.LOCK N T {TTL_MS} WAIT 0 / SLOCK.UNLOCK N T"
    return hand_off("blocked clients", contenders, locks, "ring", commands)


def notified(contenders: int, locks: int = 1, at_once: int = 1) -> Case:
    commands = f"SLOCK.LOCK N T {TTL_MS} WAIT 0 NOTIFY bench {{token}} / SLOCK.UNLOCK N T"
    return hand_off("NOTIFY", contenders, locks, "notify", commands).with_options("--at-once", at_once)


def hand_off(what: str, contenders: int, locks: int, way: str, commands: str) -> Case:
    """`N` is a name and `T` a token of this case only: one token in two rings would be a deadlock."""
    own = f"{what.split(',')[0].split()[0]}:{contenders}:{locks}"
    words = {"N": f"{own}:{{key}}", "T": f"{own}:{{token}}"}
    commands = " ".join(words.get(word, word) for word in commands.split(" "))
    name = f"hand-off, {what}, {contenders:,}" + f" on {locks} locks" * (locks > 1)
    return Case(name, commands, way, ("--contenders", contenders, "--locks", locks))


@dataclass(frozen=True)
class Ratio:
    """Two cases of a contest, and how much the first may take of what the second takes."""

    own: Case
    other: Case
    # In instructions, which noise cannot touch.
    limit: float


@dataclass(frozen=True)
class Contest:
    """Cases that are played in turns beside each other."""

    what: str
    cases: list[Case]
    ratios: list[Ratio]
    # How many operations a round has.
    count: int = 16_000
    # How much more the ratios of CPU time may be; None where those have no limit.
    cpu_more: float | None = 0.05
    settings: dict[str, object] = field(default_factory=dict)
    # How often instructions are counted, at least.
    rounds: int = 1


def pairs(what: str, cases: list[Case], evalsha: float, others: list[Ratio], **settings: object) -> Contest:
    ratios = [Ratio(own, SET_EVALSHA, evalsha) for own in (LOCK, RLOCK)]
    return Contest(what, cases, ratios + others, settings=settings)


def hand_offs(contenders: int, **settings: object) -> Contest:
    cases = [pop(contenders), blocked(contenders), notified(contenders)]
    ratios = [Ratio(cases[1], cases[0], 1.15), Ratio(cases[2], cases[0], 0.8)]
    what = f"a hand-off, one lock, {contenders:,} contenders" + ", append-only file" * bool(settings)
    return Contest(what, cases, ratios, 5000, None, {"maxclients": 10_000, **settings})


def strangers(what: str, commands: str) -> Contest:
    """Clients that use no locks, on a server without the module and on servers with it."""
    without, *others = (
        Case(beside, commands, beside=beside) for beside in (WITHOUT_MODULE, NOBODY, SOMEBODY, FORMERLY)
    )
    ratios = [Ratio(other, without, 1.05) for other in others]
    return Contest(f"{what} of a client that uses no locks", [without, *others], ratios, cpu_more=0, rounds=3)


WITHOUT_SCRIPT = [Ratio(own, SET_DEL, 1.2) for own in (LOCK, RLOCK)]
AGAINST_DELIFEQ = [Ratio(own, SET_DELIFEQ, 1.05) for own in (LOCK, RLOCK)]
CONTESTS = {
    "ends": Contest(
        "a fresh key taken and released, by each command that can",
        [LOCK, MUNLOCK, REFUSE],
        [Ratio(MUNLOCK, LOCK, 1.06), Ratio(REFUSE, LOCK, 1.18)],
        rounds=3,
    ),
    "strangers": strangers("SET NX PX and DEL", f"{SET} / DEL {{key}}"),
    "strangers-expire": strangers("EXPIRE", f"EXPIRE {OTHER_KEY} 3600"),
    "strangers-ping": strangers("PING", "PING"),
    "pairs": pairs("a fresh key taken and released", PAIRS, 0.5, WITHOUT_SCRIPT + AGAINST_DELIFEQ),
    "pairs-aof": pairs(
        "a fresh key taken and released, append-only file", PAIRS[2:], 0.75, [], appendonly=True
    ),
    "many-keys": Contest(
        "10 keys taken and released", [LUA_TEN, MLOCK_TEN], [Ratio(MLOCK_TEN, LUA_TEN, 0.6)], 2000
    ),
    "read": Contest("a read lock taken and released", [LUA_READ, RLOCK], [Ratio(RLOCK, LUA_READ, 0.4)], 8000),
    "hand-off-64": hand_offs(64),
    "hand-off-2000": hand_offs(2000),
    "hand-off-64-aof": hand_offs(64, appendonly=True),
    "hand-off-2000-aof": hand_offs(2000, appendonly=True),
    "hand-off-8-locks": Contest(
        "a hand-off, 8 locks at once, 64 contenders",
        [pop(64, 8), notified(64, 8, 8)],
        [Ratio(notified(64, 8, 8), pop(64, 8), 0.7)],
        8000,
        0,
    ),
}
