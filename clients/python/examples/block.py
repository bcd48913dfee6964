"""A block under a lock, with a time-out for the wait and an expiration of the hold.

python block.py --port 6379
"""

from __future__ import annotations

import argparse
import asyncio

import redis.asyncio

import slock_client
import slock_client.asyncio

TTL = 0.3


async def main(port: int) -> None:
    client = redis.asyncio.Redis(port=port)
    async with slock_client.asyncio.Locks(client, ttl=TTL) as locks:
        report = locks.write("example:report", wait=0.2)

        # Nobody else has it. The hold is renewed, so the work may take longer than the ttl.
        async with report as hold:
            await asyncio.sleep(0.5)
            print("worked under fence", "yes" if hold.fence else "no")

            # A second owner waits in vain.
            try:
                async with report:
                    print("never comes here")
            except slock_client.TimedOutError:
                print("timed out")

        # Without renewal the hold expires, the work is cancelled, and the block ends with Lost.
        try:
            async with locks.write("example:report", renew=False):
                await asyncio.sleep(60)
        except slock_client.LostError as lost:
            print(lost.reason)
    await client.aclose()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=6379)
    asyncio.run(main(parser.parse_args().port))
