"""TwoPhaseProducer against a real broker: its round trips, the state that it leaves, and what other clients see."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import confluent_kafka
import pytest

from dualwrite import EmbeddedBroker, TwoPhaseProducer
from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.net.socket_connection import SocketConnection
from dualwrite.client.protocol.requests import GroupMember
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer
from dualwrite.errors import (
    ConfigurationError,
    FencedError,
    InvalidTransactionStateError,
    KafkaRefusedError,
    KafkaUnavailableError,
    PrepareFailedError,
    TwoPhaseCommitUnavailableError,
)
from dualwrite.ids import PreparedTxnState, TopicPartition
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from tests.support.forked import ForkedBroker
from tests.support.peer_clients.consumers import consume
from tests.support.peer_clients.kafka_helpers import create_topic, fresh_name
from tests.support.servers.holding_proxy import HoldingProxy

Make = Callable[..., TwoPhaseProducer]


@pytest.fixture
def topic() -> str:
    return fresh_name()


@pytest.fixture
def make(broker: EmbeddedBroker) -> Iterator[Make]:
    """Makes producers, of one transactional id if nothing else is said, and closes them."""
    made: list[TwoPhaseProducer] = []
    transactional_id = fresh_name()

    def producer(keep: bool | None = False, **config: Any) -> TwoPhaseProducer:
        given = {key if key == "on_delivery" else key.replace("_", "."): value for key, value in config.items()}
        basis = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
        made.append(TwoPhaseProducer({**basis, **given}))
        if keep is not None:
            made[-1].init_transactions(keep_prepared_txn=keep)
        return made[-1]

    yield producer
    for each in made:
        each.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ApiKey]:
    """Every request that is sent once a connection is open."""
    keys: list[ApiKey] = []
    send = SocketConnection.send

    def noting(self: SocketConnection, tag: int, api_key: ApiKey, *others: Any) -> None:
        keys.append(api_key)
        send(self, tag, api_key, *others)

    monkeypatch.setattr(SocketConnection, "send", noting)
    return keys


def unit(producer: TwoPhaseProducer, topic: str, *values: str) -> PreparedTxnState:
    """A unit of work, prepared and committed."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    state = producer.prepare_transaction()
    assert producer.complete_transaction(state) is TransactionResult.COMMITTED
    return state


def seen(broker: EmbeddedBroker, topic: str, partitions: int = 1) -> list[bytes]:
    """What a read_committed consumer of librdkafka's sees, by partition."""
    found = consume(broker.bootstrap_servers, topic, partitions)
    return [value for partition in range(partitions) for value in found[partition]]


def test_a_unit_of_one_record_takes_two_round_trips(
    broker: EmbeddedBroker, make: Make, topic: str, asked: list[ApiKey]
) -> None:
    producer = make()
    unit(producer, topic, "first")
    asked.clear()
    names = {str(unit(producer, topic, f"{number}")) for number in range(10)}
    assert asked == [ApiKey.PRODUCE, ApiKey.END_TXN] * 10
    assert len(names) == 10
    assert seen(broker, topic) == [b"first", *(b"%d" % number for number in range(10))]


def test_a_unit_without_records_asks_nothing(make: Make, asked: list[ApiKey]) -> None:
    producer = make()
    asked.clear()
    producer.begin_transaction()
    state = producer.prepare_transaction()
    assert not state
    assert producer.complete_transaction(state) is TransactionResult.NOTHING
    assert asked == []


def test_records_of_a_unit_share_a_request(make: Make, topic: str, broker: EmbeddedBroker, asked: list[ApiKey]) -> None:
    create_topic(broker.bootstrap_servers, topic, 3)
    producer = make()
    producer.begin_transaction()
    producer.produce(topic, "0")
    producer.abort_transaction()
    producer.begin_transaction()
    for number in range(30):
        producer.produce(topic, f"{number:02}", partition=number % 3)
    asked.clear()
    assert producer.flush() == 0
    producer.commit_transaction()
    assert [key for key in asked if key is not ApiKey.METADATA] == [ApiKey.PRODUCE, ApiKey.END_TXN]
    assert sorted(seen(broker, topic, 3)) == [b"%02d" % number for number in range(30)]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_many_batches_arrive_once_and_in_order(make: Make, topic: str, broker: EmbeddedBroker, codec: str) -> None:
    producer = make(compression_type=codec, batch_size=2000)
    values = [f"{number:05}" + "." * 100 for number in range(1000)]
    unit(producer, topic, *values)
    assert seen(broker, topic) == [value.encode() for value in values]


