"""One Apache Kafka for the whole session: it takes seconds to start."""

from collections.abc import Iterator

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from tests.conformance.recordings import SETTINGS
from tests.support.apache_kafka.single_node import ApacheKafka
from tests.support.conformance.subject import warm_up
from tests.support.forked import ForkedBroker


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running Apache Kafka 4.4.0; tests use topics, groups and transactional ids of their own."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), SETTINGS, unstable_api_versions=True) as running:
        warm_up(running.bootstrap_servers)
        yield running


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One bundled broker for every case; it does not wait for more members, which no case could observe, and
    looks often for transactions that have timed out."""
    quick = {
        "group.consumer.min.session.timeout.ms": "6000",
        "group.initial.rebalance.delay.ms": "0",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    }
    with ForkedBroker(tmp_path_factory.mktemp("broker"), config=quick) as running:
        yield running
