"""A short story about a lock, played on private servers that are gone when it ends. `make demo` runs it.

Every command is printed as one would type it at `redis-cli -3`, with the reply of the server. Every reply
is compared with what the story promises: the demo ends with status 1 when one differs, so it is a smoke
test too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from harness import RawConnection, RespError, Server, ServerError, replica_of, wait_synced, wait_until

Promise = Callable[[Any], bool]

FENCED_WRITE = (
    "if redis.call('SLOCK.CHECK', KEYS[1], ARGV[1]) == 1 "
    "then return redis.call('SET', KEYS[2], ARGV[2]) "
    "else return redis.error_reply('STALE the lock has moved on') end"
)


class StoryError(Exception):
    """A reply was not what the story promises."""


# --- telling the story


def title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def tell(text: str) -> None:
    print(f"\n  {text}")


class Narrator:
    """One connection of the story: says each command and its reply, and checks the reply."""

    def __init__(self, server: Server, name: str = "") -> None:
        self.connection: RawConnection = server.raw(protocol=3)
        self.prompt = f"{name}> "

    def say(self, *command: object) -> None:
        """Sends a command whose reply is heard later."""
        print(f"    {self.prompt}{' '.join(as_typed(arg) for arg in command)}")
        self.connection.send(*command)

    def hear(self, promise: object) -> Any:
        """Reads and prints a reply. The promise is the value it must have, or a test that it must pass."""
        reply = self.connection.read()
        indent = "    " + " " * len(self.prompt)
        print("\n".join(indent + line for line in as_printed(reply)))
        if not (promise(reply) if callable(promise) else reply == promise):
            raise StoryError(f"the story promises another reply than {reply!r}")
        return reply

    def hear_at_last(self, promise: object) -> Any:
        """Reads the reply to a command that has waited."""
        print(f"    {self.prompt}... answered now:")
        return self.hear(promise)

    def do(self, *command: object, promise: object) -> Any:
        self.say(*command)
        return self.hear(promise)


def as_typed(arg: object) -> str:
    text = str(arg)
    return text if text and not set(text) & set(" \"'") else '"' + text.replace('"', '\\"') + '"'


def as_printed(reply: Any) -> list[str]:
    """The lines of a reply, in the manner of redis-cli."""
    match reply:
        case None:
            return ["(nil)"]
        case RespError():
            return [f"(error) {reply.text}"]
        case int():
            return [f"(integer) {reply}"]
        case b"OK":
            return ["OK"]
        case bytes():
            return [f'"{reply.decode(errors="backslashreplace")}"']
        case dict():
            fields = enumerate(reply.items(), 1)
            return nested((f'{number}# "{name.decode()}" => ', value) for number, (name, value) in fields)
        case list():
            return nested((f"{number}) ", value) for number, value in enumerate(reply, 1))
    raise StoryError(f"what is {reply!r}?")


def nested(items: Iterable[tuple[str, Any]]) -> list[str]:
    lines = []
    for head, value in items:
        first, *rest = as_printed(value)
        lines += [head + first, *(" " * len(head) + line for line in rest)]
    return lines or ["(empty array)"]


# --- promises


def is_fence(reply: Any) -> bool:
    return isinstance(reply, int) and reply > 0


def above(fence: int) -> Promise:
    return lambda reply: is_fence(reply) and reply > fence


def between(low: int, high: int) -> Promise:
    return lambda reply: isinstance(reply, int) and low <= reply <= high


def error(prefix: str) -> Promise:
    return lambda reply: isinstance(reply, RespError) and reply.prefix == prefix


def held_by(*tokens: str) -> Promise:
    """An INFO FULL reply with exactly these holders."""
    names = sorted(token.encode() for token in tokens)
    return lambda reply: (
        isinstance(reply, dict) and sorted(holder[b"token"] for holder in reply[b"holders"]) == names
    )


def with_queue(*tokens: str) -> Promise:
    """An INFO FULL reply with exactly these waiters, in this order."""
    names = [token.encode() for token in tokens]
    return lambda reply: isinstance(reply, dict) and [waiter[b"token"] for waiter in reply[b"queue"]] == names


# --- the scenes


def scene_lock(server: Server) -> None:
    title("A lock has an owner")
    cli = Narrator(server)
    tell("Alice takes the lock for 30 seconds. The reply is her fence: a number that only ever rises.")
    fence = cli.do("SLOCK.LOCK", "job:42", "alice", 30000, "META", "host=web-1", promise=is_fence)
    tell("Bob wants it too and is refused: 0 means no.")
    cli.do("SLOCK.LOCK", "job:42", "bob", 30000, promise=0)
    tell("Alice asks again, as after a lost reply: the same hold and fence, a fresh deadline.")
    cli.do("SLOCK.LOCK", "job:42", "alice", 30000, promise=fence)
    tell("Anybody may see who has it, since when, and for how long.")
    cli.do("SLOCK.INFO", "job:42", "FULL", promise=held_by("alice"))
    tell("Bob cannot release what is not his. Alice can, and then nothing is left of the lock.")
    cli.do("SLOCK.UNLOCK", "job:42", "bob", promise=0)
    cli.do("SLOCK.UNLOCK", "job:42", "alice", promise=1)
    cli.do("EXISTS", "job:42", promise=0)


def scene_deadline(server: Server) -> None:
    title("Every hold has a deadline, and every new hold a greater fence")
    cli = Narrator(server)
    tell("Alice takes the lock for 200 milliseconds, and then hangs.")
    old = cli.do("SLOCK.LOCK", "job:42", "alice", 200, promise=is_fence)
    time.sleep(0.2)
    tell("Her time is over: Bob gets the lock, with a greater fence.")
    new = cli.do("SLOCK.LOCK", "job:42", "bob", 30000, promise=above(old))
    tell("Alice wakes up. She holds nothing, and cannot release Bob's lock.")
    cli.do("SLOCK.UNLOCK", "job:42", "alice", promise=0)
    tell("What she still has in flight is told by its fence: hers is dead, Bob's is live.")
    cli.do("SLOCK.CHECK", "job:42", old, promise=0)
    cli.do("SLOCK.CHECK", "job:42", new, promise=1)
    tell("So a write can be tied to the lock: a script checks the fence and writes, in one step.")
    cli.do("EVAL", FENCED_WRITE, 2, "job:42", "result:42", old, "by alice", promise=error("STALE"))
    cli.do("EVAL", FENCED_WRITE, 2, "job:42", "result:42", new, "by bob", promise=b"OK")
    cli.do("SLOCK.UNLOCK", "job:42", "bob", promise=1)


def scene_readers(server: Server) -> None:
    title("Readers share, writers do not")
    cli = Narrator(server)
    tell("Two readers hold the lock at once, each until a deadline of its own.")
    cli.do("SLOCK.RLOCK", "page:7", "reader-1", 30000, promise=is_fence)
    cli.do("SLOCK.RLOCK", "page:7", "reader-2", 60000, promise=is_fence)
    tell("A writer is refused as long as one of them is there.")
    cli.do("SLOCK.LOCK", "page:7", "writer", 30000, promise=0)
    tell("When the first reader asks for less time, the second one keeps its own.")
    cli.do("SLOCK.EXTEND", "page:7", "reader-1", 5000, promise=1)
    cli.do("SLOCK.PTTL", "page:7", "reader-1", promise=between(1, 5000))
    cli.do("SLOCK.PTTL", "page:7", "reader-2", promise=between(50000, 60000))
    tell("A reader who asks to write by the wrong command is told the right one.")
    cli.do("SLOCK.LOCK", "page:7", "reader-1", 30000, promise=error("WRONGMODE"))
    tell("The last reader to leave frees the lock.")
    cli.do("SLOCK.RUNLOCK", "page:7", "reader-1", promise=1)
    cli.do("SLOCK.RUNLOCK", "page:7", "reader-2", promise=1)
    cli.do("SLOCK.LOCK", "page:7", "writer", 30000, promise=is_fence)
    cli.do("SLOCK.UNLOCK", "page:7", "writer", promise=1)


def scene_crash(server: Server) -> None:
    title("A crash takes nothing away")
    cli = Narrator(server)
    tell("Alice takes a lock, and the server is killed with SIGKILL in that moment.")
    fence = cli.do("SLOCK.LOCK", "job:43", "alice", 60000, "META", "host=web-1", promise=is_fence)
    server.restart(kill=True)
    print("\n    ... killed, and started again from its append-only file ...")
    cli = Narrator(server)
    tell("Alice still holds the lock, with the same fence and the same deadline. Bob is refused.")
    cli.do("SLOCK.INFO", "job:43", "FULL", promise=held_by("alice"))
    cli.do("SLOCK.LOCK", "job:43", "bob", 60000, promise=0)
    tell("The owner is whoever has the token: this is a new connection, and it can release.")
    cli.do("SLOCK.CHECK", "job:43", fence, promise=1)
    cli.do("SLOCK.UNLOCK", "job:43", "alice", promise=1)
    tell("The next fence is greater than any from before the crash.")
    cli.do("SLOCK.LOCK", "job:43", "bob", 60000, promise=above(fence))
    cli.do("SLOCK.UNLOCK", "job:43", "bob", promise=1)


def scene_replica(primary: Server, replica: Server) -> None:
    title("A replica knows the lock, and can take over")
    replica_of(replica, primary)
    at_primary, at_replica = Narrator(primary, "primary"), Narrator(replica, "replica")
    tell("Alice locks at the primary; a second server is its replica.")
    fence = at_primary.do("SLOCK.LOCK", "job:44", "alice", 60000, promise=is_fence)
    wait_synced(primary, replica)
    tell("The replica has the same holder. It may be asked, and it gives no locks away itself.")
    at_replica.do("SLOCK.INFO", "job:44", "FULL", promise=held_by("alice"))
    at_replica.do("SLOCK.CHECK", "job:44", fence, promise=1)
    at_replica.do("SLOCK.LOCK", "job:44", "bob", 60000, promise=error("READONLY"))
    primary.kill9()
    tell("The primary is lost, and the replica is promoted.")
    at_replica.do("REPLICAOF", "NO", "ONE", promise=b"OK")
    tell("Alice's lock is safe. She releases it here, and the fences go on rising.")
    at_replica.do("SLOCK.LOCK", "job:44", "bob", 60000, promise=0)
    at_replica.do("SLOCK.UNLOCK", "job:44", "alice", promise=1)
    at_replica.do("SLOCK.LOCK", "job:44", "bob", 60000, promise=above(fence))


def scene_handoff(server: Server) -> None:
    title("Waiting: a fair queue on the server")
    alice, bob, carol, cli = (Narrator(server, name) for name in ("alice", "bob", "carol", "anyone"))
    tell("Alice holds the lock. Bob asks for it and is willing to wait 10 seconds: no reply yet.")
    fence = alice.do("SLOCK.LOCK", "job:45", "alice", 30000, promise=is_fence)
    bob.say("SLOCK.LOCK", "job:45", "bob", 30000, "WAIT", 10000)
    wait_for_queue(server, "job:45", 1)
    carol.say("SLOCK.LOCK", "job:45", "carol", 30000, "WAIT", 10000)
    wait_for_queue(server, "job:45", 2)
    tell("The queue can be seen. Who comes later stands behind, and nobody overtakes.")
    cli.do("SLOCK.INFO", "job:45", "FULL", promise=with_queue("bob", "carol"))
    tell("Alice releases: in that instant Bob has the lock, and his reply.")
    released = time.perf_counter()
    alice.do("SLOCK.UNLOCK", "job:45", "alice", promise=1)
    fence = bob.hear_at_last(above(fence))
    print(f"    ({(time.perf_counter() - released) * 1000:.1f} ms after the release, printing included)")
    tell("It need not be a release: the lock is deleted by hand, and Carol is served.")
    cli.do("DEL", "job:45", promise=1)
    carol.hear_at_last(above(fence))
    carol.do("SLOCK.UNLOCK", "job:45", "carol", promise=1)

    tell("A reader becomes the writer in one step, before all others in the queue.")
    alice.do("SLOCK.RLOCK", "page:8", "alice", 30000, promise=is_fence)
    bob.do("SLOCK.RLOCK", "page:8", "bob", 30000, promise=is_fence)
    alice.say("SLOCK.UPGRADE", "page:8", "alice", 30000, "WAIT", 10000)
    wait_for_queue(server, "page:8", 1)
    tell("Bob reads too, and wants the same: each would wait for the other, so the second is told at once.")
    bob.do("SLOCK.UPGRADE", "page:8", "bob", 30000, "WAIT", 10000, promise=error("DEADLOCK"))
    bob.do("SLOCK.RUNLOCK", "page:8", "bob", promise=1)
    alice.hear_at_last(is_fence)

    tell("The same with two locks: Alice holds page:8, Bob page:9, and each wants the other's.")
    bob.do("SLOCK.LOCK", "page:9", "bob", 30000, promise=is_fence)
    alice.say("SLOCK.LOCK", "page:9", "alice", 30000, "WAIT", 10000)
    wait_for_queue(server, "page:9", 1)
    bob.do("SLOCK.LOCK", "page:8", "bob", 30000, "WAIT", 10000, promise=error("DEADLOCK"))
    bob.do("SLOCK.UNLOCK", "page:9", "bob", promise=1)
    alice.hear_at_last(is_fence)


def wait_for_queue(server: Server, key: str, length: int) -> None:
    connection = server.raw(protocol=3)
    wait_until(lambda: (connection.call("SLOCK.INFO", key) or {}).get(b"waiters") == length, 5, "the queue")


def main() -> int:
    durable = {"appendonly": True, "appendfsync": "always"}
    primary, replica = Server(name="primary", **durable), Server(name="replica", **durable)
    try:
        primary.start()
        replica.start()
        scene_lock(primary)
        scene_deadline(primary)
        scene_readers(primary)
        scene_handoff(primary)
        scene_crash(primary)
        scene_replica(primary, replica)
    except (StoryError, ServerError, AssertionError, OSError) as problem:
        print(f"\nThe demo failed: {problem}", file=sys.stderr)
        for server in (primary, replica):
            print(f"\nThe log of {server}:\n{server.log()[-3000:]}", file=sys.stderr)
        return 1
    finally:
        primary.discard()
        replica.discard()
    print("\nThe end. The servers are stopped and their files removed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
