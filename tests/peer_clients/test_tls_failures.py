"""What each client says, and what the log says, if the TLS of the two does not fit together."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.helpers import create_ssl_context
from kafka.errors import KafkaError as PythonKafkaError

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.settings.properties import write_properties
from tests.support.apache_kafka.single_node import java_program
from tests.support.broker.secured import Keys
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.java_programs import LOGIN
from tests.support.peer_clients.kafka_python_sockets import (
    kafka_python_producer,
    leaves_sockets,
    sockets_are_collected_here,
)
from tests.support.requests.sasl_calls import log_of
from tests.support.waiting import eventually

__all__ = ["sockets_are_collected_here"]

pytestmark = [pytest.mark.slow, leaves_sockets]

EXPIRED, ELSEWHERE, PLAINTEXT = "an expired certificate", "another host's certificate", "plaintext to TLS"
IN_LOG = {
    EXPIRED: "it has expired, or is not valid yet",
    ELSEWHERE: "most often the host to which it connects is not in it",
    PLAINTEXT: "it speaks no TLS",
}
CLOSED = "closing a connection of 127.0.0.1 to listener"
LISTENERS = {EXPIRED: "EXPIRED", ELSEWHERE: "ELSEWHERE", PLAINTEXT: "SSL"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def broker(keys: Keys, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker with a log of its own."""
    with ForkedBroker(tmp_path / "broker", config=keys.listeners()) as running:
        yield running


def by_kafka_python(address: str, keys: Keys, is_tls: bool) -> None:
    secured: dict[str, Any] = keys.kafka_python() if is_tls else {}
    with kafka_python_producer(
        bootstrap_servers=address, bootstrap_timeout_ms=2000, max_block_ms=2000, **secured
    ) as producer:
        producer.send("topic", b"value").get(2)


def by_aiokafka(address: str, keys: Keys, is_tls: bool) -> None:
    async def start() -> None:
        context = create_ssl_context(cafile=keys.trust)
        secured = {"security_protocol": "SSL", "ssl_context": context} if is_tls else {}
        producer = AIOKafkaProducer(bootstrap_servers=address, request_timeout_ms=2000, **secured)
        try:
            await producer.start()
        finally:
            await producer.stop()

    asyncio.run(start())


@pytest.mark.parametrize("connect", [by_kafka_python, by_aiokafka])
@pytest.mark.parametrize("wrong", LISTENERS)
def test_a_client_in_python_and_the_log_say_why(
    broker: EmbeddedBroker,
    keys: Keys,
    caplog: pytest.LogCaptureFixture,
    connect: Callable[[str, Keys, bool], None],
    wrong: str,
) -> None:
    with pytest.raises((PythonKafkaError, AioKafkaError)) as raised:
        connect(broker.listeners[LISTENERS[wrong]], keys, wrong is not PLAINTEXT)
    said = f"{caplog.text} {raised.value}"
    del raised  # its traceback holds the client
    if wrong is EXPIRED:
        assert "certificate has expired" in said
    elif wrong is ELSEWHERE:
        assert "Hostname mismatch" in said
    # asyncio sends no alert that tells the broker the reason
    in_log = CLOSED if connect is by_aiokafka and wrong is not PLAINTEXT else IN_LOG[wrong]
    assert eventually(lambda: in_log in log_of(broker), bool)


@pytest.mark.jvm
@pytest.mark.parametrize("wrong", LISTENERS)
def test_the_java_client_and_the_log_say_why(broker: EmbeddedBroker, keys: Keys, tmp_path: Path, wrong: str) -> None:
    settings = {"bootstrap.servers": broker.listeners[LISTENERS[wrong]]}
    if wrong is not PLAINTEXT:
        settings |= {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": keys.trust}
    file = tmp_path / "client.properties"
    file.write_text(write_properties(settings))
    said = java_program(LOGIN, str(file), "topic", "0").stdout
    assert ("Timeout" if wrong is PLAINTEXT else "SSL handshake failed") in said
    in_log = IN_LOG[wrong] if wrong is PLAINTEXT else CLOSED
    assert eventually(lambda: in_log in log_of(broker), bool)


@pytest.mark.go
@pytest.mark.parametrize("wrong", LISTENERS)
def test_franz_go_and_the_log_say_why(broker: EmbeddedBroker, keys: Keys, login: Path, wrong: str) -> None:
    command = [str(login), "-brokers", broker.listeners[LISTENERS[wrong]], "-topic", "topic"]
    if wrong is not PLAINTEXT:
        command += ["-ca", keys.trust]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    reasons = {EXPIRED: "certificate has expired", ELSEWHERE: "certificate is valid for elsewhere.example, not"}
    assert reasons.get(wrong, "") in said
    assert "committed" not in said
    in_log = IN_LOG[wrong] if wrong is PLAINTEXT else CLOSED
    assert eventually(lambda: in_log in log_of(broker), bool)
