"""Consumers with their default settings that assign their partitions themselves: each goes on where its group was."""

import threading
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.structs import OffsetAndMetadata

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets, sockets_are_collected_here
from tests.support.requests.calls import batch, new_topic, produce, unique
from tests.support.requests.offset_calls import committed
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually

__all__ = ["sockets_are_collected_here"]

pytestmark = leaves_sockets


@pytest.fixture
def servers(shared_broker: EmbeddedBroker) -> str:
    return shared_broker.bootstrap_servers


@pytest.fixture
def topic(client: RawClient) -> str:
    """A topic with five records, ``0`` to ``4``."""
    name = new_topic(client)
    write(client, name, 0, 5)
    return name


def write(client: RawClient, topic: str, first: int, before: int) -> None:
    produce(client, topic, batch([b"%d" % number for number in range(first, before)]))


def values(first: int, before: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, before)]


def close(consumer: Consumer | KafkaConsumer) -> None:
    """Close ``consumer``, which must not take for ever."""
    closing = threading.Thread(target=consumer.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive(), f"the consumer is still closing after {PATIENCE_SECONDS} s"


def librdkafka(servers: str, group: str, **more: object) -> Consumer:
    """A consumer of confluent-kafka with nothing but what it must have, and ``more``."""
    settings = {key.replace("_", "."): value for key, value in more.items()}
    return Consumer({"bootstrap.servers": servers, "group.id": group, **settings})


def read(consumer: Consumer, count: int) -> list[bytes]:
    """The next ``count`` records, or fewer if no more come."""
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_SECONDS)
        if message is None:
            break
        assert message.error() is None, message.error()
        found.append(message.value())
    return found


@pytest.mark.slow
def test_librdkafka_without_settings_starts_at_the_end_and_resumes_where_it_was_closed(
    client: RawClient, servers: str, topic: str
) -> None:
    group = unique("group")
    first = librdkafka(servers, group, enable_partition_eof=True)
    first.assign([TopicPartition(topic, 0)])
    end = first.poll(PATIENCE_SECONDS)
    assert end is not None
    assert (end.error().code(), end.offset()) == (KafkaError._PARTITION_EOF, 5)
    write(client, topic, 5, 8)
    assert read(first, 2) == values(5, 7)
    close(first)
    assert committed(client, group) == {(topic, 0): (7, 0, "")}

    second = librdkafka(servers, group)
    second.assign([TopicPartition(topic, 0)])
    assert read(second, 1) == values(7, 8)
    close(second)
    assert committed(client, group) == {(topic, 0): (8, 0, "")}


def test_librdkafka_starts_at_the_beginning_where_the_group_has_no_commit(
    client: RawClient, servers: str, topic: str
) -> None:
    group = unique("group")
    for expected in (values(0, 3), values(3, 5)):
        consumer = librdkafka(servers, group, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, 0)])
        assert read(consumer, len(expected)) == expected
        close(consumer)


@pytest.mark.slow
def test_librdkafka_commits_in_the_background(client: RawClient, servers: str, topic: str) -> None:
    group = unique("group")
    consumer = librdkafka(servers, group, auto_offset_reset="earliest", auto_commit_interval_ms=50)
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 5) == values(0, 5)
    found = eventually(lambda: committed(client, group), lambda found: bool(found))
    assert found == {(topic, 0): (5, 0, "")}
    close(consumer)


@pytest.mark.slow_cases
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_librdkafka_finds_its_explicit_commit_again(
    client: RawClient, servers: str, topic: str, isolation: str
) -> None:
    group = unique("group")
    consumer = librdkafka(servers, group, enable_auto_commit=False, isolation_level=isolation)
    partition = TopicPartition(topic, 0)
    (before,) = consumer.committed([partition], PATIENCE_SECONDS)
    assert (before.offset, before.error) == (-1001, None), "OFFSET_INVALID: no commit"
    (done,) = consumer.commit(offsets=[TopicPartition(topic, 0, 3, metadata="where")], asynchronous=False)
    assert done.error is None
    (after,) = consumer.committed([partition], PATIENCE_SECONDS)
    assert (after.offset, after.metadata, after.error) == (3, "where", None)
    consumer.assign([partition])
    assert read(consumer, 2) == values(3, 5)
    close(consumer)
    assert committed(client, group)[topic, 0][0] == 3


