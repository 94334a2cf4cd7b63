"""Reading a log through the control plane: what is asked of whom, and what each answer means."""

from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.client.admin.log_reader import LogExtent, LogReader
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import Anchor, TopicPartition
from dualwrite.wire.apis import APIS, ApiKey
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.scripted_broker import HANG_UP, SILENCE, scripted
from tests.support.client.scripted_control import ScriptedControl

T1 = TopicPartition("t", 1)
FETCHED, LISTED = APIS[ApiKey.FETCH].response, APIS[ApiKey.LIST_OFFSETS].response
METADATA = APIS[ApiKey.METADATA].response


def fetched(
    code: int = 0, *, aborted: list[tuple[int, int]] | None = None, records: bytes | None = b"", offsets: Any = (9, 8)
) -> Any:
    topic = FETCHED.FetchableTopicResponse
    entry = topic.PartitionData.AbortedTransaction
    part = topic.PartitionData(
        partition_index=1,
        error_code=int(code),
        high_watermark=offsets[0],
        last_stable_offset=offsets[1],
        log_start_offset=0,
        aborted_transactions=None if aborted is None else [entry(producer_id=p, first_offset=o) for p, o in aborted],
        records=records,
    )
    return FETCHED(throttle_time_ms=0, error_code=0, session_id=0, responses=[topic(topic="t", partitions=[part])])


def listed(offset: int, code: int = 0) -> Any:
    topic = LISTED.ListOffsetsTopicResponse
    part = topic.ListOffsetsPartitionResponse(
        partition_index=1, error_code=int(code), timestamp=-1, offset=offset, leader_epoch=0
    )
    return LISTED(throttle_time_ms=0, topics=[topic(name="t", partitions=[part])])


@pytest.mark.parametrize("committed", [True, False])
def test_a_fetch_asks_the_leader_for_one_partition_without_a_session(committed: bool) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, fetched(aborted=[(7, 3)], records=b"abc"))
        found = control.logs().read(T1, 5, committed=committed, most=1000)
        assert found == LogSlice(9, 8, ((7, 3),), b"abc")
        (asked,) = broker.requests(ApiKey.FETCH)
        assert asked.version == 12, "later versions name topics by id"
        assert (asked.message.isolation_level, asked.message.max_wait_ms) == (int(committed), 0)
        assert (asked.message.session_epoch, asked.message.max_bytes) == (-1, 1000)
        ((wanted,),) = [topic.partitions for topic in asked.message.topics]
        assert (wanted.partition, wanted.fetch_offset, wanted.partition_max_bytes) == (1, 5, 1000)


def test_an_old_broker_is_asked_in_its_own_version() -> None:
    with scripted(versions={ApiKey.FETCH: (4, 6)}) as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, fetched(records=None))
        assert control.logs().read(T1, 5, committed=True, most=1000) == LogSlice(9, 8, (), b"")


def test_reading_an_offset_outside_of_the_log_returns_none() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, fetched(ErrorCode.OFFSET_OUT_OF_RANGE, offsets=(-1, -1)))
        assert control.logs().read(T1, 5, committed=True, most=1000) is None


def test_a_refused_fetch_is_raised_to_the_caller() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, fetched(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(KafkaRefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
            control.logs().read(T1, 5, committed=True, most=1000)
        with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            control.logs().read(TopicPartition("gone", 0), 5, committed=True, most=1000)


@pytest.mark.parametrize("first", [HANG_UP, fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)], ids=["lost", "moved"])
def test_a_transient_fetch_error_is_retried(first: Any) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, first, fetched(records=b"abc"))
        found = control.logs().read(T1, 5, committed=True, most=1000)
        assert found is not None
        assert found.records == b"abc"


def test_an_answer_without_the_partition_raises_kafka_unavailable_error() -> None:
    empty = FETCHED(throttle_time_ms=0, error_code=0, session_id=0, responses=[])
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, empty)
        with pytest.raises(KafkaUnavailableError, match=r"leaves it out.*gave up after 3 s"):
            control.logs(3).read(T1, 5, committed=True, most=1000)


def test_an_unanswered_fetch_ends_at_its_timeout() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.FETCH, SILENCE)
        with pytest.raises(KafkaUnavailableError):
            control.logs(0.05).read(T1, 5, committed=True, most=1000)


def test_the_extent_is_that_of_a_leader_that_is_sure() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        unsure = listed(-1, ErrorCode.OFFSET_NOT_AVAILABLE)
        broker.answer(ApiKey.LIST_OFFSETS, listed(2), unsure, unsure, listed(9))
        assert control.logs().extent(T1) == LogExtent(2, 9)
        asked = [entry for seen in broker.requests(ApiKey.LIST_OFFSETS) for entry in seen.message.topics[0].partitions]
        assert [entry.timestamp for entry in asked] == [-2, -1, -1, -1]
        assert {seen.message.isolation_level for seen in broker.requests(ApiKey.LIST_OFFSETS)} == {0}


def test_a_refused_extent_is_raised_to_the_caller() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.LIST_OFFSETS, listed(2), listed(-1, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(KafkaRefusedError, match="ListOffsets of t-1: TOPIC_AUTHORIZATION_FAILED"):
            control.logs().extent(T1)


def test_a_topic_with_a_short_name_is_not_looked_for() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        assert control.logs().partition_of(Anchor("t", 1, 5)) == T1
        assert broker.seen == []


@pytest.mark.parametrize("is_there", [True, False])
def test_a_topic_whose_name_was_shortened_is_looked_for_among_all(is_there: bool) -> None:
    long = TopicPartition("l" * 249, 1)
    topic = METADATA.MetadataResponseTopic
    names = ["t", *([long.topic] if is_there else [])]
    topics = [topic(error_code=0, name=name, is_internal=False, partitions=[]) for name in names]
    with scripted() as broker, ScriptedControl(broker) as control:
        brokers = [METADATA.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1, rack=None)]
        broker.answer(
            ApiKey.METADATA,
            METADATA(throttle_time_ms=0, brokers=brokers, cluster_id="c", controller_id=1, topics=topics),
        )
        assert control.logs().partition_of(Anchor.of(long, 5)) == (long if is_there else None)


def test_a_broker_without_topic_ids_tells_none() -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        assert control.logs().topic_id("t") == ""
        assert control.logs().topic_id("gone") == ""


@pytest.mark.parametrize(
    "ask",
    [
        lambda logs: logs.partition_of(Anchor.of(TopicPartition("l" * 249, 1), 5)),
        lambda logs: logs.topic_id("t"),
        lambda logs: logs.extent(T1),
    ],
    ids=["a shortened name", "a topic's id", "a log's extent"],
)
def test_a_question_is_given_up_at_the_timeout_of_the_reader(ask: Callable[[LogReader], object]) -> None:
    with scripted() as broker, ScriptedControl(broker) as control:
        broker.answer(ApiKey.METADATA, HANG_UP)
        with pytest.raises(KafkaUnavailableError, match="gave up after 3 s"):
            ask(control.logs(3))
