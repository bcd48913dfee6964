"""Where a client of redis-py connects to, and how. It opens connections like those of the client."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slock_client._commands import Command

# Options of a client or pool that do not belong to a connection of this library. The retries of redis-py are
# among them: this library repeats what may be repeated, and knows when to stop.
_LEFT_OUT = {
    "connection_class",
    "decode_responses",
    "health_check_interval",
    "himport_registry",
    "max_connections",
    "response_callbacks",
    "single_connection_client",
}
_KINDS_LEFT_OUT = ("cache", "maint", "orig_", "oss_cluster_maint", "retry")
"""So begin the names of others."""

DEFAULT_TIMEOUT = 5.0

# So many connections to a server are kept for the next commands and waits.
SPARE_CONNECTIONS = 8

# How long a wait is silent, in seconds, before it is looked for the first time whether the server is there.
FIRST_LOOK = 1.0


class Endpoint(NamedTuple):
    """A class of connections of redis-py, and its arguments."""

    connection_class: Callable[..., Any]
    arguments: dict[str, Any]
    timeout: float
    """How long an answer may take, in seconds."""
    connect_timeout: float
    sentinels: tuple[Endpoint, ...] = ()
    """Connections to the Sentinels that know the address, if it is not among the arguments."""
    service: str = ""
    """The name under which the Sentinels know the primary."""

    @property
    def address(self) -> str:
        """Where the connections lead, for people to read."""
        if "path" in self.arguments:
            return str(self.arguments["path"])
        return f"{self.arguments.get('host', 'localhost')}:{self.arguments.get('port', 6379)}"

    def packed(self, commands: Sequence[Command]) -> bytes:
        """Commands as they are sent. Text is encoded as the client of redis-py encodes it: what cannot be is
        a `UnicodeError`.
        """
        encoding = self.arguments.get("encoding", "utf-8")
        errors = self.arguments.get("encoding_errors", "strict")
        parts: list[bytes] = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            for word in command:
                if isinstance(word, str):
                    word = word.encode(encoding, errors)
                elif isinstance(word, int):
                    word = b"%d" % word
                parts.append(b"$%d\r\n%b\r\n" % (len(word), word))
        return b"".join(parts)

    def at(self, host: str, port: int) -> Endpoint:
        """The same for another address."""
        return self._replace(arguments={**self.arguments, "host": host, "port": port})

    def open(self, **changed: Any) -> Any:
        """A new connection, not connected yet."""
        return self.connection_class(**{**self.arguments, **changed})


def endpoint_of_pool(pool: Any, plain: type, encrypted: type) -> Endpoint:
    """Connections like those of a pool. Behind Sentinels: of the class `plain` or, for TLS, `encrypted`."""
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        return endpoint_with(pool.connection_class, pool.connection_kwargs)
    if not pool.is_master:
        raise ValueError("locks need the primary: use master_for, not slave_for")
    arguments = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    kind = encrypted if issubclass(pool.connection_class, encrypted) else plain
    sentinels = [endpoint_of_pool(client.connection_pool, plain, encrypted) for client in manager.sentinels]
    return endpoint_with(kind, arguments)._replace(sentinels=tuple(sentinels), service=pool.service_name)


def endpoint_with(connection_class: Callable[..., Any], arguments: Mapping[str, Any]) -> Endpoint:
    """Connections with these arguments of a pool, speaking RESP3, without retries and without decoding."""
    timeout = arguments.get("socket_timeout") or DEFAULT_TIMEOUT
    connect_timeout = arguments.get("socket_connect_timeout") or timeout
    kept = {
        name: value
        for name, value in arguments.items()
        if name not in _LEFT_OUT and not name.startswith(_KINDS_LEFT_OUT)
    }
    kept["protocol"] = 3
    if "path" not in kept:
        # A peer that is gone without a word is noticed also during a wait without limit.
        kept["socket_keepalive"] = True
        if not isinstance(kept.get("socket_keepalive_options"), Mapping):
            kept["socket_keepalive_options"] = _keepalive()
    return Endpoint(connection_class, kept, float(timeout), float(connect_timeout))


def _keepalive() -> dict[int, int]:
    wanted = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}
