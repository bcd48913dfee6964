"""The servers of a quorum."""

from __future__ import annotations

import contextlib
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
from slock._quorum import Tally, node_names
from slock._recipe import Recipe, address_of, recipe_of

_log = logging.getLogger("slock")

# A node that has not answered for so long, in seconds, gets a new connection.
SILENCE = 5.0

# So many questions go in one pipeline at most.
QUESTIONS_AT_ONCE = 500

# An attempt has at least so long, in seconds.
LEAST_TIME = 0.05

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

    The thread sends commands in the order in which they came, those that wait for it in one pipeline. When
    one is not answered in time, its answer is skipped later on: the connection stays, so that a release
    cannot overtake the request before it.
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
        questions, line = self._questions, _Line(self.name, self._recipe)
        is_open = True
        while is_open:
            taken, is_open = _take(questions)
            line.ask(taken)
        line.close()


def _take(questions: queue.SimpleQueue[Question | None]) -> tuple[list[Question], bool]:
    """What is in the queue; it waits for the first. And whether more will come."""
    taken: list[Question] = []
    with contextlib.suppress(queue.Empty):
        while len(taken) < QUESTIONS_AT_ONCE:
            question = questions.get(block=not taken)
            if question is None:
                return taken, False
            taken.append(question)
    return taken, True


class _Line:
    """The connection of one node. Used by its thread."""

    def __init__(self, name: str, recipe: Recipe) -> None:
        self._name = name
        self._recipe = recipe
        self._connection: Connection | None = None
        self._silent_since = 0.0

    def ask(self, questions: Sequence[Question]) -> None:
        """Sends the questions in one pipeline and answers each. After a lost connection it sends again."""
        attempts = 0
        while questions:
            attempts += 1
            questions = self._attempt([one for one in questions if self._may_be_sent(one)], attempts)

    def close(self) -> None:
        """Closes the connection. The next question opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _may_be_sent(self, question: Question) -> bool:
        # A release that is late is sent all the same, and its answer is skipped later on.
        if question.is_release or (time.monotonic() < question.end and question.wanted()):
            return True
        self._answer(question, base.TimeoutError("no answer within the time"))
        return False

    def _answer(self, question: Question, answer: Answer) -> None:
        question.answers.put((self._name, answer))

    def _failed(self, questions: Sequence[Question], attempts: int, error: Exception) -> list[Question]:
        """The questions that are to be sent again. The error is the answer to the others."""
        again: list[Question] = []
        is_lost = is_lost_connection(error) and not isinstance(error, base.TimeoutError)
        for question in questions:
            if is_lost and attempts < question.attempts:
                again.append(question)
            else:
                self._answer(question, error)
        return again

    def _attempt(self, questions: Sequence[Question], attempts: int) -> Sequence[Question]:
        """Answers the questions, except those that it returns: they are to be sent again."""
        if not questions:
            return []
        try:
            connection = self._opened(max(one.end for one in questions) - time.monotonic())
            connection.send(*(one.command for one in questions))
        except UnicodeError as error:  # text that cannot be encoded: the others can be sent without it
            self.close()
            if len(questions) == 1:
                return self._failed(questions, attempts, error)
            return [again for one in questions for again in self._attempt([one], attempts)]
        except Exception as error:
            self.close()
            return self._failed(questions, attempts, error)
        for number, question in enumerate(questions):
            behind = questions[number + 1 :]
            try:
                self._answer(question, self._receive(connection, len(behind), question.end))
            except base.TimeoutError as error:
                self._answer(question, error)
                if not connection.unanswered or time.monotonic() - self._silent_since > SILENCE:
                    self.close()
                    return self._failed(behind, attempts, error)
            except Exception as error:
                self.close()
                return self._failed([question, *behind], attempts, error)
        return []

    def _opened(self, seconds: float) -> Connection:
        if self._connection is None:
            limit = max(seconds, LEAST_TIME)
            self._connection = Connection(self._recipe._replace(timeout=limit, connect_timeout=limit))
            self._silent_since = time.monotonic()
        return self._connection

    def _receive(self, connection: Connection, behind: int, end: float) -> Answer:
        """The answer that so many others are behind. Those before it came too late, and are skipped."""
        while True:
            is_wanted = connection.unanswered <= behind + 1
            answer = connection.receive(end)
            self._silent_since = time.monotonic()
            if is_wanted:
                return answer


class Asked(NamedTuple):
    """A question, and the nodes that it was sent to."""

    question: Question
    names: list[str]


class Nodes:
    """All servers of a quorum."""

    def __init__(self, clients: Sequence[redis.Redis]) -> None:
        self._nodes = [Node(client) for client in clients]
        for node, name in zip(self._nodes, node_names(self.names), strict=True):
            node.name = name

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
