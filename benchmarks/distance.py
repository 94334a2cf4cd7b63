"""A server that is farther away: a process through which all bytes to it and from it take longer."""

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

_PIECE = 256 * 1024


@contextmanager
def distant(round_trip: float) -> Iterator["Distance"]:
    """A port behind which a server will be that is ``round_trip`` seconds away."""
    spawning = get_context("spawn")
    ours, its = spawning.Pipe()
    process = spawning.Process(target=_forward, args=(its, round_trip / 2), daemon=True)
    process.start()
    try:
        yield Distance(ours, ours.recv())
    finally:
        process.kill()
        process.join()


class Distance:
    """The near end.

    :param port: of 127.0.0.1.
    """

    def __init__(self, process: Connection, port: int) -> None:
        self.port = port
        self._process = process

    def leads_to(self, server: "tuple[str, int] | str") -> None:
        """Connect what arrives from now on to a server: its host and port, or the path of its socket."""
        self._process.send(server)
        self._process.recv()


def _forward(control: Connection, delay: float) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    control.send(listener.getsockname()[1])
    target = control.recv()
    control.send(None)
    while True:
        near, _ = listener.accept()
        try:
            far = _connected(target)
        except OSError:
            near.close()  # no server: its client learns it, and the next one may find it
            continue
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one, other in ((near, far), (far, near)):
            pieces: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=_read, args=(one, pieces, delay), daemon=True).start()
            threading.Thread(target=_write, args=(pieces, other), daemon=True).start()


def _connected(server: "tuple[str, int] | str") -> socket.socket:
    if isinstance(server, str):
        made = socket.socket(socket.AF_UNIX)
        made.connect(server)
        return made
    made = socket.create_connection(server)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _read(source: socket.socket, pieces: "queue.SimpleQueue[tuple[float, bytes]]", delay: float) -> None:
    data = b"?"
    while data:
        try:
            data = source.recv(_PIECE)
        except OSError:
            data = b""
        pieces.put((time.monotonic() + delay, data))


def _write(pieces: "queue.SimpleQueue[tuple[float, bytes]]", target: socket.socket) -> None:
    while True:
        due, data = pieces.get()
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            if data:
                target.sendall(data)
                continue
        except OSError:
            return
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        return
