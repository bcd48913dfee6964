"""Opens and closes connections of redis-py."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import redis.exceptions as base

from slock._answers import note_unsent
from slock._recipe import Recipe


async def connected(recipe: Recipe) -> Any:
    """A new connection of redis-py that is ready for commands. Its errors are those of redis-py."""
    try:
        return await _opened(recipe)
    except Exception as error:
        note_unsent(error)
        raise


async def _opened(recipe: Recipe) -> Any:
    if recipe.sentinels:
        host, port = await _primary(recipe)
        connection = recipe.open(host=host, port=port, socket_timeout=None)
    else:
        connection = recipe.open(socket_timeout=None)
    try:
        await asyncio.wait_for(connection.connect(), recipe.connect_timeout)
    except asyncio.TimeoutError:
        abort(connection)
        raise base.TimeoutError("no connection within the time") from None
    except BaseException:
        abort(connection)
        raise
    return connection


def abort(connection: Any) -> None:
    """Closes a connection without waiting for the other side."""
    with contextlib.suppress(Exception):
        if connection._writer is not None:
            connection._writer.transport.abort()
    with contextlib.suppress(Exception):
        connection._close()


async def _primary(recipe: Recipe) -> tuple[str, int]:
    problems = []
    for sentinel in recipe.sentinels:
        try:
            connection = await connected(sentinel)
        except (base.RedisError, OSError) as error:
            problems.append(str(error))
            continue
        try:
            await connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", recipe.service)
            answer = await asyncio.wait_for(connection.read_response(), sentinel.timeout)
        except (base.RedisError, OSError, asyncio.TimeoutError) as error:
            problems.append(str(error))
            continue
        finally:
            abort(connection)
        if answer is not None:
            return answer[0].decode(), int(answer[1])
        problems.append("the service is not known")
    raise base.ConnectionError(f"no Sentinel names the primary of {recipe.service}: {', '.join(problems)}")
