"""Sends the renewals of the watchdog, on connections of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import redis.exceptions as base

from slock import _commands
from slock._answers import is_lost_connection
from slock._connection import Connection
from slock._fork import track
from slock._recipe import Recipe
from slock._route import Route

if TYPE_CHECKING:
    from slock._hold import Hold

# So many are sent before the answers are read. Otherwise both sides could wait for the other to read.
RENEWALS_AT_ONCE = 500

# A renewal may always take so long, in seconds.
LEAST_TIME = 0.05


class Renewals:
    """One pipeline for each server. Used by one thread."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._connections: dict[object, Connection] = {}
        track(self)

    def send(self, holds: Sequence[Hold], end: float) -> None:
        """Renews the holds. It returns at about `end` at the latest."""
        answered: set[int] = set()
        for recipe, positions in self._route.groups([hold.keys[0] for hold in holds]):
            for first in range(0, len(positions), RENEWALS_AT_ONCE):
                batch = [holds[position] for position in positions[first : first + RENEWALS_AT_ONCE]]
                self._send_batch(recipe, [hold for hold in batch if not hold.ended], end)
                answered.update(map(id, batch))
        for hold in holds:
            if id(hold) not in answered:
                hold._renewed(end, hold._ttl_ms, base.ConnectionError("no server serves the key"))

    def after_fork(self) -> None:
        """The connections are the parent's."""
        self._connections = {}

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections.values():
            connection.close()

    def _send_batch(self, recipe: Recipe, holds: Sequence[Hold], end: float) -> None:
        ttls = [hold._ttl_ms for hold in holds]
        sent, answers = time.monotonic(), 0
        try:
            connection = self._connection(recipe, max(LEAST_TIME, end - sent))
            sent = time.monotonic()
            connection.send(
                *(
                    _commands.extend(hold.keys, hold.token, ttl_ms)
                    for hold, ttl_ms in zip(holds, ttls, strict=True)
                )
            )
            for hold, ttl_ms in zip(holds, ttls, strict=True):
                answer = connection.receive(max(end, sent + LEAST_TIME))
                answers += 1
                self._take(hold, sent, ttl_ms, answer)
        except Exception as error:
            self._forget(recipe)
            self._route.suspect()
            for hold, ttl_ms in list(zip(holds, ttls, strict=True))[answers:]:
                hold._renewed(sent, ttl_ms, error)
        except BaseException:  # `on_lost` called `sys.exit`: the next batch must not read the answers of this
            self._forget(recipe)
            raise

    def _take(self, hold: Hold, sent: float, ttl_ms: int, answer: object) -> None:
        if self._route.redirected(hold.keys[0], answer):
            # Few holds at a time move. The next attempt finds the new node; it comes soon.
            answer = base.ConnectionError("the slot is served by another node")
        elif isinstance(answer, BaseException) and not is_lost_connection(answer):
            self._route.suspect()
        hold._renewed(sent, ttl_ms, answer)

    def _connection(self, recipe: Recipe, seconds: float) -> Connection:
        """The connection to a server. A new one is opened within so many seconds."""
        place = recipe.arguments.get("host"), recipe.arguments.get("port")
        connection = self._connections.get(place)
        if connection is None:
            limit = min(seconds, recipe.connect_timeout)
            sentinels = tuple(one._replace(timeout=limit, connect_timeout=limit) for one in recipe.sentinels)
            connection = Connection(
                recipe._replace(timeout=limit, connect_timeout=limit, sentinels=sentinels)
            )
            self._connections[place] = connection
        return connection

    def _forget(self, recipe: Recipe) -> None:
        place = recipe.arguments.get("host"), recipe.arguments.get("port")
        connection = self._connections.pop(place, None)
        if connection is not None:
            connection.close()