def test_librdkafka_closes_without_having_read_anything_and_commits_nothing(
    client: RawClient, servers: str, topic: str
) -> None:
    group = unique("group")
    consumer = librdkafka(servers, group)
    consumer.assign([TopicPartition(topic, 0)])
    close(consumer)
    assert committed(client, group) == {}


@pytest.mark.slow
def test_librdkafka_resumes_after_the_broker_was_killed(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        write(client, topic, 0, 5)
    for expected in (values(0, 3), values(3, 5)):
        consumer = librdkafka(broker.bootstrap_servers, "group", auto_offset_reset="earliest")
        consumer.assign([TopicPartition(topic, 0)])
        assert read(consumer, len(expected)) == expected
        close(consumer)
        broker.kill()
        broker.start()


KafkaPython = Callable[..., KafkaConsumer]


@pytest.fixture
def kafka_python(servers: str, topic: str) -> KafkaPython:
    """Makes consumers of kafka-python that are assigned the topic's partition."""

    def make(group: str, **more: object) -> KafkaConsumer:
        consumer = KafkaConsumer(bootstrap_servers=servers, group_id=group, **more)
        consumer.assign([KafkaTopicPartition(topic, 0)])
        return consumer

    return make


def next_records(consumer: KafkaConsumer, count: int) -> list[bytes]:
    """The next ``count`` records, or fewer if no more come."""
    found: list[bytes] = []
    while len(found) < count:
        records = consumer.poll(timeout_ms=int(PATIENCE_SECONDS * 1000), max_records=count - len(found))
        if not records:
            break
        found += [record.value for several in records.values() for record in several]
    return found


@pytest.mark.slow
def test_kafka_python_without_settings_starts_at_the_end_and_resumes_where_it_was_closed(
    client: RawClient, topic: str, kafka_python: KafkaPython
) -> None:
    group = unique("group")
    first = kafka_python(group)
    assert first.position(KafkaTopicPartition(topic, 0)) == 5
    write(client, topic, 5, 8)
    assert next_records(first, 2) == values(5, 7)
    close(first)
    assert committed(client, group)[topic, 0][0] == 7

    second = kafka_python(group)
    assert next_records(second, 1) == values(7, 8)
    close(second)
    assert committed(client, group)[topic, 0][0] == 8


@pytest.mark.slow
def test_kafka_python_starts_at_the_beginning_where_the_group_has_no_commit(kafka_python: KafkaPython) -> None:
    group = unique("group")
    for expected in (values(0, 3), values(3, 5)):
        consumer = kafka_python(group, auto_offset_reset="earliest")
        assert next_records(consumer, len(expected)) == expected
        close(consumer)


def test_kafka_python_finds_its_explicit_commit_again(client: RawClient, topic: str, kafka_python: KafkaPython) -> None:
    group, partition = unique("group"), KafkaTopicPartition(topic, 0)
    consumer = kafka_python(group, enable_auto_commit=False)
    assert consumer.committed(partition) is None
    consumer.commit({partition: OffsetAndMetadata(3, "where", -1)})
    assert consumer.committed(partition, metadata=True) == OffsetAndMetadata(3, "where", -1)
    assert next_records(consumer, 2) == values(3, 5)
    close(consumer)
    assert committed(client, group) == {(topic, 0): (3, -1, "where")}


@pytest.mark.slow
def test_the_two_clients_share_the_commits_of_a_group(
    servers: str, topic: str, client: RawClient, kafka_python: KafkaPython
) -> None:
    group = unique("group")
    consumer = librdkafka(servers, group, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(topic, 0)])
    assert read(consumer, 2) == values(0, 2)
    close(consumer)
    other = kafka_python(group)
    assert next_records(other, 3) == values(2, 5)
    close(other)
    assert committed(client, group)[topic, 0][0] == 5
