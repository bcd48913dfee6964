"""A wait on a connection of its own: the server answers when it grants, or when the wait is over."""

from __future__ import annotations

from collections.abc import Callable

from slock_client._answers import Answer, is_lost_connection
from slock_client._clock import now
from slock_client._commands import Command, Key
from slock_client._servers import Servers, ask

# How long a server may take to say that it is there, in seconds.
PING_TIME = 5.0


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

    async def look() -> None:
        try:
            await ask(servers, key, ("PING",), end=now() + PING_TIME)
        except Exception as error:
            if is_lost_connection(error) and now() >= outage_end():
                raise
        else:
            heard()

    [answer] = await ask(servers, key, command, end=end, look=look)
    return answer
