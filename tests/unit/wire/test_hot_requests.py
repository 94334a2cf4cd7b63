"""The requests that are decoded by hand are what kafka-python reads, or are left to it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.wire.apis import APIS, AddPartitionsToTxnRequest, ApiKey, EndTxnRequest, ProduceRequest
from dualwrite.wire.codec import MalformedMessageError, read_body, read_request_head, refuse_nulls, write_request
from dualwrite.wire.hot_requests import AddPartitionsToTxn, EndTxn, HotRequest, Produce, read_hot_request
from tests.support.strategies import attempt, messages

HOT = [
    *((ApiKey.PRODUCE, version) for version in range(9, 13)),
    *((ApiKey.END_TXN, version) for version in range(6)),
    *((ApiKey.ADD_PARTITIONS_TO_TXN, version) for version in range(3)),
]
hot = st.sampled_from(HOT)

_TOPIC = ProduceRequest.TopicProduceData
names = st.text(max_size=200)
produces = st.builds(
    ProduceRequest,
    transactional_id=st.none() | names,
    acks=st.integers(-(2**15), 2**15 - 1),
    timeout_ms=st.integers(-(2**31), 2**31 - 1),
    topic_data=st.lists(
        st.builds(
            _TOPIC,
            name=names,
            partition_data=st.lists(
                st.builds(
                    _TOPIC.PartitionProduceData,
                    index=st.integers(-(2**31), 2**31 - 1),
                    records=st.binary(max_size=300),
                ),
                max_size=4,
            ),
        ),
        max_size=4,
    ),
)
ends = st.builds(
    EndTxnRequest,
    transactional_id=names,
    producer_id=st.integers(-(2**63), 2**63 - 1),
    producer_epoch=st.integers(-(2**15), 2**15 - 1),
    committed=st.booleans(),
)
_ADDED = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
additions = st.builds(
    AddPartitionsToTxnRequest,
    v3_and_below_transactional_id=names,
    v3_and_below_producer_id=st.integers(-(2**63), 2**63 - 1),
    v3_and_below_producer_epoch=st.integers(-(2**15), 2**15 - 1),
    v3_and_below_topics=st.lists(
        st.builds(_ADDED, name=names, partitions=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)), max_size=4
    ),
)
UNTAGGED = {ApiKey.PRODUCE: produces, ApiKey.END_TXN: ends, ApiKey.ADD_PARTITIONS_TO_TXN: additions}


def framed(key: ApiKey, version: int, request: Any) -> tuple[bytearray, int]:
    """A request as it arrives, and where its body begins."""
    frame = bytearray(write_request(key, version, 5, "me", request))
    return frame, read_request_head(frame)[1]


def by_kafka_python(key: ApiKey, version: int, frame: bytearray, position: int) -> Any:
    request = read_body(APIS[key].request, version, frame, position)
    refuse_nulls(request, version)
    return request


def assert_same(ours: HotRequest, theirs: Any) -> None:
    """Assert that both say the same, by the attributes that handlers use."""
    if isinstance(ours, AddPartitionsToTxn):
        assert ours == (
            theirs.v3_and_below_transactional_id,
            theirs.v3_and_below_producer_id,
            theirs.v3_and_below_producer_epoch,
            [(topic.name, topic.partitions) for topic in theirs.v3_and_below_topics],
        )
        return
    if isinstance(ours, EndTxn):
        assert ours == (theirs.transactional_id, theirs.producer_id, theirs.producer_epoch, theirs.committed)
        return
    assert ours[:3] == (theirs.transactional_id, theirs.acks, theirs.timeout_ms)
    assert [
        (topic.name, topic.topic_id, [(data.index, bytes(data.records)) for data in topic.partition_data])
        for topic in ours.topic_data
    ] == [
        (topic.name, topic.topic_id, [(data.index, bytes(data.records)) for data in topic.partition_data])
        for topic in theirs.topic_data
    ]


@given(hot, st.data())
def test_hand_written_decoders_read_the_values_of_kafka_python(api: tuple[ApiKey, int], data: st.DataObject) -> None:
    frame, position = framed(*api, data.draw(UNTAGGED[api[0]]))
    ours = read_hot_request(*api, frame, position)
    assert ours is not None
    assert_same(ours, by_kafka_python(*api, frame, position))


@given(hot, st.data())
def test_a_request_with_tagged_fields_or_nulls_is_decoded_by_hand_only_if_it_can_be(
    api: tuple[ApiKey, int], data: st.DataObject
) -> None:
    _is_one_if_it_is_taken(*api, *framed(*api, data.draw(messages(APIS[api[0]].request, api[1]))))


@given(hot, st.binary(max_size=80))
def test_noise_is_taken_for_a_request_only_if_it_is_one(api: tuple[ApiKey, int], noise: bytes) -> None:
    _is_one_if_it_is_taken(*api, bytearray(noise), 0)


@given(hot, st.data(), st.integers(0, 300), st.binary(max_size=3))
def test_a_request_that_was_damaged_is_taken_only_if_it_is_one(
    api: tuple[ApiKey, int], data: st.DataObject, place: int, noise: bytes
) -> None:
    frame, position = framed(*api, data.draw(UNTAGGED[api[0]]))
    _is_one_if_it_is_taken(*api, frame[: position + place] + noise + frame[position + place + 1 :], position)


def _is_one_if_it_is_taken(key: ApiKey, version: int, frame: bytearray, position: int) -> None:
    ours = read_hot_request(key, version, frame, position)
    if ours is not None:
        assert_same(ours, by_kafka_python(key, version, frame, position))  # raises if we were wrong


@given(hot, st.data(), st.integers(1, 5))
def test_a_request_that_is_cut_short_or_too_long_is_left_to_kafka_python(
    api: tuple[ApiKey, int], data: st.DataObject, size: int
) -> None:
    frame, position = framed(*api, data.draw(UNTAGGED[api[0]]))
    assert read_hot_request(*api, frame + bytes(size), position) is None
    assert read_hot_request(*api, frame[:-size], position) is None
    assert isinstance(attempt(lambda: by_kafka_python(*api, frame[:-1], position), MalformedMessageError), Exception)


@pytest.mark.parametrize("version", range(9, 13))
def test_illegal_nulls_are_left_to_kafka_python(version: int) -> None:
    topic = _TOPIC(name="t", partition_data=[_TOPIC.PartitionProduceData(index=0, records=None)])
    frame, position = framed(ApiKey.PRODUCE, version, ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic]))
    assert read_hot_request(ApiKey.PRODUCE, version, frame, position) is None
    whole, _ = framed(ApiKey.PRODUCE, version, ProduceRequest(acks=1, timeout_ms=1, topic_data=[]))
    no_topics = whole[:-2] + b"\x00\x00"
    assert read_hot_request(ApiKey.PRODUCE, version, no_topics, position) is None
    with pytest.raises(MalformedMessageError, match="topic_data is null"):
        by_kafka_python(ApiKey.PRODUCE, version, no_topics, position)


def test_records_are_views_that_can_be_written_to() -> None:
    topic = _TOPIC(name="t", partition_data=[_TOPIC.PartitionProduceData(index=0, records=b"batch")])
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic])
    frame, position = framed(ApiKey.PRODUCE, 12, request)
    ours = read_hot_request(ApiKey.PRODUCE, 12, frame, position)
    assert isinstance(ours, Produce)
    ours.topic_data[0].partition_data[0].records[0] = ord("B")
    assert b"Batch" in frame


@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.PRODUCE, 8), (ApiKey.PRODUCE, 13), (ApiKey.ADD_PARTITIONS_TO_TXN, 3)]
)
def test_other_versions_are_left_to_kafka_python(key: ApiKey, version: int) -> None:
    request = APIS[key].request()
    assert read_hot_request(key, version, *framed(key, version, request)) is None
