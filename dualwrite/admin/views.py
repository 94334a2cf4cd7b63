"""What the functions of ``dualwrite.admin`` return. Offsets are of Kafka; None is what the cluster did not tell."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from dualwrite.client.terms.record_states import RecordState
from dualwrite.ids import ProducerIdentity, TopicPartition

Start = Literal["beginning", "end"] | int | datetime
"""A place in each partition: where the log begins or ends; an offset, or the nearest one that the log has; or the first
record that is not older than a time, which needs its zone."""


@dataclass(frozen=True, slots=True)
class TopicListing:
    """One topic of the list. ``replicas`` is the replication factor."""

    name: str
    partitions: int
    replicas: int
    is_internal: bool


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition.

    :param transactional_id: None if the cluster does not tell it: this client may not describe it, or no coordinator
        knows it (a hanging transaction, KIP-664).
    :param first_offset: the offset of its first record in the partition.
    """

    transactional_id: str | None
    producer: ProducerIdentity
    first_offset: int
    started_at: datetime | None

    @property
    def name(self) -> str:
        """The transactional id, or else the producer."""
        return self.transactional_id or f"of producer {self.producer}"


@dataclass(frozen=True, slots=True)
class PartitionDetails:
    """One partition of a topic.

    :param leader: the node id; None while there is no leader. Then the offsets are not known either.
    :param earliest: the offset of the first record.
    :param last_stable_offset: where read_committed consumers must stop.
    :param high_watermark: where read_uncommitted consumers must stop.
    :param size: bytes of the leader's log; None if DESCRIBE on the cluster is not granted.
    :param open_transactions: in the order of their first offsets; None if READ on the topic is not granted.
    """

    partition: int
    leader: int | None
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    earliest: int | None = None
    last_stable_offset: int | None = None
    high_watermark: int | None = None
    size: int | None = None
    open_transactions: tuple[OpenTransaction, ...] | None = None

    @property
    def held_back(self) -> int:
        """How many offsets read_committed consumers cannot reach, because of an open transaction."""
        if self.last_stable_offset is None or self.high_watermark is None:
            return 0
        return max(0, self.high_watermark - self.last_stable_offset)

    @property
    def holder(self) -> OpenTransaction | None:
        """The open transaction that holds the last stable offset back."""
        begun = self.open_transactions or ()
        return next((each for each in begun if each.first_offset == self.last_stable_offset), None)


@dataclass(frozen=True, slots=True)
class TopicConfigEntry:
    """A setting of a topic. ``is_own`` is True if it was set on the topic, and False for the broker's value."""

    name: str
    value: str | None
    is_own: bool


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """A topic, its partitions, and its settings; ``settings`` is None if DESCRIBE_CONFIGS is not granted."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: tuple[PartitionDetails, ...]
    settings: tuple[TopicConfigEntry, ...] | None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record, and the state of its transaction.

    :param timestamp: milliseconds since the epoch.
    :param is_visible: True if read_committed consumers see it now. They see neither aborted records nor markers, nor
        anything behind an open transaction.
    :param producer: falsy if it was not idempotent.
    :param transactional_id: None if it is not transactional, or the cluster does not tell it (any more).
    """

    partition: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    state: RecordState
    is_visible: bool
    producer: ProducerIdentity
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class GroupListing:
    """One consumer group of the list.

    :param state: Kafka's: Stable, Empty, PreparingRebalance, …; empty if the broker is too old to list it.
    :param kind: ``classic``; ``consumer`` for a group of the new protocol (KIP-848), and others; empty as for
        ``state``.
    """

    group_id: str
    state: str
    kind: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberDetails:
    """A member of a group, with the partitions that it was assigned."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """What a group has read of a partition, and what it has not.

    :param committed: the group's committed offset.
    :param is_pending: True if an open transaction has a newer offset of the group.
    :param unread: how many records a read_committed consumer would still get before the last stable offset; None if
        they were not counted: READ on the topic is not granted, or there are too many.
    :param member_id: the member that was assigned the partition.
    """

    partition: TopicPartition
    committed: int | None
    is_pending: bool
    earliest: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    unread: int | None
    member_id: str | None

    @property
    def lag(self) -> int | None:
        """Offsets from the committed one to the last stable offset: records, and also markers and aborted records,
        which no read_committed consumer gets. Unknown without a committed offset."""
        if self.committed is None or self.last_stable_offset is None:
            return None
        return max(0, self.last_stable_offset - self.committed)

    @property
    def held_back(self) -> int:
        """Offsets behind an open transaction. They are no part of the lag: the group cannot read them."""
        if self.last_stable_offset is None or self.high_watermark is None:
            return 0
        return max(0, self.high_watermark - self.last_stable_offset)


@dataclass(frozen=True, slots=True)
class GroupDetails:
    """A consumer group.

    :param assignor: the partition assignor that the group has agreed on; empty if there is none.
    :param kind: as in GroupListing.
    :param members: None if they cannot be listed: the group is of another kind than ``classic`` and ``consumer``, or
        this client may not describe all of its topics, or the broker is older than ConsumerGroupDescribe.
    """

    group_id: str
    state: str
    kind: str
    assignor: str
    members: tuple[MemberDetails, ...] | None
    lags: tuple[PartitionLag, ...]


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does, or would do, to a committed offset; ``before`` is None if there was none."""

    partition: TopicPartition
    before: int | None
    after: int
