"""What a client of redis-py or valkey-py is, synchronous or asyncio, and its duplicates.

All commands go through duplicates of the program's client, made by public means: no command of the program can keep
them busy, they have time limits of their own, and each event loop has some.
"""

from __future__ import annotations

import inspect
import socket
import sys
from collections.abc import Callable
from typing import Any

from slock_client._redis_link import TIME_LIMIT, RedisLink
from slock_client._transport import NoReply, Runtime, ServerError

_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}  # seconds, seconds, probes
_OF_TCP: dict[str, Any] = {
    "socket_connect_timeout": TIME_LIMIT,
    "socket_keepalive": True,
    "socket_keepalive_options": {getattr(socket, k): v for k, v in _KEEPALIVE.items() if hasattr(socket, k)},
}
_SET: dict[str, Any] = {
    "socket_timeout": TIME_LIMIT,
    "protocol": 2,
    "decode_responses": False,
    "encoding": "utf-8",
    "encoding_errors": "surrogateescape",
    "health_check_interval": 0,
}
# What two clients must not share, and what a client adds by itself.
_LEFT_OUT = {
    *("retry", "retry_on_error", "retry_on_timeout", "max_connections", "cache", "cache_config", "connection_pool"),
    *("maint_notifications_config", "maint_notifications_pool_handler", "oss_cluster_maint_notifications_handler"),
    *("event_dispatcher", "himport_registry", "parser_class", "response_callbacks", "connection_class"),
    *("legacy_responses", "orig_host_address", "orig_socket_timeout", "orig_socket_connect_timeout"),
}
# The errors whose text lacks the code of the server's reply.
_CODES = {
    **{"ReadOnlyError": "READONLY", "NoPermissionError": "NOPERM", "BusyLoadingError": "LOADING"},
    **{"MasterDownError": "MASTERDOWN", "ClusterDownError": "CLUSTERDOWN", "TryAgainError": "TRYAGAIN"},
    **{"ClusterCrossSlotError": "CROSSSLOT", "OutOfMemoryError": "OOM", "MovedError": "MOVED", "AskError": "ASK"},
    **{"AuthenticationError": "WRONGPASS", "AuthorizationError": "NOAUTH"},
}
_LOGIN = ("WRONGPASS", "NOAUTH")


class Packer:
    """Codes commands. That of hiredis crashes the process if a signal handler raises an exception meanwhile."""

    def pack(self, *words: Any) -> list[bytes]:
        words = (*words[0].split(), *words[1:])  # of "CLUSTER SLOTS" each is one
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            coded = word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")
            parts.append(b"$%d\r\n%b\r\n" % (len(coded), coded))
        return [b"".join(parts)]


