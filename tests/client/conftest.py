"""For the tests of this folder: a real broker, as a process of its own, and what a server needs for TLS."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite import EmbeddedBroker
from tests.support.client.certificate import CERTIFICATE, KEY
from tests.support.forked import ForkedBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests of a module, which use topics and transactional ids of their own and never kill it."""
    with ForkedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(name="server_tls")
def make_server_tls(tmp_path: Path) -> ssl.SSLContext:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text(CERTIFICATE)
    key.write_text(KEY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
