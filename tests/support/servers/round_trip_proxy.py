"""A proxy before a database server that counts round trips: how often the client spoke after the server had."""

import socket
import threading
from contextlib import suppress

from sqlalchemy import URL, make_url

_CHUNK = 64 * 1024


class TurnsProxy:
    """Listens on a port of this machine until it is closed.

    :param url: of the server, by a Unix socket or by TCP.
    :param port: where to listen; 0 for any.
    """

    def __init__(self, url: str, port: int = 0) -> None:
        self.turns = 0
        self._server = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        """Where it listens."""
        self._guard = threading.Lock()
        self._is_closed = False
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> URL:
        """Of the same server, by way of the proxy."""
        here = self._server.set(host="127.0.0.1", port=self.port)
        return here.difference_update_query(["host", "unix_socket"])

    def close(self) -> None:
        """Cut everything."""
        with self._guard:
            self._is_closed = True
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._keep(client)
                server = self._dial()
                has_answered = threading.Event()
                has_answered.set()
                for way in (self._requests, self._answers):
                    threading.Thread(target=way, args=(client, server, has_answered), daemon=True).start()

    def _keep(self, opened: socket.socket) -> None:
        """Note a connection for close(); close it if that has come already.

        :raises OSError: then.
        """
        with self._guard:
            if self._is_closed:
                opened.close()
                raise OSError("the proxy is closed")
            self._sockets.append(opened)

    def _dial(self) -> socket.socket:
        query, default = self._server.query, 5432 if self._server.drivername.startswith("postgresql") else 3306
        directory = query.get("host", "")
        path = query.get("unix_socket") or (f"{directory}/.s.PGSQL.5432" if directory else "")
        server = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
        self._keep(server)
        server.connect(str(path) if path else (self._server.host or "127.0.0.1", self._server.port or default))
        return server

    def _requests(self, client: socket.socket, server: socket.socket, has_answered: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(_CHUNK):
                if has_answered.is_set():
                    has_answered.clear()
                    self.turns += 1
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, server: socket.socket, has_answered: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(_CHUNK):
                has_answered.set()  # before it goes on: the client speaks only after that
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
