"""kafka-python as a :class:`~tests.support.peer_clients.client.Client`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from tests.support.peer_clients import client
from tests.support.peer_clients.client import Got, Headers, Place, RefusedError
from tests.support.waiting import PATIENCE_SECONDS


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise RefusedError(getattr(type(error), "message", type(error).__name__)) from error


def _check(errors: Iterable[type[KafkaError] | KafkaError]) -> None:
    for error in errors:
        if error.errno != 0:
            raise RefusedError(error.message)


def _where(positions: Mapping[Place, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in positions.items()}


class KafkaPythonProducer:
    """Its producer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = KafkaProducer(**settings)
        self._sent: list[Any] = []

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int = 0,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> None:
        with _refusals():
            future = self._producer.send(topic, value, key, list(headers), partition, timestamp)
        self._sent.append(future)

    def flush(self) -> list[tuple[int, int]]:
        self._producer.flush(PATIENCE_SECONDS)
        sent, self._sent = self._sent, []
        with _refusals():
            return [(done.partition, done.offset) for done in (future.get(PATIENCE_SECONDS) for future in sent)]

    def init_transactions(self) -> None:
        with _refusals():
            self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        with _refusals():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _refusals():
            self._producer.abort_transaction()

    def send_offsets(self, positions: Mapping[Place, int], group: "KafkaPythonConsumer") -> None:
        with _refusals():
            self._producer.send_offsets_to_transaction(_where(positions), group.metadata())

    def close(self) -> None:
        self._producer.close(PATIENCE_SECONDS)


