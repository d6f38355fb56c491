"""A TCP relay between a worker and a server that can be cut: with a reset, or in silence as a pulled cable is."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Listens on a free port of the loopback interface and forwards to another one."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._whole = threading.Event()
        self._whole.set()
        self._refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Return the port on which it listens."""
        return int(self._listener.getsockname()[1])

    def cut(self, *, silent: bool) -> None:
        """Forward nothing any more: connections are reset, or (silent) stay open and carry nothing."""
        self._whole.clear()
        self._refuses = not silent
        if not silent:
            self._reset()

    def heal(self) -> None:
        """Forward again. What was open and silent is reset: a cable that is plugged in again finds stale peers."""
        self._refuses = False
        self._reset()
        self._whole.set()

    def close(self) -> None:
        """Stop listening, and drop what is open."""
        self._listener.close()
        self._whole.set()
        self._reset()

    def _reset(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for item in pair:
                with suppress(OSError):
                    item.shutdown(socket.SHUT_RDWR)
                item.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs.append((client, server))
        for source, sink in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=[source, sink], daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._whole.wait()
                sink.sendall(data)
        for item in (source, sink):
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
