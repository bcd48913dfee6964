"""The servers of a quorum."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import redis
import redis.exceptions as base

from slock._answers import is_lost_connection
from slock._commands import Command
from slock._connection import Answer, Connection
from slock._fork import track
from slock._quorum import Tally
from slock._recipe import address_of, recipe_of

_log = logging.getLogger("slock")

# A node that has not answered for so long, in seconds, gets a new connection.
SILENCE = 5.0

# A release that found no connection is tried so often.
RELEASE_ATTEMPTS = 3


@dataclass
class Question:
    """A command for one node, and where its answer goes."""

    command: Command
    end: float
    """Until when the answer counts. A command that is older is not sent."""
    answers: queue.SimpleQueue[tuple[str, Answer]]
    wanted: Callable[[], bool]
    """Asked before it is sent. False: it is not sent."""
    attempts: int = 2
    """More than one, because the connection may have ended while it was idle."""
    is_release: bool = False


@dataclass(eq=False)
class Node:
    """One server, with one connection and one thread.

    The thread sends commands in the order in which they came. When one is not answered in time, its answer is
    skipped later on: the connection stays, so that a release cannot overtake the request before it.
    """

    client: redis.Redis
    name: str = ""
    _questions: queue.SimpleQueue[Question | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _starting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._recipe = recipe_of(self.client.connection_pool, redis.Connection, redis.SSLConnection)
        self.name = address_of(self._recipe)
        track(self)

    def after_fork(self) -> None:
        """The thread and the connection are the parent's."""
        self._thread, self._questions, self._starting = None, queue.SimpleQueue(), threading.Lock()

    def ask(self, question: Question) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"slock {self.name}", daemon=True)
                self._thread.start()
            self._questions.put(question)

    def close(self) -> None:
        """Ends the thread after what it still has to do."""
        with self._starting:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._questions.put(None)
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        questions = self._questions
        connection: Connection | None = None
        while (question := questions.get()) is not None:
            answer: Answer = base.TimeoutError("no answer within the time")
            for _ in range(question.attempts):
                left = question.end - time.monotonic()
                if not question.is_release and (left <= 0 or not question.wanted()):
                    break
                # A release that is late is sent all the same, and its answer is skipped later on.
                limit = max(left, 0.05)
                if connection is None:
                    connection = Connection(self._recipe._replace(timeout=limit, connect_timeout=limit))
                    silent_since = time.monotonic()
                try:
                    connection.send(question.command)
                    while connection.unanswered > 1:
                        connection.receive(question.end)
                        silent_since = time.monotonic()
                    answer = connection.receive(question.end)
                    silent_since = time.monotonic()
                    break
                except base.TimeoutError as error:
                    answer = error
                    if not connection.unanswered or time.monotonic() - silent_since > SILENCE:
                        connection.close()
                        connection = None
                    break
                except Exception as error:
                    answer = error
                    connection.close()
                    connection = None
                    if not is_lost_connection(error):
                        break
            question.answers.put((self.name, answer))
        if connection is not None:
            connection.close()


class Asked(NamedTuple):
    """A question, and the nodes that it was sent to."""

    question: Question
    names: list[str]


class Nodes:
    """All servers of a quorum."""

    def __init__(self, clients: Sequence[redis.Redis]) -> None:
        self._nodes = [Node(client) for client in clients]

    @property
    def names(self) -> list[str]:
        return [node.name for node in self._nodes]

    def ask(self, command: Command, timeout: float, *, fail_fast: bool = False) -> Tally:
        """What the nodes answer within `timeout` seconds."""
        return self.collect(self.begin(command, timeout), fail_fast=fail_fast)

    def release(self, command: Command, timeout: float, *, all_nodes: bool = False) -> Tally:
        """Releases on all nodes.

        It returns when the majority has released, or cannot have, or after `timeout` seconds. With
        `all_nodes` it waits for every node. What has no answer then goes on without the caller.
        """
        answers: queue.SimpleQueue[tuple[str, Answer]] = queue.SimpleQueue()
        end = time.monotonic() + timeout
        question = Question(command, end, answers, lambda: True, RELEASE_ATTEMPTS, is_release=True)
        return self.collect(self._begin(question, self._nodes), all_nodes=all_nodes)

    def begin(
        self,
        command: Command,
        timeout: float,
        *,
        only: Sequence[str] | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Asked:
        """Asks the nodes and does not wait. `only`: these are asked, not all."""
        nodes = [node for node in self._nodes if only is None or node.name in only]
        return self._begin(Question(command, time.monotonic() + timeout, queue.SimpleQueue(), wanted), nodes)

    def collect(self, asked: Asked, *, fail_fast: bool = False, all_nodes: bool = False) -> Tally:
        """The answers that come in time."""
        tally, question, waiting = Tally(self.names), asked.question, set(asked.names)
        while waiting and not (fail_fast and tally.is_hopeless):
            is_known = tally.has_majority or tally.is_hopeless
            if question.is_release and is_known and not all_nodes:
                break
            try:
                name, answer = question.answers.get(timeout=max(0.0, question.end - time.monotonic()))
            except queue.Empty:
                for name in waiting:
                    tally.add(name, base.TimeoutError("no answer within the time"))
                break
            waiting.discard(name)
            tally.add(name, answer)
        return tally

    def _begin(self, question: Question, nodes: Sequence[Node]) -> Asked:
        for node in random.sample(nodes, len(nodes)):
            node.ask(question)
        return Asked(question, [node.name for node in nodes])

    def close(self) -> None:
        """Waits for releases, and ends the threads and connections."""
        for node in self._nodes:
            node.close()
