"""Every client authenticates by every mechanism, with and without TLS, and says why if it may not."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import KafkaError as AioKafkaError
from confluent_kafka import KafkaException, Producer
from kafka.errors import KafkaError as PythonKafkaError

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.errors import DualWriteError
from tests.support.client.certificate import CERTIFICATE
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets, sockets_are_collected_here
from tests.support.peer_clients.sasl_commits import SASL_CLIENTS, librdkafkas
from tests.support.peer_clients.secure_brokers import ENCRYPTED, MECHANISMS, SESSION_MS, secure_broker
from tests.support.requests.calls import unique
from tests.support.requests.sasl_calls import ALICE, BOB, OPEN, PASSWORD, SASL, log_of, unsecured_token
from tests.support.waiting import eventually

__all__ = ["sockets_are_collected_here"]

pytestmark = leaves_sockets


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with secure_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("certificate") / "ca.pem"
    path.write_text(CERTIFICATE)
    return str(path)


BY_PACE = [
    name if name in ("confluent-kafka", "native") else pytest.param(name, marks=pytest.mark.slow)
    for name in SASL_CLIENTS
]
PROTOCOLS = [SASL, pytest.param(ENCRYPTED, marks=pytest.mark.slow)]


def secret_of(mechanism: str, user: str = ALICE) -> str:
    return unsecured_token(user) if mechanism == "OAUTHBEARER" else PASSWORD


@pytest.mark.slow_cases
@pytest.mark.parametrize("client", BY_PACE)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_client_commits_a_transaction(
    broker: EmbeddedBroker, certificate: str, client: str, mechanism: str, protocol: str
) -> None:
    topic = SASL_CLIENTS[client](broker, protocol, mechanism, ALICE, secret_of(mechanism), certificate)
    assert consume(broker.listeners[OPEN], topic, minimum=1)[0] == [b"value"]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["confluent-kafka", "native", "kafka-python"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_name_with_odd_characters_is_the_same_to_all(
    broker: EmbeddedBroker, certificate: str, client: str, mechanism: str
) -> None:
    topic = SASL_CLIENTS[client](broker, SASL, mechanism, BOB, PASSWORD, certificate)
    assert consume(broker.listeners[OPEN], topic, minimum=1)[0] == [b"value"]


REASONS = {
    "PLAIN": "Invalid username or password",
    "SCRAM-SHA-256": "invalid credentials with SASL mechanism SCRAM-SHA-256",
    "SCRAM-SHA-512": "invalid credentials with SASL mechanism SCRAM-SHA-512",
    "OAUTHBEARER": "invalid_token",
}


@pytest.mark.slow
@pytest.mark.parametrize("client", BY_PACE)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_explained_on_both_sides(
    tmp_path: Path, certificate: str, client: str, mechanism: str
) -> None:
    wrong = "wrong" if mechanism != "OAUTHBEARER" else unsecured_token(lifetime=-600)
    errors = (RuntimeError, DualWriteError, PythonKafkaError, AioKafkaError)
    pattern = rf"authentication of 127\.0\.0\.1 failed: {mechanism}(, user 'alice')?: (wrong password|invalid token)"
    with secure_broker(tmp_path / "broker") as broker:  # of its own: a log has each line once in a second
        with pytest.raises(errors) as refused:
            SASL_CLIENTS[client](broker, SASL, mechanism, ALICE, wrong, certificate)
        if client not in ("kafka-python", "aiokafka"):
            assert REASONS[mechanism] in str(refused.value)
        assert eventually(lambda: re.search(pattern, log_of(broker)), bool)
        assert wrong not in log_of(broker).replace("wrong password", "")


def test_a_client_without_sasl_is_logged_with_a_hint_at_its_settings(broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.listeners[SASL], "log_level": 0})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=1)
    line = "does the client have the right security.protocol and sasl.mechanism?"
    assert eventually(lambda: line in log_of(broker), bool)


# --- sessions that end while a client works


@pytest.mark.slow
@pytest.mark.parametrize("client", ["confluent-kafka", "native"])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
def test_a_producer_works_for_longer_than_its_session(
    tmp_path: Path, certificate: str, client: str, mechanism: str
) -> None:
    with secure_broker(tmp_path / "data", **{"connections.max.reauth.ms": str(SESSION_MS)}) as running:
        config = librdkafkas(running, SASL, mechanism, ALICE, secret_of(mechanism), certificate)
        topic, written = unique("topic"), 0
        producer: Any = (
            Producer(config)
            if client == "confluent-kafka"
            else TwoPhaseProducer({**config, "transaction.two.phase.commit.enable": False})
        )
        producer.init_transactions()
        deadline = time.monotonic() + 3 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            producer.begin_transaction()
            producer.produce(topic, b"%d" % written, b"key")
            producer.commit_transaction()
            written += 1
        assert consume(running.listeners[OPEN], topic, minimum=written)[0] == [b"%d" % n for n in range(written)]
        if client == "confluent-kafka":
            assert "the session of" not in log_of(running), "it authenticates anew on the same connection"
        else:
            producer.close()
