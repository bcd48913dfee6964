"""A proxy that keeps commands back and delivers them later, also when the client is gone."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class LateProxy:
    """Listens on `port` and forwards to a server.

    `accepts`: otherwise who connects hears nothing until `accept`.
    """

    def __init__(self, server_port: int, *, accepts: bool = True) -> None:
        self._server_port = server_port
        self.accepted = 0
        """How many connections there were."""
        self._changing = threading.Lock()
        self._word: bytes | None = None
        self._kept: list[tuple[socket.socket, list[bytes]]] = []
        self._drops = False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        if accepts:
            self.accept()

    def accept(self) -> None:
        """Lets in who waits, and who comes."""
        _start(self._accept)

    def keep(self, word: str) -> None:
        """The next data with `word` in them are kept back, and all that follows on their connection."""
        with self._changing:
            self._word = word.encode()

    def has_kept(self) -> bool:
        """Whether something is kept back."""
        with self._changing:
            return bool(self._kept)

    def deliver(self, *, then_drop: bool = False) -> None:
        """What is kept back reaches the server. With `then_drop` nothing that comes later does."""
        with self._changing:
            self._drops = then_drop
            for server, kept in self._kept:
                for data in kept:
                    server.sendall(data)
                kept.clear()
            if not then_drop:
                self._kept.clear()

    def close(self) -> None:
        with self._changing:
            sockets, self._sockets = [self._listener, *self._sockets], []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                server = socket.create_connection(("127.0.0.1", self._server_port))
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._changing:
                    self._sockets += [client, server]
                _start(lambda client=client, server=server: self._requests(client, server))
                _start(lambda client=client, server=server: _replies(server, client))

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        kept: list[bytes] | None = None
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                with self._changing:
                    if kept is None and self._word is not None and self._word in data:
                        kept, self._word = [], None
                        self._kept.append((server, kept))
                    if self._drops:
                        continue
                    if kept is not None and any(kept is one for _, one in self._kept):
                        kept.append(data)
                    else:
                        server.sendall(data)
            if kept is None:
                server.shutdown(socket.SHUT_WR)


def _replies(server: socket.socket, client: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(65536):
            client.sendall(data)


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
