"""A broker with SASL, with and without TLS."""

from pathlib import Path

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.client.certificate import CERTIFICATE, KEY
from tests.support.forked import ForkedBroker
from tests.support.requests.sasl_calls import CONFIG, EVERY_MECHANISM, OPEN, SASL, add_users

ENCRYPTED = "SASL_SSL"
MECHANISMS = EVERY_MECHANISM.split(",")
SESSION_MS = 2000


def secure_broker(data_dir: Path, **config: str) -> EmbeddedBroker:
    """A broker with an open listener, one with SASL, and one with SASL over TLS."""
    add_users(data_dir)
    keystore = data_dir.parent / f"{data_dir.name}.pem"
    keystore.write_text(KEY + CERTIFICATE)
    return ForkedBroker(
        data_dir,
        config={
            **CONFIG,
            "listeners": f"{OPEN}://127.0.0.1:0,{SASL}://127.0.0.1:0,{ENCRYPTED}://127.0.0.1:0",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(keystore),
            **config,
        },
    )
