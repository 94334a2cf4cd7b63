"""The keys of access tokens over https: the server's certificate is verified, and no redirect leads back to http."""

import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from dualwrite.broker.token_keys import TokenKeys
from tests.support.broker.scripted_clock import ScriptedClock
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


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
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


@pytest.fixture
def _trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", AUTHORITY.file(tmp_path / "ca.pem"))


def keys_at(url: str) -> TokenKeys:
    keys = TokenKeys(url, ScriptedClock())
    keys.load()
    return keys


@pytest.mark.usefixtures("_trusted")
def test_keys_come_over_https(serve: Serve) -> None:
    assert keys_at(serve("https")).key("key") == public_jwk("RSA")


def test_a_server_that_no_authority_vouches_for_gives_no_keys(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    assert keys_at(serve("https")).key("key") is None
    assert "certificate verify failed" in caplog.text


@pytest.mark.usefixtures("_trusted")
@pytest.mark.parametrize(
    ("first", "second", "is_followed"),
    [("https", "https", True), ("http", "http", True), ("http", "https", True), ("https", "http", False)],
)
def test_a_redirect_never_leads_from_https_to_http(
    serve: Serve, caplog: pytest.LogCaptureFixture, first: str, second: str, is_followed: bool
) -> None:
    key = keys_at(serve(first, redirect=serve(second))).key("key")
    assert key == (public_jwk("RSA") if is_followed else None)
    assert ("it redirects from https to 'http', which is not followed" in caplog.text) != is_followed


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://localhost/keys", "gopher:x"])
def test_a_redirect_to_another_scheme_is_not_followed(
    serve: Serve, caplog: pytest.LogCaptureFixture, target: str
) -> None:
    assert keys_at(serve("http", redirect=target)).key("key") is None
    assert "which is not followed" in caplog.text or "HTTP status 302" in caplog.text
