"""TLS and every SASL mechanism against a real Apache Kafka."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from dualwrite.client.connection import BrokerConnection
from dualwrite.client.native_config import NativeConfig
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.wire.apis import ApiKey, MetadataRequest
from tests.broker.raw import PATIENCE_SECONDS
from tests.client.secure_kafka import PASSWORD, TRICKY_USER, USER, SecureKafka, unsecured_token
from tests.unit.client_broker import FakeClock

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

SESSION_MS = 500_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with SecureKafka(tmp_path_factory.mktemp("secure") / "kafka", SESSION_MS) as running:
        assert isinstance(running, SecureKafka)
        yield running


def connect(config: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> BrokerConnection:
    settings = NativeConfig.of(config | {"transactional.id": "t"}).client
    return BrokerConnection(settings.bootstrap[0], settings, clock)


def names_itself(config: dict[str, Any]) -> str:
    """The one broker, as it tells a client whom it lets in."""
    connection = connect(config)
    try:
        (broker,) = connection.request(ApiKey.METADATA, MetadataRequest(topics=[]), cap=12).brokers
    finally:
        connection.close()
    return f"{broker.host}:{broker.port}"


def with_password(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    return {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}


@pytest.mark.parametrize(
    ("mechanism", "user"),
    [
        ("PLAIN", USER),
        ("SCRAM-SHA-256", USER),
        ("SCRAM-SHA-512", USER),
        ("SCRAM-SHA-256", TRICKY_USER),
        ("SCRAM-SHA-512", TRICKY_USER),
    ],
)
def test_the_right_password_is_let_in(kafka: SecureKafka, mechanism: str, user: str) -> None:
    assert names_itself(kafka.config | with_password(mechanism, user)) == kafka.secure


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_a_configuration_error_with_the_brokers_reason(kafka: SecureKafka, mechanism: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^sasl\.username and sasl\.password: broker .*Authentication failed"):
        connect(kafka.config | with_password(mechanism, password="wrong"))


def bearer(*given: Any) -> dict[str, Any]:
    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _config: given}


def test_a_token_is_let_in_with_and_without_extensions(kafka: SecureKafka) -> None:
    for more in ((), ("alice",), ("alice", {"traceId": "123"})):
        assert names_itself(kafka.config | bearer(*unsecured_token(), *more)) == kafka.secure


def test_confluent_kafka_takes_the_same_callback(kafka: SecureKafka) -> None:
    config = kafka.config | bearer(*unsecured_token(), "alice", {"traceId": "123"}) | {"sasl.oauthbearer.config": "x"}
    producer = Producer(config)
    (broker,) = producer.list_topics(timeout=PATIENCE_SECONDS).brokers.values()
    assert f"{broker.host}:{broker.port}" == kafka.secure
    assert names_itself(config) == kafka.secure


def test_a_token_that_has_expired_for_the_broker_is_refused_with_its_reason(kafka: SecureKafka) -> None:
    token, expiry = unsecured_token(60, issued_at=1_700_000_000)
    with pytest.raises(ConfigurationError, match=r'^oauth_cb: broker .*"status":"invalid_token"'):
        connect(kafka.config | bearer(token, expiry + 10**9))


@pytest.mark.parametrize(
    ("credentials", "lifetime"), [(with_password("PLAIN"), SESSION_MS / 1000), (bearer(*unsecured_token(1000)), 500)]
)
def test_a_connection_is_used_no_longer_than_its_authentication_lasts(
    kafka: SecureKafka, credentials: dict[str, Any], lifetime: float
) -> None:
    clock = FakeClock()
    connection = connect(kafka.config | credentials, clock.monotonic)
    assert connection.is_usable()
    clock.sleep(lifetime / 2)
    assert connection.is_usable()
    clock.sleep(lifetime / 2)
    assert not connection.is_usable()
    connection.close()


def test_plaintext_and_tls_without_sasl_are_not_let_in(kafka: SecureKafka) -> None:
    for protocol in ("PLAINTEXT", "SSL"):
        config = kafka.config | {"security.protocol": protocol, "socket.timeout.ms": 3000}
        with pytest.raises(KafkaUnavailableError):
            names_itself(config)
