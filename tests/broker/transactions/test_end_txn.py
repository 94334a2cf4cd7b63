"""EndTxn, TV1 and TV2 (KIP-98, KIP-890 part 2): the decision, its retries, and transactions that are whole."""

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.ids import ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.calls import (
    add,
    describe,
    end,
    identity,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient

TV1, TV2 = (0, 1, 2, 3, 4), (5,)


def began(client: RawClient, *topics: str) -> tuple[str, ProducerIdentity]:
    """An open transaction with one record in each of ``topics``."""
    transactional_id = unique("tx")
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"v"] for topic in topics})
    return transactional_id, producer


@pytest.mark.parametrize("version", TV1 + TV2)
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_whole_over_all_its_partitions(client: RawClient, version: int, commit: bool) -> None:
    topics = [new_topic(client) for _ in range(3)]
    transactional_id, producer = began(client, *topics)
    assert [read_all(client, topic) for topic in topics] == [[], [], []]
    assert end(client, transactional_id, producer, commit, version).error_code == ErrorCode.NONE
    assert [read_all(client, topic) for topic in topics] == [[b"v"] if commit else []] * 3
    assert describe(client, transactional_id).transaction_state == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("version", TV1)
def test_the_older_protocol_keeps_its_identity(client: RawClient, version: int) -> None:
    topic = new_topic(client)
    transactional_id, producer = began(client, topic)
    end(client, transactional_id, producer, version=version)
    assert add(client, transactional_id, producer, (topic, 0)) == {(topic, 0): ErrorCode.NONE}
    answer = produce(client, topic, tx_batch([b"second"], producer, sequence=1), transactional_id)
    assert answer.error_code == ErrorCode.NONE
    end(client, transactional_id, producer, version=version)
    assert read_all(client, topic) == [b"v", b"second"]


def test_the_newer_protocol_moves_the_identity_with_every_transaction(client: RawClient) -> None:
    topic, transactional_id = new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    epochs = [producer.epoch]
    for number in range(5):
        open_transaction(client, transactional_id, producer, {(topic, 0): [b"%d" % number]})
        producer = identity(end(client, transactional_id, producer))
        epochs.append(producer.epoch)
    assert epochs == [0, 1, 2, 3, 4, 5]
    assert read_all(client, topic) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("version", TV1 + TV2)
@pytest.mark.parametrize("commit", [True, False])
def test_a_retry_gets_the_first_answer_and_its_opposite_is_refused(
    client: RawClient, version: int, commit: bool
) -> None:
    topic = new_topic(client)
    transactional_id, producer = began(client, topic)
    first = end(client, transactional_id, producer, commit, version)
    retried = end(client, transactional_id, producer, commit, version)
    assert (retried.error_code, retried.producer_id, retried.producer_epoch) == (
        ErrorCode.NONE,
        first.producer_id,
        first.producer_epoch,
    )
    opposite = end(client, transactional_id, producer, not commit, version)
    assert opposite.error_code == ErrorCode.INVALID_TXN_STATE
    assert read_all(client, topic) == ([b"v"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_decision_of_the_newer_protocol_hits_no_later_transaction(client: RawClient, commit: bool) -> None:
    topic = new_topic(client)
    transactional_id, first = began(client, topic)
    second = identity(end(client, transactional_id, first))
    open_transaction(client, transactional_id, second, {(topic, 0): [b"second"]})
    assert end(client, transactional_id, first, commit).error_code == ErrorCode.PRODUCER_FENCED
    assert describe(client, transactional_id).transaction_state == "Ongoing"
    assert end(client, transactional_id, second).error_code == ErrorCode.NONE


@pytest.mark.parametrize("version", TV1 + TV2)
def test_a_commit_before_the_first_partition_is_refused(client: RawClient, version: int) -> None:
    transactional_id = unique("tx")
    producer = new_producer(client, transactional_id)
    assert end(client, transactional_id, producer, True, version).error_code == ErrorCode.INVALID_TXN_STATE


def test_only_the_newer_protocol_aborts_a_transaction_without_partitions(client: RawClient) -> None:
    transactional_id = unique("tx")
    producer = new_producer(client, transactional_id)
    assert end(client, transactional_id, producer, False, 4).error_code == ErrorCode.INVALID_TXN_STATE
    assert identity(end(client, transactional_id, producer, False)).epoch == producer.epoch + 1


@pytest.mark.parametrize("version", TV1 + TV2)
def test_fenced_and_unknown_producers_get_their_own_errors(client: RawClient, version: int) -> None:
    transactional_id, producer = began(client, new_topic(client))
    strange_id = ProducerIdentity(producer.producer_id + 777_777, producer.epoch)
    later = ProducerIdentity(producer.producer_id, producer.epoch + 1)
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if version < 2 else ErrorCode.PRODUCER_FENCED
    assert end(client, unique("tx"), producer, True, version).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(client, transactional_id, strange_id, True, version).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert end(client, transactional_id, later, True, version).error_code == fenced
    assert end(client, "", producer, True, version).error_code == ErrorCode.INVALID_REQUEST
    assert describe(client, transactional_id).transaction_state == "Ongoing"


def test_the_next_transaction_never_has_to_wait(client: RawClient) -> None:
    """librdkafka would wait 20 ms at every CONCURRENT_TRANSACTIONS."""
    topic, transactional_id = new_topic(client, partitions=3), unique("tx")
    producer = new_producer(client, transactional_id)
    partitions = [(topic, index) for index in range(3)]
    for number in range(30):
        assert set(add(client, transactional_id, producer, *partitions).values()) == {ErrorCode.NONE}
        for index in range(3):
            content = tx_batch([b"%d" % number], producer, sequence=number)
            assert produce(client, topic, content, transactional_id, partition=index).error_code == ErrorCode.NONE
        assert end(client, transactional_id, producer, version=1).error_code == ErrorCode.NONE
    assert read_all(client, topic, 2) == [b"%d" % number for number in range(30)]


@pytest.mark.slow_cases
@pytest.mark.parametrize("version", [1, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_a_retry_is_known_after_the_broker_was_killed(broker: EmbeddedBroker, version: int, commit: bool) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        transactional_id, producer = began(client, topic)
        first = end(client, transactional_id, producer, commit, version)
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        retried = end(client, transactional_id, producer, commit, version)
        assert (retried.error_code, retried.producer_epoch) == (ErrorCode.NONE, first.producer_epoch)
        opposite = end(client, transactional_id, producer, not commit, version)
        assert opposite.error_code == ErrorCode.INVALID_TXN_STATE
        assert read_all(client, topic) == ([b"v"] if commit else [])
