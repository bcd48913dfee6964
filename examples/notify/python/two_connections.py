"""Waits for a lock by NOTIFY in RESP2: one connection hears the messages, any other asks.

Usage: two_connections.py port key counter times. Adds one to the counter so often, each time under the lock.
"""

import secrets
import sys
import time

import redis

TTL_MS = 10_000
ASK_AGAIN_S = 1.0


class Lock:
    """For one task at a time. The token outlives the connections: who reconnects is the same owner."""

    def __init__(self, client: redis.Redis, key: str) -> None:
        self.client, self.key, self.token = client, key, secrets.token_hex(16)
        # Others may list the name, but not guess a tag. The braces put the channel into the slot of the key.
        self.channel = f"{{{key}}}:{secrets.token_hex(16)}"
        self.messages = client.pubsub()
        self.messages.ssubscribe(self.channel)
        while self.messages.get_message(timeout=5)["type"] != "ssubscribe":
            pass

    def hear(self, tag: str, seconds: float) -> str | None:
        """What the request has been told, or None. The library connects and subscribes again by itself."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            message = self.messages.get_message(timeout=left)
            if message and message["type"] == "ssubscribe":
                return None  # subscribed again: what was asked before has ended
            if message and message["type"] == "smessage" and message["data"].endswith(" " + tag):
                return message["data"].split(" ")[0]
        return None

    def acquire(self, seconds: float) -> int:
        """The fence; 0 when the time was not enough."""
        end, tag = time.monotonic() + seconds, secrets.token_hex(16)  # known before anything is sent
        while (left_ms := int((end - time.monotonic()) * 1000)) > 0:
            try:
                notify = ("WAIT", left_ms, "NOTIFY", self.channel, tag)
                # Asked again with the same token it keeps its place, and who holds by now gets the fence.
                result = self.client.execute_command("SLOCK.LOCK", self.key, self.token, TTL_MS, *notify)
                result = result or self.hear(tag, min(ASK_AGAIN_S, left_ms / 1000))
            except redis.ConnectionError:
                continue
            except redis.ResponseError as error:
                if not str(error).startswith("NOSUBSCRIBER"):
                    raise
                result = self.hear(tag, ASK_AGAIN_S)  # which subscribes again
            if result and str(result).isdigit() and int(result):
                return int(result)
            if result and str(result).startswith("-") and result != "-UNBLOCKED":
                raise redis.ResponseError(result[1:])
        self.client.execute_command("SLOCK.CANCEL", self.key, self.token)
        self.release()  # it may have been granted just before
        return 0

    def release(self) -> None:
        self.client.execute_command("SLOCK.UNLOCK", self.key, self.token)


def main(port: int, key: str, counter: str, times: int) -> None:
    client = redis.Redis(port=port, protocol=2, decode_responses=True)
    lock = Lock(client, key)
    for _ in range(times):
        if not lock.acquire(60):
            sys.exit("the lock was not to be had")
        client.set(counter, int(client.get(counter) or 0) + 1)
        lock.release()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
