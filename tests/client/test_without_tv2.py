"""On a cluster of the older transaction protocol the native producer says what does work there, and that works."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dualwrite.client import AsyncTwoPhaseProducer, TwoPhaseProducer
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.errors import ConfigurationError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.peer_clients.consumers import consume
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient

pytestmark = [pytest.mark.slow, pytest.mark.jvm]

SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.max.timeout.ms": "2147483647"}


@pytest.fixture(scope="module", params=[0, 1])
def older_kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """An Apache Kafka whose transaction.version is below 2."""
    home: Path = tmp_path_factory.mktemp("kafka")
    with ApacheKafka(home, SETTINGS, features={"transaction.version": request.param}) as running:
        yield running


@pytest.fixture
def config(older_kafka: ApacheKafka) -> dict[str, Any]:
    return {"bootstrap.servers": older_kafka.bootstrap_servers, "transactional.id": "older"}


REFUSAL = r'transaction\.version is [01] .* use producer="librdkafka"'


def test_the_native_producer_refuses_a_cluster_without_tv2_and_names_librdkafka(config: dict[str, Any]) -> None:
    with TwoPhaseProducer(config) as producer, pytest.raises(ConfigurationError, match=REFUSAL):
        producer.init_transactions()


def test_the_asyncio_producer_refuses_a_cluster_without_tv2_and_names_librdkafka(config: dict[str, Any]) -> None:
    async def init() -> None:
        async with AsyncTwoPhaseProducer(config) as producer:
            await producer.init_transactions()

    with pytest.raises(ConfigurationError, match=REFUSAL):
        asyncio.run(init())


def test_librdkafka_works_on_a_cluster_without_tv2(older_kafka: ApacheKafka, config: dict[str, Any]) -> None:
    with RawClient(older_kafka.bootstrap_servers) as client:
        topic = new_topic(client)
    with closing(LibrdkafkaProducer(config)) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(OutgoingRecord(topic, b"v"))
        producer.complete_transaction(producer.prepare_transaction())
    assert consume(older_kafka.bootstrap_servers, topic, minimum=1) == {0: [b"v"]}
