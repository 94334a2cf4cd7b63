"""DeleteRecords: where a log begins from now on, for every reader and after a kill."""

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.wire.apis import DeleteRecordsRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.requests.admin_calls import TOPIC, set_config
from tests.support.requests.calls import (
    batch,
    consumed,
    end,
    fetch,
    new_producer,
    new_topic,
    open_transaction,
    produce,
    unique,
)
from tests.support.requests.raw_client import RawClient


def delete_records(
    client: RawClient, topic: str, offset: int, partition: int = 0, version: int = 2
) -> tuple[ErrorCode, int]:
    """The error and the low watermark of one partition."""
    entry = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = entry.DeleteRecordsPartition(partition_index=partition, offset=offset)
    request = DeleteRecordsRequest(topics=[entry(name=topic, partitions=[wanted])], timeout_ms=1000)
    ((result,),) = [answered.partitions for answered in client.ask(request, version).topics]
    return ErrorCode(result.error_code), result.low_watermark


def filled(client: RawClient, **settings: str) -> str:
    topic = new_topic(client, **settings)
    for value in (b"a", b"b", b"c"):
        produce(client, topic, batch([value]))
    return topic


@pytest.mark.parametrize("version", range(3))
def test_a_log_begins_at_the_requested_offset_in_every_version(client: RawClient, version: int) -> None:
    topic = filled(client)
    assert delete_records(client, topic, 2, version=version) == (ErrorCode.NONE, 2)
    assert fetch(client, topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    part = fetch(client, topic, 2)
    assert (part.log_start_offset, consumed(part, 2)) == (2, [b"c"])
    assert produce(client, topic, batch([b"d"])).log_start_offset == 2


def test_minus_one_deletes_everything_there_is(client: RawClient) -> None:
    topic = filled(client)
    assert delete_records(client, topic, -1) == (ErrorCode.NONE, 3)
    assert fetch(client, topic, 3).records in (b"", None)
    assert produce(client, topic, batch([b"d"])).base_offset == 3
    assert consumed(fetch(client, topic, 3), 3) == [b"d"]


def test_a_log_never_begins_earlier_again(client: RawClient) -> None:
    topic = filled(client)
    for offset in (2, 1, 0):
        assert delete_records(client, topic, offset) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize("offset", [4, -2, 2**62])
def test_deleting_beyond_the_end_of_the_log_is_out_of_range(client: RawClient, offset: int) -> None:
    topic = filled(client)
    assert delete_records(client, topic, offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert fetch(client, topic, 0).log_start_offset == 0


def test_topics_whose_records_must_not_be_deleted_are_refused(client: RawClient) -> None:
    topic = filled(client)
    set_config(client, TOPIC, topic, cleanup_policy="compact")
    assert delete_records(client, topic, 1) == (ErrorCode.POLICY_VIOLATION, -1)
    assert delete_records(client, topic, 1, partition=7) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete_records(client, unique("missing"), 1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert delete_records(client, "__consumer_offsets", 0) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_an_open_transaction_may_lose_its_beginning(client: RawClient) -> None:
    topic, transactional_id = filled(client), unique("tx")
    producer = new_producer(client, transactional_id)
    open_transaction(client, transactional_id, producer, {(topic, 0): [b"x"]})
    assert delete_records(client, topic, -1) == (ErrorCode.NONE, 4)
    produce(client, topic, batch([b"y"]))
    assert end(client, transactional_id, producer).error_code == ErrorCode.NONE
    assert consumed(fetch(client, topic, 4, committed=True), 4) == [b"y"]


def test_a_logs_beginning_survives_a_kill(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        topic = filled(client)
        delete_records(client, topic, 2)
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        assert fetch(client, topic, 1).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert consumed(fetch(client, topic, 2), 2) == [b"c"]


def test_a_partition_that_occurs_again_is_answered_once_for_its_last_offset(client: RawClient) -> None:
    topic = filled(client)
    entry = DeleteRecordsRequest.DeleteRecordsTopic
    wanted = [entry.DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (3, 0, 1)]
    topics = [entry(name=topic, partitions=wanted[:1]), entry(name=topic, partitions=wanted[1:])]
    (answer,) = client.ask(DeleteRecordsRequest(topics=topics, timeout_ms=1000), 2).topics
    (result,) = answer.partitions
    assert (answer.name, result.partition_index) == (topic, 0)
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 1)
