"""The responses that are encoded by hand are byte for byte what kafka-python writes, in every version."""

import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualwrite.wire.apis import APIS, AddPartitionsToTxnResponse, ApiKey, EndTxnResponse, FetchResponse, ProduceResponse
from dualwrite.wire.codec import write_response, write_response_parts
from dualwrite.wire.errors import error_codes
from dualwrite.wire.hot import encode_hot
from dualwrite.wire.producing import (
    AddedPartition,
    AddedPartitions,
    AddedTopic,
    EndTxnResult,
    Produced,
    ProducedPartition,
    ProducedTopic,
)
from tests.support.strategies import messages

HOT = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN)
OLDEST = {ApiKey.PRODUCE: 3, ApiKey.FETCH: 4}
NEWEST = {ApiKey.ADD_PARTITIONS_TO_TXN: 3}
EVERY_VERSION = [
    (key, version)
    for key in HOT
    for version in range(OLDEST.get(key, 0), NEWEST.get(key, APIS[key].response.max_version) + 1)
]

errors = st.integers(-1, 130)
offsets = st.integers(-1, 2**63 - 1)
numbers = st.integers(-1, 2**31 - 1)
names = st.text(max_size=200)


def kind(container: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(fields).map(lambda values: container(**values))


def several(each: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(each, max_size=most)


produced = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
fetched = FetchResponse.FetchableTopicResponse.PartitionData
added = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult

UNTAGGED = {
    ApiKey.PRODUCE: kind(
        ProduceResponse,
        throttle_time_ms=numbers,
        responses=several(
            kind(
                ProduceResponse.TopicProduceResponse,
                name=names,
                topic_id=st.none() | st.uuids(),
                partition_responses=several(
                    kind(
                        produced,
                        index=numbers,
                        error_code=errors,
                        base_offset=offsets,
                        log_append_time_ms=offsets,
                        log_start_offset=offsets,
                        record_errors=several(
                            kind(
                                produced.BatchIndexAndErrorMessage,
                                batch_index=numbers,
                                batch_index_error_message=st.none() | names,
                            )
                        ),
                        error_message=st.none() | names,
                    )
                ),
            )
        ),
    ),
    ApiKey.FETCH: kind(
        FetchResponse,
        throttle_time_ms=numbers,
        error_code=errors,
        session_id=numbers,
        responses=several(
            kind(
                FetchResponse.FetchableTopicResponse,
                topic=names,
                topic_id=st.none() | st.uuids(),
                partitions=several(
                    kind(
                        fetched,
                        partition_index=numbers,
                        error_code=errors,
                        high_watermark=offsets,
                        last_stable_offset=offsets,
                        log_start_offset=offsets,
                        aborted_transactions=st.none()
                        | several(kind(fetched.AbortedTransaction, producer_id=offsets, first_offset=offsets)),
                        preferred_read_replica=numbers,
                        records=st.none() | st.binary(max_size=300),
                    )
                ),
            )
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: kind(
        AddPartitionsToTxnResponse,
        throttle_time_ms=numbers,
        results_by_topic_v3_and_below=several(
            kind(
                added,
                name=names,
                results_by_partition=several(
                    kind(added.AddPartitionsToTxnPartitionResult, partition_index=numbers, partition_error_code=errors)
                ),
            )
        ),
    ),
    ApiKey.END_TXN: kind(
        EndTxnResponse, throttle_time_ms=numbers, error_code=errors, producer_id=offsets, producer_epoch=errors
    ),
}


@pytest.mark.slow
@settings(max_examples=400)
@given(st.sampled_from(EVERY_VERSION), st.data())
def test_hand_written_encoders_write_the_bytes_of_kafka_python(hot: tuple[ApiKey, int], data: st.DataObject) -> None:
    key, version = hot
    response = data.draw(UNTAGGED[key])
    parts = encode_hot(key, version, response)
    assert parts is not None
    assert b"".join(parts) == response.encode(version=version)


@pytest.mark.slow
@given(st.sampled_from(EVERY_VERSION), st.data())
def test_tagged_fields_are_left_to_kafka_python(hot: tuple[ApiKey, int], data: st.DataObject) -> None:
    key, version = hot
    response = data.draw(messages(APIS[key].response, version))
    assert write_response(key, version, 5, response).endswith(response.encode(version=version))


def as_tuples(response: Any) -> Produced:
    """A Produce response of kafka-python as the broker makes it."""
    return Produced(
        [
            ProducedTopic(
                topic.name,
                [
                    ProducedPartition(*(getattr(entry, field) for field in ProducedPartition._fields))
                    for entry in topic.partition_responses
                ],
                topic.topic_id,
            )
            for topic in response.responses
        ],
        response.throttle_time_ms,
    )


@given(st.integers(3, 13), UNTAGGED[ApiKey.PRODUCE])
def test_a_produce_response_of_tuples_is_written_and_counted_as_that_of_kafka_python(
    version: int, response: Any
) -> None:
    ours = as_tuples(response)
    assert write_response(ApiKey.PRODUCE, version, 5, ours) == write_response(ApiKey.PRODUCE, version, 5, response)
    assert error_codes(ours) == error_codes(response)


@given(st.integers(0, 5), UNTAGGED[ApiKey.END_TXN])
def test_an_end_txn_response_of_a_tuple_is_written_and_counted_as_that_of_kafka_python(
    version: int, response: Any
) -> None:
    ours = EndTxnResult(response.throttle_time_ms, response.error_code, response.producer_id, response.producer_epoch)
    assert write_response(ApiKey.END_TXN, version, 5, ours) == write_response(ApiKey.END_TXN, version, 5, response)
    assert error_codes(ours) == error_codes(response)


@given(st.integers(0, 3), UNTAGGED[ApiKey.ADD_PARTITIONS_TO_TXN])
def test_an_add_partitions_response_of_tuples_is_written_and_counted_as_that_of_kafka_python(
    version: int, response: Any
) -> None:
    topics = [
        AddedTopic(
            topic.name,
            [AddedPartition(entry.partition_index, entry.partition_error_code) for entry in topic.results_by_partition],
        )
        for topic in response.results_by_topic_v3_and_below
    ]
    ours, key = AddedPartitions(response.throttle_time_ms, topics), ApiKey.ADD_PARTITIONS_TO_TXN
    assert write_response(key, version, 5, ours) == write_response(key, version, 5, response)
    assert error_codes(ours) == error_codes(response)


def test_fetched_records_are_not_copied() -> None:
    records = bytes(1000)
    entry = fetched(
        partition_index=0,
        error_code=0,
        high_watermark=1,
        last_stable_offset=1,
        log_start_offset=0,
        aborted_transactions=None,
        records=records,
    )
    topic = FetchResponse.FetchableTopicResponse(topic="t", topic_id=uuid.UUID(int=1), partitions=[entry])
    response = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=[topic])
    parts = write_response_parts(ApiKey.FETCH, 16, 1, response)
    assert any(part is records for part in parts)
