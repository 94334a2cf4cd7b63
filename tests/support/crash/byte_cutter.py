"""A proxy that cuts a connection in the middle of its bytes: after so many more of them in one direction."""

import socket
import threading
from contextlib import suppress
from enum import Enum

from sqlalchemy import make_url

_CHUNK = 64 * 1024
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306}


class Flowing(Enum):
    """The direction of bytes."""

    REQUESTS = "requests"
    """From the client to the server."""
    ANSWERS = "answers"


class ByteCutter:
    """Listens on a port of this machine until it is closed, and forwards everything until it is armed.

    :param url: of the server, by a Unix socket or by TCP: ``tcp://HOST:PORT``, or a database's URL. It need not run
        before a client connects.
    """

    def __init__(self, url: str, port: int = 0) -> None:
        self._server = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        """Where it listens."""
        self._guard = threading.Lock()
        self._open = set[socket.socket]()
        self._is_closed = False
        self._armed: Flowing | None = None
        self._left = 0
        self.struck = threading.Event()
        """Set once the connection is cut that :meth:`arm` has asked for."""
        threading.Thread(target=self._accept, name="byte-cutter", daemon=True).start()

    @property
    def url(self) -> str:
        """Of the same server, by way of the proxy."""
        here = self._server.set(host="127.0.0.1", port=self.port)
        return here.difference_update_query(["host", "unix_socket"]).render_as_string(hide_password=False)

    def arm(self, way: Flowing, after: int) -> None:
        """Let ``after`` more bytes pass in the direction ``way``, over all connections, and cut the connection that has
        the next one, which does not arrive."""
        with self._guard:
            self.struck.clear()
            self._armed, self._left = way, after

    def disarm(self) -> None:
        """Cut nothing from here on."""
        with self._guard:
            self._armed = None

    def cut_all(self) -> int:
        """Cut the connections that there are; how many ends they had."""
        with self._guard:
            cut = list(self._open)
        for connection in cut:
            _end(connection)
        return len(cut)

    def close(self) -> None:
        """Cut everything, and accept no more."""
        with self._guard:
            self._is_closed = True
        for connection in (self._listener, *self._open):
            _end(connection)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), name="byte-cutter", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection, until one of its ends has ended."""
        with client, suppress(OSError), self._dial() as server:
            with self._guard:
                if self._is_closed:
                    return
                self._open |= {client, server}
            back = threading.Thread(target=self._forward, args=(server, client, Flowing.ANSWERS), daemon=True)
            back.start()
            self._forward(client, server, Flowing.REQUESTS)
            back.join()
            with self._guard:
                self._open -= {client, server}

    def _dial(self) -> socket.socket:
        query, kind = self._server.query, self._server.drivername.partition("+")[0]
        directory = query.get("host", "")
        path = query.get("unix_socket") or (f"{directory}/.s.PGSQL.{_DEFAULT_PORTS['postgresql']}" if directory else "")
        if path:
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(path))
            return server
        return socket.create_connection((self._server.host or "127.0.0.1", self._server.port or _DEFAULT_PORTS[kind]))

    def _forward(self, source: socket.socket, sink: socket.socket, way: Flowing) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                passing = self._passing(way, len(data))
                sink.sendall(data[:passing])
                if passing < len(data):
                    self.struck.set()
                    break
        _end(source)
        _end(sink)

    def _passing(self, way: Flowing, size: int) -> int:
        """How many of the next ``size`` bytes pass."""
        with self._guard:
            if self._armed is not way:
                return size
            if self._left >= size:
                self._left -= size
                return size
            self._armed = None
            return self._left


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
