"""Helpers of the tests that use a broker through confluent-kafka."""

import uuid
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from tests.support.peer_clients.consumers import consume

PATIENCE = 120.0


def fresh_name() -> str:
    """A name for a topic or a transactional id that is not in use."""
    return f"t-{uuid.uuid4().hex[:12]}"


def quick(bootstrap: str) -> dict[str, Any]:
    """The configuration of a client of librdkafka that connects at once."""
    return {"bootstrap.servers": bootstrap, **CONNECT_AT_ONCE}


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create ``topic`` and wait until that is done."""
    admin = AdminClient(quick(bootstrap))
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)


def visible(bootstrap: str, topic: str) -> list[bytes]:
    """The values that a read_committed consumer sees in ``topic`` up to the last stable offset, by partition."""
    partitions = AdminClient(quick(bootstrap)).list_topics(topic, PATIENCE).topics[topic].partitions
    return [value for values in consume(bootstrap, topic, len(partitions)).values() for value in values]
