"""What the native producer encodes by hand is what kafka-python encodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.codec import MalformedMessageError, read_body, read_response, write_request, write_response
from dualwrite.wire.producing import ProduceBatch, TransactionalProduce, TransactionEnd, read_hot_response

NAMES = st.text("abcxyz.-_", min_size=1, max_size=200)
BATCHES = st.lists(
    st.builds(ProduceBatch, NAMES, st.integers(0, 2**31 - 1), st.binary(max_size=300)),
    min_size=1,
    max_size=6,
    unique_by=lambda batch: (batch.topic, batch.partition),
)


@given(transactional_id=st.text(min_size=1, max_size=200), timeout_ms=st.integers(0, 2**31 - 1), batches=BATCHES)
def test_produce_is_encoded_as_kafka_python_encodes_it(
    transactional_id: str, timeout_ms: int, batches: list[ProduceBatch]
) -> None:
    ours = TransactionalProduce(transactional_id, timeout_ms, batches)
    request = APIS[ApiKey.PRODUCE].request
    topic_class = request.TopicProduceData
    topics: dict[str, list[ProduceBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.topic, []).append(batch)
    theirs = request(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[
            topic_class(
                name=name,
                partition_data=[
                    topic_class.PartitionProduceData(index=batch.partition, records=batch.data) for batch in found
                ],
            )
            for name, found in topics.items()
        ],
    )
    assert ours.encode(version=12) == theirs.encode(version=12)
    written = write_request(ApiKey.PRODUCE, 12, 5, "me", ours)
    assert written == write_request(ApiKey.PRODUCE, 12, 5, "me", theirs)
    assert read_body(request, 12, ours.encode(version=12), 0) == theirs


@given(
    transactional_id=st.text(min_size=1, max_size=200),
    producer_id=st.integers(0, 2**63 - 1),
    epoch=st.integers(0, 2**15 - 1),
    committed=st.booleans(),
)
def test_end_txn_is_encoded_as_kafka_python_encodes_it(
    transactional_id: str, producer_id: int, epoch: int, committed: bool
) -> None:
    ours = TransactionEnd(transactional_id, producer_id, epoch, committed)
    theirs = APIS[ApiKey.END_TXN].request(
        transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=committed
    )
    assert write_request(ApiKey.END_TXN, 5, 5, "me", ours) == write_request(ApiKey.END_TXN, 5, 5, "me", theirs)


@pytest.mark.parametrize("message", [TransactionalProduce("app-0", 1, []), TransactionEnd("app-0", 1, 2, True)])
def test_another_version_is_not_written(message: Message) -> None:
    with pytest.raises(AssertionError):
        message.flexible_version_q(3)


SHORTS, INTS, LONGS = st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-1, 2**63 - 1)
_TOPIC = APIS[ApiKey.PRODUCE].response.TopicProduceResponse
_PARTITION = _TOPIC.PartitionProduceResponse
RECORD_ERRORS = st.lists(
    st.builds(_PARTITION.BatchIndexAndErrorMessage, batch_index=INTS, batch_index_error_message=st.none() | st.text()),
    max_size=2,
)


def partitions(record_errors: st.SearchStrategy[list[Message]], texts: st.SearchStrategy[str | None]) -> Message:
    return st.builds(
        _PARTITION,
        index=INTS,
        error_code=SHORTS,
        base_offset=LONGS,
        log_append_time_ms=LONGS,
        log_start_offset=LONGS,
        record_errors=record_errors,
        error_message=texts,
    )


def produced(entries: Message) -> Message:
    topics = st.builds(_TOPIC, name=NAMES, partition_responses=st.lists(entries, max_size=4))
    return st.builds(APIS[ApiKey.PRODUCE].response, responses=st.lists(topics, max_size=4), throttle_time_ms=INTS)


COMMON = produced(partitions(st.just([]), st.none()))
RARE = produced(partitions(RECORD_ERRORS, st.none() | st.text(max_size=200)))


def same(ours: Message, theirs: Message) -> None:
    """Assert that both responses say the same."""
    assert ours.throttle_time_ms == theirs.throttle_time_ms
    for topic, other in zip(ours.responses, theirs.responses, strict=True):
        assert topic.name == other.name
        for entry, another in zip(topic.partition_responses, other.partition_responses, strict=True):
            for field in (*entry._fields[:5], "error_message"):
                assert getattr(entry, field) == getattr(another, field)
            assert list(entry.record_errors) == list(another.record_errors)


@given(COMMON)
def test_a_common_produce_response_is_read_as_kafka_python_reads_it(response: Message) -> None:
    frame = write_response(ApiKey.PRODUCE, 12, 5, response)
    ours = read_hot_response(ApiKey.PRODUCE, 12, frame)
    assert ours is not None
    same(ours, read_response(ApiKey.PRODUCE, 12, frame))


@given(RARE)
def test_a_rare_produce_response_is_left_to_kafka_python(response: Message) -> None:
    frame = write_response(ApiKey.PRODUCE, 12, 5, response)
    entries = [entry for topic in response.responses for entry in topic.partition_responses]
    ours = read_hot_response(ApiKey.PRODUCE, 12, frame)
    assert (ours is None) == any(entry.record_errors or entry.error_message is not None for entry in entries)


@given(SHORTS, LONGS, SHORTS, INTS)
def test_an_end_txn_response_is_read_as_kafka_python_reads_it(
    code: int, producer_id: int, epoch: int, throttle: int
) -> None:
    response = APIS[ApiKey.END_TXN].response(
        throttle_time_ms=throttle, error_code=code, producer_id=producer_id, producer_epoch=epoch
    )
    ours = read_hot_response(ApiKey.END_TXN, 5, write_response(ApiKey.END_TXN, 5, 5, response))
    assert ours == (throttle, code, producer_id, epoch)


@given(st.sampled_from([(ApiKey.PRODUCE, 12), (ApiKey.END_TXN, 5)]), st.binary(max_size=80))
def test_noise_is_taken_for_a_response_only_if_it_is_one(api: tuple[ApiKey, int], noise: bytes) -> None:
    _is_one_if_it_is_taken(*api, noise)


@given(COMMON, st.integers(0, 300), st.binary(max_size=3))
def test_a_response_that_was_damaged_is_taken_only_if_it_is_one(response: Message, place: int, noise: bytes) -> None:
    whole = write_response(ApiKey.PRODUCE, 12, 5, response)
    _is_one_if_it_is_taken(ApiKey.PRODUCE, 12, whole[:place] + noise + whole[place + 1 :])


def _is_one_if_it_is_taken(api_key: ApiKey, version: int, frame: bytes) -> None:
    ours = read_hot_response(api_key, version, frame)
    if ours is None:
        return
    theirs = read_response(api_key, version, frame)  # raises MalformedMessageError if we were wrong
    if api_key is ApiKey.PRODUCE:
        same(ours, theirs)
    else:
        assert ours == tuple(getattr(theirs, field) for field in ours._fields)


def test_other_responses_and_versions_are_left_to_kafka_python() -> None:
    response = APIS[ApiKey.END_TXN].response(throttle_time_ms=0, error_code=0, producer_id=1, producer_epoch=2)
    assert read_hot_response(ApiKey.END_TXN, 4, write_response(ApiKey.END_TXN, 4, 5, response)) is None
    assert read_hot_response(ApiKey.PRODUCE, 12, b"") is None
    with pytest.raises(MalformedMessageError):
        read_response(ApiKey.PRODUCE, 12, b"\0\0\0\0")
