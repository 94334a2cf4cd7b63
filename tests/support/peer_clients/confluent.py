"""confluent-kafka as a :class:`~tests.support.peer_clients.client.Client`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)

from tests.support.peer_clients import client
from tests.support.peer_clients.client import Got, Headers, Place, RefusedError
from tests.support.waiting import PATIENCE_SECONDS, eventually

_FREE = "no group is joined"


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise RefusedError(error.args[0].name()) from error


def _where(positions: Mapping[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, index, offset) for (topic, index), offset in positions.items()]


class ConfluentProducer:
    """librdkafka's producer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._producer = Producer(settings)
        self._delivered: list[tuple[int, int]] = []
        self._refused: list[KafkaError] = []

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
        """Waits only if librdkafka's queue is full."""
        more = {} if timestamp is None else {"timestamp": timestamp}
        with _refusals():
            self._producer.produce(
                topic, value, key, partition, headers=list(headers), on_delivery=self._report, **more
            )
        self._producer.poll(0)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._delivered.append((message.partition(), message.offset()))
        else:
            self._refused.append(error)

    def flush(self) -> list[tuple[int, int]]:
        """Delivery reports come in order for each partition."""
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        if self._refused:
            raise RefusedError(self._refused[0].name())
        delivered, self._delivered = self._delivered, []
        return delivered

    def init_transactions(self) -> None:
        with _refusals():
            self._producer.init_transactions(PATIENCE_SECONDS)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        with _refusals():
            self._producer.commit_transaction(PATIENCE_SECONDS)

    def abort(self) -> None:
        with _refusals():
            self._producer.abort_transaction(PATIENCE_SECONDS)

    def send_offsets(self, positions: Mapping[Place, int], group: "ConfluentConsumer") -> None:
        with _refusals():
            self._producer.send_offsets_to_transaction(_where(positions), group.metadata(), PATIENCE_SECONDS)

    def close(self) -> None:
        """One that is fenced says so once more."""
        with suppress(KafkaException):
            self._producer.close()


