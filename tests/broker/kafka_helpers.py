"""What the tests that talk to a broker through confluent-kafka share."""

import uuid

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE = 30.0


def fresh_name() -> str:
    """A name for a topic or a transactional id that nobody has used."""
    return f"t-{uuid.uuid4().hex[:12]}"


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create ``topic`` and wait until that is done."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE)


def visible(bootstrap: str, topic: str) -> list[bytes]:
    """The values that a read_committed consumer sees in ``topic`` up to the last stable offset, by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": fresh_name(),
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 5,  # the end of a partition is told after it
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = sorted(consumer.list_topics(topic, PATIENCE).topics[topic].partitions)
        values: dict[int, list[bytes]] = {partition: [] for partition in partitions}
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        waiting = set(partitions)
        while waiting:
            message = consumer.poll(PATIENCE)
            assert message is not None, f"no answer about {topic} in {PATIENCE} s"
            error = message.error()
            if error is None:
                values[message.partition()].append(message.value())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                waiting.discard(message.partition())
    finally:
        consumer.close()
    return [value for partition in partitions for value in values[partition]]
