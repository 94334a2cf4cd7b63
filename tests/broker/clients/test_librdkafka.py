"""confluent-kafka against the broker: producing, transactions of every outcome, both isolations, a broker that dies."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.records.compression import Codec
from dualwrite.records.header import iterate_batches
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import CONSUMER, consume
from tests.support.requests.calls import (
    LIBRDKAFKA_TWO_PHASE_TIMEOUT,
    TWO_PHASE_TIMEOUT,
    describe,
    fetch,
    identity,
    init,
    list_offset,
    ongoing,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS, eventually


@pytest.fixture
def servers(shared_broker: EmbeddedBroker) -> str:
    return shared_broker.bootstrap_servers


def created(servers: str, partitions: int = 1) -> str:
    """A new topic, by the client's own administration."""
    name = unique("topic")
    admin = AdminClient({"bootstrap.servers": servers})  # while it lives, so do its answers
    (made,) = admin.create_topics([NewTopic(name, partitions)]).values()
    made.result(PATIENCE_SECONDS)
    return name


def transactional(servers: str, transactional_id: str, **more: object) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": transactional_id,
            "message.timeout.ms": 20_000,
            "transaction.timeout.ms": 30_000,
            "linger.ms": 0,
            **{key.replace("_", "."): value for key, value in more.items()},
        }
    )
    producer.init_transactions(PATIENCE_SECONDS)
    return producer


