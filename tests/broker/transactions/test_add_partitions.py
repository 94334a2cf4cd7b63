"""AddPartitionsToTxn, and the implicit way through Produce (KIP-890): no record joins a transaction that is closed."""

import pytest

from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.wire.apis import AddPartitionsToTxnRequest, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import (
    add,
    added_topics,
    describe,
    end,
    identity,
    new_producer,
    new_topic,
    partition_errors,
    produce,
    produce_request,
    producers,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient

SINGLE, SEVERAL = (0, 1, 2, 3), (4, 5)


def transaction(
    transactional_id: str, producer: ProducerIdentity, *partitions: tuple[str, int], verify: bool = False
) -> Message:
    """One transaction of a request of v4 or v5."""
    return AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=added_topics(partitions),
    )


def ask(client: RawClient, *transactions: Message, version: int = 5) -> dict[str, dict[tuple[str, int], ErrorCode]]:
    """The errors of each transaction, by transactional id."""
    answer = client.ask(AddPartitionsToTxnRequest(transactions=list(transactions)), version)
    assert answer.error_code == ErrorCode.NONE
    return {result.transactional_id: partition_errors(result.topic_results) for result in answer.results_by_transaction}


def fresh(client: RawClient) -> tuple[str, ProducerIdentity]:
    transactional_id = unique("tx")
    return transactional_id, new_producer(client, transactional_id)


@pytest.mark.parametrize("version", SINGLE)
def test_partitions_join_in_every_version(client: RawClient, version: int) -> None:
    topic, (transactional_id, producer) = new_topic(client, partitions=3), fresh(client)
    first = add(client, transactional_id, producer, (topic, 0), (topic, 2), version=version)
    again = add(client, transactional_id, producer, (topic, 2), (topic, 1), version=version)
    assert first == {(topic, 0): ErrorCode.NONE, (topic, 2): ErrorCode.NONE}
    assert again == {(topic, 1): ErrorCode.NONE, (topic, 2): ErrorCode.NONE}
    (described,) = describe(client, transactional_id).topics
    assert (described.topic, sorted(described.partitions)) == (topic, [0, 1, 2])


