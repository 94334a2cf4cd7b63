"""What released consumers read from a topic, from its beginning to its end."""

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.broker.raw import PATIENCE_SECONDS

CONSUMER = {
    "group.id": "no group is joined",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 5,  # the end of a partition is told after it
    "auto.offset.reset": "earliest",
}


def consume(
    bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_committed"
) -> dict[int, list[bytes]]:
    """The values of each partition that librdkafka hands out before it reports the end of them all."""
    found = consume_records(bootstrap_servers, topic, partitions, isolation)
    return {index: [value for _, value in records] for index, records in found.items()}


def consume_records(
    bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_committed"
) -> dict[int, list[tuple[bytes, bytes]]]:
    """As :func:`consume`, with the keys."""
    records: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(partitions)}
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "isolation.level": isolation, **CONSUMER})
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in records])
        waiting_for = set(records)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while waiting_for:
            assert time.monotonic() < deadline, f"no end of partitions {waiting_for}"
            for message in consumer.consume(1000, timeout=0.05):
                error = message.error()
                if error is None:
                    records[message.partition()].append((message.key(), message.value()))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting_for.discard(message.partition())
    finally:
        consumer.close()
    return records
