"""Asks for something that may have to wait, in each of the ways of waiting."""

from __future__ import annotations

import threading
import time

import redis.exceptions as base

from slock._acquisitions import Acquisitions
from slock._answers import error_of, is_temporary, is_wrong_server
from slock._asking import Asking, Granted, granted
from slock._commands import Command
from slock._connection import Answer, Connection
from slock._fork import track
from slock._pauses import retry_pauses
from slock._route import Pool, Route
from slock.errors import Closed, SlockError
from slock.polling import Strategy


class Requests:
    """Sends requests again and again until they have an answer that counts."""

    def __init__(self, route: Route, strategy: Strategy | None, acquisitions: Acquisitions) -> None:
        """Without a strategy each wait has a connection of its own."""
        self._route = route
        self._strategy = strategy
        self._acquisitions = acquisitions
        self._changing = threading.Lock()
        self._waiting: set[Connection] = set()
        track(self)

    def ask(self, asking: Asking[Connection]) -> Granted | None:
        """The grant; None when it was refused and does not wait. `TimedOut` when the wait is over."""
        pauses = retry_pauses()
        if asking.poll_pauses is None and self._strategy is not None:
            asking.poll_pauses = self._strategy.pauses()
        while True:
            self._acquisitions.check_open()
            try:
                result = self._attempt(asking)
            except SlockError:
                raise
            except Exception as error:
                if is_wrong_server(error):
                    self._route.suspect()
                if not is_temporary(error):
                    raise error_of(error) from None
                asking.note_problem(error)
                pause = asking.pause_after_error(error, next(pauses))
                if asking.pending is not None:
                    asking.pending.close()
                    asking.pending = None
                self._acquisitions.pause(pause)
                continue
            asking.problem = None
            if result is not None or asking.once:
                return result
            self._acquisitions.pause(asking.pause_to_poll())

    def after_fork(self) -> None:
        """What waits is the parent's."""
        self._changing, self._waiting = threading.Lock(), set()

    def end_waits(self) -> None:
        """What waits ends with `Closed`. The acquisitions were closed before, so that no wait begins."""
        with self._changing:
            for connection in self._waiting:
                connection.interrupt(Closed())

    def _attempt(self, asking: Asking[Connection]) -> Granted | None:
        if asking.is_over:
            raise asking.timed_out()
        pool = self._route.pool_of(asking.key, asking.answer_end)
        sent = time.monotonic()
        answer = self._send(asking, pool)
        importer = self._route.importer(answer)
        if importer is not None:
            # The slot is being moved, and the key is not at its old node.
            sent = time.monotonic()
            answer = self._send(asking, importer, ("ASKING",))
        if self._route.redirected(asking.key, answer):
            raise base.ConnectionError("the slot is served by another node")
        result = granted(answer, sent)
        if result is None and self._waits(asking):
            asking.problem = None
            raise asking.timed_out()
        return result

    def _waits(self, asking: Asking[Connection]) -> bool:
        return self._strategy is None and not asking.once

    def _send(self, asking: Asking[Connection], pool: Pool, *before: Command) -> Answer:
        """The answer to the request. The commands `before` it go first on the same connection."""
        connection = asking.pending = pool.take()
        if self._waits(asking):
            answer = self._wait(asking, connection, *before)
        else:
            *_, answer = connection.ask(*before, asking.build(None, None), end=asking.answer_end)
        asking.pending = None
        pool.give_back(connection)
        return answer

    def _wait(self, asking: Asking[Connection], connection: Connection, *before: Command) -> Answer:
        with self._changing:
            self._acquisitions.check_open()
            self._waiting.add(connection)
        try:
            connection.send(*before, asking.build(asking.wait_ms(), None), end=asking.answer_end)
            for _ in before:
                connection.receive(asking.answer_end)
            return connection.receive(asking.answer_end)
        except Closed:
            asking.uncertain = True
            raise
        finally:
            with self._changing:
                self._waiting.discard(connection)