@pytest.mark.parametrize("version", SINGLE)
def test_one_unknown_partition_keeps_all_others_out(client: RawClient, version: int) -> None:
    topic, (transactional_id, producer) = new_topic(client), fresh(client)
    errors = add(client, transactional_id, producer, (topic, 0), (topic, 5), ("missing", 0), version=version)
    assert errors == {
        (topic, 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (topic, 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert describe(client, transactional_id).transaction_state == "Empty"


@pytest.mark.parametrize("version", SINGLE)
def test_no_partitions_begin_no_transaction(client: RawClient, version: int) -> None:
    transactional_id, producer = fresh(client)
    assert add(client, transactional_id, producer, version=version) == {}
    assert describe(client, transactional_id).transaction_state == "Empty"


@pytest.mark.parametrize("version", SINGLE)
def test_only_the_living_client_may_add(client: RawClient, version: int) -> None:
    topic, (transactional_id, old) = new_topic(client), fresh(client)
    new_producer(client, transactional_id)
    strange = ProducerIdentity(old.producer_id + 555_555, 0)
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    attempts = {
        (transactional_id, old): fenced,
        (transactional_id, strange): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        (transactional_id, NO_PRODUCER): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        (unique("tx"), old): ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ("", old): ErrorCode.INVALID_REQUEST,
    }
    for (name, producer), error in attempts.items():
        assert add(client, name, producer, (topic, 0), version=version) == {(topic, 0): error}


@pytest.mark.parametrize("version", SEVERAL)
def test_several_transactions_join_at_once(client: RawClient, version: int) -> None:
    topic, first, second = new_topic(client, partitions=2), fresh(client), fresh(client)
    errors = ask(
        client,
        transaction(*first, (topic, 0), (topic, 1)),
        transaction(*second, (topic, 1), ("missing", 0)),
        version=version,
    )
    assert errors == {
        first[0]: {(topic, 0): ErrorCode.NONE, (topic, 1): ErrorCode.NONE},
        second[0]: {
            (topic, 1): ErrorCode.OPERATION_NOT_ATTEMPTED,
            ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        },
    }
    states = [describe(client, name).transaction_state for name in (first[0], second[0])]
    assert states == ["Ongoing", "Empty"]


@pytest.mark.parametrize("version", [4, 5])
def test_verification_changes_nothing(client: RawClient, version: int) -> None:
    error = ErrorCode.TRANSACTION_ABORTABLE
    topic, (transactional_id, producer) = new_topic(client, partitions=2), fresh(client)

    def verify(partition: int) -> ErrorCode:
        wanted = transaction(transactional_id, producer, (topic, partition), verify=True)
        return ask(client, wanted, version=version)[transactional_id][topic, partition]

    assert verify(0) == error
    add(client, transactional_id, producer, (topic, 0))
    assert [verify(partition) for partition in (0, 1)] == [ErrorCode.NONE, error]
    end(client, transactional_id, producer, version=1)
    assert verify(0) == error


# --- records


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (3, ErrorCode.INVALID_TXN_STATE),
        (9, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_before_the_newer_protocol_a_partition_must_have_been_added(
    client: RawClient, version: int, error: ErrorCode
) -> None:
    topic, (transactional_id, producer) = new_topic(client, partitions=2), fresh(client)
    add(client, transactional_id, producer, (topic, 1))
    content = tx_batch([b"v"], producer)
    refused = produce(client, topic, content, transactional_id, version=version)
    assert refused.error_code == error
    taken = produce(client, topic, content, transactional_id, partition=1, version=version)
    assert taken.error_code == ErrorCode.NONE
    end(client, transactional_id, producer, version=1)
    assert (read_all(client, topic, 0, committed=False), read_all(client, topic, 1)) == ([], [b"v"])


def test_in_the_newer_protocol_a_partition_joins_with_its_first_record(client: RawClient) -> None:
    topic, (transactional_id, producer) = new_topic(client, partitions=3), fresh(client)
    request = produce_request({(topic, index): tx_batch([b"v"], producer) for index in (0, 2)}, transactional_id)
    errors = [entry.error_code for entry in client.ask(request, 12).responses[0].partition_responses]
    assert errors == [ErrorCode.NONE, ErrorCode.NONE]
    (described,) = describe(client, transactional_id).topics
    assert sorted(described.partitions) == [0, 2]
    end(client, transactional_id, producer)
    assert [read_all(client, topic, index) for index in range(3)] == [[b"v"], [], [b"v"]]


def test_a_record_behind_the_end_of_its_transaction_is_refused(client: RawClient) -> None:
    """KIP-890: a late request would leave a transaction that hangs for ever."""
    topic, (transactional_id, producer) = new_topic(client), fresh(client)
    add(client, transactional_id, producer, (topic, 0))
    produce(client, topic, tx_batch([b"in time"], producer), transactional_id)
    end(client, transactional_id, producer, version=1)
    late = produce(client, topic, tx_batch([b"late"], producer, sequence=1), transactional_id)
    assert late.error_code == ErrorCode.INVALID_TXN_STATE
    assert producers(client, topic)[producer.producer_id].current_txn_start_offset == -1
    assert read_all(client, topic) == [b"in time"]


def test_a_record_of_an_earlier_epoch_of_the_newer_protocol_is_refused(client: RawClient) -> None:
    topic, (transactional_id, first) = new_topic(client), fresh(client)
    produce(client, topic, tx_batch([b"first"], first), transactional_id, version=12)
    second = identity(end(client, transactional_id, first))
    late = produce(client, topic, tx_batch([b"late"], first, sequence=1), transactional_id, version=12)
    assert late.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert produce(client, topic, tx_batch([b"2"], second), transactional_id, version=12).error_code == ErrorCode.NONE


def test_another_producer_cannot_write_in_a_transactional_ids_transaction(client: RawClient) -> None:
    topic, (transactional_id, producer), other = new_topic(client), fresh(client), new_producer(client)
    add(client, transactional_id, producer, (topic, 0))
    for version in (9, 12):
        answer = produce(client, topic, tx_batch([b"v"], other), transactional_id, version=version)
        assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert read_all(client, topic, committed=False) == []


def test_the_first_offset_of_a_transaction_is_described_until_it_ends(client: RawClient) -> None:
    """CurrentTxnStartOffset, which an anchor is compared with."""
    topic, (transactional_id, producer) = new_topic(client), fresh(client)
    starts = []
    sequence = 0
    for count in (2, 1):
        add(client, transactional_id, producer, (topic, 0))
        for _ in range(count):
            produce(client, topic, tx_batch([b"a", b"b"], producer, sequence), transactional_id)
            sequence += 2
            starts.append(producers(client, topic)[producer.producer_id].current_txn_start_offset)
        end(client, transactional_id, producer, version=1)
        starts.append(producers(client, topic)[producer.producer_id].current_txn_start_offset)
    assert starts == [0, 0, -1, 5, -1]
