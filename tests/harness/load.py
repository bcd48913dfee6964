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
    """Takes, changes and gives back locks until `stop`, which comes before its server's."""

    def __init__(self, server: Server) -> None:
        self.changes = 0
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
        dice = random.Random(1)
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
        return dice.choice(
            [
                ("SLOCK.LOCK", key, token, ttl),
                ("SLOCK.LOCK", key, token, ttl, "META", str(ttl)),
                ("SLOCK.RLOCK", key, token, ttl),
                ("SLOCK.EXTEND", key, token, ttl),
                ("SLOCK.UPGRADE", key, token, ttl),
                ("SLOCK.DOWNGRADE", key, token, ttl),
                ("SLOCK.UNLOCK", key, token),
                ("SLOCK.RUNLOCK", key, token),
                many("MLOCK", some, token, ttl),
                many("MEXTEND", some, token, ttl),
                many("MUNLOCK", some, token),
            ]
        )


def all_digests(server: Server) -> dict[tuple[int, bytes], str]:
    digests = {}
    for database in (0, 1, 2):
        client = server.client(db=database)
        digests |= {(database, key): digest(client, key) for key in client.scan_iter()}
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
