"""Plays one scenario with one agent."""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from driver.agent import ANSWER_SECONDS, Agent, AgentError, Call
from driver.matching import mismatch, resolve
from driver.proxy import COMMANDS
from driver.scenario import Scenario, Step
from driver.world import TIMEOUT_SECONDS, RawWaiter, World
from harness import RawConnection, wait_until

# Between two looks at a server.
POLL_SECONDS = 0.01
# A ttl below this may end before a busy machine has renewed the hold.
BRIEF_MS = 1000
# What SLOCK.INFO says of a key that nobody holds and nobody waits for.
FREE = {"mode": "free", "readers": 0, "waiters": 0, "fence": 0, "holders": [], "queue": []}
# Above every fence that a server gives.
FORGED_FENCE = 9007199254740000


class Play:
    """The state of a scenario that is being played: what was noted, and what has not been answered yet."""

    def __init__(self, scenario: Scenario, world: World, agent: Agent) -> None:
        self.scenario, self.world, self.agent = scenario, world, agent
        self._values: dict[str, Any] = {"agent": {"pid": agent.pid, "host": socket.gethostname()}}
        self._names: dict[str, str] = {}
        self._locks: list[str] = []
        self._started: dict[str, Call | RawWaiter] = {}
        # The holds that those give, when they are granted.
        self._awaited: dict[str, str | None] = {}
        # What the scenario leaves to the driver to release: holds, and locks of plain commands.
        self._holds: dict[str, None] = {}
        self._plain: list[tuple[str, list[Any]]] = []
        self._calls_before: dict[str, dict[str, int]] = {}

    def run(self) -> None:
        self.world.use(self.agent)
        for name, server in self.world.servers.items():
            self._values[name] = {"address": f"127.0.0.1:{server.port}", "port": server.port}
            self._calls_before[name] = self._count_calls(name)
        operation, self._servers = self.world.open_fields(self.scenario.proxy)
        try:
            with tempfile.TemporaryDirectory(prefix="slock-scenario-") as directory:
                self._values["password_file"] = f"{directory}/password"
                self._step({"op": operation, "locks": "l"})
                for key, mode in self.scenario.other.items():
                    command = "SLOCK.LOCK" if mode == "write" else "SLOCK.RLOCK"
                    self._step({"command": [command, key, "other", 60000]})
                for number, step in enumerate(self.scenario.steps, 1):
                    try:
                        self._step(step)
                    except (AssertionError, AgentError, OSError) as problem:
                        raise AssertionError(f"step {number}, {step}: {problem}") from problem
                self._end()
        finally:
            for started in self._started.values():
                if isinstance(started, RawWaiter):
                    started.close()

    def _end(self) -> None:
        """All answers are in, and nothing is left of the scenario on any server."""
        assert not self._started, f"the scenario does not await {list(self._started)}"
        if self.scenario.proxy:
            wait_until(lambda: not self.world.proxy.unused(), TIMEOUT_SECONDS, "each rule to be used")
        if self.agent.is_running:
            for hold in self._holds:
                self._release(self._names[hold])
        for name, command in self._plain:
            if name in self.world.running():
                self.world.call(name, *command)
        if self.agent.is_running:
            for locks in self._locks:
                self.agent.ask("close", locks=locks)
        self.world.wait_until_nothing_is_left()

    def _release(self, hold: str) -> None:
        try:
            self.agent.ask("release", hold=hold)
        except AgentError as error:
            ttls = [step.get("ttl_ms") for step in self.scenario.steps]
            is_brief = any(isinstance(ttl, int) and ttl < BRIEF_MS for ttl in ttls)
            if not (is_brief and error.name == "Lost"):
                raise

    # --- steps

    def _step(self, step: Step) -> None:
        kind = next(iter(step))
        getattr(self, f"_{kind}")(step)
        for key, expected in step.get("then", {}).items():
            self._info({"info": key, "until": True, "expect": expected})

    def _op(self, step: Step) -> None:
        fields = {name: value for name, value in step.items() if name not in _OF_THE_DRIVER}
        fields, op = resolve(fields, self._values), step["op"]
        gives = op in _GIVE_HOLDS
        if op in ("open", "open_quorum"):
            fields = {**self._servers, **resolve(self.scenario.open, self._values), **fields}
            fields = {name: value for name, value in fields.items() if value is not None}
            fields["locks"] = self._new_name(fields["locks"])
            self._locks.append(fields["locks"])
        elif op == "cancel":
            fields["target"] = self._started[fields["target"]].id
        elif op != "tasks" and (gives or "hold" not in fields):
            fields["locks"] = self._names[fields.get("locks", "l")]
        if gives or op == "block":
            fields.setdefault("mode", "write")
        if "hold" in fields:
            if op in ("release", "detach", "await_lost") or step.get("error") == "Lost":
                self._holds.pop(fields["hold"], None)
            fields["hold"] = self._new_name(fields["hold"]) if gives else self._names[fields["hold"]]
        if step.get("until"):
            self._look(step, lambda: self.agent.ask(op, **fields))
            return
        call = self.agent.start(op, **fields)
        if "start" in step:
            self._started[step["start"]] = call
            self._awaited[step["start"]] = step["hold"] if gives else None
            return
        outcome = call.outcome(step.get("seconds", ANSWER_SECONDS))
        if gives:
            step = {"save": step["hold"], **step}
            self._note_hold(step["hold"], outcome)
        self._judge(step, outcome)

    def _note_hold(self, name: str | None, outcome: Any) -> None:
        if name is not None and isinstance(outcome, dict) and "token" in outcome:
            self._holds[name] = None

    def _new_name(self, name: str) -> str:
        self._names[name] = self.agent.new_name(name)
        return self._names[name]

    def _await(self, step: Step) -> Any:
        """The outcome of one that was started, for which it waits; of several, of the first that ends."""
        names = [name for name in _as_list(step["await"]) if name in self._started]
        timeout_s = step.get("seconds", TIMEOUT_SECONDS)
        if len(names) > 1:
            wait_until(
                lambda: any(self._started[name].is_done() for name in names), timeout_s, f"one of {names}"
            )
        name = next((name for name in names if self._started[name].is_done()), names[0])
        started = self._started[name]
        is_plain = isinstance(started, RawWaiter)
        outcome = started.reply() if is_plain else started.outcome(timeout_s)
        del self._started[name]
        if isinstance(outcome, dict):
            self._note_hold(self._awaited[name], outcome)
            outcome = {**outcome, "hold": self._awaited[name]}
        self._judge({"save": name, **step}, outcome)
        return outcome

    def _handoff(self, step: Step) -> None:
        """The plain client `other` releases a key, and what was started under this name gets it."""
        key = step["of"]
        self._command({"command": ["SLOCK.MUNLOCK", 1, key, "other"], "expect": 1})
        outcome = self._await({"await": step["handoff"], **step})
        fence = outcome["fence"] if isinstance(outcome, dict) else outcome
        self._info({"info": key, "expect": {"fence": fence}})

    def _withdraw(self, step: Step) -> None:
        """An operator cancels what was started under this name until it ends: a copy may be on its way."""
        [waiting] = info_of(self.world.call("main", "SLOCK.INFO", step["of"], "FULL"))["queue"]
        started = self._started[step["withdraw"]]

        def cancel() -> bool:
            self.world.call("main", "SLOCK.CANCEL", step["of"], waiting["token"])
            return started.is_done()

        wait_until(cancel, TIMEOUT_SECONDS, "its end")
        self._await({"await": step["withdraw"], **step})

    def _judge(self, step: Step, outcome: Any) -> None:
        """Compares an answer or an error with what the step expects, and notes an answer."""
        if isinstance(outcome, AgentError):
            names = step.get("error")
            if names is None:
                raise outcome
            problem = "" if names == "*" or outcome.name in _as_list(names) else f"{outcome}, not {names}"
            for text in _as_list(step.get("text", [])):
                expected = text if text.startswith("!~") else f"~{text}"
                problem = problem or mismatch(expected, outcome.text, self._values, "the error")
            assert not problem, problem
            return
        assert "error" not in step, f"should end with {step['error']} and answered {outcome}"
        if "expect" in step:
            problem = mismatch(step["expect"], outcome, self._values)
            assert not problem, problem
        if "save" in step:
            self._values[step["save"]] = outcome

    def _cancel(self, step: Step) -> None:
        self.agent.ask("cancel", target=self._started[step["cancel"]].id)
        self._await({"await": step["cancel"], "error": "Cancelled"})

    def _pending(self, step: Step) -> None:
        """What was started has not ended, or does not end for so long (`stays_ms`)."""
        end = time.monotonic() + step.get("stays_ms", 0) / 1000
        while True:
            for name in _as_list(step["pending"]):
                started = self._started[name]
                what = started.reply() if isinstance(started, RawWaiter) and started.is_done() else None
                assert not started.is_done(), f"{name} has ended: {what or started.outcome()}"
            if time.monotonic() >= end:
                return
            time.sleep(0.01)

    def _command(self, step: Step) -> None:
        command = resolve(step["command"], self._values)
        for name in _as_list(step.get("on", "main")):
            if command[0] in COMMANDS["lock"]:
                several = command[1:] if command[0].startswith("SLOCK.M") else [1, *command[1:]]
                self._plain.append((name, ["SLOCK.MUNLOCK", *several[: several[0] + 2]]))
            if "start" in step:
                self._started[step["start"]] = RawWaiter(self.world.servers[name], command)
            else:
                self._look(step, lambda name=name: self.world.call(name, *command))

    def _info(self, step: Step) -> None:
        """What SLOCK.INFO key FULL says, as an object."""
        key = resolve(step["info"], self._values)
        for name in _as_list(step.get("on", "main")):
            self._look(step, lambda name=name: info_of(self.world.call(name, "SLOCK.INFO", key, "FULL")))

    def _calls(self, step: Step) -> None:
        """How many commands of a kind the server has executed since the scenario began."""
        name = step.get("on", "main")

        def count() -> int:
            before, now = self._calls_before[name], self._count_calls(name)
            return sum(now.get(one, 0) - before.get(one, 0) for one in COMMANDS[step["calls"]])

        self._look(step, count)

    def _count_calls(self, name: str) -> dict[str, int]:
        lines = self.world.call(name, "INFO", "commandstats").splitlines()
        stats = [line.removeprefix("cmdstat_").split(":calls=") for line in lines if ":calls=" in line]
        return {command.upper(): int(rest.split(",")[0]) for command, rest in stats}

    def _look(self, step: Step, value: Callable[[], Any]) -> None:
        """Once, or until it is as expected, or so for a while (`stays_ms`)."""
        problem, found = "", None

        def look() -> None:
            nonlocal problem, found
            found = value()
            problem = mismatch(step["expect"], found, self._values) if "expect" in step else ""

        look()
        until, stays_ms = step.get("until"), resolve(step.get("stays_ms", 0), self._values)
        seconds = step.get("seconds", TIMEOUT_SECONDS) if until else stays_ms / 1000
        end = time.monotonic() + seconds
        while bool(problem) == bool(until) and time.monotonic() < end:
            time.sleep(POLL_SECONDS)
            look()
        assert not problem, problem
        if "command" in step and "expect" not in step:
            assert found == "OK" or (isinstance(found, int) and found > 0), found
        if "save" in step:
            self._values[step["save"]] = found

    def _valid(self, step: Step) -> None:
        """The library must not think that the hold is valid for longer than the server does."""
        before = time.monotonic()
        state = self.agent.ask("state", hold=self._names[step["valid"]])
        info = info_of(self.world.call("main", "SLOCK.INFO", step["key"], "FULL"))
        [pttl] = [one["pttl"] for one in info["holders"] if one["token"] == state["token"]]
        # The server was asked later: what it says was more by that time, which is at most this.
        between = (time.monotonic() - before) * 1000
        assert not state["lost"] and 0 < state["remaining_ms"] <= pttl + between + 1, (state, pttl, between)

    def _renewed(self, step: Step) -> None:
        """A hold is renewed (`times`, once): its deadline moves, and it is never away."""
        server, token = step.get("on", "main"), self._values[step["renewed"]]["token"]

        def deadline() -> tuple[float, float]:
            """The moment between these two."""
            before = time.monotonic()
            info = info_of(self.world.call(server, "SLOCK.INFO", step["key"], "FULL"))
            [pttl] = [one["pttl"] for one in info["holders"] if one["token"] == token] or [None]
            assert pttl, "the hold is gone"
            return before + pttl / 1000, time.monotonic() + pttl / 1000

        for _ in range(step.get("times", 1)):
            _, latest = deadline()
            wait_until(lambda latest=latest: deadline()[0] > latest + 0.1, TIMEOUT_SECONDS, "a renewal")

    def _forge(self, step: Step) -> None:
        """Another user publishes messages for the request that waits, with tags that are guessed or shown."""
        queue = info_of(self.world.call("main", "SLOCK.INFO", step["forge"], "FULL"))["queue"]
        tags = [*range(1, 201), *(value for one in queue for value in one.values())]
        messages = [f"{FORGED_FENCE} {tag}" for tag in tags]
        with RawConnection(self._values["main"]["port"]) as tenant:
            tenant.ok("AUTH", step["user"], step["password"])
            [channel] = tenant.ok("PUBSUB", "SHARDCHANNELS")
            for message in [*messages, "0 nobody", "-DEADLOCK nobody", "no message", ""]:
                assert tenant.ok("SPUBLISH", channel, message) == 1

    def _password(self, step: Step) -> None:
        Path(self._values["password_file"]).write_text(step["password"])

    def _server(self, step: Step) -> None:
        """What happens to servers: pause, resume, kill, start, and restart in order (which can keep data)."""
        for name in _as_list(step.get("on", "main")):
            server = self.world.servers[name]
            settings = {keyword.replace("-", "_"): value for keyword, value in step.get("with", {}).items()}
            self.world.forget_connections(name)
            actions = {
                "pause": server.pause,
                "resume": server.resume,
                "kill": server.kill9,
                "start": server.start,
                "restart with data": partial(server.restart, save=True, **settings),
                "restart empty": partial(server.restart, kill=True, **settings),
            }
            actions[step["server"]]()

    def _proxy(self, step: Step) -> None:
        proxy = self.world.proxy
        match step["proxy"]:
            case "cut":
                proxy.cut()
            case "cut listeners":
                proxy.cut_listeners()
            case "let go":
                proxy.let_go()
            case "hits":
                # The server executes a command, or the library goes on, before the proxy has counted.
                self._look({**step, "until": True}, proxy.hits)
            case "delay":
                proxy.delay(step["ms"] / 1000)
            case action:
                proxy.add(action, step["of"], step.get("times", 1))

    def _agent(self, step: Step) -> None:
        {"kill": self.agent.kill, "pause": self.agent.pause, "resume": self.agent.resume}[step["agent"]]()
        if step["agent"] == "kill":
            self._started = {n: one for n, one in self._started.items() if isinstance(one, RawWaiter)}
            self._holds.clear()

    def _repeat(self, step: Step) -> None:
        for number in range(resolve(step["repeat"], self._values)):
            self._values["number"] = number
            for inner in step["steps"]:
                self._step(inner)


_OF_THE_DRIVER = ("op", "start", "then", "expect", "error", "text", "save", "seconds", "until")
_GIVE_HOLDS = ("acquire", "try_acquire", "adopt")


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def info_of(reply: Any) -> dict[str, Any]:
    if reply is None:
        return FREE
    if isinstance(reply, dict):  # RESP3
        return reply
    fields = dict(zip(reply[::2], reply[1::2], strict=True))
    for name in ("holders", "queue"):
        fields[name] = [dict(zip(one[::2], one[1::2], strict=True)) for one in fields[name]]
    return fields
