"""TLS and every SASL mechanism against a real Apache Kafka."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.net.blocking_connection import BlockingConnection
from dualwrite.client.producer.async_two_phase_producer import AsyncTwoPhaseProducer
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.client.protocol.requests import metadata
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from tests.support.client.secure_kafka import PASSWORD, TRICKY_USER, USER, SecureKafka, unsecured_token
from tests.support.conformance.subject import warm_up
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import unique
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

SESSION_MS = 4_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    with SecureKafka(tmp_path_factory.mktemp("secure") / "kafka", SESSION_MS) as running:
        assert isinstance(running, SecureKafka)
        yield running


def connect(config: dict[str, Any]) -> BlockingConnection:
    settings = ProducerSettings.of(config | {"transactional.id": "t"}).client
    return BlockingConnection(settings.bootstrap[0], settings)


def names_itself(config: dict[str, Any]) -> str:
    """The one broker, as it tells a client whom it lets in."""
    connection = connect(config)
    try:
        (broker,) = connection.request(metadata([])).brokers
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
def test_the_right_password_is_accepted(kafka: SecureKafka, mechanism: str, user: str) -> None:
    assert names_itself(kafka.config | with_password(mechanism, user)) == kafka.secure


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_a_configuration_error_with_the_brokers_reason(kafka: SecureKafka, mechanism: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^sasl\.username and sasl\.password: broker .*Authentication failed"):
        connect(kafka.config | with_password(mechanism, password="wrong"))


def bearer(*given: Any) -> dict[str, Any]:
    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _config: given}


def test_a_token_is_accepted_with_and_without_extensions(kafka: SecureKafka) -> None:
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


def test_a_connection_that_is_usable_loses_no_request_to_the_end_of_its_authentication(kafka: SecureKafka) -> None:
    """The broker closes one that asks anything when its time is over (KIP-368)."""
    secrets = [with_password("PLAIN"), with_password("SCRAM-SHA-512"), bearer(*unsecured_token())]
    connections = [connect(kafka.config | secret) for secret in secrets]
    over = [0] * len(secrets)
    deadline = time.monotonic() + 2 * SESSION_MS / 1000
    while time.monotonic() < deadline:
        for number, secret in enumerate(secrets):
            if not connections[number].is_usable():
                connections[number].close()
                connections[number] = connect(kafka.config | secret)
                over[number] += 1
            answer = connections[number].request(metadata([]))
            assert [broker.node_id for broker in answer.brokers] == [0]
    for connection in connections:
        connection.close()
    assert all(over), "each was used up at least once"


@pytest.mark.parametrize(
    "credentials",
    [with_password("SCRAM-SHA-256"), bearer(*unsecured_token())],
    ids=["SCRAM", "OAUTHBEARER"],
)
def test_a_producer_works_for_longer_than_its_authentication(kafka: SecureKafka, credentials: dict[str, Any]) -> None:
    warm_up(kafka.bootstrap_servers)
    topic, written = unique("topic"), 0
    config = (
        kafka.config | credentials | {"transactional.id": unique("id"), "transaction.two.phase.commit.enable": False}
    )
    with TwoPhaseProducer(config) as producer:
        producer.init_transactions()
        deadline = time.monotonic() + 1.5 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            producer.begin_transaction()
            producer.produce(topic, str(written), "key")
            producer.commit_transaction()
            written += 1
    assert consume(kafka.bootstrap_servers, topic, minimum=written)[0] == [b"%d" % number for number in range(written)]


def test_an_asyncio_producer_works_for_longer_than_its_authentication(kafka: SecureKafka) -> None:
    warm_up(kafka.bootstrap_servers)
    topic = unique("topic")
    config = kafka.config | with_password("SCRAM-SHA-512") | {"transactional.id": unique("id")}

    async def write() -> int:
        written = 0
        async with AsyncTwoPhaseProducer(config | {"transaction.two.phase.commit.enable": False}) as producer:
            await producer.init_transactions()
            deadline = time.monotonic() + 1.5 * SESSION_MS / 1000
            while time.monotonic() < deadline:
                await producer.begin_transaction()
                await producer.produce(topic, str(written), "key")
                await producer.commit_transaction()
                written += 1
        return written

    written = asyncio.run(write())
    assert consume(kafka.bootstrap_servers, topic, minimum=written)[0] == [b"%d" % number for number in range(written)]


def test_connections_without_sasl_are_refused(kafka: SecureKafka) -> None:
    patient = kafka.config | {"socket.timeout.ms": 3000}
    with pytest.raises((ConfigurationError, KafkaUnavailableError), match=r"ee security\.protocol$"):
        names_itself(patient | {"security.protocol": "PLAINTEXT"})
    with pytest.raises(KafkaUnavailableError):
        names_itself(patient | {"security.protocol": "SSL"})
