"""A proxy that delivers commands late or twice, and loses replies and messages, at random."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict

from driver.frames import words_of
from driver.proxy import Proxy, Rule

# How often, of a hundred commands of the module. The rest passes.
PERCENT = {"hold_request": 4.0, "late_request": 2.0, "cut_reply": 2.0, "double": 5.0}
# The same of a hundred messages.
MESSAGES_PERCENT = {"cut_reply": 0.5, "drop_reply": 0.5}
# How late a command can be: longer than the first pauses of a library, shorter than a history.
LATEST_SECONDS = 0.4
DELAY_SECONDS = 0.05


class LateProxy(Proxy):
    """Listens on a port of its own and forwards to the server on `target`."""

    def __init__(self, target: int, seed: int) -> None:
        self._dice = random.Random(seed)
        self._calm = False
        self._deliveries: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()
        self._doubled: set[str] = set()
        self._ended: set[str] = set()
        self._seen: defaultdict[str, list[str]] = defaultdict(list)
        super().__init__(target)

    def calm(self) -> None:
        """From now on everything passes."""
        self._calm = True

    def is_idle(self) -> bool:
        """Whether everything has been delivered."""
        return not self._deliveries

    def counts(self) -> dict[str, int]:
        """What was done how often."""
        return dict(self._counts)

    def doubled(self) -> set[str]:
        """The tokens of commands that were delivered twice, and whose acquisitions were not ended."""
        return self._doubled - self._ended

    def seen(self, token: str) -> list[str]:
        """What went through for a token, for the message of a test that failed."""
        return self._seen[token]

    # --- in the loop's thread

    def rule_for(self, words: list[str]) -> Rule | None:
        is_message = words == ["SMESSAGE"]
        if not is_message and not words[0].upper().startswith("SLOCK."):
            return None
        percent = MESSAGES_PERCENT if is_message else PERCENT
        weights = [*percent.values(), 100 - sum(percent.values())]
        [action] = self._dice.choices([*percent, "pass"], weights)
        if self._calm:
            action = "pass"
        if not is_message:
            self._note(action, words)
        if action == "pass":
            return None
        self._counts[action] += 1
        if words[0].upper() == "SLOCK.MUNLOCK":
            self._ended.add(token_of(words))
        if action == "double":
            self._doubled.add(token_of(words))
        rule = Rule(action, "", 0)
        asyncio.get_running_loop().call_later(self._dice.random() * DELAY_SECONDS, rule.go.set)
        return rule

    def keep(self, request: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver_late(request))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _deliver_late(self, request: bytes) -> None:
        await asyncio.sleep(self._dice.random() * LATEST_SECONDS)
        self._note("late", words_of(request))
        with contextlib.suppress(OSError):
            await self.deliver(request)

    def _note(self, what: str, words: list[str]) -> None:
        self._seen[token_of(words)].append(f"{time.monotonic():.3f} {what}: {' '.join(words)}")


def token_of(words: list[str]) -> str:
    """Whose command it is; of a command without a token, nothing."""
    name = words[0].upper().removeprefix("SLOCK.")
    at = 2 + int(words[1]) if name in ("MLOCK", "MRLOCK", "MUNLOCK", "MEXTEND") else 2
    return words[at] if len(words) > at else ""
