"""The certificates that the commands on the broker's page make."""

import re
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.broker.secured import AUTH, STORE, TRUST
from tests.support.distributions import HOME
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import metadata
from tests.support.requests.raw_client import RawClient

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A directory in which the page's commands have run, up to the broker's own."""
    page = (HOME / "docs" / "broker.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```console\n(\$ openssl req -x509.*?)```", page, re.DOTALL)
    commands, _, _ = re.sub(r"^\$ ", "", block, flags=re.MULTILINE).partition("dualwrite broker")
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


def broker(made: Path) -> EmbeddedBroker:
    config = {"listeners": "SSL://localhost:0", STORE: str(made / "broker.pem")}
    return ForkedBroker(made / "data", config={**config, TRUST: str(made / "ca.crt"), AUTH: "required"})


def test_the_strictest_clients_accept_them(made: Path) -> None:
    context = ssl.create_default_context(cafile=made / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    context.load_cert_chain(made / "orders.crt", made / "orders.key")
    with broker(made) as running, RawClient(running.listeners["SSL"], tls=context) as client:
        assert len(metadata(client).brokers) == 1


def test_the_private_key_is_its_users_alone(made: Path) -> None:
    for name in ("broker.pem", "broker.key", "ca.key"):
        assert (made / name).stat().st_mode & 0o077 == 0, name
