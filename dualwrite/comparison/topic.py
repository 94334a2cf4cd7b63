"""Reads a topic with confluent-kafka's consumer: up to where it ends now, and later on from there."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from dualwrite.client.config.native_keys import ALIASES
from dualwrite.client.librdkafka.connecting import CONNECT_AT_ONCE
from dualwrite.client.librdkafka.errors import translated
from dualwrite.errors import ConfigurationError, InputError, KafkaUnavailableError

_SECONDS = 30.0
"""How long an answer, or the next record, may take."""
_BATCH = 5_000
_GROUP = "dualwrite-compare"
"""librdkafka wants a name. The consumer joins no group and commits no offset."""
_QUEUED_KBYTES = 16_384
"""librdkafka reads ahead 64 MiB otherwise."""
_log = logging.getLogger("dualwrite.librdkafka")


class TopicReader:
    """A consumer without a group, that reads every partition of ``topic`` from its first offset on.

    :param config: how to reach the cluster, by librdkafka's keys.
    :param committed: True to read as a read_committed consumer; False to read records of open and aborted transactions
        too.
    :raises ConfigurationError: if librdkafka refuses a setting.
    """

    def __init__(self, config: Mapping[str, Any], topic: str, *, committed: bool = True) -> None:
        self._topic = topic
        self.positions: dict[int, int] = {}
        """The next offset of each partition. Set it to begin elsewhere."""
        self.first_offsets: dict[int, int] = {}
        """The offset at which each partition began, when its end was last looked up."""
        given = {ALIASES.get(key, key): value for key, value in config.items() if value is not None}
        own = {
            "group.id": _GROUP,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # if the next records are deleted meanwhile
            "fetch.wait.max.ms": 10,  # how long the broker waits at the end of a partition
            "queued.max.messages.kbytes": _QUEUED_KBYTES,
            "logger": _log,
        }
        try:
            self._consumer = Consumer({**CONNECT_AT_ONCE, **given, **own})
        except KafkaException as error:
            raise ConfigurationError(f"librdkafka: {error.args[0].str()}") from None

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def ends(self) -> dict[int, int]:
        """The end of each partition: the last stable offset if the reader is read_committed, else the high watermark.

        :raises DualWriteError: as :meth:`read_on`.
        """
        with self._translated():
            return self._ends()

    def read_on(self) -> Iterator[list[Message]]:
        """The records from the positions up to :meth:`ends`, in batches, each partition in order. Partitions that were
        added since the last call are read from their beginning.

        :raises InputError: if there is no such topic.
        :raises KafkaUnavailableError: if the broker does not answer for 30 seconds.
        :raises KafkaRefusedError: if the client may not read the topic.
        """
        with self._translated():
            ends = self._ends()
            unread = {partition: end for partition, end in ends.items() if self.positions[partition] < end}
            self._consumer.incremental_assign([self._place(partition) for partition in unread])
            while unread:
                batch = self._next(unread)
                if batch:
                    yield batch
            self.positions.update(ends)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise translated(f"reading topic {self._topic}", error.args[0], two_phase=False) from error

    def _place(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition, self.positions[partition])

    def _ends(self) -> dict[int, int]:
        """The end of each partition. Moves the positions to the first offset that is still there."""
        found = self._consumer.list_topics(self._topic, _SECONDS).topics[self._topic]
        if found.error is not None:
            if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise InputError(f"the cluster has no topic {self._topic!r}, or hides it from this client")
            raise KafkaException(found.error)
        ends = {}
        for partition in found.partitions:
            place = TopicPartition(self._topic, partition)
            first, end = self._consumer.get_watermark_offsets(place, timeout=_SECONDS)
            self.first_offsets[partition] = first
            self.positions[partition] = max(first, self.positions.get(partition, 0))
            ends[partition] = max(end, self.positions[partition])
        return ends

    def _next(self, unread: dict[int, int]) -> list[Message]:
        """The next records before the ends in ``unread``. Removes from it the partitions that are read."""
        first = self._consumer.poll(_SECONDS)
        if first is None:
            raise KafkaUnavailableError(f"reading topic {self._topic}: no record for {_SECONDS:g} seconds")
        batch = []
        for message in [first, *self._consumer.consume(_BATCH, 0)]:
            error = message.error()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # the group is not used
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if partition not in unread:
                continue
            if error is None and offset < unread[partition]:
                batch.append(message)
            # A message that marks the end has the offset of the next record.
            if offset + (error is None) >= unread[partition]:
                del unread[partition]
                self._consumer.incremental_unassign([self._place(partition)])
        return batch


def read_topic(bootstrap_servers: str, topic: str, isolation_level: str) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every record of ``topic`` that is visible under ``isolation_level``, up to each partition's end.

    :raises DualWriteError: if the topic cannot be read to its end; see :meth:`TopicReader.read_on`.
    """
    committed = isolation_level == "read_committed"
    reader = TopicReader({"bootstrap.servers": bootstrap_servers}, topic, committed=committed)
    try:
        for batch in reader.read_on():
            for message in batch:
                yield message.key() or b"", message.value() or b""
    finally:
        reader.close()
