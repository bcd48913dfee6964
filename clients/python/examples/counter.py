"""Two processes add to one number, which is read and written under the lock. No addition is lost.

python counter.py --port 6379 --additions 1000000
"""

from __future__ import annotations

import argparse
import multiprocessing

import redis

import slock_client


def add(port: int, additions: int) -> None:
    client = redis.Redis(port=port)
    with slock_client.Locks(client) as locks:
        for _ in range(additions):
            with locks.write("example:counter:lock", renew=False):
                number = int(client.get("example:counter") or 0)
                client.set("example:counter", number + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=6379)
    parser.add_argument("--additions", type=int, default=2000, help="of both workers together")
    arguments = parser.parse_args()

    client = redis.Redis(port=arguments.port)
    client.delete("example:counter")
    share = arguments.additions // 2
    processes = multiprocessing.get_context("spawn")
    workers = [processes.Process(target=add, args=(arguments.port, share)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{int(client.get('example:counter') or 0)} of {2 * share}")


if __name__ == "__main__":
    main()
