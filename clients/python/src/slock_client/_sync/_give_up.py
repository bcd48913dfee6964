# Made from asyncio/_give_up.py by scripts/synchronous.py: change it there.
"""The end of an acquisition in doubt, or that is given up: what leaves nothing of it on the server.

A command without an answer may be carried out late. So the server is told to refuse a token of the library's
from now on, and to release whatever it holds: in one pipeline, repeated whole until it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slock_client import _commands
from slock_client import _threads as io
from slock_client._answers import Answer
from slock_client._clock import now
from slock_client._commands import REFUSE_MS, Command, Token
from slock_client._options import Wanted
from slock_client._sync._shared import Answered, Shared
from slock_client.errors import TimedOutError
from slock_client.hooks import log

# How long the caller waits for it, in seconds. Then it goes on in the background.
CALLER_WAITS = 0.3

# One attempt takes at most so long, in seconds.
ATTEMPT_TIME = 1.0

# So many are under way at most: as many as a server lets wait. What comes then is left: a hold ends by its
# ttl, and a request that waits by that of its grant.
MOST_UNDER_WAY = 100_000


def the_end(wanted: Wanted, token: Token, fence: int | None) -> list[Command]:
    """What ends an acquisition in doubt.

    A token that the program gave is not refused, as others may use it, and is released by its fence alone:
    the answers to the two commands before the last one tell which that is, or 0.
    """
    keys = wanted.keys
    commands = _commands.cancel(keys, token, refuse=not wanted.given)
    if not wanted.given:
        return [*commands, _commands.release_in_any_mode(keys, token)]
    release = _commands.release_in_any_mode(keys, token, fence or _commands.NO_FENCE)
    return [*commands, *_commands.look_at_modes(keys, token), release]


def give_up_in_doubt(
    shared: Shared, wanted: Wanted, token: Token, fence: int | None, caller_waits: float
) -> Answered | None:
    """Leaves nothing of an acquisition in doubt, as `give_up`."""

    def next_round(answers: list[Answer]) -> list[Command] | None:
        """The token got another fence before it was released."""
        found = max((answer for answer in answers[-3:-1] if isinstance(answer, int)), default=0)
        return the_end(wanted, token, found) if wanted.given and found and answers[-1] == 0 else None

    return give_up(shared, wanted, the_end(wanted, token, fence), caller_waits, next_round)


def give_up(
    shared: Shared,
    wanted: Wanted,
    commands: Sequence[Command],
    caller_waits: float,
    then: Callable[[list[Answer]], Sequence[Command] | None] = lambda answers: None,
) -> Answered | None:
    """Sends the commands until all are answered, in the background. None when that takes longer than the
    caller waits, in seconds.

    `then` is called with the answers, or with none when it has ended without: what it gives is sent next.
    """
    names, all_answered, done = wanted.names, list[Answered](), io.Event()
    # Of a token that the program gave nothing is left after the ttl but what it took since then.
    most_ms = min(REFUSE_MS, wanted.options.ttl_ms) if wanted.given else REFUSE_MS

    def work() -> None:
        words: Sequence[Command] | None = commands
        end = now() + most_ms / 1000
        try:
            while words:
                answered = shared.repeat(names, wanted.keys[0], *words, end=end, attempt=ATTEMPT_TIME)
                is_whole = len(answered.answers) == len(words)
                words = then(answered.answers if is_whole else [])
                if is_whole and not words:
                    all_answered.append(answered)
        except TimedOutError as error:
            log.warning("%s: what is left ends by its ttl", error)
            then([])
        finally:
            shared.giving_up.discard(done)
            done.set()

    if len(shared.giving_up) >= MOST_UNDER_WAY:
        log.warning("%s: too much is being given up: what it has, or still gets, ends by its ttl", names)
        then([])
        return None
    shared.giving_up.add(done)
    io.start(work, "giving up", limited=True)
    done.wait(now() + caller_waits)
    return all_answered[0] if all_answered else None
