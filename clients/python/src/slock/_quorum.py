"""The arithmetic of a quorum. It does no I/O and reads no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from slock._options import Options
from slock._time import positive
from slock._validity import SERVER_ROUNDING
from slock.polling import Exponential

DEFAULT_DRIFT_FACTOR = 0.01
DEFAULT_POLL = Exponential(timedelta(milliseconds=20), timedelta(milliseconds=250))

_NOT_FOR_QUORUM = ("min_replicas", "replica_timeout")

# What a clock may drift whatever the ttl, in seconds.
LEAST_DRIFT = 0.002

LEAST_NODE_TIMEOUT = timedelta(milliseconds=50)
NODE_TIMEOUT_PART = 20

# A renewal begins after a third of the ttl. A node may take as long again, so that there is time for another.
MOST_OF_TTL = 3


def majority(nodes: int) -> int:
    """How many nodes of so many are more than half."""
    return nodes // 2 + 1


def valid_until(sent: float, ttl_ms: float, drift_factor: float) -> float:
    """The end of a hold whose deadlines were set by requests of which the first was sent at `sent`."""
    ttl = ttl_ms / 1000
    return sent + ttl - max(ttl * drift_factor + LEAST_DRIFT, SERVER_ROUNDING)


def node_timeout(chosen: timedelta | None, ttl: timedelta) -> float:
    """How long a node may take for its answer, in seconds: at most a third of the ttl."""
    if chosen is not None:
        timeout = positive("node_timeout", chosen)
    else:
        timeout = max(ttl / NODE_TIMEOUT_PART, LEAST_NODE_TIMEOUT)
    return min(timeout, ttl / MOST_OF_TTL).total_seconds()


def changed(options: Options, others: Mapping[str, Any], **more: Any) -> Options:
    """The options of a request to a quorum. Those that do not apply are a `TypeError`."""
    refuse(name for name in others if name in _NOT_FOR_QUORUM)
    return options.changed(**others, **more)


def refuse(names: Iterable[str]) -> None:
    """Raises `TypeError` for options that a quorum does not have."""
    for name in names:
        polls = ": it polls, as `poll` says" if name == "waiting" else ""
        raise TypeError(f"a quorum has no option `{name}`{polls}")


def node_names(addresses: Sequence[str]) -> list[str]:
    """A name for each node that no other has. Sentinels of several servers often say the same name."""
    return [
        f"{address} ({number})" if addresses.count(address) > 1 else address
        for number, address in enumerate(addresses, 1)
    ]


class Tally:
    """What the nodes have answered to one question: a number above zero, 0, or an error."""

    def __init__(self, nodes: Sequence[str]) -> None:
        """`nodes`: their names, each another one."""
        self._answers: dict[str, object] = dict.fromkeys(nodes)
        self._majority = majority(len(nodes))

    def add(self, node: str, answer: object) -> None:
        self._answers[node] = answer

    @property
    def given(self) -> dict[str, int]:
        """The nodes that said yes, with their numbers."""
        return {node: answer for node, answer in self._answers.items() if isinstance(answer, int) and answer}

    @property
    def refused(self) -> list[str]:
        """The nodes that answered 0."""
        return [node for node, answer in self._answers.items() if answer == 0]

    @property
    def has_majority(self) -> bool:
        return len(self.given) >= self._majority

    @property
    def is_refused(self) -> bool:
        """Whether so many answered 0 that there can be no majority, whatever the others say."""
        return len(self.refused) > len(self._answers) - self._majority

    @property
    def is_hopeless(self) -> bool:
        """Whether the majority cannot be reached any more."""
        failed = [
            one for one in self._answers.values() if one is not None and not (isinstance(one, int) and one)
        ]
        return len(failed) > len(self._answers) - self._majority

    def errors(self) -> list[BaseException]:
        return [answer for answer in self._answers.values() if isinstance(answer, BaseException)]

    def told(self, yes: str, no: str) -> dict[str, str]:
        """What each node answered, in words."""
        words: dict[str, str] = {}
        for node, answer in self._answers.items():
            if answer is None:
                words[node] = "not waited for"
            elif isinstance(answer, BaseException):
                words[node] = str(answer) or type(answer).__name__
            else:
                words[node] = yes if answer else no
        return words
