# Made from asyncio/_give_up.py by scripts/synchronous.py: change it there.
"""The end of an acquisition in doubt, or that is given up: what leaves nothing of it on the server.

A command without an answer may be carried out late. So the server is told to refuse the token from now on,
and to release whatever it holds: in one pipeline, repeated whole until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slock_client import _commands
from slock_client import _threads as io
from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import REFUSE_MS, Command, Key, Token, names_of
from slock_client._sync._shared import Answered, Shared
from slock_client.errors import TimedOutError
from slock_client.hooks import call, log

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
        return [*_commands.cancel(keys, token, refuse=True), _commands.release_in_any_mode(keys, token)]
    commands = _commands.cancel(keys, token, refuse=False)
    if fence is not None:
        commands.append(_commands.release_in_any_mode(keys, token, fence))
    return commands


def give_up(
    shared: Shared,
    keys: Sequence[Key],
    commands: Sequence[Command],
    caller_waits: float,
    then: Callable[[list[Answer]], object] = lambda answers: None,
) -> Answered | None:
    """Sends the commands until all are answered, in the background. None when that takes longer than the
    caller waits, in seconds.

    `then` is called with the answers when there are some, or with none when it has ended without.
    """
    names, all_answered, done = names_of(keys), list[Answered](), io.Event()

    def work() -> None:
        try:
            end = now() + REFUSE_MS / 1000
            answered = shared.repeat(names, keys[0], *commands, end=end, attempt=ATTEMPT_TIME)
            if len(answered.answers) == len(commands):
                all_answered.append(answered)
        except TimedOutError as error:
            log.warning("%s: what is left ends by its ttl", error)
        finally:
            shared.giving_up.discard(done)
            call(then, all_answered[0].answers if all_answered else [])
            done.set()

    if len(shared.giving_up) >= MOST_UNDER_WAY:
        log.warning("%s: too much is being given up: what is left ends by its ttl", names)
        then([])
        return None
    shared.giving_up.add(done)
    io.start(work, "giving up", limited=True)
    done.wait(now() + caller_waits)
    return all_answered[0] if all_answered else None


def wait_given_up(shared: Shared) -> None:
    """Waits a little for what is under way."""
    end = now() + CLOSE_WAITS
    for done in list(shared.giving_up):
        done.wait(end)
