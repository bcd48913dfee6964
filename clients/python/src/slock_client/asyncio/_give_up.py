"""The end of an acquisition in doubt, or that is given up: what leaves nothing of it on the server.

A command without an answer may be carried out late. So the server is told to refuse the token from now on,
and to release whatever it holds: in one pipeline, repeated whole until it is answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from slock_client import _commands
from slock_client._answers import Answer, is_temporary
from slock_client._clock import now
from slock_client._commands import REFUSE_MS, Command, Key, Token, names_of
from slock_client.asyncio import _tasks as io
from slock_client.asyncio._shared import Shared, retry_pauses
from slock_client.hooks import log

# How long the caller waits for it, in seconds. Then it goes on in the background.
CALLER_WAITS = 0.3

# One attempt takes at most so long, in seconds.
ATTEMPT_TIME = 1.0

# So many are under way at most. Those that come then are left to their ttl.
MOST_UNDER_WAY = 1000

# How long `close` waits for those that are under way, in seconds.
CLOSE_WAITS = 2.0


def the_end(keys: Sequence[Key], token: Token, *, given: bool, fence: int | None = None) -> list[Command]:
    """What ends an acquisition.

    A token that the program gave is not refused and keeps what others adopted.
    """
    if not given:
        return [*_commands.cancel(keys, token, refuse=True), *_commands.release_in_any_mode(keys, token)]
    commands = _commands.cancel(keys, token, refuse=False)
    if fence is not None:
        commands += [
            _commands.release(keys, mode, token, fence) for mode in (_commands.WRITE, _commands.READ)
        ]
    return commands


class GiveUp:
    """The ends that are under way for one `Locks`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._under_way: set[io.Event] = set()

    async def send(
        self, keys: Sequence[Key], commands: Sequence[Command], caller_waits: float
    ) -> list[Answer] | None:
        """Sends the commands until all are answered. None when that takes longer than the caller waits."""
        names = names_of(keys)
        if len(self._under_way) >= MOST_UNDER_WAY:
            log.warning("%s: too much is being given up: what is left ends by its ttl", names)
            return None
        done, found = io.Event(), list[Answer]()

        async def work() -> None:
            try:
                found.extend(await self._insist(keys[0], commands, names))
            finally:
                self._under_way.discard(done)
                done.set()

        self._under_way.add(done)
        io.start(work, "giving up", limited=True)
        await done.wait(now() + caller_waits)
        return found or None

    async def close(self) -> None:
        """Waits a little for what is under way."""
        end = now() + CLOSE_WAITS
        for done in list(self._under_way):
            await done.wait(end)

    async def _insist(self, key: Key, commands: Sequence[Command], names: str) -> list[Answer]:
        end = now() + REFUSE_MS / 1000
        for pause in retry_pauses():
            try:
                answers = await self._shared.ask(key, *commands, end=now() + ATTEMPT_TIME)
            except Exception as error:
                answers = [error]
            problem = next(
                (one for one in answers if isinstance(one, BaseException) and is_temporary(one)), None
            )
            if problem is None:  # an error that lasts is an answer
                return answers if len(answers) == len(commands) else []
            if now() + pause >= end:
                log.warning(
                    "%s: the server does not answer: what is left ends by its ttl (%s)", names, problem
                )
                break
            await io.sleep(pause)
        return []