class DeliveryCounter:
    """Counts what was reported, and refuses failures."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = {}

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.offsets.setdefault(message.partition(), []).append(message.offset())


def test_topics_are_created_and_listed(servers: str) -> None:
    name = created(servers, partitions=3)
    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_topics(timeout=PATIENCE_SECONDS)
    assert sorted(listed.topics[name].partitions) == [0, 1, 2]
    with pytest.raises(KafkaException, match="already exists"):
        admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_SECONDS)


def test_a_topic_is_made_by_the_first_record(servers: str) -> None:
    name = unique("auto")
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(name, b"v")
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert consume(servers, name) == {0: [b"v"]}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_keep_their_order_in_each_partition(servers: str, acks: str) -> None:
    name, delivered = created(servers, partitions=3), DeliveryCounter()
    producer = Producer({"bootstrap.servers": servers, "acks": acks, "max.in.flight.requests.per.connection": 1})
    for number in range(3000):
        producer.produce(name, b"%d" % number, partition=number % 3, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    expected = {index: [b"%d" % number for number in range(index, 3000, 3)] for index in range(3)}
    assert consume(servers, name, 3) == expected
    if acks != "0":
        assert delivered.offsets == {index: list(range(1000)) for index in range(3)}


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_whole(servers: str, commit: bool) -> None:
    name = created(servers, partitions=3)
    producer = transactional(servers, unique("tx"))
    producer.begin_transaction()
    for index in range(3):
        producer.produce(name, b"v", partition=index)
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert consume(servers, name, 3) == {0: [], 1: [], 2: []}
    if commit:
        producer.commit_transaction(PATIENCE_SECONDS)
    else:
        producer.abort_transaction(PATIENCE_SECONDS)
    assert consume(servers, name, 3) == {index: [b"v"] if commit else [] for index in range(3)}
    assert consume(servers, name, 3, "read_uncommitted") == {index: [b"v"] for index in range(3)}


def test_transactions_of_one_session_follow_each_other(servers: str) -> None:
    name = created(servers, partitions=2)
    producer = transactional(servers, unique("tx"))
    kept = []
    for number in range(40):
        producer.begin_transaction()
        for index in (0, 1):
            producer.produce(name, b"%d" % number, partition=index)
        if number % 3:
            producer.commit_transaction(PATIENCE_SECONDS)
            kept.append(b"%d" % number)
        else:
            producer.abort_transaction(PATIENCE_SECONDS)
    assert consume(servers, name, 2) == {0: kept, 1: kept}


def test_a_transaction_of_many_batches_is_read_in_order(servers: str) -> None:
    name, values = created(servers), [b"%d" % number * 20 for number in range(5000)]
    producer = transactional(servers, unique("tx"), batch_size=5000)
    producer.begin_transaction()
    for value in values:
        producer.produce(name, value)
        producer.poll(0)
    producer.commit_transaction(PATIENCE_SECONDS)
    assert consume(servers, name)[0] == values


def test_a_second_producer_fences_the_first(servers: str) -> None:
    name, transactional_id = created(servers), unique("tx")
    first = transactional(servers, transactional_id)
    first.begin_transaction()
    first.produce(name, b"first")
    first.flush(PATIENCE_SECONDS)
    second = transactional(servers, transactional_id)
    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(PATIENCE_SECONDS)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    assert refused.value.args[0].fatal()
    second.begin_transaction()
    second.produce(name, b"second")
    second.commit_transaction(PATIENCE_SECONDS)
    assert consume(servers, name) == {0: [b"second"]}


@pytest.mark.parametrize("timeout_ms", [TWO_PHASE_TIMEOUT, LIBRDKAFKA_TWO_PHASE_TIMEOUT])
def test_a_prepared_transaction_stays_open_when_its_producer_disconnects(servers: str, timeout_ms: int) -> None:
    name, transactional_id = created(servers), unique("tx")
    producer = transactional(servers, transactional_id, transaction_timeout_ms=timeout_ms)
    producer.begin_transaction()
    producer.produce(name, b"prepared")
    assert producer.flush(PATIENCE_SECONDS) == 0
    del producer
    with RawClient(servers) as client:
        state = describe(client, transactional_id)
        assert (state.transaction_state, state.transaction_timeout_ms) == ("Ongoing", TWO_PHASE_TIMEOUT)
        answer = init(client, transactional_id, two_phase=True, keep=True)
        assert ongoing(answer).producer_id == state.producer_id
        recovered = identity(answer)
    assert recovered.epoch == state.producer_epoch + 1
    assert consume(servers, name) == {0: []}


# --- a consumer's questions


@pytest.fixture
def consumer(servers: str) -> Iterator[Consumer]:
    made = Consumer({"bootstrap.servers": servers, **CONSUMER})
    yield made
    made.close()


def test_a_consumer_asks_where_partitions_begin_and_end(servers: str, consumer: Consumer) -> None:
    name = created(servers)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(10):
        producer.produce(name, b"v", timestamp=1000 + number)
        producer.flush(PATIENCE_SECONDS)
    assert consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=PATIENCE_SECONDS) == (0, 10)
    (found,) = consumer.offsets_for_times([TopicPartition(name, 0, 1004)], timeout=PATIENCE_SECONDS)
    assert found.offset == 4


@pytest.mark.slow
def test_a_consumer_that_waits_is_woken(servers: str, consumer: Consumer) -> None:
    name = created(servers)
    consumer.assign([TopicPartition(name, 0, 0)])
    end = consumer.poll(PATIENCE_SECONDS)
    assert end.error().code() == KafkaError._PARTITION_EOF
    producer = transactional(servers, unique("tx"))
    producer.begin_transaction()
    producer.produce(name, b"v")
    producer.commit_transaction(PATIENCE_SECONDS)
    assert consumer.poll(PATIENCE_SECONDS).value() == b"v"


def test_a_position_that_was_never_written_is_reported(servers: str, consumer: Consumer) -> None:
    name = created(servers)
    made = Consumer({"bootstrap.servers": servers, **CONSUMER, "auto.offset.reset": "error"})
    made.assign([TopicPartition(name, 0, 50)])
    message = made.poll(PATIENCE_SECONDS)
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    made.close()


# --- a broker that dies


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker that comes back on its own port, where its clients look for it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with ForkedBroker(tmp_path, listen=address) as running:
        yield running


@pytest.mark.slow
def test_an_idempotent_producer_continues_after_a_kill(mortal: EmbeddedBroker) -> None:
    servers = mortal.bootstrap_servers
    name, delivered = created(servers), DeliveryCounter()
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 1, "reconnect.backoff.max.ms": 200}
    )
    for number in range(4000):
        producer.produce(name, b"%d" % number, on_delivery=delivered)
        producer.poll(0)
        if number in (1000, 2500):
            mortal.kill()
            mortal.start()
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert delivered.offsets[0] == list(range(4000))
    assert consume(servers, name) == {0: [b"%d" % number for number in range(4000)]}


@pytest.mark.slow
def test_an_open_transaction_is_committed_by_its_producer_after_a_kill(mortal: EmbeddedBroker) -> None:
    servers = mortal.bootstrap_servers
    name = created(servers)
    producer = transactional(servers, "survivor", reconnect_backoff_max_ms=200)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(name, b"before %d" % number)
        assert producer.flush(PATIENCE_SECONDS) == 0
        mortal.kill()
        mortal.start()
        producer.produce(name, b"after %d" % number)
        producer.commit_transaction(PATIENCE_SECONDS)
    assert consume(servers, name)[0] == [b"%s %d" % (word, n) for n in range(3) for word in (b"before", b"after")]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_moment_is_found_to_the_record_in_batches_of_every_codec(servers: str, client: RawClient, codec: str) -> None:
    topic = created(servers)
    settings = {"compression.type": codec, "linger.ms": 60_000, "batch.num.messages": 100}  # one batch, however slow
    producer = Producer({"bootstrap.servers": servers, **settings})
    moments = [1000, 1010, 1030, 1020, 1040] * 20
    for moment in moments:
        producer.produce(topic, b"the same again and again " * 10, partition=0, timestamp=moment)
    assert eventually(lambda: producer.poll(0.1) + len(producer), lambda left: left == 0) == 0
    batches = [header for header, _ in iterate_batches(fetch(client, topic).records)]
    assert [(header.record_count, header.compression) for header in batches] == [(100, Codec[codec.upper()])]
    for wanted, offset in ((0, 0), (1005, 1), (1011, 2), (1031, 4), (-3, 4)):
        answer = list_offset(client, topic, wanted)
        assert (answer.timestamp, answer.offset) == (moments[offset], offset)
    assert list_offset(client, topic, 1041).offset == -1
