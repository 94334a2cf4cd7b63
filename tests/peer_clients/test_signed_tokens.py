"""Every client authenticates with an access token that an issuer has signed, whose keys the broker reads over https."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.errors import DualWriteError
from tests.support.broker.key_servers import AUTHORITY, Serve, key_servers
from tests.support.broker.token_makers import token
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets, sockets_are_collected_here
from tests.support.peer_clients.sasl_commits import SASL_CLIENTS
from tests.support.requests.sasl_calls import OPEN, SASL, log_of
from tests.support.waiting import eventually

__all__ = ["sockets_are_collected_here"]

pytestmark = leaves_sockets
AUDIENCE, ISSUER = "kafka", "https://issuer.example"
BY_PACE = [name if name == "confluent-kafka" else pytest.param(name, marks=pytest.mark.slow) for name in SASL_CLIENTS]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    with key_servers(tmp_path) as start:
        yield start


@pytest.fixture(params=["http", pytest.param("https", marks=pytest.mark.slow)])
def broker(
    request: pytest.FixtureRequest, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedBroker]:
    """A broker that takes tokens of one issuer alone, and reads its keys over http or https."""
    monkeypatch.setenv("SSL_CERT_FILE", AUTHORITY.file(tmp_path / "ca.pem"))
    config = {
        "listeners": f"{OPEN}://127.0.0.1:0,{SASL}://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": serve(request.param),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "connection.failed.authentication.delay.ms": "0",
    }
    with EmbeddedBroker(tmp_path / "broker", config=config) as running:  # has SSL_CERT_FILE, as a forked one would not
        yield running


def signed(kind: str = "RSA", **claims: object) -> str:
    now = int(time.time())
    return token(kind, **{"iat": now, "exp": now + 3600, "aud": AUDIENCE, "iss": ISSUER, **claims})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("client", BY_PACE)
def test_a_client_with_a_signed_token_commits_a_transaction(broker: EmbeddedBroker, client: str) -> None:
    topic = SASL_CLIENTS[client](broker, SASL, "OAUTHBEARER", "ann", signed(), "")
    assert consume(broker.listeners[OPEN], topic, minimum=1)[0] == [b"value"]


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        ({"kind": "RSA2"}, "signature"),
        ({"aud": "another"}, "audience"),
        ({"iss": "https://another.example"}, "issuer"),
    ],
    ids=["another key", "another audience", "another issuer"],
)
def test_a_token_that_the_issuer_did_not_sign_for_this_broker_is_refused(
    broker: EmbeddedBroker, forged: dict[str, str], reason: str
) -> None:
    with pytest.raises((RuntimeError, DualWriteError), match="invalid_token"):
        SASL_CLIENTS["native"](broker, SASL, "OAUTHBEARER", "ann", signed(**forged), "")  # type: ignore[arg-type]
    assert eventually(lambda: "failed: OAUTHBEARER" in log_of(broker) and reason in log_of(broker), bool), reason
