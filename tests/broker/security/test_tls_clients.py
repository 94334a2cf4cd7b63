"""Transactions of every client over TLS, and over TLS with a certificate of the client's own."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.helpers import create_ssl_context
from confluent_kafka import Producer
from sqlalchemy import create_engine

from dualwrite import DualWrite
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.cli.main import main
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from dualwrite.schema import upgrade_engine
from tests.support.broker.secured import Keys
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.kafka_python_sockets import (
    kafka_python_producer,
    leaves_sockets,
    sockets_are_collected_here,
)
from tests.support.requests.calls import new_topic, read_all, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

__all__ = ["sockets_are_collected_here"]

VALUE = b"committed over TLS"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def secured(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=keys.listeners()) as running:
        yield running


def by_librdkafka(servers: str, keys: Keys, mutual: bool, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "transactional.id": unique("tx"), **keys.librdkafka(mutual=mutual)}
    producer = Producer(settings)
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, VALUE)
    producer.commit_transaction(PATIENCE_SECONDS)


def by_our_own(servers: str, keys: Keys, mutual: bool, topic: str) -> None:
    settings = {"bootstrap.servers": servers, "transactional.id": unique("tx"), **keys.librdkafka(mutual=mutual)}
    producer = TwoPhaseProducer(settings)
    try:
        producer.init_transactions(keep_prepared_txn=False)
        producer.begin_transaction()
        producer.produce(topic, VALUE)
        producer.complete_transaction(producer.prepare_transaction())
    finally:
        producer.close()


def by_kafka_python(servers: str, keys: Keys, mutual: bool, topic: str) -> None:
    settings = keys.kafka_python(mutual=mutual)
    with kafka_python_producer(bootstrap_servers=servers, transactional_id=unique("tx"), **settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, VALUE)
        producer.commit_transaction()


def by_aiokafka(servers: str, keys: Keys, mutual: bool, topic: str) -> None:
    certificate, key = keys.client if mutual else (None, None)
    context = create_ssl_context(cafile=keys.trust, certfile=certificate, keyfile=key)

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=servers, transactional_id=unique("tx"), security_protocol="SSL", ssl_context=context
        )
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(topic, VALUE)
        finally:
            await producer.stop()

    asyncio.run(produce())


def test_a_dual_write_and_its_tools_pass_the_settings_on(
    secured: EmbeddedBroker, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With either producer, and from the command line."""
    url = f"sqlite:///{tmp_path / 'units.db'}"
    engine = create_engine(url)
    upgrade_engine(engine)
    settings = {"bootstrap.servers": secured.listeners["MUTUAL"], **keys.librdkafka(mutual=True)}
    with RawClient(secured.listeners["PLAINTEXT"]) as client:
        topic = new_topic(client)
        for choice in ("native", "librdkafka"):
            with (
                DualWrite(engine, settings, application=f"by-{choice}", producer=choice) as dual_write,
                dual_write.transaction() as tx,
            ):
                tx.produce(topic, value=VALUE)
        assert read_all(client, topic) == [VALUE, VALUE]
    options = [text for key, value in keys.librdkafka(mutual=True).items() for text in ("-X", f"{key}={value}")]
    servers = ["--bootstrap-servers", secured.listeners["MUTUAL"]]
    assert main(["doctor", "--db", url, "--application", "by-native", *servers, *options]) == 0
    assert "failure" not in capsys.readouterr().out


@pytest.mark.slow_cases
@leaves_sockets
@pytest.mark.parametrize("mutual", [False, True], ids=["TLS", "mutual TLS"])
@pytest.mark.parametrize("commit", [by_librdkafka, by_our_own, by_kafka_python, by_aiokafka])
def test_a_transaction_is_committed(secured: EmbeddedBroker, keys: Keys, commit: object, mutual: bool) -> None:
    assert callable(commit)
    servers = secured.listeners["MUTUAL" if mutual else "SSL"]
    with RawClient(secured.listeners["PLAINTEXT"]) as client:
        topic = new_topic(client)
        commit(servers, keys, mutual, topic)
        assert read_all(client, topic) == [VALUE]
