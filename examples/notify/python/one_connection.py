"""Waits for a lock by NOTIFY over one RESP3 connection: requests, replies and messages share it.

Usage: one_connection.py port key counter times. Adds one to the counter so often, each time under the lock.
"""

import secrets
import sys
import time

import redis

TTL_MS = 10_000
ASK_AGAIN_S = 1.0


class Lock:
    """For one task at a time. The token outlives the connection: who reconnects is the same owner."""

    def __init__(self, port: int, key: str) -> None:
        self.key, self.token = key, secrets.token_hex(16)
        # Others may list the name, but not guess a tag. The braces put the channel into the slot of the key.
        self.channel = f"{{{key}}}:{secrets.token_hex(16)}"
        self.told: dict[str, str] = {}
        self.connection = redis.Connection(port=port, protocol=3, decode_responses=True, socket_timeout=5)

    def is_message(self, reply: object) -> bool:
        """Keeps what a request has been told. Replies of the commands used here are never lists."""
        if not isinstance(reply, list):
            return False
        if reply[0] == "sunsubscribe":
            raise redis.ConnectionError("the subscription has ended")
        result, tag = reply[2].split(" ")
        self.told[tag] = result
        return True

    def call(self, *command: object) -> object:
        """Sends a command until it is answered. A connection that is lost is made and subscribed again."""
        while True:
            try:
                if not self.connection.is_connected:
                    self.connection.send_command("SSUBSCRIBE", self.channel)
                    self.connection.read_response(push_request=True)
                self.connection.send_command(*command)
                while self.is_message(reply := self.connection.read_response(push_request=True)):
                    pass
                return reply
            except redis.ConnectionError:
                self.connection.disconnect()
                time.sleep(0.05)

    def hear(self, tag: str, seconds: float) -> str | None:
        """What the request has been told, or None after so long."""
        end = time.monotonic() + seconds
        try:
            while tag not in self.told and (left := end - time.monotonic()) > 0:
                if self.connection.can_read(timeout=left):
                    self.is_message(self.connection.read_response(push_request=True))
        except redis.ConnectionError:
            self.connection.disconnect()
        return self.told.pop(tag, None)

    def acquire(self, seconds: float) -> int:
        """The fence; 0 when the time was not enough."""
        end, tag = time.monotonic() + seconds, secrets.token_hex(16)  # known before anything is sent
        while (left_ms := int((end - time.monotonic()) * 1000)) > 0:
            # Asked again with the same token it keeps its place, and who holds by now gets the fence.
            notify = ("WAIT", left_ms, "NOTIFY", self.channel, tag)
            result = self.call("SLOCK.LOCK", self.key, self.token, TTL_MS, *notify)
            result = str(result or self.hear(tag, min(ASK_AGAIN_S, left_ms / 1000)) or 0)
            if result.startswith("-") and result != "-UNBLOCKED":
                raise redis.ResponseError(result[1:])
            if result.isdigit() and int(result):
                return int(result)
        self.call("SLOCK.CANCEL", self.key, self.token)
        self.release()  # it may have been granted just before
        return 0

    def release(self) -> None:
        self.call("SLOCK.UNLOCK", self.key, self.token)
        self.told.clear()


def main(port: int, key: str, counter: str, times: int) -> None:
    lock = Lock(port, key)
    for _ in range(times):
        if not lock.acquire(60):
            sys.exit("the lock was not to be had")
        lock.call("SET", counter, int(lock.call("GET", counter) or 0) + 1)
        lock.release()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
