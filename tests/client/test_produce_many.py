"""produce_many() has the same result as one produce() after the other: the same records, order and partitions."""

import os
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import confluent_kafka
import pytest

from dualwrite import EmbeddedBroker, TwoPhaseProducer
from dualwrite.client.drivers.blocking import BlockingDriver
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import InvalidTransactionStateError, KafkaRefusedError, PrepareFailedError
from dualwrite.records.outgoing import OutgoingRecord
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name

Make = Callable[..., TwoPhaseProducer]
PARTITIONS = 3


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    """Makes producers that are in a transaction."""
    made: list[TwoPhaseProducer] = []

    def producer(**config: Any) -> TwoPhaseProducer:
        basis = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": fresh_name()}
        given = {key if key == "on_delivery" else key.replace("_", "."): value for key, value in config.items()}
        made.append(TwoPhaseProducer({**basis, **given}))
        made[-1].init_transactions()
        made[-1].begin_transaction()
        return made[-1]

    yield producer
    for each in made:
        each.close()


@pytest.fixture
def topics(broker: EmbeddedBroker) -> tuple[str, str]:
    """Two that are alike."""
    names = fresh_name(), fresh_name()
    for name in names:
        create_topic(broker.bootstrap_servers, name, PARTITIONS)
    return names


def read(broker: EmbeddedBroker, topic: str) -> list[tuple[Any, ...]]:
    """All committed records of ``topic``, by partition and offset: what each is, and where."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    begin = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(topic, number, begin) for number in range(PARTITIONS)])
    found: list[tuple[Any, ...]] = []
    ended = 0
    while ended < PARTITIONS:
        message = consumer.poll(20)
        assert message is not None
        if message.error() is None:
            place = message.partition(), message.offset()
            found.append((*place, message.key(), message.value(), message.headers()))
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ended += 1
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def records(number: int) -> list[tuple[Any, ...]]:
    """Of all kinds: with and without keys and values, with headers, and for a partition of their own."""
    return [
        (
            None if each % 11 == 0 else f"{each:05}" + "." * (each % 90),
            None if each % 13 == 0 else b"%d" % (each % 50),
            each % PARTITIONS if each % 7 == 0 or each % 13 == 0 else -1,
            [("a", b"1"), ("b", None)] if each % 5 == 0 else None,
        )
        for each in range(number)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 300])
@pytest.mark.parametrize("config", [{}, {"batch_size": 2000}, {"queue_buffering_max_messages": 25}, {"linger_ms": 0}])
def test_produce_many_puts_records_where_single_calls_would(
    broker: EmbeddedBroker, make: Make, topics: tuple[str, str], size: int, config: dict[str, Any]
) -> None:
    one, many = topics
    given = records(700)
    producer = make(**config)
    for value, key, partition, headers in given:
        producer.produce(one, value, key, partition, headers=headers)
    for begin in range(0, len(given), size):
        producer.produce_many(
            OutgoingRecord(many, value, key, partition, headers=headers)
            for value, key, partition, headers in given[begin : begin + size]
        )
    producer.commit_transaction()
    written = read(broker, many)
    assert written == read(broker, one)
    assert len(written) == len(given)


def test_records_of_an_unknown_topic_are_sent_once_it_is_known(broker: EmbeddedBroker, make: Make) -> None:
    topic = fresh_name()
    producer = make()
    producer.produce_many([])
    producer.produce_many([OutgoingRecord(topic, b"%d" % number, partition=0) for number in range(500)])
    producer.commit_transaction()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": topic})
    ends = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
    consumer.close()
    assert ends == (0, 501)  # with the marker


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"value": 1}, TypeError),
        ({"key": 1.5}, TypeError),
        ({"partition": -2}, ValueError),
        ({"partition": True}, TypeError),
        ({"headers": [("a", 1)]}, TypeError),
        ({"value": "\ud800"}, ValueError),
        ({"topic": 1}, TypeError),
    ],
)
def test_a_wrong_argument_is_refused_and_the_transaction_continues(
    broker: EmbeddedBroker, make: Make, topics: tuple[str, str], record: dict[str, Any], error: type[Exception]
) -> None:
    producer = make()
    with pytest.raises(error):
        producer.produce_many(
            OutgoingRecord(**{"topic": topics[0], **fields}) for fields in ({"value": "before"}, record)
        )
    producer.produce_many([OutgoingRecord(topics[0], "after", partition=0)])
    producer.commit_transaction()
    assert [value for _, _, _, value, _ in read(broker, topics[0])] == [b"after"]


@pytest.mark.parametrize("bad", ["a topic of no name", "a large record"])
def test_a_record_that_no_broker_accepts_fails_the_transaction(make: Make, topics: tuple[str, str], bad: str) -> None:
    producer = make(message_max_bytes=2000)
    refused = {
        "a topic of no name": OutgoingRecord("no/name", "v"),
        "a large record": OutgoingRecord(topics[0], "v" * 3000, partition=0),
    }[bad]
    with pytest.raises(KafkaRefusedError):
        producer.produce_many([OutgoingRecord(topics[0], "fits", partition=0), refused])
    with pytest.raises(KafkaRefusedError):
        producer.commit_transaction()
    producer.abort_transaction()


@pytest.mark.slow
def test_an_interrupted_produce_many_can_only_be_aborted(
    broker: EmbeddedBroker, make: Make, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make(batch_size=500)

    def interrupted(_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BlockingDriver, "pump", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.produce_many([OutgoingRecord(topics[0], b"%d" % number) for number in range(100)])
    with pytest.raises(PrepareFailedError, match="KeyboardInterrupt"):
        producer.prepare_transaction()
    producer.abort_transaction()
    assert producer.state is ProducerState.READY
    assert read(broker, topics[0]) == []


def test_the_callback_is_called_for_each_record(make: Make, topics: tuple[str, str]) -> None:
    told: list[tuple[Any, Any]] = []
    producer = make(on_delivery=lambda error, record: told.append((error, record.value())))
    producer.produce_many([OutgoingRecord(topics[0], b"%d" % number) for number in range(50)])
    producer.commit_transaction()
    assert sorted(told, key=lambda each: int(each[1])) == [(None, b"%d" % number) for number in range(50)]


def test_a_record_is_added_at_once_only_while_there_is_nothing_to_send(
    broker: EmbeddedBroker, make: Make, topics: tuple[str, str]
) -> None:
    producer, record, added = make(batch_size=500), OutgoingRecord(topics[0], "x" * 100), 0
    producer.produce_record(record)
    while producer.produce_at_once(record):
        added += 1
        assert added < 100, "no batch is ever sent"
    assert len(producer) == 1 + added
    producer.produce_record(record)
    assert producer.produce_at_once(record)
    producer.commit_transaction()
    assert len(read(broker, topics[0])) == added + 3


def test_another_process_and_no_transaction_are_refused(
    make: Make, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, record = make(), OutgoingRecord(topics[0], "v")
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        for produce, given in (
            (producer.produce_many, [record]),
            (producer.produce_record, record),
            (producer.produce_at_once, record),
        ):
            with pytest.raises(InvalidTransactionStateError, match="make a new one after a fork"):
                produce(given)
    assert len(producer) == 0
    producer.abort_transaction()
    with pytest.raises(InvalidTransactionStateError, match=r"produce\(\)"):
        producer.produce_many([OutgoingRecord(topics[0], "v")])
