"""One transaction with SASL by each client: it is committed, or the error's text has the broker's reason."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka.net.sasl.oauth import AbstractTokenProvider

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from tests.support.peer_clients.kafka_python_sockets import kafka_python_producer
from tests.support.peer_clients.secure_brokers import ENCRYPTED
from tests.support.requests.calls import unique
from tests.support.waiting import PATIENCE_SECONDS


def in_confluent(broker: EmbeddedBroker, protocol: str, mechanism: str, user: str, secret: str, ca: str) -> str:
    errors: list[KafkaError] = []
    producer = Producer(
        {**librdkafkas(broker, protocol, mechanism, user, secret, ca), "error_cb": errors.append, "log_level": 0}
    )
    topic = unique("topic")
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while True:
            try:
                producer.init_transactions(0.5)
                break
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            producer.poll(0)  # calls error_cb
            refusals = [error for error in errors if error.code() == KafkaError._AUTHENTICATION]
            if refusals:
                raise KafkaException(refusals[0])
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.commit_transaction(PATIENCE_SECONDS)
    except KafkaException as error:
        raise RuntimeError(error.args[0].str()) from error
    return topic


def librdkafkas(
    broker: EmbeddedBroker, protocol: str, mechanism: str, user: str, secret: str, ca: str
) -> dict[str, Any]:
    """The settings of librdkafka, and of the native producer."""
    config: dict[str, Any] = {
        "bootstrap.servers": broker.listeners[protocol],
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "transactional.id": unique("id"),
    }
    if protocol == ENCRYPTED:
        config["ssl.ca.location"] = ca
    if mechanism == "OAUTHBEARER":
        return {**config, "oauth_cb": lambda _: (secret, time.time() + 3600)}
    return {**config, "sasl.username": user, "sasl.password": secret}


def in_native(broker: EmbeddedBroker, protocol: str, mechanism: str, user: str, secret: str, ca: str) -> str:
    topic = unique("topic")
    config = librdkafkas(broker, protocol, mechanism, user, secret, ca)
    with TwoPhaseProducer({**config, "transaction.two.phase.commit.enable": False}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, "value", "key")
        producer.commit_transaction()
    return topic


def in_kafka_python(broker: EmbeddedBroker, protocol: str, mechanism: str, user: str, secret: str, ca: str) -> str:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return secret

    topic = unique("topic")
    with kafka_python_producer(
        bootstrap_servers=broker.listeners[protocol],
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_plain_username=user.replace("=", "=3D").replace(",", "=2C") if "SCRAM" in mechanism else user,
        sasl_plain_password=secret,
        sasl_oauth_token_provider=Tokens(),
        ssl_cafile=ca,
        transactional_id=unique("id"),
        max_block_ms=int(PATIENCE_SECONDS * 1000),
        bootstrap_timeout_ms=5000,
    ) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value").get(PATIENCE_SECONDS)
        producer.commit_transaction()
    return topic


def in_aiokafka(broker: EmbeddedBroker, protocol: str, mechanism: str, user: str, secret: str, ca: str) -> str:
    from aiokafka.helpers import create_ssl_context

    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return secret

    async def commit() -> str:
        topic = unique("topic")
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.listeners[protocol],
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=secret,
            sasl_oauth_token_provider=Tokens(),
            ssl_context=create_ssl_context(cafile=ca) if protocol == ENCRYPTED else None,
            transactional_id=unique("id"),
        )
        try:
            await producer.start()
            async with producer.transaction():
                await producer.send_and_wait(topic, b"value")
        finally:
            await producer.stop()
        return topic

    return asyncio.run(commit())


Commit = Callable[[EmbeddedBroker, str, str, str, str, str], str]
SASL_CLIENTS: dict[str, Commit] = {
    "confluent-kafka": in_confluent,
    "native": in_native,
    "kafka-python": in_kafka_python,
    "aiokafka": in_aiokafka,
}
