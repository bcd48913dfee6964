"""Opens and closes connections of redis-py."""

from __future__ import annotations

import contextlib
from typing import Any

import redis.exceptions as base

from slock._recipe import Recipe


def connected(recipe: Recipe) -> Any:
    """A new connection of redis-py that is ready for commands. Its errors are those of redis-py."""
    arguments: dict[str, Any] = {
        "socket_timeout": recipe.timeout,
        "socket_connect_timeout": recipe.connect_timeout,
    }
    if recipe.sentinels:
        arguments["host"], arguments["port"] = _primary(recipe)
    connection = recipe.open(**arguments)
    try:
        connection.connect()
    except BaseException:
        close(connection)
        raise
    return connection


def close(connection: Any) -> None:
    """Closes a connection."""
    with contextlib.suppress(Exception):
        connection.disconnect()


def _primary(recipe: Recipe) -> tuple[str, int]:
    problems = []
    for sentinel in recipe.sentinels:
        try:
            connection = connected(sentinel)
        except (base.RedisError, OSError) as error:
            problems.append(str(error))
            continue
        try:
            connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", recipe.service)
            answer = connection.read_response()
        except (base.RedisError, OSError) as error:
            problems.append(str(error))
            continue
        finally:
            close(connection)
        if answer is not None:
            return answer[0].decode(), int(answer[1])
        problems.append("the service is not known")
    raise base.ConnectionError(f"no Sentinel names the primary of {recipe.service}: {', '.join(problems)}")
