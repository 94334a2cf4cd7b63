"""One Apache Kafka for the whole session: it takes seconds to start."""

from collections.abc import Iterator

import pytest

from tests.conformance.apache_kafka import ApacheKafka


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """A running Apache Kafka 4.4.0; tests use topics, groups and transactional ids of their own."""
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), unstable_api_versions=True) as running:
        yield running
