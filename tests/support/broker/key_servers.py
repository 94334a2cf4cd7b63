"""A server of public keys, over http or https."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from tests.support.broker.token_makers import public_jwk
from tests.support.client.certificates import Authority

AUTHORITY = Authority()
LISTEN = ("localhost", 0)


class _KeysHandler(BaseHTTPRequestHandler):
    location: str | None = None

    def do_GET(self) -> None:
        if self.location is not None:
            self.send_response(302)
            self.send_header("Location", self.location)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"keys": [public_jwk("RSA")]}).encode())

    def log_message(self, *_: object) -> None:
        """Keeps the tests' output clean."""


Serve = Callable[..., str]


@contextmanager
def key_servers(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server with a set of keys, or with a redirect; its URL."""
    keystore = AUTHORITY.issue().in_one(tmp_path / "server.pem")
    with ExitStack() as stack:

        def start(scheme: str, redirect: str | None = None) -> str:
            server = HTTPServer(LISTEN, type("Handler", (_KeysHandler,), {"location": redirect}))
            if scheme == "https":
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(keystore)
                server.socket = context.wrap_socket(server.socket, server_side=True)
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"{scheme}://localhost:{server.server_port}/keys"

        yield start
