"""A lock by redis-py and asyncio: wait, work and release; give up a wait; look.

Usage: lock.py port key work counter | try counter | give-up | info
Work adds one to the counter; try does so only if the lock is free. A wait is given up when standard input
ends.
"""

import asyncio
import sys
import uuid

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

TTL_MS, WAIT_MS, REFUSE_MS = 30_000, 60_000, 120_000


class Locks:
    def __init__(self, port: int) -> None:
        self.commands = redis.Redis(port=port, decode_responses=True)
        # For WAIT and nothing else: max_connections is how many can wait at once.
        self.waiting = redis.Redis(
            port=port,
            max_connections=100,
            socket_timeout=WAIT_MS / 1000 + 5,
            retry=Retry(NoBackoff(), 0),
        )

    async def acquire(self, key: str, token: str) -> int:
        """The fence, or 0 when the wait is over. When it raises, neither a hold nor a request is left."""
        request = self.waiting.execute_command("SLOCK.LOCK", key, token, TTL_MS, "WAIT", WAIT_MS)
        answer = asyncio.ensure_future(request)
        try:
            return await asyncio.shield(answer)  # a cancelled task does not break off the command
        except BaseException:
            await asyncio.shield(self.end(key, token))
            await asyncio.shield(asyncio.wait([answer]))  # which ends now
            raise

    async def try_acquire(self, key: str, token: str) -> int:
        """The fence, or 0 at once when another owner holds or waits. When it raises, nothing is left."""
        try:
            return await self.commands.execute_command("SLOCK.LOCK", key, token, TTL_MS)
        except BaseException:
            await asyncio.shield(self.end(key, token))
            raise

    async def end(self, key: str, token: str) -> None:
        """Leaves neither a hold nor a request. One that is still on its way is refused when it arrives."""
        await self.commands.execute_command("SLOCK.MUNLOCK", 1, key, token, "REFUSE", REFUSE_MS)

    async def release(self, key: str, token: str) -> None:
        await self.commands.execute_command("SLOCK.UNLOCK", key, token)

    async def work(self, key: str, counter: str) -> None:
        token = str(uuid.uuid4())
        if not await self.acquire(key, token):
            raise TimeoutError("the wait is over")
        await self.add_and_release(key, token, counter)

    async def try_to_work(self, key: str, counter: str) -> bool:
        token = str(uuid.uuid4())
        if not await self.try_acquire(key, token):
            return False
        await self.add_and_release(key, token, counter)
        return True

    async def add_and_release(self, key: str, token: str, counter: str) -> None:
        try:
            await self.commands.set(counter, int(await self.commands.get(counter) or 0) + 1)
        finally:
            await self.release(key, token)

    async def info(self, key: str) -> str:
        """The mode, the fence and the tokens of the holders."""
        lock = await self.commands.execute_command("SLOCK.INFO", key, "FULL")
        if lock is None:
            return "nobody"
        tokens = ",".join(holder["token"] for holder in lock["holders"])
        return f"{lock['mode']} {lock['fence']} {tokens}"

    async def close(self) -> None:
        await self.commands.aclose()
        await self.waiting.aclose()


async def wait_until_the_input_ends(locks: Locks, key: str) -> None:
    task = asyncio.create_task(locks.acquire(key, str(uuid.uuid4())))
    await asyncio.to_thread(sys.stdin.read)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return
    raise AssertionError("not given up")


async def main(port: str, key: str, task: str, *counter: str) -> None:
    locks = Locks(int(port))
    if task == "work":
        await locks.work(key, *counter)
    elif task == "try":
        print("done" if await locks.try_to_work(key, *counter) else "busy")
    elif task == "give-up":
        await wait_until_the_input_ends(locks, key)
    elif task == "info":
        print(await locks.info(key))
    await locks.close()


asyncio.run(main(*sys.argv[1:]))
