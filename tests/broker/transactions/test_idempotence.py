"""Idempotent producers (KIP-98): duplicates are recognized, gaps and old epochs refused, also after a kill."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.records.header import MAX_SEQUENCE
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    add,
    batch,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    produce_request,
    producers,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

IN_FLIGHT = 5


def write(client: RawClient, topic: str, producer: ProducerIdentity, sequence: int, count: int = 1) -> tuple[int, int]:
    """Error and base offset of a batch of ``count`` records."""
    values = [b"%d" % (sequence + number) for number in range(count)]
    answer = produce(client, topic, batch(values, producer, sequence))
    return answer.error_code, answer.base_offset


def written(client: RawClient, count: int) -> tuple[str, ProducerIdentity]:
    """A topic with ``count`` batches of one record by one producer."""
    topic, producer = new_topic(client), new_producer(client)
    for sequence in range(count):
        assert write(client, topic, producer, sequence) == (ErrorCode.NONE, sequence)
    return topic, producer


def test_producer_ids_are_never_given_twice(client: RawClient) -> None:
    given = [new_producer(client) for _ in range(30)]
    assert len(set(given)) == 30
    assert {producer.epoch for producer in given} == {0}


def test_five_requests_may_be_in_flight(client: RawClient) -> None:
    topic, producer = new_topic(client), new_producer(client)
    requests = [
        produce_request({(topic, 0): batch([b"%d" % sequence], producer, sequence)}) for sequence in range(IN_FLIGHT)
    ]
    sent = [client.send(request, 9) for request in requests * 2]  # a client that lost its connection sends all again
    answers = [client.receive(ApiKey.PRODUCE, 9, correlation) for correlation in sent]
    offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
    assert offsets == [0, 1, 2, 3, 4] * 2
    assert read_all(client, topic) == [b"0", b"1", b"2", b"3", b"4"]


def test_large_requests_in_flight_on_many_connections_keep_to_themselves(shared_broker: EmbeddedBroker) -> None:
    """Their frames take turns in the same memory, and so do those that are known already or refused."""
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(shared_broker.bootstrap_servers)) for _ in range(4)]
        written = [(client, new_topic(client), new_producer(client)) for client in clients]
        sequences = [0, 1, 0, 7, 2, 2, 3]  # with two duplicates and a gap
        errors = [0, 0, 0, int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0, 0, 0]
        sent = [
            (client, client.send(produce_request({(topic, 0): batch([large(topic, sequence)], producer, sequence)}), 9))
            for sequence in sequences
            for client, topic, producer in written
        ]
        answers = [client.receive(ApiKey.PRODUCE, 9, correlation) for client, correlation in sent]
        codes = [answer.responses[0].partition_responses[0].error_code for answer in answers]
        assert codes == [code for code in errors for _ in clients]
        for client, topic, _ in written:
            assert read_all(client, topic) == [large(topic, number) for number in range(4)]


def large(topic: str, number: int) -> bytes:
    return f"{topic}/{number} ".encode() * 4000


def test_a_duplicate_is_answered_with_its_first_offset(client: RawClient) -> None:
    topic, producer = new_topic(client), new_producer(client)
    write(client, topic, producer, 0, count=3)
    write(client, topic, producer, 3, count=2)
    assert write(client, topic, producer, 0, count=3) == (ErrorCode.NONE, 0)
    assert write(client, topic, producer, 3, count=2) == (ErrorCode.NONE, 3)
    assert len(read_all(client, topic)) == 5


def test_a_duplicate_is_known_among_the_last_five_batches(client: RawClient) -> None:
    topic, producer = written(client, 7)
    assert [write(client, topic, producer, sequence) for sequence in range(2, 7)] == [
        (ErrorCode.NONE, sequence) for sequence in range(2, 7)
    ]
    assert write(client, topic, producer, 1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(read_all(client, topic)) == 7


def test_a_part_of_an_earlier_batch_is_no_duplicate(client: RawClient) -> None:
    topic, producer = new_topic(client), new_producer(client)
    write(client, topic, producer, 0, count=3)
    assert write(client, topic, producer, 0, count=2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(client, topic, producer, 1, count=2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_is_refused_until_it_is_filled(client: RawClient) -> None:
    topic, producer = written(client, 2)
    assert write(client, topic, producer, 3) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert [write(client, topic, producer, sequence)[1] for sequence in (2, 3)] == [2, 3]


def test_an_old_epoch_is_refused(client: RawClient) -> None:
    topic, producer = written(client, 1)
    bumped = ProducerIdentity(producer.producer_id, 3)
    assert write(client, topic, bumped, 0) == (ErrorCode.NONE, 1)
    for sequence in (0, 1):
        assert write(client, topic, producer, sequence)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(client, topic, bumped, 1) == (ErrorCode.NONE, 2)


def test_a_new_epoch_begins_at_zero(client: RawClient) -> None:
    topic, producer = written(client, 2)
    bumped = ProducerIdentity(producer.producer_id, 1)
    assert write(client, topic, bumped, 2)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(client, topic, producer, 2) == (ErrorCode.NONE, 2), "a refused batch must not fence its producer"
    assert write(client, topic, bumped, 0) == (ErrorCode.NONE, 3)


def test_partitions_count_by_themselves(client: RawClient) -> None:
    topic, producer = new_topic(client, partitions=2), new_producer(client)
    for partition in (0, 1):
        answer = produce(client, topic, batch([b"v"], producer, 0), partition=partition)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


def test_sequences_wrap_to_zero(client: RawClient) -> None:
    topic, producer = new_topic(client), new_producer(client)
    assert write(client, topic, producer, MAX_SEQUENCE - 1, count=1) == (ErrorCode.NONE, 0)
    assert write(client, topic, producer, MAX_SEQUENCE, count=3) == (ErrorCode.NONE, 1)  # MAX, 0, 1
    assert producers(client, topic)[producer.producer_id].last_sequence == 1
    assert write(client, topic, producer, 1)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(client, topic, producer, 2) == (ErrorCode.NONE, 4)


def test_the_state_of_a_producer_is_described(client: RawClient) -> None:
    topic, producer = written(client, 3)
    (state,) = producers(client, topic).values()
    assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.epoch)
    assert (state.last_sequence, state.last_timestamp, state.current_txn_start_offset) == (2, 1000, -1)


def test_duplicates_gaps_and_epochs_are_known_after_a_kill(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic, producer = written(client, 7)
        old = new_producer(client)
        bumped = ProducerIdentity(old.producer_id, 1)
        write(client, topic, bumped, 0)
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert write(client, topic, producer, 2) == (ErrorCode.NONE, 2)
        assert write(client, topic, producer, 6) == (ErrorCode.NONE, 6)
        assert write(client, topic, producer, 8)[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert write(client, topic, old, 0)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
        assert write(client, topic, producer, 7) == (ErrorCode.NONE, 8)
        assert new_producer(client).producer_id > old.producer_id
        assert len(read_all(client, topic)) == 9


def test_a_duplicate_is_answered_with_its_timestamp(client: RawClient) -> None:
    """As Apache Kafka tells it: LogAppendTimeMs of a duplicate is its batch's MaxTimestamp."""
    topic, producer = new_topic(client), new_producer(client)
    content = batch([b"v"], producer, 0, timestamp=123_456)
    times = [produce(client, topic, content).log_append_time_ms for _ in range(2)]
    assert times == [-1, 123_456]


