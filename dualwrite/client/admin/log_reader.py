"""Reads records of a partition for the control plane: Fetch and ListOffsets.

It needs the READ operation on the topic, as DescribeProducers does.
"""

from typing import NamedTuple

from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.encoding.transaction_end import LogSlice
from dualwrite.client.protocol.requests import EARLIEST, LATEST, VersionedRequest, fetch, list_offsets
from dualwrite.client.terms.error_classes import raise_for, raise_if_retriable
from dualwrite.errors import KafkaUnavailableError
from dualwrite.ids import Anchor, TopicPartition, is_legal_topic
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode


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
        """The partition of ``anchor``; None if its topic does not exist. Looks up a topic whose name was shortened."""
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
        entry = self._ask_leader(fetch(partition, offset, committed=committed, most=most), partition)
        if entry.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        raise_for(ApiKey.FETCH, f"Fetch of {partition}", entry.error_code)
        aborted = tuple((aborted.producer_id, aborted.first_offset) for aborted in entry.aborted_transactions or ())
        return LogSlice(entry.high_watermark, entry.last_stable_offset, aborted, bytes(entry.records or b""))

    def extent(self, partition: TopicPartition) -> LogExtent:
        """The first and the end offset of the log, from a leader that is sure of them (KIP-207)."""
        return LogExtent(self._offset_of(partition, EARLIEST), self._offset_of(partition, LATEST))

    def _offset_of(self, partition: TopicPartition, timestamp: int) -> int:
        entry = self._ask_leader(list_offsets([partition], timestamp), partition)
        raise_for(ApiKey.LIST_OFFSETS, f"ListOffsets of {partition}", entry.error_code)
        return int(entry.offset)

    def _ask_leader(self, call: VersionedRequest, partition: TopicPartition) -> Message:
        """The answer of the leader of ``partition``; asks until the broker is the leader and ready."""

        def attempt(deadline: float) -> Message:
            endpoint = self._cluster.leaders([partition], deadline)[partition]
            answer = self._cluster.ask(endpoint, call, deadline)
            topics = answer.responses if call.api_key is ApiKey.FETCH else answer.topics
            entry = next((entry for topic in topics for entry in topic.partitions), None)
            if entry is None:
                raise KafkaUnavailableError(f"{call.operation} of {partition}: the answer leaves it out")
            raise_if_retriable(call.api_key, f"{call.operation} of {partition}: broker {endpoint}", entry.error_code)
            return entry

        return self._cluster.persist(attempt, timeout=self._timeout)
