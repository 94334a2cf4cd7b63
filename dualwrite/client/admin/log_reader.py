"""Reads records of a partition for the control plane: Fetch and ListOffsets.

It needs the READ operation on the topic, as DescribeProducers does.
"""

from typing import NamedTuple

from dualwrite.client.admin.cluster_client import Call, ClusterClient, raise_if_transient
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import Anchor, TopicPartition, is_legal_topic
from dualwrite.wire.apis import APIS, ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode, error_name

_READ_COMMITTED, _READ_UNCOMMITTED = 1, 0
_OLDEST_FETCH, _NAMING_FETCH = 4, 12  # later versions name topics by id
_OLDEST_LIST_OFFSETS = 1
_NEWEST_LIST_OFFSETS = 7
_NO_SESSION = -1
_EARLIEST, _LATEST = -2, -1


class LogExtent(NamedTuple):
    """The offset of a log's first record, and the offset after its last readable one."""

    start: int
    end: int


class LogReader:
    """Reads pieces of logs. Not thread-safe. Raises the same errors as ControlPlane's methods.

    :param cluster: sends the requests to the leaders.
    :param timeout: seconds that a request may take; None for the cluster's own.
    """

    def __init__(self, cluster: ClusterClient, timeout: float | None) -> None:
        self._cluster = cluster
        self._timeout = timeout

    def partition_of(self, anchor: Anchor) -> TopicPartition | None:
        """The partition of ``anchor``; None if there is no such topic. Looks up a topic whose name was shortened."""
        if is_legal_topic(anchor.topic):
            return TopicPartition(anchor.topic, anchor.partition)
        topics = self._cluster.persist(self._cluster.topics, timeout=self._timeout)
        named = (TopicPartition(topic, anchor.partition) for topic in topics)
        return next((partition for partition in named if anchor.is_in(partition)), None)

    def topic_id(self, topic: str) -> str:
        """The id of ``topic``, as Kafka writes it; empty if there is no such topic, or the cluster has no topic ids."""
        ids = self._cluster.persist(lambda deadline: self._cluster.topic_ids([topic], deadline), timeout=self._timeout)
        return ids.get(topic, "")

    def read(self, partition: TopicPartition, offset: int, *, committed: bool, most: int) -> LogSlice | None:
        """The log of ``partition`` from ``offset`` on: at least one batch, if there is one. None if the log begins
        after ``offset`` or ends before it.

        :param committed: True to read as a read_committed consumer.
        :param most: the most bytes to read.
        """
        entry = self._ask_leader(ApiKey.FETCH, _fetch(partition, offset, committed, most), partition)
        if entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        _raise_for(f"Fetch of {partition}", entry.error_code)
        aborted = tuple((each.producer_id, each.first_offset) for each in entry.aborted_transactions or ())
        return LogSlice(entry.high_watermark, entry.last_stable_offset, aborted, bytes(entry.records or b""))

    def extent(self, partition: TopicPartition) -> LogExtent:
        """The first and the end offset of the log, from a leader that is sure of them (KIP-207)."""
        return LogExtent(self._offset_of(partition, _EARLIEST), self._offset_of(partition, _LATEST))

    def _offset_of(self, partition: TopicPartition, timestamp: int) -> int:
        entry = self._ask_leader(ApiKey.LIST_OFFSETS, _list_offsets(partition, timestamp), partition)
        _raise_for(f"ListOffsets of {partition}", entry.error_code)
        return int(entry.offset)

    def _ask_leader(self, api_key: ApiKey, message: Message, partition: TopicPartition) -> Message:
        """The answer of the leader of ``partition``; asks until the broker is the leader and ready."""
        floor, cap = (
            (_OLDEST_FETCH, _NAMING_FETCH) if api_key is ApiKey.FETCH else (_OLDEST_LIST_OFFSETS, _NEWEST_LIST_OFFSETS)
        )

        def attempt(deadline: float) -> Message:
            endpoint = self._cluster.leaders([partition], deadline)[partition]
            answer = self._cluster.ask(endpoint, Call(api_key, message, floor=floor, cap=cap), deadline)
            topics = answer.responses if api_key is ApiKey.FETCH else answer.topics
            entry = next((entry for topic in topics for entry in topic.partitions), None)
            if entry is None:
                raise KafkaUnavailableError(f"{api_key.name} of {partition}: the answer leaves it out")
            what = f"{api_key.name} of {partition}: broker {endpoint}"
            raise_if_transient(what, entry.error_code)
            if entry.error_code == ErrorCode.OFFSET_NOT_AVAILABLE:
                raise KafkaUnavailableError(f"{what}: {error_name(entry.error_code)}")
            return entry

        return self._cluster.persist(attempt, timeout=self._timeout)


def _fetch(partition: TopicPartition, offset: int, committed: bool, most: int) -> Message:
    request = APIS[ApiKey.FETCH].request
    wanted = request.FetchTopic.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=most
    )
    return request(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=most,
        isolation_level=_READ_COMMITTED if committed else _READ_UNCOMMITTED,
        session_epoch=_NO_SESSION,
        topics=[request.FetchTopic(topic=partition.topic, partitions=[wanted])],
        forgotten_topics_data=[],
    )


def _list_offsets(partition: TopicPartition, timestamp: int) -> Message:
    request = APIS[ApiKey.LIST_OFFSETS].request
    wanted = request.ListOffsetsTopic.ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
    topic = request.ListOffsetsTopic(name=partition.topic, partitions=[wanted])
    return request(isolation_level=_READ_UNCOMMITTED, topics=[topic])


def _raise_for(what: str, code: int) -> None:
    if code:
        raise KafkaRefusedError(what, code, error_name(code))
