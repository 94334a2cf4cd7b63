"""A fake consumer with the interface that a unit of work needs: partitions with endless records, and its positions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from dualwrite.client.protocol.requests import GroupMember
from dualwrite.ids import TopicPartition

NOTHING_READ = -1001
"""librdkafka's OFFSET_INVALID."""


@dataclass
class Position:
    """confluent_kafka.TopicPartition."""

    topic: str
    partition: int
    offset: int = NOTHING_READ
    leader_epoch: int | None = None
    error: KafkaError | None = None


@dataclass
class Metadata:
    """confluent_kafka.admin.ClusterMetadata."""

    cluster_id: str | None


class FakeGroup:
    """What a cluster knows of a group."""

    def __init__(self, name: str = "group") -> None:
        self.name = name
        self.committed: dict[TopicPartition, int] = {}
        self.refusals: dict[TopicPartition, int] = {}
        """The code of the error with which the offset of a partition is not told."""
        self.watermarks = (0, 1000)
        self.is_cooperative = False
        self.cluster_id: str | None = "cluster"


class FakeConsumer:
    """confluent_kafka.Consumer, a member of ``group``."""

    def __init__(self, group: FakeGroup, member: str = "member", generation: int = 1) -> None:
        self.group = group
        self.member = GroupMember(group.name, generation, member)
        self.next: dict[TopicPartition, int] = {}
        """Where each partition is read on; NOTHING_READ as long as the cluster would have to be asked."""
        self.read: dict[TopicPartition, int] = {}
        self.calls: list[str] = []
        self.refused: list[str] = []
        """The calls of the other protocol, each of which librdkafka logs."""
        self.is_fetching = True

    def poll(self, partition: TopicPartition, count: int) -> list[int]:
        """The offsets of the next ``count`` records."""
        begin = self.next[partition]
        assert begin >= 0
        self.next[partition] = self.read[partition] = begin + count
        return list(range(begin, begin + count))

    def assignment(self) -> list[Position]:
        return [Position(*offset) for offset in self.next]

    def position(self, partitions: list[Any]) -> list[Position]:
        return [
            Position(partition.topic, partition.partition, self.read.get(place(partition), NOTHING_READ), 3)
            for partition in partitions
        ]

    def committed(self, partitions: list[Any], timeout: float) -> list[Position]:
        assert timeout > 0
        return [self._committed(place(partition)) for partition in partitions]

    def _committed(self, partition: TopicPartition) -> Position:
        if partition in self.group.refusals:
            return Position(*partition, error=KafkaError(self.group.refusals[partition]))
        return Position(*partition, self.group.committed.get(partition, NOTHING_READ))

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        return self.group.watermarks

    def list_topics(self, topic: str, timeout: float) -> Metadata:
        assert timeout > 0
        return Metadata(self.group.cluster_id)

    def consumer_group_metadata(self) -> GroupMember:
        return self.member

    def seek(self, partition: Any) -> None:
        self.calls.append(f"seek {place(partition)} {partition.offset}")
        if not self.is_fetching:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self._put([partition])

    def assign(self, partitions: list[Any]) -> None:
        self._require("assign", not self.group.is_cooperative)
        self.calls.append("assign")
        self.next.clear()
        self.read.clear()
        self._put(partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        self._require("incremental_assign", self.group.is_cooperative)
        self.calls.append("incremental_assign")
        assert not any(place(partition) in self.next for partition in partitions)
        self._put(partitions)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self._require("incremental_unassign", self.group.is_cooperative)
        self.calls.append("incremental_unassign")
        for partition in partitions:
            del self.next[place(partition)]

    def _require(self, call: str, is_of_protocol: bool) -> None:
        if not is_of_protocol:
            self.refused.append(call)
            raise KafkaException(KafkaError(KafkaError._STATE))

    def _put(self, partitions: Iterable[Any]) -> None:
        for partition in partitions:
            self.next[place(partition)] = partition.offset
            self.read.pop(place(partition), None)


def place(position: Any) -> TopicPartition:
    return TopicPartition(position.topic, position.partition)


def positions(*places: TopicPartition) -> list[Any]:
    """As a rebalance's callback gets them."""
    return [Position(*each) for each in places]
