"""What is measured beside each other: locks of this module, and what programs do without it."""

from __future__ import annotations

from load import Case

TTL_MS = 3_600_000
TEN_KEYS = " ".join(f"{{key}}:{number}" for number in range(10))
SET = f"SET {{key}} {{token}} NX PX {TTL_MS}"

PINGS = Case("two PINGs", "PING / PING")
NOTHINGS = Case("two module commands that do nothing", "subscriber.nothing / subscriber.nothing")
SET_DEL = Case("SET NX PX, DEL", f"{SET} / DEL {{key}}")
SET_EVALSHA = Case("SET NX PX, EVALSHA", f"{SET} / EVALSHA @delete 1 {{key}} {{token}}")
SET_DELIFEQ = Case("SET NX PX, DELIFEQ", f"{SET} / DELIFEQ {{key}} {{token}}", needs="DELIFEQ")
LOCK = Case("LOCK, UNLOCK", f"SLOCK.LOCK {{key}} {{token}} {TTL_MS} / SLOCK.UNLOCK {{key}} {{token}}")
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


def notified(contenders: int, locks: int = 1) -> Case:
    commands = f"SLOCK.LOCK N T {TTL_MS} WAIT 0 NOTIFY bench {{token}} / SLOCK.UNLOCK N T"
    return hand_off("NOTIFY", contenders, locks, "notify", commands)


def hand_off(what: str, contenders: int, locks: int, way: str, commands: str) -> Case:
    """`N` is a name and `T` a token of this case only: one token in two rings would be a deadlock."""
    own = f"{what.split(',')[0].split()[0]}:{contenders}:{locks}"
    words = {"N": f"{own}:{{key}}", "T": f"{own}:{{token}}"}
    commands = " ".join(words.get(word, word) for word in commands.split(" "))
    name = f"hand-off, {what}, {contenders:,}" + (f" on {locks} at once" if locks > 1 else "")
    at_once = ("--at-once", locks) if way == "notify" else ()
    return Case(name, commands, way, ("--contenders", contenders, "--locks", locks, *at_once))
