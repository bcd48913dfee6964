"""Bytes of a place in a queue: requests that wait by NOTIFY for one lock, for a lock each and for many.

With short words, and with the longest that are allowed. A request for n locks has n places. Measured is the
growth of `used_memory` until as many places are taken as `slock.max-waiters` allows by default.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

from common import Report, arguments, encode_command, private_server
from scenario import TTL_MS

PLACES = 100_000
NAMES = 1024
NAME_BYTES, TOKEN_BYTES, META_BYTES, TAG_BYTES, CHANNEL_BYTES = 1024, 255, 1024, 64, 255
SHORT_LIMIT = 400
WORST_LIMIT_MB = 400

# How many locks a request is for, and whether its words are long. 0 is the one for which all wait.
KINDS = {
    "one lock for all, short words": (0, False),
    "a lock each, short words": (1, False),
    f"{NAMES} locks each, short words": (NAMES, False),
    "one lock for all, the longest words": (0, True),
    "a lock each, the longest words": (1, True),
    f"{NAMES} locks each, the longest words": (NAMES, True),
}


def requests(locks_each: int, are_long: bool) -> Iterator[bytes]:
    """As many as fit. All wait: the server gives no lock yet."""

    def word(text: str, longest: int) -> str:
        return text.ljust(longest, "x") if are_long else text

    channel = word("channel", CHANNEL_BYTES)
    for number in range(PLACES // max(1, locks_each)):
        names = [word(f"job:{number}:{at}", NAME_BYTES) for at in range(locks_each)] or ["job"]
        token, tag = word(f"token:{number}", TOKEN_BYTES), word(f"{number}", TAG_BYTES)
        meta = ("META", "m" * META_BYTES) if are_long else ()
        options = ("WAIT", 0, "NOTIFY", channel, tag)
        yield encode_command("SLOCK.MLOCK", len(names), *names, token, TTL_MS, *options, *meta)


def measure(locks_each: int, are_long: bool) -> tuple[float, float]:
    """Bytes for each place, and MB of all."""
    settings = {
        "slock_max_waiters": PLACES,
        "slock_max_waiters_per_user": PLACES,
        "slock_restart_grace_ms": 3_600_000,
    }
    with private_server(**settings) as server:
        asking, control = server.raw(3), server.raw()
        asking.ok("SSUBSCRIBE", "channel".ljust(CHANNEL_BYTES, "x") if are_long else "channel")
        before = control.ok("INFO", "memory")
        left = requests(locks_each, are_long)
        while batch := list(islice(left, max(1, 256 // max(1, locks_each)))):
            asking.send_bytes(b"".join(batch))
            for _ in batch:
                reply = asking.read()
                assert reply is None, reply
        places = int(_field(control.ok("INFO", "slock"), b"slock_waiting_places"))
        grown = int(_field(control.ok("INFO", "memory"), b"used_memory")) - int(
            _field(before, b"used_memory")
        )
    return grown / places, grown / 1e6


def _field(section: bytes, name: bytes) -> bytes:
    return next(line.split(b":")[1] for line in section.splitlines() if line.startswith(name + b":"))


def main() -> int:
    options = arguments(__doc__).parse_args()
    report, short, worst = Report(options), 0.0, 0.0
    for what, (locks_each, are_long) in KINDS.items():
        bytes_each, megabytes = measure(locks_each, are_long)
        print(f"{what}: {bytes_each:.0f} bytes a place, {megabytes:.0f} MB for {PLACES:,}")
        short, worst = short or bytes_each, max(worst, megabytes)
    report.limit("bytes of a place, one lock for all, short words", short, SHORT_LIMIT)
    report.limit("MB of all places, the longest words", worst, WORST_LIMIT_MB)
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