def test_a_full_buffer_makes_produce_wait_and_loses_nothing(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    producer = make(**{"queue.buffering.max.messages": 10})
    values = [f"{number:03}" for number in range(95)]
    unit(producer, topic, *values)
    assert seen(broker, topic) == [value.encode() for value in values]


def test_a_lingering_batch_is_sent_without_a_call(make: Make, topic: str, asked: list[ApiKey]) -> None:
    producer = make(linger_ms=0)
    unit(producer, topic, "first")
    asked.clear()
    producer.begin_transaction()
    producer.produce(topic, "a")
    assert asked == [ApiKey.PRODUCE]
    producer.prepare_transaction()
    assert asked == [ApiKey.PRODUCE]


def test_aborted_records_are_never_seen(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    producer = make()
    producer.begin_transaction()
    producer.produce(topic, "aborted")
    producer.flush()
    assert producer.abort_transaction() is TransactionResult.ABORTED
    producer.begin_transaction()
    producer.produce(topic, "another")
    state = producer.prepare_transaction()
    assert producer.complete_transaction(PreparedTxnState()) is TransactionResult.ABORTED
    assert state
    unit(producer, topic, "committed")
    assert seen(broker, topic) == [b"committed"]


@pytest.mark.parametrize("decided", [True, False])
def test_a_successor_ends_the_prepared_transaction_as_decided(
    make: Make, topic: str, broker: EmbeddedBroker, decided: bool
) -> None:
    dead = make()
    dead.begin_transaction()
    dead.produce(topic, "prepared")
    state = dead.prepare_transaction()
    successor = make(keep=True)
    assert successor.state is ProducerState.KEPT
    ended = successor.complete_transaction(PreparedTxnState.parse(str(state)) if decided else PreparedTxnState())
    assert ended is (TransactionResult.COMMITTED if decided else TransactionResult.ABORTED)
    with pytest.raises(FencedError):
        dead.commit_transaction()
    with pytest.raises(FencedError):
        dead.begin_transaction()
    successor.init_transactions()
    unit(successor, topic, "next")
    assert seen(broker, topic) == ([b"prepared", b"next"] if decided else [b"next"])


def test_a_late_commit_does_not_end_the_next_transaction(tmp_path: Path, topic: str) -> None:
    """An EndTxn whose connection breaks is asked again. Its first copy arrives in the next transaction."""
    proxy = HoldingProxy(ApiKey.END_TXN, number=2)
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    with ForkedBroker(tmp_path, config=advertised) as broker:
        proxy.broker_port = int(broker.bootstrap_servers.rpartition(":")[2])
        config = {"bootstrap.servers": f"127.0.0.1:{proxy.port}", "transactional.id": "late-0"}
        with TwoPhaseProducer(config) as producer:
            producer.init_transactions()
            unit(producer, topic, "first")
            unit(producer, topic, "second")
            assert proxy.held.is_set()
            producer.begin_transaction()
            producer.produce(topic, "third")
            producer.prepare_transaction()
            proxy.release()
            assert producer.abort_transaction() is TransactionResult.ABORTED
            unit(producer, topic, "fourth")
        assert seen(broker, topic) == [b"first", b"second", b"fourth"]
    proxy.close()


def test_a_transaction_that_librdkafka_prepared_is_completed_by_its_anchor(
    make: Make, topic: str, broker: EmbeddedBroker
) -> None:
    transactional_id = fresh_name()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
    other = LibrdkafkaProducer(config)
    other.init_transactions()
    states = []
    for value in ("first", "second"):
        other.begin_transaction()
        other.produce(OutgoingRecord(topic, value))
        states.append(other.prepare_transaction())
        if value == "first":
            other.commit_transaction()
    other.close()
    producer = make(keep=True, transactional_id=transactional_id)
    assert states[0].producer == states[1].producer
    assert producer.complete_transaction(states[1]) is TransactionResult.COMMITTED
    producer.init_transactions()
    assert seen(broker, topic) == [b"first", b"second"]


def test_an_older_state_of_librdkafka_does_not_commit_a_later_transaction(
    make: Make, topic: str, broker: EmbeddedBroker
) -> None:
    transactional_id = fresh_name()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": transactional_id}
    other = LibrdkafkaProducer(config)
    other.init_transactions()
    other.begin_transaction()
    other.produce(OutgoingRecord(topic, "first"))
    state = other.prepare_transaction()
    other.commit_transaction()
    other.begin_transaction()
    other.produce(OutgoingRecord(topic, "second"))
    other.prepare_transaction()
    other.close()
    producer = make(keep=True, transactional_id=transactional_id)
    assert producer.complete_transaction(state) is TransactionResult.ABORTED
    assert seen(broker, topic) == [b"first"]


def test_a_broker_that_restarts_in_the_middle_loses_nothing(tmp_path: Path, topic: str) -> None:
    with ForkedBroker(tmp_path / "broker") as first:
        address = first.bootstrap_servers
        producer = TwoPhaseProducer({"bootstrap.servers": address, "transactional.id": "app-0"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(topic, "a")
        producer.flush()
        producer.produce(topic, "b")
    with ForkedBroker(tmp_path / "broker", listen=address) as second, producer:
        state = producer.prepare_transaction()
        assert producer.complete_transaction(state) is TransactionResult.COMMITTED
        unit(producer, topic, "c")
        assert seen(second, topic) == [b"a", b"b", b"c"]


def test_a_stopped_broker_is_an_error_within_the_deadline(tmp_path: Path, topic: str) -> None:
    with ForkedBroker(tmp_path / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "app-0"}
        producer = TwoPhaseProducer({**config, "delivery.timeout.ms": 300})
        producer.init_transactions()
        unit(producer, topic, "a")
    with producer:
        producer.begin_transaction()
        producer.produce(topic, "b")
        with pytest.raises(PrepareFailedError, match=r"1 record not acknowledged in 0.3 s: .*Connection refused"):
            producer.prepare_transaction()
        with pytest.raises(KafkaUnavailableError, match=r"EndTxn \(abort\) of app-0: no answer in 0.3 s"):
            producer.abort_transaction()
        assert producer.state is ProducerState.FAILED


def test_a_consumers_offsets_are_committed_with_the_transaction(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    group, producer = fresh_name(), make()
    create_topic(broker.bootstrap_servers, topic)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    positions = [confluent_kafka.TopicPartition(topic, 0, 7)]
    for ending in ("abort", "commit"):
        producer.begin_transaction()
        producer.produce(topic, ending)
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        getattr(producer, f"{ending}_transaction")()
        (found,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], 10)
        assert found.offset == (7 if ending == "commit" else confluent_kafka.OFFSET_INVALID)
    consumer.close()


def test_offsets_of_an_unknown_member_fail_the_transaction(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    create_topic(broker.bootstrap_servers, topic)
    producer = make()
    producer.begin_transaction()
    positions = [confluent_kafka.TopicPartition(topic, 0, 7)]
    with pytest.raises(KafkaRefusedError, match=r"UNKNOWN_MEMBER_ID|ILLEGAL_GENERATION"):
        producer.send_offsets_to_transaction(positions, GroupMember(fresh_name(), 3, "nobody"))
    assert producer.state is ProducerState.ABORTABLE
    producer.abort_transaction()
    assert producer.state is ProducerState.READY


def test_delivery_callbacks_come_with_the_next_call(make: Make, topic: str) -> None:
    told: list[tuple[Any, ...]] = []

    def on_delivery(error: Any, record: Any) -> None:
        told.append((error, record.topic(), record.partition(), record.offset(), record.key(), record.value()))

    producer = make(on_delivery=on_delivery)
    producer.begin_transaction()
    producer.produce(topic, "a", key="k", headers={"h": "v"})
    assert len(producer) == 1
    assert told == []
    producer.prepare_transaction()
    assert told == [(None, topic, 0, 0, b"k", b"a")]
    assert producer.poll(0) == 0


def test_a_record_carries_its_key_value_headers_and_timestamp(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    producer = make()
    producer.begin_transaction()
    producer.produce(topic, b"v", "k", 0, 1234567890123, [("a", b"1"), ("b", None)])
    producer.commit_transaction()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(20)
    assert message is not None
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("a", b"1"), ("b", None)])
    assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1234567890123)
    consumer.close()


def test_a_transaction_in_two_phase_commit_never_expires(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    producer = make(transactional_id="never")
    producer.begin_transaction()
    producer.produce(topic, "a")
    producer.prepare_transaction()
    control = ControlPlane({"bootstrap.servers": broker.bootstrap_servers})
    described = control.describe_transaction("never")
    control.close()
    assert described is not None
    assert (described.state, described.timeout_ms) == ("Ongoing", 2147483647)
    assert described.partitions == {TopicPartition(topic, 0)}


def test_without_two_phase_commit_a_transaction_has_its_timeout(make: Make, topic: str, broker: EmbeddedBroker) -> None:
    plain = {"transaction.two.phase.commit.enable": "false", "transaction.timeout.ms": 5000}
    producer = make(**plain, transactional_id="plain", delivery_timeout_ms=5000)
    unit(producer, topic, "a")
    control = ControlPlane({"bootstrap.servers": broker.bootstrap_servers})
    described = control.describe_transaction("plain")
    control.close()
    assert described is not None
    assert described.timeout_ms == 5000
    assert seen(broker, topic) == [b"a"]


def test_a_broker_without_two_phase_commit_is_named_with_its_setting(tmp_path: Path) -> None:
    config = {"transaction.two.phase.commit.enable": "false"}
    with (
        ForkedBroker(tmp_path, config=config) as broker,
        TwoPhaseProducer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "app-0"}) as producer,
        pytest.raises(TwoPhaseCommitUnavailableError, match=r"transaction\.two\.phase\.commit\.enable"),
    ):
        producer.init_transactions()


def test_an_unknown_setting_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigurationError, match="lingerms"):
        TwoPhaseProducer({"bootstrap.servers": "127.0.0.1:1", "transactional.id": "app-0", "lingerms": 1})


def test_the_verbs_are_those_of_kip_939(make: Make, topic: str) -> None:
    producer = make(keep=None)
    with pytest.raises(InvalidTransactionStateError):
        producer.begin_transaction()
    producer.init_transactions(keep_prepared_txn=True)
    for forbidden in (producer.begin_transaction, producer.prepare_transaction, producer.init_transactions):
        with pytest.raises(InvalidTransactionStateError):
            forbidden()
    assert producer.complete_transaction(PreparedTxnState()) is TransactionResult.NOTHING
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, "a")
    state = producer.prepare_transaction()
    for also in (lambda: producer.produce(topic, "b"), producer.begin_transaction, producer.flush):
        with pytest.raises(InvalidTransactionStateError):
            also()
    producer.complete_transaction(state)
    producer.close()
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        producer.begin_transaction()


def test_an_interrupted_prepare_can_be_aborted(make: Make, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = make()
    unit(producer, topic, "first")
    producer.begin_transaction()
    producer.produce(topic, "a")

    def interrupted(_: SocketConnection) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SocketConnection, "receive_patiently", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.prepare_transaction()
    assert producer.state is ProducerState.ABORTABLE
    assert producer.abort_transaction() is TransactionResult.ABORTED
    unit(producer, topic, "b")


def test_a_forked_process_must_make_a_producer_of_its_own(make: Make, topic: str) -> None:
    producer = make()
    producer.begin_transaction()
    producer.produce(topic, "a")
    child = os.fork()
    if not child:
        try:
            producer.prepare_transaction()
        except InvalidTransactionStateError as error:
            producer.close()
            os._exit(0 if "after a fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    state = producer.prepare_transaction()
    assert producer.complete_transaction(state) is TransactionResult.COMMITTED
