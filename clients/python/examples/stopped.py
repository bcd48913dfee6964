"""A process that is stopped past its ttl learns of the loss when it goes on, and its late write is refused.

The worker takes the lock and is stopped by SIGSTOP. Its hold ends, another owner takes the lock and writes.
When the worker goes on, it writes before it looks at its hold: the script asks SLOCK.CHECK, and refuses it.

    python stopped.py --port 6379
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import redis

import slock_client

TTL = 0.5

WRITE = """
if redis.call('SLOCK.CHECK', KEYS[1], ARGV[1]) == 0 then
  return redis.error_reply('STALE the lock has been lost')
end
return redis.call('SET', KEYS[2], ARGV[2])
"""


def write(client: redis.Redis, fence: int, text: str) -> None:
    client.eval(WRITE, 2, "example:{job}:lock", "example:{job}:result", fence, text)


def work(port: int, parent: Connection) -> None:
    client = redis.Redis(port=port)
    with slock_client.Locks(client, ttl=TTL) as locks:
        hold = locks.write("example:{job}:lock").acquire()
        parent.send("holds the lock")
        parent.recv()  # here it is stopped, for longer than the ttl
        try:
            write(client, hold.fence, "late")
        except redis.ResponseError as error:
            parent.send(f"the write of the worker: {error}")
        try:
            hold.release()
        except slock_client.LostError as lost:
            parent.send(f"the worker has learned: {lost.reason}")


def main(port: int) -> None:
    client = redis.Redis(port=port, decode_responses=True)
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    worker = processes.Process(target=work, args=(port, there), daemon=True)
    worker.start()
    print("the worker", here.recv())
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    with slock_client.Locks(client) as locks, locks.write("example:{job}:lock") as hold:
        write(client, hold.fence, "in time")
        print("the next owner has written")
        here.send("go on")
        os.kill(worker.pid, signal.SIGCONT)
        print(here.recv())
        print(here.recv())
    worker.join()
    print("the result is:", client.get("example:{job}:result"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=6379)
    main(parser.parse_args().port)
