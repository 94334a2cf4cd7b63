"""Helpers of the tests that use a broker through confluent-kafka."""

import uuid

from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.peer_clients.consumers import consume

PATIENCE = 120.0


def fresh_name() -> str:
    """A name for a topic or a transactional id that is not in use."""
    return f"t-{uuid.uuid4().hex[:12]}"


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create ``topic`` and wait until that is done."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)


def visible(bootstrap: str, topic: str) -> list[bytes]:
    """The values that a read_committed consumer sees in ``topic`` up to the last stable offset, by partition."""
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, PATIENCE).topics[topic].partitions
    return [value for values in consume(bootstrap, topic, len(partitions)).values() for value in values]
