"""Opens and closes connections of redis-py."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import redis.exceptions as base

from slock._answers import note_unsent
from slock._recipe import Recipe

# An attempt to connect has at least so long, in seconds.
LEAST_TIME = 0.05


def connected(recipe: Recipe, end: float | None = None) -> Any:
    """A new connection of redis-py that is ready for commands. Its errors are those of redis-py.

    It is opened until about `end`, on the monotonic clock. Its answers may take as long as the recipe says.
    """
    try:
        return _opened(recipe, end)
    except Exception as error:
        note_unsent(error)
        raise


def _opened(recipe: Recipe, end: float | None) -> Any:
    arguments: dict[str, Any] = {}
    if recipe.sentinels:
        arguments["host"], arguments["port"] = _primary(recipe, end)
    left = None if end is None else max(LEAST_TIME, end - time.monotonic())
    is_short = left is not None and left < recipe.timeout
    arguments["socket_timeout"] = left if is_short else recipe.timeout
    arguments["socket_connect_timeout"] = (
        recipe.connect_timeout if left is None else min(left, recipe.connect_timeout)
    )
    connection = recipe.open(**arguments)
    try:
        connection.connect()
        if is_short:
            _set_timeout(connection, recipe.timeout)
    except BaseException:
        close(connection)
        raise
    return connection


def _set_timeout(connection: Any, seconds: float) -> None:
    connection.socket_timeout = seconds
    connection._sock.settimeout(seconds)
    parser = connection._parser
    if hasattr(parser, "_socket_timeout"):  # that of hiredis
        parser._socket_timeout = seconds
    if getattr(parser, "_buffer", None) is not None:
        parser._buffer.socket_timeout = seconds


def close(connection: Any) -> None:
    """Closes a connection."""
    with contextlib.suppress(Exception):
        connection.disconnect()


def _primary(recipe: Recipe, end: float | None) -> tuple[str, int]:
    problems = []
    for sentinel in recipe.sentinels:
        if end is not None:
            left = max(LEAST_TIME, end - time.monotonic())
            sentinel = sentinel._replace(
                timeout=min(left, sentinel.timeout), connect_timeout=min(left, sentinel.connect_timeout)
            )
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
