"""What a move reads and changes in a cluster beside records, by ``dualwrite.admin``: topics, settings, groups."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from dualwrite.admin.connecting import connected
from dualwrite.admin.definitions import (
    TopicDefinition,
    add_partitions,
    await_partitions,
    set_topic_settings,
    topic_at_creation,
    topic_definitions,
)
from dualwrite.admin.groups import list_groups, stable_offsets
from dualwrite.admin.topics import create_topic
from dualwrite.client.admin.offsets import listed_offsets
from dualwrite.client.protocol.requests import EARLIEST, LATEST
from dualwrite.errors import DualWriteError, InputError, KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.moving.plan import TIMESTAMP_TYPE, CreationDefaults, TopicDescription
from dualwrite.moving.ports import GroupOffset
from dualwrite.wire.error_codes import ErrorCode

_WITHOUT_MEMBERS = ("Empty", "Dead")
_SHARING = "share"
"""The type of a share group (KIP-932), which has no offset of a next record."""


class TopicEnds(NamedTuple):
    """Where the partitions of a topic begin and end: first offsets, high watermarks and last stable offsets."""

    first: Mapping[int, int]
    high: Mapping[int, int]
    stable: Mapping[int, int]

    @property
    def open_partitions(self) -> list[int]:
        """The partitions with a transaction that was open before and after the high watermarks were read."""
        return [partition for partition in sorted(self.high) if self.stable[partition] < self.high[partition]]


class MoveAdmin:
    """One of the two clusters. Every method raises KafkaUnavailableError if the cluster does not answer, and
    KafkaRefusedError if it refuses.

    :param config: how to reach it, by librdkafka's keys.
    :param side: ``source`` or ``target``, for errors.
    """

    def __init__(self, config: Mapping[str, Any], side: str) -> None:
        self._kafka = config
        self._side = side

    def cluster_id(self) -> str:
        """The cluster's id.

        :raises ConfigurationError: if a setting is missing or malformed.
        """
        with self._named(), connected(self._kafka) as cluster:
            found = cluster.persist(cluster.cluster_id)
            if found is None:
                raise KafkaUnavailableError("the cluster has no id")
            return found

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicDescription]:
        """The topics with ``names`` that exist; None for all that this client may describe, without Kafka's own."""
        with self._named():
            return {name: _described(topic) for name, topic in topic_definitions(self._kafka, names).items()}

    def at_creation(
        self, name: str, partitions: int, settings: Mapping[str, str], replication_factor: int
    ) -> CreationDefaults:
        """What the cluster would make of the arguments of :meth:`create_topic`.

        :raises InputError: if it takes none of the settings.
        """
        with self._named(), self._advised():
            found = topic_at_creation(
                self._kafka, name, partitions=partitions, replicas=_replicas(replication_factor), config=settings
            )
        known = {entry.name: entry.value for entry in found.settings if entry.value is not None}
        return CreationDefaults(known, found.replicas, found.nodes)

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str], replication_factor: int) -> None:
        """Create a topic.

        :raises InputError: as :meth:`at_creation`.
        """
        replicas = _replicas(replication_factor)
        with self._named(), self._advised():
            create_topic(self._kafka, name, partitions=partitions, replicas=replicas, config=settings)
            await_partitions(self._kafka, name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, up to ``total``."""
        with self._named():
            add_partitions(self._kafka, name, total)
            await_partitions(self._kafka, name, total)

    def set_timestamp_type(self, name: str, timestamp_type: str) -> None:
        """Set ``message.timestamp.type`` of a topic."""
        with self._named():
            set_topic_settings(self._kafka, name, {TIMESTAMP_TYPE: timestamp_type})

    def ends(self, topic: TopicDescription) -> TopicEnds:
        """Where each partition begins and ends, asked for in this order."""
        places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        with self._named(), connected(self._kafka) as cluster:
            first = listed_offsets(cluster, places, EARLIEST)
            high = listed_offsets(cluster, places, LATEST)
            stable = listed_offsets(cluster, places, LATEST, committed=True)
        by_number = [{place.partition: offset for place, offset in each.items()} for each in (first, high, stable)]
        return TopicEnds(*by_number)

    def groups(self) -> dict[str, bool]:
        """The groups that have offsets of next records, and whether a member is there now."""
        with self._named():
            groups = list_groups(self._kafka)
        return {group.group_id: group.state not in _WITHOUT_MEMBERS for group in groups if group.kind != _SHARING}

    def group_offsets(
        self, groups: Iterable[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, GroupOffset]]:
        """The committed offsets of each of ``groups`` in ``partitions``.

        :raises InputError: if an open transaction has offsets of one there.
        """
        with self._named():
            found = stable_offsets(self._kafka, groups, partitions)
        offsets: dict[str, dict[TopicPartition, GroupOffset]] = {group: {} for group in found}
        for group, committed in found.items():
            for place, entry in sorted(committed.items()):
                if entry is None:
                    raise InputError(
                        f"group {group!r}: an open transaction has offsets of {place}. End it first: see dualwrite "
                        "transactions list"
                    )
                offsets[group][place] = entry.offset, entry.metadata
        return offsets

    @contextmanager
    def _advised(self) -> Iterator[None]:
        """Say what to do about a setting that the cluster does not take."""
        try:
            yield
        except KafkaRefusedError as error:
            if error.code != ErrorCode.INVALID_CONFIG:
                raise
            raise InputError(
                f"{error}. Create it there yourself, without this setting: an empty topic is used"
            ) from None

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the cluster in errors."""
        try:
            yield
        except DualWriteError as error:
            error.args = (f"at the {self._side}: {error}",)
            raise


def _replicas(replication_factor: int) -> int | None:
    return None if replication_factor < 1 else replication_factor


def _described(topic: TopicDefinition) -> TopicDescription:
    known = [entry for entry in topic.settings if entry.value is not None]
    own = {entry.name: str(entry.value) for entry in known if entry.is_own}
    defaults = {entry.name: str(entry.value) for entry in known if not entry.is_own}
    return TopicDescription(topic.name, topic.topic_id, topic.partitions, own, defaults, topic.is_internal)