class ConfluentConsumer:
    """librdkafka's consumer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._consumer = Consumer(settings)

    def metadata(self) -> object:
        """Generation and member, for a transaction."""
        return self._consumer.consumer_group_metadata()

    def assign(self, places: Iterable[Place]) -> None:
        self._consumer.assign([TopicPartition(*place) for place in places])

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(list(topics))

    def assignment(self) -> set[Place]:
        return {(entry.topic, entry.partition) for entry in self._consumer.assignment()}

    def poll(self, seconds: float = 0.1) -> list[Got]:
        found = []
        for message in self._consumer.consume(500, seconds):
            error = message.error()
            if error is not None:
                raise RefusedError(error.name())
            headers = message.headers() or []
            where = message.topic(), message.partition(), message.offset()
            found.append(Got(*where, message.key(), message.value(), headers, message.timestamp()[1]))
        return found

    def seek(self, place: Place, offset: int) -> None:
        """librdkafka seeks only once the partition is being fetched."""
        eventually(lambda: self._sought(place, offset), bool)

    def _sought(self, place: Place, offset: int) -> bool:
        try:
            self._consumer.seek(TopicPartition(*place, offset))
        except KafkaException as error:
            if error.args[0].code() == KafkaError._STATE:
                return False
            raise
        return True

    def position(self, place: Place) -> int:
        (found,) = self._consumer.position([TopicPartition(*place)])
        return found.offset

    def pause(self, place: Place) -> None:
        self._consumer.pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self._consumer.resume([TopicPartition(*place)])

    def commit(self, positions: Mapping[Place, int] | None = None) -> None:
        with _refusals():
            if positions is None:
                results = self._consumer.commit(asynchronous=False)
            else:
                results = self._consumer.commit(offsets=_where(positions), asynchronous=False)
        for result in results:
            if result.error is not None:
                raise RefusedError(result.error.name())

    def commit_async(self, positions: Mapping[Place, int]) -> None:
        self._consumer.commit(offsets=_where(positions), asynchronous=True)

    def committed(self, place: Place) -> int | None:
        with _refusals():
            (found,) = self._consumer.committed([TopicPartition(*place)], PATIENCE_SECONDS)
        return None if found.offset == OFFSET_INVALID else found.offset

    def watermarks(self, place: Place) -> tuple[int, int]:
        return self._consumer.get_watermark_offsets(TopicPartition(*place), PATIENCE_SECONDS)

    def offset_for_time(self, place: Place, timestamp: int) -> int | None:
        (found,) = self._consumer.offsets_for_times([TopicPartition(*place, timestamp)], PATIENCE_SECONDS)
        return None if found.offset < 0 else found.offset

    def close(self) -> None:
        self._consumer.close()


class ConfluentAdmin:
    """librdkafka's admin client."""

    def __init__(self, servers: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": servers})

    def create_topic(
        self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None, *, validate_only: bool = False
    ) -> None:
        topic = NewTopic(name, partitions, 1, config=dict(configs or {}))
        _result(self._admin.create_topics([topic], validate_only=validate_only))

    def delete_topic(self, name: str) -> None:
        _result(self._admin.delete_topics([name]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_SECONDS).topics)

    def partitions(self, topic: str) -> int:
        return len(self._admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions)

    def create_partitions(self, topic: str, total: int) -> None:
        _result(self._admin.create_partitions([NewPartitions(topic, total)]))

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResource(ConfigResource.Type.TOPIC, topic))

    def broker_config(self) -> dict[str, str | None]:
        (broker,) = self._admin.list_topics(timeout=PATIENCE_SECONDS).brokers
        return self._config(ConfigResource(ConfigResource.Type.BROKER, str(broker)))

    def _config(self, resource: ConfigResource) -> dict[str, str | None]:
        entries = _result(self._admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_topic_config(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        _result(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, place: Place, before: int) -> int:
        return _result(self._admin.delete_records([TopicPartition(*place, before)])).low_watermark

    def groups(self) -> set[str]:
        with _refusals():
            listed = self._admin.list_consumer_groups().result(PATIENCE_SECONDS)
        assert not listed.errors
        return {group.group_id for group in listed.valid}

    def group_state(self, group: str) -> str:
        return _result(self._admin.describe_consumer_groups([group])).state.name

    def group_members(self, group: str) -> int:
        return len(_result(self._admin.describe_consumer_groups([group])).members)

    def group_offsets(self, group: str) -> dict[Place, int]:
        found = _result(self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))
        return {(entry.topic, entry.partition): entry.offset for entry in found.topic_partitions}

    def alter_group_offsets(self, group: str, positions: Mapping[Place, int]) -> None:
        wanted = ConsumerGroupTopicPartitions(group, _where(positions))
        for entry in _result(self._admin.alter_consumer_group_offsets([wanted])).topic_partitions:
            if entry.error is not None:
                raise RefusedError(entry.error.name())

    def delete_group_offsets(self, group: str, places: Iterable[Place]) -> None:
        """librdkafka has it, confluent-kafka does not."""
        raise NotImplementedError

    def delete_group(self, group: str) -> None:
        _result(self._admin.delete_consumer_groups([group]))

    def latest_offset(self, place: Place) -> int:
        return _result(self._admin.list_offsets({TopicPartition(*place): OffsetSpec.latest()})).offset

    def close(self) -> None:
        """Nothing: it ends with its last reference."""


def _result(futures: Mapping[Any, "Future[Any]"]) -> Any:
    """What the only one of ``futures`` holds."""
    (future,) = futures.values()
    with _refusals():
        return future.result(PATIENCE_SECONDS)


class Confluent:
    """Makes them."""

    name = "confluent-kafka"
    can = frozenset(
        {
            client.TRANSACTIONS,
            client.COOPERATIVE,
            client.STATIC_MEMBERS,
            client.FENCED_BY_MEMBER,
            client.ASYNC_COMMIT,
            client.GROUP_DELETION,
            client.OFFSET_ALTERATION,
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
    ) -> ConfluentProducer:
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "enable.idempotence": idempotent or transactional_id is not None,
            "compression.type": compression or "none",
            "linger.ms": linger_ms,
            "message.max.bytes": largest,
        }
        if transactional_id is not None:
            settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": 30_000}
            settings |= {"message.timeout.ms": 20_000}
        return ConfluentProducer(settings)

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
    ) -> ConfluentConsumer:
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "group.id": group or _FREE,
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed_only else "read_uncommitted",
            "auto.offset.reset": reset,
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": 200,  # a rebalance is learnt of by a heartbeat
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        if cooperative:
            settings["partition.assignment.strategy"] = "cooperative-sticky"
        return ConfluentConsumer(settings)

    def admin(self, servers: str) -> ConfluentAdmin:
        return ConfluentAdmin(servers)
