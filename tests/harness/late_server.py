"""A naive model of the server for owners whose commands come late: holds, requests, revoked tokens.

Written from the contract. It says what each command must answer and who is granted by it; the fences it
takes from the server. Holds end by themselves only where the test calls `expire`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import redis

Key = str
Token = str

# Longer than a history takes.
REFUSE_MS = 60_000

# What a command must answer: a new fence, whichever it is.
NEW_FENCE = "a new fence"


@dataclass
class Hold:
    mode: str
    fence: int
    # When it ends at the earliest and at the latest, by the monotonic clock of the test, in milliseconds.
    ends: tuple[float, float]


@dataclass
class Request:
    keys: tuple[Key, ...]
    token: Token
    want: str  # write, read or upgrade
    ttl: int
    fence: int | None
    tag: str
    is_notified: bool
    limit: int | None = None


@dataclass
class Command:
    """As it is sent, in parts."""

    name: str
    keys: tuple[Key, ...]
    token: Token
    ttl: int = 0
    fence: int | None = None
    wait: str = ""  # "", "blocked" or "notify"
    tag: str = ""  # of this copy, whether or not the server is told
    is_refresh: bool = False
    limit: int | None = None
    may_shorten: bool = False  # without GT
    refuses: bool = False

    def words(self, channel: str) -> list[object]:
        keys = [len(self.keys), *self.keys] if self.name.startswith("M") else [*self.keys]
        words: list[object] = [f"SLOCK.{self.name}", *keys, self.token, *([self.ttl] if self.ttl else [])]
        if self.refuses:
            words += ["REFUSE", REFUSE_MS]
        if "EXTEND" in self.name and not self.may_shorten:
            words += ["GT"]
        if self.fence is not None:
            words += ["FENCE", self.fence]
        if self.is_refresh:
            words += ["XX"]
        if self.limit is not None:
            words += ["LIMIT", self.limit]
        if self.wait:
            words += ["WAIT", 0, *(["NOTIFY", channel, self.tag] if self.wait == "notify" else [])]
        return words


@dataclass
class NaiveServer:
    holds: dict[Key, dict[Token, Hold]] = field(default_factory=dict)
    queue: list[Request] = field(default_factory=list)
    # Revoked tokens, and whether they have lost a hold by that.
    revoked: dict[tuple[Key, Token], bool] = field(default_factory=dict)
    # Withdrawn, and not told so yet.
    withdrawn: list[Request] = field(default_factory=list)
    # The greatest before this command, and those that it has given: of several grants any is the first.
    last_fence: int = 0
    new_fences: set[int] = field(default_factory=set)

    def run(self, command: Command, now: tuple[float, float], fence: int) -> object:
        """Carries it out. What it must answer; `fence` is what to give if that is a new hold."""
        self.last_fence, self.new_fences = max([self.last_fence, *self.new_fences]), set()
        own = {key: self.hold(key, command.token) for key in command.keys}
        ends = now[0] + command.ttl, now[1] + command.ttl
        match command.name:
            case "CANCEL":
                return self._withdraw(command)
            case "UNLOCK" | "RUNLOCK" | "MUNLOCK":
                modes = {"UNLOCK": ["write"], "RUNLOCK": ["read"]}.get(command.name, ["read", "write"])
                fit = [
                    key for key in own if own[key] and own[key].mode in modes and _is_meant(own[key], command)
                ]
                for key in fit:
                    del self.holds[key][command.token]
                if command.refuses:
                    self._withdraw(command)
                    return self._revoke(command, fit)
                return len(fit)
            case "EXTEND" | "MEXTEND":
                if not all(hold and _is_meant(hold, command) for hold in own.values()):
                    return 0
                for hold in own.values():
                    hold.ends = ends if command.may_shorten else _later(hold.ends, ends)
                return 1
            case "DOWNGRADE":
                (hold,) = own.values()
                if not hold or (hold.mode == "write" and not _is_meant(hold, command)):
                    return "NOTHELD"
                hold.ends = _later(hold.ends, ends)
                if hold.mode == "write":
                    hold.mode, hold.fence = "read", self._new(fence)
                    return NEW_FENCE
                return hold.fence
        return self._ask(command, now, fence)

    def _withdraw(self, command: Command) -> int:
        """How many requests."""
        wanted = {*command.keys}
        gone = [one for one in self.queue if one.token == command.token and wanted & {*one.keys}]
        self.queue = [one for one in self.queue if one not in gone]
        self.withdrawn += gone
        return len(gone)

    def _revoke(self, command: Command, released: list[Key]) -> int:
        """At how many keys the token has lost a hold, now or when it was revoked before."""
        at = [(key, command.token) for key in command.keys]
        self.revoked |= {one: self.revoked.get(one, False) or one[0] in released for one in at}
        return sum(self.revoked[one] for one in at)

    def waits(self, command: Command) -> bool:
        """Whether the command has to wait, if it is carried out now."""
        request = _request(command)
        return (
            bool(command.wait)
            and not self._is_revoked(request)
            and self._look(request, is_new=True) == "blocked"
        )

    def _ask(self, command: Command, now: tuple[float, float], fence: int) -> object:
        request = _request(command)
        same = self._same_hold(request)
        if command.is_refresh and same is None:
            return 0
        look = self._look(request, is_new=True)
        if look in ("NOTHELD", "WRONGMODE"):
            return look
        if same is not None:
            self._give(request, now, fence)
            return same
        if self._is_revoked(request):
            return "REFUSED"
        if look == "clear":
            self._give(request, now, fence)
            return NEW_FENCE
        if not command.wait:
            return 0
        again = [
            one for one in self.queue if request.is_notified and one.is_notified and _is_same(one, request)
        ]
        for one in again:
            one.ttl, one.fence, one.tag, one.limit = request.ttl, request.fence, request.tag, request.limit
        if not again:
            self.queue.append(request)
        return None

    def _is_revoked(self, request: Request) -> bool:
        return any((key, request.token) in self.revoked for key in request.keys)

    def serve(self, answer_of: Callable[[Request], int | str], now: tuple[float, float]) -> None:
        """Everybody who has to be answered now has been, as it is right."""
        while self.withdrawn:
            assert answer_of(self.withdrawn.pop()) == 0
        while due := [one for one in self.queue if self._look(one, is_new=False) != "blocked"]:
            request, look = due[0], self._look(due[0], is_new=False)
            self.queue.remove(request)
            answer = answer_of(request)
            if answer == "DEADLOCK":
                continue  # found before; that it is right is shown elsewhere
            if look != "clear":
                assert answer == look, f"{request} was told {answer}, not {look}"
                continue
            assert isinstance(answer, int) and answer > 0, f"{request} was told {answer}"
            same = self._same_hold(request)
            assert same in (None, answer), f"{request} was told {answer}, and has {same}"
            self._give(request, now, answer)

    def expire(self, now: tuple[float, float]) -> None:
        """Time has passed; what is left lasts on, and nothing ends at this very moment."""
        for key, holds in self.holds.items():
            assert not any(hold.ends[0] <= now[1] and now[0] < hold.ends[1] for hold in holds.values())
            self.holds[key] = {token: hold for token, hold in holds.items() if hold.ends[0] > now[1]}

    def leaves(self, tag: str) -> None:
        """The server has found that this request waits in a cycle."""
        self.queue = [one for one in self.queue if one.tag != tag]

    def hold(self, key: Key, token: Token) -> Hold | None:
        return self.holds.setdefault(key, {}).get(token)

    def _same_hold(self, request: Request) -> int | None:
        """The fence of the one hold that the token has already of all keys, as it wants it."""
        mode = "read" if request.want == "read" else "write"
        own = [self.hold(key, request.token) for key in request.keys]
        fences = {hold.fence if hold and hold.mode == mode else None for hold in own}
        return fences.pop() if len(fences) == 1 else None

    def _look(self, request: Request, *, is_new: bool) -> str:
        is_blocked = False
        for key in request.keys:
            own = self.hold(key, request.token)
            others = [hold for token, hold in self.holds[key].items() if token != request.token]
            if request.want == "upgrade":
                if own is None or (own.mode == "read" and request.fence not in (None, own.fence)):
                    return "NOTHELD"
                if own.mode == "write":
                    continue
                is_blocked |= bool(others)
                continue
            if own is not None:
                if own.mode != request.want:
                    return "WRONGMODE"
                continue
            ahead = sorted(
                (one for one in self.queue if key in one.keys), key=lambda one: one.want != "upgrade"
            )
            is_next = not ahead if is_new else ahead[0] is request
            conflicts = any("write" in (request.want, hold.mode) for hold in others)
            conflicts |= request.limit is not None and len(others) >= request.limit
            is_blocked |= conflicts or not is_next
        return "blocked" if is_blocked else "clear"

    def _give(self, request: Request, now: tuple[float, float], fence: int) -> None:
        ends = now[0] + request.ttl, now[1] + request.ttl
        mode = "read" if request.want == "read" else "write"
        same = self._same_hold(request)
        if same is None:
            fence = self._new(fence)
        for key in request.keys:
            own = self.hold(key, request.token)
            later = _later(own.ends, ends) if own else ends
            self.holds[key][request.token] = Hold(mode, fence if same is None else same, later)
            modes = [hold.mode for hold in self.holds[key].values()]
            assert "write" not in modes or len(modes) == 1, (
                f"a writer beside another holder: {self.holds[key]}"
            )

    def _new(self, fence: int) -> int:
        assert fence > self.last_fence and fence not in self.new_fences, f"{fence} after {self.last_fence}"
        self.new_fences.add(fence)
        return fence


def overwritten(client: redis.Redis) -> int:
    """How many revoked tokens the server has forgotten before their time, because others took their places.

    The model forgets none. So in a history in which this has happened it is not always right.
    """
    return client.info("slock")["slock_revoked_tokens_overwritten"]


def _request(command: Command) -> Request:
    want = {"LOCK": "write", "RLOCK": "read", "MLOCK": "write", "MRLOCK": "read"}.get(command.name, "upgrade")
    is_notified = command.wait == "notify"
    return Request(
        command.keys, command.token, want, command.ttl, command.fence, command.tag, is_notified, command.limit
    )


def _is_meant(hold: Hold, command: Command) -> bool:
    return command.fence in (None, hold.fence)


def _is_same(one: Request, other: Request) -> bool:
    return (one.token, one.want, set(one.keys)) == (other.token, other.want, set(other.keys))


def _later(ends: tuple[float, float], others: tuple[float, float]) -> tuple[float, float]:
    return max(ends[0], others[0]), max(ends[1], others[1])
