"""Sends the renewals of the watchdog, on connections of their own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import redis.exceptions as base

from slock import _commands
from slock._answers import is_lost_connection, note_unsent
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


@dataclass
class Batch:
    """Renewals for one server."""

    recipe: Recipe
    holds: Sequence[Hold]
    ttls: list[int] = field(default_factory=list)
    sent: float = 0.0
    connection: Connection | None = None
    """Where the answers come. None when the renewals could not be sent."""
    redirected: list[tuple[Hold, int]] = field(default_factory=list)
    """The holds that another node has, and for how long they are renewed."""


class Renewals:
    """One pipeline for each server. Used by one thread."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._connections: dict[object, Connection] = {}
        track(self)

    def send(self, holds: Sequence[Hold], end: float) -> None:
        """Renews the holds. It returns at about `end` at the latest."""
        groups = self._route.groups([hold.keys[0] for hold in holds], end)
        # Those with a connection come first: to open one takes until `end` when the server is silent.
        groups.sort(key=lambda group: _place(group[0]) not in self._connections)
        most = max((len(positions) for _, positions in groups), default=0)
        for first in range(0, most, RENEWALS_AT_ONCE):
            batches = []
            for recipe, positions in groups:
                some = [holds[position] for position in positions[first : first + RENEWALS_AT_ONCE]]
                batches.append(Batch(recipe, [hold for hold in some if not hold.ended]))
            self._send_batches([batch for batch in batches if batch.holds], end)
        served = {position for _, positions in groups for position in positions}
        for position, hold in enumerate(holds):
            if position not in served:
                hold._renewed(end, hold._ttl_ms, base.ConnectionError("no server serves the key"))

    def _send_batches(self, batches: Sequence[Batch], end: float) -> None:
        """All are sent before the first answer is waited for: a silent server must not delay the others."""
        try:
            for batch in batches:
                self._send_batch(batch, end)
            for batch in batches:
                self._receive_batch(batch, end)
            for batch in batches:
                self._follow(batch, end)
        except BaseException:  # `on_lost` called `sys.exit`: the next batch must not read the answers of this
            for batch in batches:
                self._forget(batch.recipe)
            raise

    def after_fork(self) -> None:
        """The connections are the parent's."""
        self._connections = {}

    def close(self) -> None:
        """Closes the connections."""
        for connection in self._connections.values():
            connection.close()

    def _send_batch(self, batch: Batch, end: float) -> None:
        batch.ttls = [hold._ttl_ms for hold in batch.holds]
        batch.sent = time.monotonic()
        try:
            connection = self._connection(batch.recipe, max(LEAST_TIME, end - batch.sent))
            batch.sent = time.monotonic()
            connection.send(
                *(
                    _commands.extend(hold.keys, hold.token, ttl_ms)
                    for hold, ttl_ms in zip(batch.holds, batch.ttls, strict=True)
                )
            )
            batch.connection = connection
        except Exception as error:
            self._fail(batch, 0, error)

    def _receive_batch(self, batch: Batch, end: float) -> None:
        if batch.connection is None:
            return
        for number, (hold, ttl_ms) in enumerate(zip(batch.holds, batch.ttls, strict=True)):
            try:
                answer = batch.connection.receive(max(end, batch.sent + LEAST_TIME))
            except Exception as error:
                self._fail(batch, number, error)
                return
            if self._route.redirected(hold.keys[0], answer):
                batch.redirected.append((hold, ttl_ms))
                continue
            if isinstance(answer, BaseException) and not is_lost_connection(answer):
                self._route.suspect()
            hold._renewed(batch.sent, ttl_ms, answer)

    def _fail(self, batch: Batch, answered: int, error: Exception) -> None:
        self._forget(batch.recipe)
        self._route.suspect()
        for hold, ttl_ms in list(zip(batch.holds, batch.ttls, strict=True))[answered:]:
            hold._renewed(batch.sent, ttl_ms, error)

    def _follow(self, batch: Batch, end: float) -> None:
        """Few holds at a time move."""
        for hold, ttl_ms in batch.redirected:
            sent = time.monotonic()
            if hold.ended:
                continue
            try:
                extend = _commands.extend(hold.keys, hold.token, ttl_ms)
                [answer] = self._route.ask(hold.keys[0], extend, end=max(end, sent + LEAST_TIME))
            except Exception as error:
                answer = error
            hold._renewed(sent, ttl_ms, answer)

    def _connection(self, recipe: Recipe, seconds: float) -> Connection:
        """The connection to a server. A new one is opened within so many seconds."""
        place = _place(recipe)
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
        connection = self._connections.pop(_place(recipe), None)
        if connection is not None:
            connection.close()


def _not_executed(text: str) -> Exception:
    """An error after which the renewal is tried again, and not carried out later."""
    error = base.ConnectionError(text)
    note_unsent(error)
    return error


def _place(recipe: Recipe) -> object:
    return recipe.arguments.get("host"), recipe.arguments.get("port")