@pytest.mark.parametrize("version", [11, 12])
def test_an_unknown_producer_begins_anywhere_unless_it_is_of_the_newer_protocol(
    client: RawClient, version: int
) -> None:
    """Kafka's UNKNOWN_PRODUCER_ID is gone since 2.4; TV2 refuses what cannot be a transaction's first batch."""
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    add(client, transactional_id, producer, (topic, 0))
    answer = produce(client, topic, tx_batch([b"v"], producer, 7), transactional_id, version=version)
    assert answer.error_code == (ErrorCode.NONE if version < 12 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert write(client, topic, new_producer(client), 7)[0] == ErrorCode.NONE, "without a transaction in any version"


def test_an_idle_producer_id_expires_and_one_with_an_open_transaction_does_not(tmp_path: Path) -> None:
    """The batches of these tests have timestamps of long ago."""
    config = {"producer.id.expiration.check.interval.ms": "20"}
    with ForkedBroker(tmp_path, config=config) as broker, RawClient(broker.bootstrap_servers) as client:
        topic, idle, transactional_id = new_topic(client), new_producer(client), unique("tx")
        open_one = new_producer(client, transactional_id)
        open_transaction(client, transactional_id, open_one, {(topic, 0): [b"v"]})
        assert write(client, topic, idle, 0) == (ErrorCode.NONE, 1)
        known = eventually(lambda: producers(client, topic), lambda seen: idle.producer_id not in seen)
        assert list(known) == [open_one.producer_id]
        assert write(client, topic, idle, 9) == (ErrorCode.NONE, 2), "it begins anew"