class KafkaPythonConsumer:
    """Its consumer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = KafkaConsumer(**settings)

    def metadata(self) -> object:
        """Generation and member, for a transaction."""
        return self._consumer.group_metadata()

    def assign(self, places: Iterable[Place]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in places])

    def subscribe(self, topics: Sequence[str]) -> None:
        """With the topics' metadata at hand, as the leader would otherwise join a second time once it has them; and
        kafka-python 3.0.12 stays out of the group for ever if a poll ends while it does that."""
        self._consumer.subscribe(list(topics))
        for topic in topics:
            self._consumer.partitions_for_topic(topic)

    def assignment(self) -> set[Place]:
        return {(entry.topic, entry.partition) for entry in self._consumer.assignment()}

    def poll(self, seconds: float = 0.1) -> list[Got]:
        with _refusals():
            found = self._consumer.poll(timeout_ms=int(seconds * 1000))
        return [
            Got(place.topic, place.partition, entry.offset, entry.key, entry.value, entry.headers, entry.timestamp)
            for place, entries in found.items()
            for entry in entries
        ]

    def seek(self, place: Place, offset: int) -> None:
        self._consumer.seek(TopicPartition(*place), offset)

    def position(self, place: Place) -> int:
        found: int = self._consumer.position(TopicPartition(*place))
        return found

    def pause(self, place: Place) -> None:
        self._consumer.pause(TopicPartition(*place))

    def resume(self, place: Place) -> None:
        self._consumer.resume(TopicPartition(*place))

    def commit(self, positions: Mapping[Place, int] | None = None) -> None:
        with _refusals():
            self._consumer.commit(None if positions is None else _where(positions))

    def commit_async(self, positions: Mapping[Place, int]) -> None:
        self._consumer.commit_async(_where(positions))

    def committed(self, place: Place) -> int | None:
        with _refusals():
            found: int | None = self._consumer.committed(TopicPartition(*place))
        return found

    def watermarks(self, place: Place) -> tuple[int, int]:
        wanted = TopicPartition(*place)
        return self._consumer.beginning_offsets([wanted])[wanted], self._consumer.end_offsets([wanted])[wanted]

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        found = self._consumer.offsets_for_times({TopicPartition(*place): timestamp})[TopicPartition(*place)]
        return None if found is None else found.offset

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class KafkaPythonAdmin:
    """Its admin client."""

    def __init__(self, servers: str) -> None:
        self._admin = KafkaAdminClient(bootstrap_servers=servers)

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}
        with _refusals():
            self._admin.create_topics({name: options}, validate_only=validate_only)

    def delete_topic(self, name: str) -> None:
        with _refusals():
            self._admin.delete_topics([name])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partitions(self, topic: str) -> int:
        with _refusals():
            (described,) = self._admin.describe_topics([topic])
        return len(described["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        with _refusals():
            self._admin.create_partitions({topic: total})

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config("TOPIC", topic)

    def broker_config(self) -> dict[str, str | None]:
        (broker,) = self._admin.describe_cluster()["brokers"]
        return self._config("BROKER", str(broker["broker_id"]))

    def _config(self, kind: str, name: str) -> dict[str, str | None]:
        with _refusals():
            (found,) = self._admin.describe_configs([ConfigResource(kind, name)], config_filter="all").values()
        return {key: entry["value"] for key, entry in found[name].items()}

    def alter_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        with _refusals():
            results = self._admin.alter_configs([ConfigResource("TOPIC", topic, dict(configs))])
        (result,) = results["topic"].values()
        if result != "OK":
            raise RefusedError(result)

    def delete_records(self, place: Place, before: int) -> int:
        with _refusals():
            (found,) = self._admin.delete_records({TopicPartition(*place): before}).values()
        low: int = found["low_watermark"]
        return low

    def groups(self) -> set[str]:
        return {group["group_id"] for group in self._admin.list_groups()}

    def group_state(self, group: str) -> str:
        state: str = self._described(group)["group_state"]
        return state.upper()

    def group_members(self, group: str) -> int:
        return len(self._described(group)["members"])

    def _described(self, group: str) -> dict[str, Any]:
        with _refusals():
            described: dict[str, Any] = self._admin.describe_groups([group])[group]
        return described

    def group_offsets(self, group: str) -> dict[Place, int]:
        with _refusals():
            found = self._admin.list_group_offsets(group)[group]
        return {(place.topic, place.partition): entry.offset for place, entry in found.items()}

    def alter_group_offsets(self, group: str, positions: Mapping[Place, int]) -> None:
        with _refusals():
            _check(self._admin.alter_group_offsets(group, _where(positions)).values())

    def delete_group_offsets(self, group: str, places: Iterable[Place]) -> None:
        with _refusals():
            _check(self._admin.delete_group_offsets(group, [TopicPartition(*place) for place in places]).values())

    def delete_group(self, group: str) -> None:
        with _refusals():
            results = self._admin.delete_groups([group])
        if results[group] != "OK":
            raise RefusedError(results[group])

    def latest_offset(self, place: Place) -> int:
        (found,) = self._admin.list_partition_offsets({TopicPartition(*place): OffsetSpec.LATEST}).values()
        offset: int = found.offset
        return offset

    def close(self) -> None:
        self._admin.close()


class KafkaPython:
    """Makes them."""

    name = "kafka-python"
    can = frozenset(
        {
            client.TRANSACTIONS,
            client.COOPERATIVE,
            client.STATIC_MEMBERS,
            client.FENCED_BY_MEMBER,
            client.ASYNC_COMMIT,
            client.GROUP_DELETION,
            client.OFFSET_ALTERATION,
            client.OFFSET_DELETION,
            client.ADMIN_OFFSETS,
            client.VALIDATION,
        }
    )

    def producer(
        self,
        servers: str,
        *,
        transactional_id: str | None = None,
        idempotent: bool = False,
        compression: str | None = None,
        linger_ms: int = 0,
        largest: int = 1_000_000,
    ) -> KafkaPythonProducer:
        return KafkaPythonProducer(
            {
                "bootstrap_servers": servers,
                "transactional_id": transactional_id,
                "enable_idempotence": idempotent or transactional_id is not None,
                "compression_type": compression,
                "linger_ms": linger_ms,
                "max_request_size": largest,
            }
        )

    def consumer(
        self,
        servers: str,
        *,
        group: str | None = None,
        committed_only: bool = False,
        reset: str = "earliest",
        instance: str | None = None,
        cooperative: bool = False,
        session_timeout_ms: int = 10_000,
    ) -> KafkaPythonConsumer:
        assignor = CooperativeStickyAssignor if cooperative else RangePartitionAssignor
        return KafkaPythonConsumer(
            {
                "bootstrap_servers": servers,
                "group_id": group,
                "group_instance_id": instance,
                "enable_auto_commit": False,
                "isolation_level": "read_committed" if committed_only else "read_uncommitted",
                "auto_offset_reset": reset,
                "session_timeout_ms": session_timeout_ms,
                "heartbeat_interval_ms": 200,
                "partition_assignment_strategy": (assignor,),
                "exclude_internal_topics": False,
            }
        )

    def admin(self, servers: str) -> KafkaPythonAdmin:
        return KafkaPythonAdmin(servers)
