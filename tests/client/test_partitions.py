"""The native producer chooses the same partitions as librdkafka and the Java producer, record by record."""

import random
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.encoding.partitioners import PARTITIONERS, make_partitioner
from dualwrite.client.producer.two_phase_producer import TwoPhaseProducer
from tests.support.apache_kafka.single_node import java_program
from tests.support.requests.calls import new_topic
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

HERE = Path(__file__).parent
JAVAS = HERE / "java_partitions.csv"
"""Lines of a key in hexadecimal, a number of partitions, and what Partitions.java answered with Apache Kafka 4.4.0."""

NAMES = [name for name in PARTITIONERS if name != "random"]


def some_keys() -> list[bytes]:
    """Keys of many kinds, the same ones at each run."""
    source = random.Random(939)
    keys = [b"", b"\0", b"0", b"key", bytes(range(256)), "ключ".encode(), "鍵".encode(), "🗝️".encode(), b"\xff" * 7]
    keys += [b"%d" % number for number in range(300)]
    keys += [f"customer-{source.randrange(10**9)}".encode() for _ in range(300)]
    keys += [source.randbytes(source.randrange(1, 50)) for _ in range(600)]
    return keys


KEYS = some_keys()


def refuse(_count: int) -> int:
    raise AssertionError("the random source was asked")


@pytest.fixture(scope="module")
def topics(broker: EmbeddedBroker) -> dict[int, str]:
    """A topic for each of several numbers of partitions."""
    with RawClient(broker.bootstrap_servers) as client:
        return {count: new_topic(client, count) for count in (1, 3, 12, 50)}


def delivered(broker: EmbeddedBroker, name: str, topic: str, keys: list[bytes | None]) -> list[int]:
    """The partitions that librdkafka's partitioner ``name`` gives to ``keys``."""
    partitions: dict[int, int] = {}

    def report(number: int, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        partitions[number] = message.partition()

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": name, "linger.ms": 20})
    for number, key in enumerate(keys):
        producer.produce(topic, b"", key, on_delivery=lambda *result, number=number: report(number, *result))
    assert producer.flush(PATIENCE_SECONDS) == 0
    return [partitions[number] for number in range(len(keys))]


@pytest.mark.slow_cases
@pytest.mark.parametrize("name", NAMES)
def test_librdkafka_puts_each_record_where_the_native_producer_would(
    broker: EmbeddedBroker, topics: dict[int, str], name: str
) -> None:
    keys: list[bytes | None] = [key for key in KEYS if key or name != "consistent_random"]
    if not name.endswith("random"):
        keys += [None]
    partition_of = make_partitioner(name, refuse)
    for count, topic in topics.items():
        assert delivered(broker, name, topic, keys) == [partition_of(key, count) for key in keys]


@pytest.mark.slow_cases
def test_the_native_producer_puts_each_record_where_librdkafka_does(
    broker: EmbeddedBroker, topics: dict[int, str]
) -> None:
    keys: list[bytes | None] = [key for key in KEYS if key]
    count, topic = 12, topics[12]
    placed: dict[bytes | None, int] = {}

    def report(error: Exception | None, record: Any) -> None:
        assert error is None, error
        placed[record.key()] = record.partition()

    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "partitions", "on_delivery": report}
    for name in NAMES:
        placed.clear()
        with TwoPhaseProducer(config | {"partitioner": name}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for key in keys:
                producer.produce(topic, b"", key)
            producer.commit_transaction()
        partition_of = make_partitioner(name, refuse)
        assert placed == {key: partition_of(key, count) for key in keys}


@pytest.mark.parametrize(
    ("name", "linger", "is_spread"),
    [
        ("consistent_random", 10, False),
        ("consistent_random", 0, True),
        ("murmur2_random", 10, False),
        ("murmur2_random", 0, True),
        ("random", 10, True),
        ("consistent", 0, False),
    ],
)
def test_records_without_a_key_share_a_partition_for_a_batch_unless_that_is_not_wanted(
    broker: EmbeddedBroker, topics: dict[int, str], name: str, linger: int, is_spread: bool
) -> None:
    used: set[int] = set()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "sticky", "partitioner": name}
    with TwoPhaseProducer(config | {"sticky.partitioning.linger.ms": linger}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(300):
            producer.produce(topics[12], b"", on_delivery=lambda _, record: used.add(record.partition()))
        producer.commit_transaction()
    assert (len(used) > 1) is is_spread


@pytest.mark.slow
def test_the_java_producer_gives_the_same_partitions_as_when_the_table_was_made() -> None:
    rows = [line.split(",") for line in JAVAS.read_text().splitlines()]
    assert len(rows) == len(KEYS)
    for name in ("murmur2", "murmur2_random"):
        partition_of = make_partitioner(name, refuse)
        for key, count, partition in rows:
            assert partition_of(bytes.fromhex(key), int(count)) == int(partition), (name, key)


@pytest.mark.slow
@pytest.mark.jvm
def test_the_java_producer_still_gives_these_partitions() -> None:
    asked = [",".join(line.split(",")[:2]) for line in JAVAS.read_text().splitlines()]
    done = java_program(HERE / "java" / "Partitions.java", stdin="\n".join(asked))
    answered = done.stdout.split()
    assert [f"{line},{partition}" for line, partition in zip(asked, answered, strict=True)] == (
        JAVAS.read_text().splitlines()
    ), done.stderr
