"""Reads a topic with released consumers, from its beginning to its end."""

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from tests.support.waiting import PATIENCE_SECONDS

CONSUMER = {
    **CONNECT_AT_ONCE,
    "group.id": "no group is joined",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 5,  # the end of a partition is told after it
    "auto.offset.reset": "earliest",
}


def consume(
    bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_committed", minimum: int = 0
) -> dict[int, list[bytes]]:
    """The values of each partition that librdkafka hands out before it has reported the end of them all.

    :param minimum: read on until there are so many. Apache Kafka answers EndTxn before it has written the markers, so
        what was committed there a moment ago lies behind that end; the bundled broker answers when they are written.
    """
    found = consume_records(bootstrap_servers, topic, partitions, isolation, minimum)
    return {index: [value for _, value in records] for index, records in found.items()}


def consume_records(
    bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_committed", minimum: int = 0
) -> dict[int, list[tuple[bytes, bytes]]]:
    """As :func:`consume`, with the keys."""
    records: dict[int, list[tuple[bytes, bytes]]] = {index: [] for index in range(partitions)}
    for message in messages(bootstrap_servers, topic, partitions, isolation, minimum):
        records[message.partition()].append((message.key(), message.value()))
    return records


def messages(
    bootstrap_servers: str, topic: str, partitions: int = 1, isolation: str = "read_committed", minimum: int = 0
) -> Iterator[Message]:
    """As :func:`consume`, in the order in which they come, and without keeping them."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "isolation.level": isolation, **CONSUMER})
    try:
        unread, count = set(range(partitions)), 0
        consumer.assign([TopicPartition(topic, index, 0) for index in unread])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while unread or count < minimum:
            assert time.monotonic() < deadline, f"{count} messages, and no end of partitions {unread}"
            for message in consumer.consume(1000, timeout=0.05):
                error = message.error()
                if error is None:
                    yield message
                    count += 1
                    deadline = time.monotonic() + PATIENCE_SECONDS
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    unread.discard(message.partition())
    finally:
        consumer.close()
