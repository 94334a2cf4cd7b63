"""kafka-python against the broker: its administration, its producer with transactions, its consumer."""

from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka.admin import NewTopic, TransactionState
from kafka.errors import ProducerFencedError, TopicAlreadyExistsError

from dualwrite.broker.embedded import EmbeddedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.kafka_python_sockets import leaves_sockets, sockets_are_collected_here
from tests.support.requests.calls import batch, fetch, new_topic, produce, unique
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import PATIENCE_SECONDS

Producers = Callable[..., KafkaProducer]

__all__ = ["sockets_are_collected_here"]

pytestmark = leaves_sockets


@pytest.fixture
def servers(shared_broker: EmbeddedBroker) -> str:
    return shared_broker.bootstrap_servers


@pytest.fixture
def admin(servers: str) -> Iterator[KafkaAdminClient]:
    made = KafkaAdminClient(bootstrap_servers=servers)
    yield made
    made.close()


@pytest.fixture
def producer_of(servers: str) -> Iterator[Producers]:
    """Makes producers, and closes them."""
    made: list[KafkaProducer] = []

    def make(**settings: object) -> KafkaProducer:
        made.append(KafkaProducer(bootstrap_servers=servers, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close()


def values_of(servers: str, topic: str, partitions: int = 1, **more: object) -> list[list[bytes]]:
    """The values of each partition up to the end that ``more``'s isolation sees."""
    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False, **more)
    assigned = [KafkaTopicPartition(topic, index) for index in range(partitions)]
    consumer.assign(assigned)
    ends = consumer.end_offsets(assigned)
    values: list[list[bytes]] = [[] for _ in assigned]
    while any(consumer.position(partition) < ends[partition] for partition in assigned):
        for partition, records in consumer.poll(timeout_ms=100).items():
            values[partition.partition] += [record.value for record in records]
    consumer.close()
    return values


@pytest.mark.slow
def test_topics_are_created_and_described(admin: KafkaAdminClient) -> None:
    name = unique("topic")
    admin.create_topics([NewTopic(name=name, num_partitions=3, replication_factor=1)])
    (described,) = admin.describe_topics([name])
    assert len(described["partitions"]) == 3
    assert name in admin.list_topics()
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name=name, num_partitions=1, replication_factor=1)])


@pytest.mark.slow_cases
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_are_produced_and_consumed_in_order(
    client: RawClient, servers: str, acks: object, producer_of: Producers
) -> None:
    topic = new_topic(client, partitions=2)
    idempotent = acks == "all"
    producer = producer_of(acks=acks, enable_idempotence=idempotent, max_in_flight_requests_per_connection=1)
    sent = [producer.send(topic, b"%d" % number, partition=number % 2) for number in range(400)]
    producer.flush(PATIENCE_SECONDS)
    assert values_of(servers, topic, 2) == [[b"%d" % n for n in range(first, 400, 2)] for first in (0, 1)]
    if acks != 0:
        assert [future.get().offset for future in sent[::2]] == list(range(200))


@pytest.mark.slow_cases
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_whole(client: RawClient, servers: str, commit: bool, producer_of: Producers) -> None:
    topic = new_topic(client, partitions=2)
    producer = producer_of(transactional_id=unique("tx"))
    producer.init_transactions()
    kept = []
    for number in range(5):
        producer.begin_transaction()
        for index in (0, 1):
            producer.send(topic, b"%d" % number, partition=index).get(PATIENCE_SECONDS)  # an abort drops what waits
        if commit or number % 2:
            producer.commit_transaction()
            kept.append(b"%d" % number)
        else:
            producer.abort_transaction()
    everything = [b"%d" % number for number in range(5)]
    assert values_of(servers, topic, 2, isolation_level="read_committed") == [kept, kept]
    assert values_of(servers, topic, 2) == [everything, everything]
    assert consume(servers, topic, 2) == {0: kept, 1: kept}


def test_a_second_producer_fences_the_first(client: RawClient, servers: str, producer_of: Producers) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    first, second = (producer_of(transactional_id=transactional_id) for _ in range(2))
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"first").get(PATIENCE_SECONDS)
    second.init_transactions()
    with pytest.raises(ProducerFencedError):
        first.commit_transaction()
    second.begin_transaction()
    second.send(topic, b"second")
    second.commit_transaction()
    assert values_of(servers, topic, isolation_level="read_committed") == [[b"second"]]


@pytest.mark.slow
def test_a_consumer_asks_where_partitions_begin_and_end_and_where_a_moment_is(client: RawClient, servers: str) -> None:
    topic = new_topic(client)
    for number in range(5):
        produce(client, topic, batch([b"v"], timestamp=1000 + number))
    partition = KafkaTopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=servers)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 5}
    found = consumer.offsets_for_times({partition: 1003})[partition]
    assert (found.offset, found.timestamp) == (3, 1003)
    assert consumer.offsets_for_times({partition: 2000}) == {partition: None}
    consumer.close()


def test_compressed_batches_of_kafka_python_are_stored_compressed_and_read_back(
    client: RawClient, servers: str, producer_of: Producers
) -> None:
    topic, values = new_topic(client), [b"%d " % number * 30 for number in range(200)]
    producer = producer_of(compression_type="gzip", linger_ms=10)
    for value in values:
        producer.send(topic, value)
    producer.flush(PATIENCE_SECONDS)
    assert len(fetch(client, topic).records) < sum(map(len, values))
    assert values_of(servers, topic) == [values]


@pytest.mark.slow
def test_transactions_and_producers_are_described(
    client: RawClient, servers: str, admin: KafkaAdminClient, producer_of: Producers
) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = producer_of(transactional_id=transactional_id)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"open").get(PATIENCE_SECONDS)
    (listed,) = (entry for entry in admin.list_transactions()[0] if entry.transactional_id == transactional_id)
    described = admin.describe_transactions([transactional_id])[transactional_id]
    assert described.state == listed.state == TransactionState.ONGOING
    assert described.producer_id == listed.producer_id
    assert described.topic_partitions == {KafkaTopicPartition(topic, 0)}
    producer.abort_transaction()
