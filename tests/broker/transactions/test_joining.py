"""How records join a transaction: all partitions of a request at once, and none after the transaction's end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from dualwrite.broker.api.transactions.joining import PRODUCE, TXN_OFFSET_COMMIT, JoiningVersions, join_transaction
from dualwrite.broker.core.commands import InitProducerId
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.facts.transaction_log import decode_fact
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import iterate_records
from dualwrite.records.header import iterate_batches
from dualwrite.testing.files import MemoryFiles
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.simulated import TOPIC, Rooms, run
from tests.support.requests.calls import (
    batch,
    describe,
    end,
    new_producer,
    new_topic,
    produce_request,
    read_all,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient

ALL = frozenset(TopicPartition(TOPIC, index) for index in range(3))


def facts_of(broker: EmbeddedBroker, transactional_id: str) -> list[TransactionRecorded]:
    """What the transaction log says of ``transactional_id``, in order."""
    content = (broker.data_dir / "__transaction_state-0" / f"{0:020}.log").read_bytes()
    records = [record for _, batch in iterate_batches(content) for record in iterate_records(batch)]
    facts = [decode_fact(record.key or b"", record.value) for record in records]
    return [
        fact for fact in facts if isinstance(fact, TransactionRecorded) and fact.transactional_id == transactional_id
    ]


def test_all_partitions_of_a_request_join_with_one_fact(shared_broker: EmbeddedBroker, client: RawClient) -> None:
    first, second, transactional_id = new_topic(client, partitions=3), new_topic(client), unique("tx")
    producer = new_producer(client, transactional_id)
    names = [(first, 0), (first, 1), (first, 2), (second, 0)]
    answer = client.ask(produce_request({name: tx_batch([b"v"], producer) for name in names}, transactional_id), 12)
    codes = [entry.error_code for topic in answer.responses for entry in topic.partition_responses]
    assert codes == [ErrorCode.NONE] * 4
    ongoing = [fact for fact in facts_of(shared_broker, transactional_id) if fact.status is TransactionStatus.ONGOING]
    assert [fact.partitions for fact in ongoing] == [frozenset(TopicPartition(*name) for name in names)]
    end(client, transactional_id, producer)
    assert [read_all(client, *name) for name in names] == [[b"v"]] * 4


def test_a_batch_that_is_not_fit_does_not_join(client: RawClient) -> None:
    topic, transactional_id = new_topic(client, partitions=2), unique("tx")
    producer = new_producer(client, transactional_id)
    content = {(topic, 0): tx_batch([b"v"], producer), (topic, 1): b"rubbish"}
    (answer,) = client.ask(produce_request(content, transactional_id), 12).responses
    assert [entry.error_code for entry in answer.partition_responses] == [ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    (described,) = describe(client, transactional_id).topics
    assert described.partitions == [0]


@pytest.mark.parametrize("version", [9, 12])
def test_batches_of_two_producers_join_no_transaction_in_one_request(client: RawClient, version: int) -> None:
    topic, transactional_id = new_topic(client, partitions=2), unique("tx")
    producer = new_producer(client, transactional_id)
    other = ProducerIdentity(producer.producer_id, producer.epoch + 1)
    content = {(topic, 0): tx_batch([b"v"], producer), (topic, 1): tx_batch([b"v"], other)}
    (answer,) = client.ask(produce_request(content, transactional_id), version).responses
    assert [entry.error_code for entry in answer.partition_responses] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert describe(client, transactional_id).transaction_state == "Empty"


def test_a_plain_batch_is_appended_beside_a_transactional_one_that_is_refused(client: RawClient) -> None:
    topic, transactional_id, stranger = new_topic(client, partitions=2), unique("tx"), new_producer(client)
    content = {(topic, 0): tx_batch([b"no"], stranger), (topic, 1): batch([b"yes"])}
    (answer,) = client.ask(produce_request(content, transactional_id), 12).responses
    codes = [entry.error_code for entry in answer.partition_responses]
    assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.NONE]
    assert [read_all(client, topic, index) for index in (0, 1)] == [[], [b"yes"]]


@pytest.mark.parametrize("seed", range(20))
def test_a_producer_that_is_fenced_while_it_joins_is_refused(seed: int) -> None:
    """A batch that is appended after a NONE belongs to an open transaction, in every order of the event loop."""

    async def main() -> tuple[ErrorCode, TransactionStatus]:
        rooms = await Rooms(MemoryFiles()).with_topic()
        broker: Any = SimpleNamespace(coordinator=rooms.coordinator)
        producer = (await rooms.coordinator.execute(InitProducerId("tx", 60_000))).producer

        async def write() -> tuple[ErrorCode, TransactionStatus]:
            error = await join_transaction(broker, "tx", producer, ALL, implicit=True)
            return error, rooms.coordinator.table.entries["tx"].status

        async def fence() -> None:
            for _ in range(seed % 7):
                await asyncio.sleep(0)
            await rooms.coordinator.execute(InitProducerId("tx", 60_000))

        result, _ = await asyncio.gather(write(), fence())
        await rooms.flusher.close()
        return result

    error, status = run(main(), seed)
    if error is ErrorCode.NONE:
        assert status is TransactionStatus.ONGOING
    else:
        assert error in (ErrorCode.PRODUCER_FENCED, ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.mark.parametrize(
    ("api", "version", "error", "told"),
    [
        (PRODUCE, 10, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (PRODUCE, 11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (TXN_OFFSET_COMMIT, 3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (TXN_OFFSET_COMMIT, 4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (PRODUCE, 12, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (TXN_OFFSET_COMMIT, 5, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (PRODUCE, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_the_coordinators_errors_are_translated_for_each_version(
    api: JoiningVersions, version: int, error: ErrorCode, told: ErrorCode
) -> None:
    assert api.error(error, version) is told
