"""A broker for tests: an embedded broker that creates topics, and shows the records that a consumer would read."""

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from dualwrite.broker.core.cluster import INTERNAL_TOPICS
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.client.admin.cluster_client import ClusterClient
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from dualwrite.client.protocol.topic_requests import topic_creation
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.wire.error_codes import ErrorCode, error_name

_IN_TESTS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.heartbeat.interval.ms": "100"}
_REQUEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.02
_FETCH_WAIT_MS = 5  # the broker waits this long at the end of a partition before it answers


@dataclass(frozen=True, slots=True)
class ConsumedRecord:
    """A record as a consumer receives it. ``timestamp`` is in milliseconds since the epoch."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class KafkaBroker(EmbeddedBroker):
    """``with KafkaBroker(data_dir) as broker``: an EmbeddedBroker with additions for tests.

    It acknowledges records once the operating system has them (``durability="os"``), and the first consumer of a group
    does not wait for others. With ``group.protocol=consumer``, members hear of a rebalance within 100 ms. Started again
    after ``stop()`` or ``kill()``, it has the same data and the same address.

    :param data_dir: the directory of its data; it must not be used for anything else.
    :param config: broker settings by Kafka's names.
    :raises ConfigurationError: if ``data_dir`` is empty.
    """

    def __init__(self, data_dir: str | os.PathLike[str], *, config: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, durability="os", config={**_IN_TESTS, **(config or {})})

    def start(self) -> "KafkaBroker":
        """As ``EmbeddedBroker.start``, at the address of the last start."""
        super().start()
        self._listen = self.bootstrap_servers
        return self

    def __enter__(self) -> "KafkaBroker":
        return self.start()

    @property
    def client_config(self) -> dict[str, str]:
        """The configuration for a DualWrite and for confluent-kafka's clients; a new dict.

        Beside ``bootstrap.servers`` it tells librdkafka to connect at once. By default a new client may wait for half a
        second.
        """
        return {"bootstrap.servers": self.bootstrap_servers, **CONNECT_AT_ONCE}

    def create_topic(
        self, name: str | None = None, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, and return its name.

        :param name: the topic's name; None for a new, unique name.
        :param config: the topic's settings by Kafka's names.
        :raises KafkaRefusedError: if the topic exists, its name is illegal, or a setting is invalid.
        :raises KafkaUnavailableError: if the broker does not answer.
        """
        name = f"topic-{uuid.uuid4().hex[:12]}" if name is None else name
        cluster = ClusterClient(ClientSettings.from_config(self.client_config), timeout=_REQUEST_SECONDS)
        try:
            (answer,) = cluster.ask_once(topic_creation(name, partitions, 1, config)).topics
        finally:
            cluster.close()
        if answer.error_code != ErrorCode.NONE:
            message = f"topic {name!r} was not created ({answer.error_message})"
            raise KafkaRefusedError(message, answer.error_code, error_name(answer.error_code))
        return name

    def reset(self, *, timeout: float = 10.0) -> None:
        """Delete every topic, and the offsets of every consumer group, so that the next test finds none.

        :param timeout: seconds.
        :raises KafkaRefusedError: naming a group that still has members: close its consumers first.
        :raises KafkaUnavailableError: if the broker does not answer.
        """
        admin = AdminClient({**self.client_config})
        try:
            listed = admin.list_consumer_groups(request_timeout=timeout).result().valid
            groups = [group.group_id for group in listed]
            topics = [name for name in admin.list_topics(timeout=timeout).topics if name not in INTERNAL_TOPICS]
            deleting = [
                *(admin.delete_consumer_groups(groups, request_timeout=timeout).items() if groups else ()),
                *(admin.delete_topics(topics, operation_timeout=timeout).items() if topics else ()),
            ]
        except KafkaException as error:
            raise _plain(error.args[0]) from None
        for name, future in deleting:
            try:
                future.result()
            except KafkaException as error:
                raise _plain(error.args[0], f"{name!r} was not deleted: ") from None

    def read(
        self,
        topic: str,
        *,
        minimum: int = 0,
        isolation_level: str = "read_committed",
        timeout: float = 10.0,
    ) -> list[ConsumedRecord]:
        """Every record of ``topic`` that a consumer can read now, in the order of offsets, one partition after the
        other.

        A missing topic has no records, because a unit of work that was rolled back may not have created it.

        :param minimum: wait for this many records, for programs that produce in the background.
        :param isolation_level: ``read_uncommitted`` also shows open and aborted transactions.
        :param timeout: seconds.
        :raises AssertionError: if there are fewer than ``minimum`` after ``timeout``. The message shows the records.
        :raises KafkaUnavailableError: if the broker does not answer.
        """
        deadline = time.monotonic() + timeout
        with self._consumer(isolation_level) as consumer:
            records = _read_to_the_end(consumer, topic, minimum, deadline)
        if len(records) < minimum:
            shown = [(record.key, record.value) for record in records]
            raise AssertionError(f"{topic} has {len(records)} of {minimum} records after {timeout:g} s: {shown}")
        return sorted(records, key=lambda record: (record.partition, record.offset))

    @contextmanager
    def _consumer(self, isolation_level: str) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                **self.client_config,
                "group.id": "dualwrite-testing",  # librdkafka requires one; nothing is committed under it
                "isolation.level": isolation_level,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )
        try:
            yield consumer
        except KafkaException as error:
            raise _plain(error.args[0]) from None
        finally:
            consumer.close()


def _read_to_the_end(consumer: Consumer, topic: str, minimum: int, deadline: float) -> list[ConsumedRecord]:
    """The visible records of ``topic``: up to the end of each partition, and then until there are ``minimum``, or the
    ``deadline`` has passed.
    """
    records: list[ConsumedRecord] = []
    partitions = _partitions(consumer, topic, deadline)
    while not partitions and minimum and time.monotonic() < deadline:
        time.sleep(_PAUSE_SECONDS)
        partitions = _partitions(consumer, topic, deadline)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    unread = set(partitions)
    while unread or len(records) < minimum:
        message = consumer.poll(_remaining(deadline))
        if message is None:
            break
        error = message.error()
        if error is None:
            records.append(_record(topic, message))
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(message.partition())
        else:
            raise KafkaException(error)
    if unread:
        raise KafkaUnavailableError(f"partitions {sorted(unread)} of {topic} could not be read to their end in time")
    return records


def _partitions(consumer: Consumer, topic: str, deadline: float) -> list[int]:
    """The partitions of ``topic``; none if it does not exist."""
    metadata = consumer.list_topics(topic, _remaining(deadline)).topics[topic]
    if metadata.error is not None and metadata.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
        raise KafkaException(metadata.error)
    return list(metadata.partitions)


def _remaining(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _record(topic: str, message: Message) -> ConsumedRecord:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return ConsumedRecord(
        topic, partition, offset, message.timestamp()[1], message.key(), message.value(), tuple(headers)
    )


def _plain(error: KafkaError, operation: str = "") -> KafkaRefusedError | KafkaUnavailableError:
    """``error`` as an error of this library. Negative codes are librdkafka's own, for errors that no broker
    reported."""
    if error.code() < 0:
        return KafkaUnavailableError(operation + error.str())
    return KafkaRefusedError(operation + error.str(), error.code(), error.name())
