"""Locks in FastAPI.

    uvicorn fastapi_app:app

The lock is a dependency that is a coroutine. FastAPI runs a synchronous dependency in one of forty threads: forty
requests that wait there would stop all others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Annotated

import redis.asyncio
from fastapi import Depends, FastAPI, HTTPException

import slock_client
import slock_client.asyncio

client = redis.asyncio.Redis.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))
locks = slock_client.asyncio.Locks(client, prefix="documents:")
app = FastAPI()


async def lock_of(name: str) -> AsyncIterator[slock_client.asyncio.Hold]:
    """The lock of the document in the path, until the reply has been made."""
    try:
        hold = await locks.write(name, wait=2).acquire()
    except slock_client.TimedOutError as busy:
        raise HTTPException(409, str(busy)) from busy
    except slock_client.NoAnswerError as down:
        raise HTTPException(503, str(down)) from down
    async with hold:
        yield hold


@app.put("/documents/{name}")
async def save(name: str, hold: Annotated[slock_client.asyncio.Hold, Depends(lock_of)]) -> dict[str, int]:
    await asyncio.sleep(0.01)  # the work
    return {"fence": hold.fence}


@app.get("/health")
async def health() -> str:
    return "well"
