"""The broker for tests: topics of a test's own, what is visible in them, and the same address after a crash."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from dualwrite.errors import ConfigurationError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.testing.kafka import KafkaBroker
from tests.support.frozen import freeze, thaw
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), config={"num.partitions": "2"}) as broker:
        yield broker


def send(broker: KafkaBroker, topic: str, *values: str) -> None:
    producer = Producer({**broker.client_config})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def open_transaction(broker: KafkaBroker, topic: str, value: str) -> Producer:
    producer = Producer({**broker.client_config, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush()
    return producer


def test_every_topic_is_a_new_one(shared: KafkaBroker) -> None:
    first, second = shared.create_topic(), shared.create_topic()
    send(shared, first, "a")
    assert [record.value for record in shared.read(first)] == [b"a"]
    assert shared.read(second) == []


def test_a_topic_has_the_name_the_partitions_and_the_settings_that_were_asked_for(shared: KafkaBroker) -> None:
    assert shared.create_topic("orders", partitions=3, config={"cleanup.policy": "compact"}) == "orders"
    with pytest.raises(KafkaRefusedError, match=r"topic 'orders' was not created .*TOPIC_ALREADY_EXISTS"):
        shared.create_topic("orders")
    with pytest.raises(KafkaRefusedError, match="INVALID_TOPIC_EXCEPTION"):
        shared.create_topic("no/name")
    with pytest.raises(KafkaRefusedError, match=r"no\.setting.*INVALID_CONFIG"):
        shared.create_topic(config={"no.setting": "1"})


def test_records_come_whole_and_one_partition_after_the_other(shared: KafkaBroker) -> None:
    topic = shared.create_topic(partitions=2)
    producer = Producer({**shared.client_config})
    producer.produce(
        topic, b"v1", key=b"k", partition=1, timestamp=1_700_000_000_000, headers=[("h", b"x"), ("n", None)]
    )
    producer.produce(topic, None, key=b"k", partition=1)
    producer.produce(topic, b"v0", partition=0)
    producer.flush()
    first, second, third = shared.read(topic)
    assert (first.topic, first.partition, first.offset, first.key, first.value) == (topic, 0, 0, None, b"v0")
    assert (second.partition, second.offset, second.timestamp) == (1, 0, 1_700_000_000_000)
    assert second.headers == (("h", b"x"), ("n", None))
    assert (third.partition, third.offset, third.key, third.value, third.headers) == (1, 1, b"k", None, ())


def test_only_committed_records_are_read_unless_others_are_asked_for(shared: KafkaBroker) -> None:
    topic = shared.create_topic()
    send(shared, topic, "before")
    producer = open_transaction(shared, topic, "in doubt")
    assert [record.value for record in shared.read(topic)] == [b"before"]
    everything = shared.read(topic, isolation_level="read_uncommitted")
    assert [record.value for record in everything] == [b"before", b"in doubt"]
    producer.commit_transaction()
    assert [record.value for record in shared.read(topic)] == [b"before", b"in doubt"]


def test_a_topic_that_does_not_exist_has_no_records_and_is_not_made(shared: KafkaBroker) -> None:
    assert shared.read("nowhere") == []
    assert shared.create_topic("nowhere") == "nowhere"


def test_a_record_that_is_still_under_way_can_be_waited_for(shared: KafkaBroker) -> None:
    topic = shared.create_topic()
    producer = open_transaction(shared, topic, "late")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(shared.read, topic, minimum=1, timeout=30)
        producer.commit_transaction()
        assert [record.value for record in reading.result()] == [b"late"]


def test_too_few_records_are_a_failed_assertion_that_shows_them(shared: KafkaBroker) -> None:
    topic = shared.create_topic()
    send(shared, topic, "one")
    with pytest.raises(AssertionError, match=r"1 of 2 records after 0\.2 s: \[\(None, b'one'\)\]"):
        shared.read(topic, minimum=2, timeout=0.2)


@pytest.mark.slow
def test_after_a_reset_the_next_test_finds_neither_topics_nor_offsets(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path) as broker:
        broker.reset()  # there is nothing yet
        for name in ("one", "two", "__three"):
            send(broker, broker.create_topic(name), "left over")
        consumer = Consumer({**broker.client_config, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["one"])
        assert eventually(lambda: consumer.poll(0.1), bool) is not None
        consumer.commit(asynchronous=False)
        with pytest.raises(KafkaRefusedError, match=r"'readers' was not deleted: .*NON_EMPTY_GROUP"):
            broker.reset()
        consumer.close()
        broker.reset()
        assert broker.read("one") == broker.read("two") == broker.read("__three") == []
        admin = AdminClient(broker.client_config)
        assert [name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")] == []
        assert admin.list_consumer_groups().result().valid == []
        assert broker.create_topic("one") == "one"
        send(broker, "one", "of the next test")
        assert [record.value for record in broker.read("one")] == [b"of the next test"]


def test_the_brokers_settings_are_taken(shared: KafkaBroker) -> None:
    producer = Producer({**shared.client_config})
    assert len(producer.list_topics("of-two-partitions", 10).topics["of-two-partitions"].partitions) == 2


def test_after_a_crash_it_has_everything_at_the_same_address(shared: KafkaBroker) -> None:
    topic = shared.create_topic()
    send(shared, topic, "kept")
    address = shared.bootstrap_servers
    shared.kill()
    with pytest.raises(ConfigurationError, match="not running"):
        shared.read(topic)
    assert shared.start().bootstrap_servers == address
    assert [record.value for record in shared.read(topic)] == [b"kept"]


def test_a_broker_that_does_not_answer_is_unavailable(shared: KafkaBroker) -> None:
    topic = shared.create_topic()
    assert shared.pid is not None
    freeze(shared.pid)
    try:
        with pytest.raises(KafkaUnavailableError):
            shared.read(topic, timeout=0.3)
    finally:
        thaw(shared.pid)
