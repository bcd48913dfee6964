"""A wait on a connection of its own: the server answers when it grants, or when the wait is over."""

from __future__ import annotations

from collections.abc import Callable

import redis.exceptions as base

from slock_client._answers import Answer, is_lost_connection
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client.asyncio._servers import Servers, ask

# How long a server has at least, and at most, to say that it is there, in seconds.
LEAST_PING = 0.3
MOST_PING = 5.0

# It is asked again after twice the time each time, in seconds.
FIRST_PAUSE = 1.0
MOST_PAUSE = 20.0


async def wait(
    servers: Servers,
    key: Key,
    command: Command,
    end: float,
    heard: Callable[[], None],
    outage_end: Callable[[], float],
) -> Answer:
    """The answer to a command that waits. A lost connection is raised.

    A wait is silent by nature. So now and then the server is asked, over another connection, whether it is
    there: `heard()` is called when it is. When it is not, and `outage_end()` has passed, the wait ends.
    """
    pause = FIRST_PAUSE

    async def look() -> float:
        nonlocal pause
        ping_end = min(end, max(outage_end(), now() + LEAST_PING), now() + MOST_PING)
        try:
            await ask(servers, key, ("PING",), end=ping_end)
        except Exception as error:
            if not is_lost_connection(error):
                return MOST_PAUSE
            if now() >= outage_end():  # of the command that waits it is not known whether it was executed
                raise base.TimeoutError(f"the server is silent: {error}") from error
            return min(FIRST_PAUSE, max(0.0, outage_end() - now()))
        heard()
        pause = min(2 * pause, MOST_PAUSE)
        return pause

    [answer] = await ask(servers, key, command, end=end, look=look)
    return answer
