"""What a move reads and changes in a cluster beside records: topics, settings, offsets, consumer groups."""

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from dualwrite.client.librdkafka.errors import translating
from dualwrite.errors import ConfigurationError, InputError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.moving.plan import CREATE_TIME, TIMESTAMP_TYPE, TopicDescription
from dualwrite.moving.ports import GroupOffset

_SECONDS = 30.0
_PAUSE = 0.05
_NO_MEMBERS = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
_TOPIC = ConfigResource.Type.TOPIC
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_log = logging.getLogger("dualwrite.librdkafka")


class MoveAdmin:
    """One of the two clusters. Every method raises KafkaUnavailableError if the cluster does not answer, and
    KafkaRefusedError if it refuses.

    :param config: how to reach it, by librdkafka's keys.
    :param side: ``source`` or ``target``, for errors.
    :raises ConfigurationError: if librdkafka refuses a setting.
    """

    def __init__(self, config: Mapping[str, Any], side: str) -> None:
        self._side = side
        given: dict[str, Any] = {key: value for key, value in config.items() if value is not None}
        try:
            self._admin = AdminClient(given | {"logger": _log})
        except KafkaException as error:
            raise ConfigurationError(f"librdkafka: {error.args[0].str()}") from None

    def cluster_id(self) -> str:
        """The cluster's id."""
        return str(self._result("DescribeCluster", self._admin.describe_cluster(request_timeout=_SECONDS)).cluster_id)

    def topics(self, names: Collection[str] | None = None) -> dict[str, TopicDescription]:
        """The topics with ``names`` that exist; None for all that this client may describe."""
        if names is None:
            with translating(self._operation("Metadata"), two_phase=False):
                names = list(self._admin.list_topics(timeout=_SECONDS).topics)
        if not names:
            return {}
        described = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_SECONDS)
        found: dict[str, Any] = {}
        for name, future in described.items():
            try:
                found[name] = future.result(_SECONDS)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    self._result(f"DescribeTopics of {name}", future)
        settings = self._settings(found)
        return {
            name: TopicDescription(name, str(topic.topic_id), len(topic.partitions), *settings[name])
            for name, topic in found.items()
        }

    def _settings(self, topics: Iterable[str]) -> dict[str, tuple[dict[str, str], str]]:
        """The own settings and the timestamp type of each topic."""
        resources = [ConfigResource(_TOPIC, name) for name in topics]
        if not resources:
            return {}
        settings = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=_SECONDS).items():
            entries = self._result(f"DescribeConfigs of topic {resource.name}", future)
            own = {
                name: str(entry.value)
                for name, entry in sorted(entries.items())
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value and entry.value is not None
            }
            stamped = entries.get(TIMESTAMP_TYPE)
            settings[resource.name] = own, CREATE_TIME if stamped is None else str(stamped.value)
        return settings

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str], replication_factor: int) -> None:
        """Create a topic."""
        topic = NewTopic(name, partitions, replication_factor, config=dict(settings))
        (future,) = self._admin.create_topics([topic], operation_timeout=_SECONDS).values()
        self._result(f"creating topic {name}", future)
        self._await_partitions(name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, up to ``total``."""
        (future,) = self._admin.create_partitions([NewPartitions(name, total)], operation_timeout=_SECONDS).values()
        self._result(f"adding partitions to topic {name}", future)
        self._await_partitions(name, total)

    def _await_partitions(self, name: str, number: int) -> None:
        """Wait until the brokers know the partitions: they learn of them later than the controller."""
        deadline = time.monotonic() + _SECONDS
        while True:
            with translating(self._operation("Metadata"), two_phase=False):
                topic = self._admin.list_topics(name, timeout=_SECONDS).topics[name]
            led = [partition for partition in topic.partitions.values() if partition.leader >= 0]
            if topic.error is None and len(led) >= number:
                return
            if time.monotonic() >= deadline:
                raise KafkaUnavailableError(f"{self._operation('Metadata')}: topic {name} is not there in time")
            time.sleep(_PAUSE)

    def set_timestamp_type(self, name: str, timestamp_type: str) -> None:
        """Set ``message.timestamp.type`` of a topic."""
        entry = ConfigEntry(TIMESTAMP_TYPE, timestamp_type, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(_TOPIC, name, incremental_configs=[entry])
        (future,) = self._admin.incremental_alter_configs([resource], request_timeout=_SECONDS).values()
        self._result(f"setting {TIMESTAMP_TYPE} of topic {name}", future)

    def first_offsets(self, topic: TopicDescription) -> dict[int, int]:
        """The first offset of each partition."""
        return self._offsets(topic, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)

    def open_partitions(self, topic: TopicDescription) -> list[int]:
        """The partitions with an open transaction: the last stable offset is below the high watermark."""
        stable = self._offsets(topic, _LATEST, IsolationLevel.READ_COMMITTED)
        high = self._offsets(topic, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        return [partition for partition in sorted(stable) if stable[partition] < high[partition]]

    def _offsets(self, topic: TopicDescription, spec: OffsetSpec, isolation: IsolationLevel) -> dict[int, int]:
        places = {KafkaPartition(topic.name, number): spec for number in range(topic.partitions)}
        listed = self._admin.list_offsets(places, isolation_level=isolation, request_timeout=_SECONDS)
        return {
            place.partition: int(self._result(f"ListOffsets of topic {topic.name}", future).offset)
            for place, future in listed.items()
        }

    def groups(self) -> list[str]:
        """The names of the consumer groups."""
        listed = self._result("ListGroups", self._admin.list_consumer_groups(request_timeout=_SECONDS))
        if listed.errors:
            with translating(self._operation("ListGroups"), two_phase=False):
                raise listed.errors[0]
        return sorted(group.group_id for group in listed.valid)

    def active_groups(self, groups: Iterable[str]) -> list[str]:
        """Those of ``groups`` that have members now."""
        names = list(groups)
        if not names:
            return []
        described = self._admin.describe_consumer_groups(names, request_timeout=_SECONDS)
        active = []
        for name, future in described.items():
            try:
                state = future.result(_SECONDS).state
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    continue
                state = self._result(f"DescribeGroups of {name}", future).state
            if state not in _NO_MEMBERS:
                active.append(name)
        return sorted(active)

    def group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """The committed offsets of ``group`` in ``partitions``.

        :raises InputError: if an open transaction has offsets of it there.
        """
        if not partitions:
            return {}
        # Asked for by name: an answer about all partitions leaves out those that have only an offset that is pending.
        places = [KafkaPartition(*partition) for partition in sorted(partitions)]
        (future,) = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group, places)], require_stable=True, request_timeout=_SECONDS
        ).values()
        offsets = {}
        for place in self._result(f"OffsetFetch of group {group}", future).topic_partitions:
            if place.error is not None:
                if place.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
                    raise InputError(
                        f"group {group!r}: an open transaction has offsets of {place.topic}-{place.partition}. End it "
                        "first: see dualwrite transactions list"
                    )
                with translating(self._operation(f"OffsetFetch of group {group}"), two_phase=False):
                    raise KafkaException(place.error)
            if place.offset >= 0:
                offsets[TopicPartition(place.topic, place.partition)] = place.offset, place.metadata or ""
        return offsets

    def _operation(self, request: str) -> str:
        return f"{request} at the {self._side}"

    def _result(self, request: str, future: "Future[Any]") -> Any:
        with translating(self._operation(request), two_phase=False):
            try:
                return future.result(2 * _SECONDS)
            except FutureTimeoutError:
                raise KafkaUnavailableError(f"{self._operation(request)}: no answer in time") from None