class RedisTransport:
    """A client of redis-py or valkey-py. Raises `TypeError` if it is none."""

    def __init__(self, client: Any, is_async: bool) -> None:
        # The client itself is not kept: drop-ins last as long as it does.
        self.kind, self.is_async = type(client), is_async
        self.packages, self.half = _find(client, is_async)  # the packages `redis` and `redis.asyncio`, or of valkey
        errors = vars(self.packages.exceptions)
        of_clusters = errors.get("RedisClusterException") or errors["ValkeyClusterException"]
        self.failures: tuple[type[Exception], ...] = (self.packages.RedisError, of_clusters)
        if is_async:
            self.failures += (OSError,)
        self.is_cluster, self.has_failover = not hasattr(client, "connection_pool"), False
        if is_async:  # the library's own finalizer fails if the event loop has been closed
            self.kind = type(self.kind.__name__, (self.kind,), {"__del__": lambda _: None})
        if self.is_cluster:
            self.kwargs, self.connection_class = dict(client.get_connection_kwargs()), None
            self.kwargs.pop(f"{self.packages.__name__}_connect_func", None)
            self.of_cluster = {
                f"{self.packages.__name__}_connect_func": getattr(client, "user_on_connect_func", None),
                "address_remap": client.nodes_manager.address_remap,
            }
            nodes = [*client.get_nodes(), *client.nodes_manager.startup_nodes.values()]
            self.nodes = list(dict.fromkeys((node.host, node.port) for node in nodes))
            self.name = ", ".join(f"{host}:{port}" for host, port in self.nodes)
            return
        self.pool = client.connection_pool
        self.kwargs, self.connection_class = self.pool.connection_kwargs, self.pool.connection_class
        self.name = ":".join(str(self.kwargs[name]) for name in ("path", "host", "port") if name in self.kwargs)
        if hasattr(self.pool, "sentinel_manager"):
            self.has_failover, self.name = True, self.pool.service_name
            if not self.pool.is_master:
                raise TypeError("Locks takes a client of the primary (master_for), not of replicas (slave_for)")

    def link(self, io: Runtime, switched: Callable[[], None]) -> RedisLink:
        return RedisLink(self, io, switched)

    # --- duplicates

    def _options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The options of a client for a duplicate. It repeats no command by itself, so that each copy is known."""
        kept = {name: value for name, value in kwargs.items() if name not in _LEFT_OUT}
        backoff = self.packages.backoff.NoBackoff()
        of_half = {} if self.is_async else {"command_packer": Packer()}
        of_half |= {} if "path" in kwargs else _OF_TCP
        return {**kept, **of_half, **_SET, "retry": self.half.retry.Retry(backoff, 0)}

    def _pool(self, kwargs: dict[str, Any], kind: Any, **more: Any) -> Any:
        options = {**self._options(kwargs), **more}
        if options.pop("ssl", False):
            kind = self.half.connection.SSLConnection
        return self.half.ConnectionPool(connection_class=kind or self.half.Connection, **options)

    def duplicate(self, manager: Any) -> Any:
        """A client for commands, or a coroutine that gives it. `manager` has the Sentinels, if there are some."""
        if self.is_cluster:
            return self._cluster()
        # In asyncio each call has a limit of time as a whole, which costs less than one for each read and write.
        limit = {"socket_timeout": None} if self.is_async else {}
        return self.kind(connection_pool=self._primary(manager, **limit), single_connection_client=True)

    def _primary(self, manager: Any, **more: Any) -> Any:
        if not self.has_failover:
            return self._pool(self.kwargs, self.connection_class, **more)
        options = {**self._options(self.kwargs), "connection_class": self.connection_class, **more}
        return type(self.pool)(self.name, manager, **options)

    def _cluster(self) -> Any:
        options = {**self._options(self.kwargs), **self.of_cluster}
        options["ssl"] = bool(options.get("ssl")) or "SSL" in repr(self.kwargs.get("connection_class"))
        if self.is_async:
            known = inspect.signature(self.half.RedisCluster.__init__).parameters
            options = {name: value for name, value in options.items() if name in known}
        node = self.half.cluster.ClusterNode
        nodes = [node(host, port) for host, port in self.nodes]
        made = self.kind(startup_nodes=nodes, require_full_coverage=False, **options)
        return made.initialize() if self.is_async else made

    def of_node(self, host: str, port: int, **more: Any) -> Any:
        """A client of one node of a cluster."""
        pool = self._pool(self.kwargs, self.kwargs.get("connection_class"), host=host, port=port, **more)
        return self.half.Redis(connection_pool=pool)

    def sentinel(self, number: int, **more: Any) -> Any:
        """A client of a Sentinel."""
        pool = self.pool.sentinel_manager.sentinels[number].connection_pool
        return self.half.Redis(connection_pool=self._pool(pool.connection_kwargs, pool.connection_class, **more))

    def listener(self, where: Any, manager: Any) -> Any:
        """A client for subscriptions at a node of a cluster, a Sentinel, or else the primary. It sends PING now and
        then, so that a proxy does not take its connection for idle."""
        alive: dict[str, Any] = {"health_check_interval": 5}
        if where is None:
            return self.kind(connection_pool=self._primary(manager, **alive))
        return self.sentinel(where[1], **alive) if where[0] == "Sentinel" else self.of_node(*where, **alive)

    # --- errors

    def error(self, error: Exception) -> ServerError | NoReply:
        """What an error of the library means. A wrong argument is raised."""
        if isinstance(error, self.packages.DataError):
            raise error
        code, text = _CODES.get(type(error).__name__, ""), str(error)
        is_reply = isinstance(error, self.packages.ResponseError) or code in ("LOADING", *_LOGIN)
        known: ServerError | NoReply = NoReply(text)
        if is_reply and not (code in _LOGIN and self.kwargs.get("credential_provider")):
            known = ServerError(text if not code or text.startswith(code) else f"{code} {text}")
        known.__cause__ = error
        return known


def _find(client: Any, is_async: bool) -> tuple[Any, Any]:
    theirs, ours = ("", ".asyncio") if is_async else (".asyncio", "")
    for library in filter(None, map(sys.modules.get, ("redis", "valkey"))):
        halves = {"": library, ".asyncio": library.asyncio}
        if isinstance(client, (halves[ours].Redis, halves[ours].RedisCluster)):
            return library, halves[ours]
        if isinstance(client, (halves[theirs].Redis, halves[theirs].RedisCluster)):
            raise TypeError(
                f"slock_client{ours}.Locks takes a client of {library.__name__}{ours}, not of "
                f"{library.__name__}{theirs}: use slock_client{theirs}.Locks"
            )
    kind = type(client)
    raise TypeError(
        f"Locks takes a Redis or RedisCluster of redis-py or valkey-py, not {kind.__module__}.{kind.__qualname__}"
    )
