"""A port of this machine that leads to a server, and can be closed and opened: a server that goes away, and is back."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Forwarder:
    """Forwards each connection while it is open; closing it cuts those that there are."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener: socket.socket | None = None
        self._connected: list[socket.socket] = []
        self.port = 0
        self.open()

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def close(self) -> None:
        if self._listener is not None:
            # The thread that accepts holds the socket open until it is woken.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for end in self._connected:
            _cut(end)
        self._connected.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._connected += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
    except OSError:
        pass  # one end was cut
    _cut(source)
    _cut(sink)


def _cut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end was quicker
    end.close()


@contextmanager
def forwarding(host: str, port: int) -> Iterator[Forwarder]:
    forwarder = Forwarder(host, port)
    try:
        yield forwarder
    finally:
        forwarder.close()
