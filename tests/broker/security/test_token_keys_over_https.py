"""The keys of access tokens over https: the server's certificate is verified, and no redirect leads back to http."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.token_keys import TokenKeys
from tests.support.broker.key_servers import AUTHORITY, Serve, key_servers
from tests.support.broker.scripted_clock import ScriptedClock
from tests.support.broker.token_makers import public_jwk


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with key_servers(tmp_path) as start:
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
