"""Many changes of locks from a thread, while a test does something to the servers."""

from __future__ import annotations

import random
import threading

from harness.locks import digest
from harness.many import many
from harness.raw import RawConnection, RespError
from harness.replication import wait_synced
from harness.server import Server
from harness.wait import wait_until
from harness.waiting import HOUR

KEYS = [f"load:{number}" for number in range(30)]
TOKENS = ["a", "b", "c"]
DATABASES = (0, 2)


class Load:
    """Takes, changes and gives back locks until `stop`, which comes before its server's.

    With `brief`, locks also end by their deadlines and by what users do to keys.
    """

    def __init__(self, server: Server, *, seed: int = 1, brief: bool = False) -> None:
        self.changes = 0
        self._dice = random.Random(seed)
        self._brief = brief
        self._connection = RawConnection(server.port)
        self._end = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def goes_on(self, changes: int = 300) -> None:
        """Waits until so many more changes have been made."""
        goal = self.changes + changes
        wait_until(lambda: self._problem or self.changes >= goal, 20, "the load to go on")

    def stop(self) -> None:
        self._end.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "the load hangs"
        self._connection.close()
        if self._problem:
            raise self._problem

    def _run(self) -> None:
        dice = self._dice
        try:
            while not self._end.is_set():
                commands = [("SELECT", dice.choice(DATABASES)), *[self._command(dice) for _ in range(10)]]
                for reply in self._connection.pipeline(commands):
                    if isinstance(reply, RespError):
                        assert reply.prefix in ("WRONGMODE", "NOTHELD"), reply.text
                    elif isinstance(reply, int) and reply > 0:
                        self.changes += 1
        except BaseException as problem:
            self._problem = problem

    def _command(self, dice: random.Random) -> tuple:
        key, token, ttl = dice.choice(KEYS), dice.choice(TOKENS), dice.randrange(HOUR, 2 * HOUR)
        some = dice.sample(KEYS, 3)
        if self._brief:
            ttl = dice.choice([1, 5, 20, 80, HOUR])
            if dice.random() < 0.2:
                deletion = dice.choice([("DEL", key), ("PERSIST", key), ("PEXPIRE", key, ttl)])
                return dice.choice([deletion, ("COPY", *dice.sample(KEYS, 2), "REPLACE")])
        with_ttl = ("LOCK", "RLOCK", "EXTEND", "UPGRADE", "DOWNGRADE")
        return dice.choice(
            [
                *[(f"SLOCK.{name}", key, token, ttl) for name in with_ttl],
                ("SLOCK.LOCK", key, token, ttl, "META", str(ttl)),
                *[(f"SLOCK.{name}", key, token) for name in ("UNLOCK", "RUNLOCK")],
                *[many(name, some, token, ttl) for name in ("MLOCK", "MEXTEND")],
                many("MUNLOCK", some, token),
            ]
        )


def all_digests(server: Server) -> dict[tuple[int, bytes], tuple[str, int]]:
    """The digest and the expiry of each key."""
    digests = {}
    for database in (0, 1, 2):
        client = server.client(db=database)
        for key in client.scan_iter():
            digests[database, key] = digest(client, key), client.pexpiretime(key)
        client.close()
    return digests


def level(primary: Server, *replicas: Server) -> None:
    """Nobody changes anything now: each replica has the primary's keys, with the same digests."""
    here = all_digests(primary)
    for replica in replicas:
        wait_synced(primary, replica)
        assert all_digests(replica) == here, replica


def agree(primary: Server, *replicas: Server) -> None:
    assert all_digests(primary), "the load should leave locks behind"
    level(primary, *replicas)
