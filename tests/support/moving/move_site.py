"""Two clusters, records and groups in them, and ``dualwrite move`` between the two."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from dualwrite.admin.groups import stable_offsets
from dualwrite.client.protocol.requests import CommittedOffset
from dualwrite.ids import TopicPartition as Place
from tests.support.operations.places import CommandResult, command
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name, quick
from tests.support.waiting import eventually

DYING = "tests.support.moving.dying_mover"
Headers = Sequence[tuple[str, bytes | None]]


class MoveEnd(Protocol):
    """A bundled broker, or Apache Kafka."""

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT."""


class Copied(NamedTuple):
    """A record without its offset: everything that a move keeps."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class MoveSite:
    """A source and a target."""

    def __init__(self, source: MoveEnd, target: MoveEnd) -> None:
        self.source, self.target = source, target
        self._open: list[Producer] = []

    def back(self) -> "MoveSite":
        """The same clusters for the way back."""
        return MoveSite(self.target, self.source)

    def run(self, *words: str) -> CommandResult:
        """``dualwrite move WORDS`` in this process; with ``--no-db`` if they finish the move without a database."""
        return command("move", *self.places, *words, *without_database(words))

    def run_and_die(self, step: str, number: int, *words: str) -> tuple[int, str]:
        """``dualwrite move WORDS`` as a process that kills itself with SIGKILL at the ``number``-th ``step``; see
        dying_mover.py. Return its exit status, and what it said."""
        line = [sys.executable, "-m", DYING, step, str(number), "move", *self.places, *words, *without_database(words)]
        ended = subprocess.run(line, capture_output=True, check=False, timeout=PATIENCE, env=os.environ, text=True)
        return ended.returncode, ended.stdout + ended.stderr

    @property
    def places(self) -> tuple[str, ...]:
        """The arguments that name both clusters."""
        return "--from", self.source.bootstrap_servers, "--to", self.target.bootstrap_servers


def without_database(words: tuple[str, ...]) -> tuple[str, ...]:
    """What ``--finish`` needs if no database has units of work with the source."""
    return ("--no-db",) if "--finish" in words and "--db" not in words else ()


def create_topic(
    cluster: MoveEnd, name: str | None = None, partitions: int = 1, config: Mapping[str, str] | None = None
) -> str:
    """A new topic; a name of its own if none is given.

    It keeps its records for ever. Those of the tests are years old, and each cluster has its own moment to delete them.
    """
    name = fresh_name() if name is None else name
    admin = AdminClient(quick(cluster.bootstrap_servers))
    kept = {"retention.ms": "-1", **(config or {})}
    admin.create_topics([NewTopic(name, partitions, 1, config=kept)])[name].result(PATIENCE)
    return name


def topics_of(cluster: MoveEnd) -> set[str]:
    """The names of the topics."""
    return set(AdminClient(quick(cluster.bootstrap_servers)).list_topics(timeout=PATIENCE).topics)


def delete_topic(cluster: MoveEnd, name: str) -> None:
    """Delete a topic, and wait until that is done."""
    admin = AdminClient(quick(cluster.bootstrap_servers))
    admin.delete_topics([name])[name].result(PATIENCE)


def producer_of(cluster: MoveEnd) -> Producer:
    """A transactional producer, initialised."""
    producer = Producer({**quick(cluster.bootstrap_servers), "transactional.id": fresh_name()})
    producer.init_transactions(PATIENCE)
    return producer


def add_records(
    producer: Producer, topic: str, values: Iterable[str | None], *, partition: int = 0, key: str | None = "k"
) -> None:
    """Begin a transaction with these records."""
    producer.begin_transaction()
    for number, value in enumerate(values):
        headers: Headers = [("number", str(number).encode()), ("empty", b""), ("null", None)]
        time = 1_700_000_000_000 + number
        producer.produce(topic, key=key, value=value, partition=partition, headers=list(headers), timestamp=time)
    producer.flush(PATIENCE)


def open_transaction(
    cluster: MoveEnd, topic: str, values: Iterable[str | None], *, partition: int = 0, key: str | None = "k"
) -> Producer:
    """Records in a transaction that is still open."""
    producer = producer_of(cluster)
    add_records(producer, topic, values, partition=partition, key=key)
    return producer


def write(cluster: MoveEnd, topic: str, *values: str | None, partition: int = 0, key: str | None = "k") -> None:
    """Records in one committed transaction."""
    open_transaction(cluster, topic, values, partition=partition, key=key).commit_transaction(PATIENCE)


def abort(cluster: MoveEnd, topic: str, *values: str, partition: int = 0) -> None:
    """Records in one aborted transaction."""
    open_transaction(cluster, topic, values, partition=partition).abort_transaction(PATIENCE)


def fill(cluster: MoveEnd, topic: str, partitions: int, rounds: int = 3) -> None:
    """Committed and aborted transactions of several lengths, a tombstone, and records outside of transactions."""
    producer, plain = producer_of(cluster), Producer(quick(cluster.bootstrap_servers))
    for partition in range(partitions):
        for number in range(rounds):
            add_records(producer, topic, (f"{number}-{index}" for index in range(number + 1)), partition=partition)
            producer.commit_transaction(PATIENCE)
            add_records(producer, topic, ["aborted"], partition=partition)
            producer.abort_transaction(PATIENCE)
        add_records(producer, topic, [None], partition=partition, key=f"deleted-{partition}")
        producer.commit_transaction(PATIENCE)
        for number in range(5):
            plain.produce(topic, value=f"plain {number}", partition=partition)
        plain.flush(PATIENCE)


def read_from(cluster: MoveEnd, positions: Mapping[tuple[str, int], int]) -> list[tuple[int, Copied]]:
    """The visible records from these positions on, each with its offset, in the order of partitions."""
    consumer = Consumer(
        {
            **quick(cluster.bootstrap_servers),
            "group.id": "move-oracle",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # at the end of a partition the broker waits so long before it says so
            "auto.offset.reset": "earliest",
        }
    )
    found: list[tuple[int, Copied]] = []
    try:
        consumer.assign([TopicPartition(topic, partition, offset) for (topic, partition), offset in positions.items()])
        unread = {partition for _, partition in positions}
        while unread:
            message = consumer.poll(PATIENCE)
            assert message is not None, "no end of the partition"
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if message.error() is not None:
                unread.discard(partition)
                continue
            headers = tuple(message.headers() or ())
            copied = Copied(partition, message.timestamp()[1], message.key(), message.value(), headers)  # type: ignore[arg-type]
            found.append((offset, copied))
    finally:
        consumer.close()
    return sorted(found, key=lambda item: (item[1].partition, item[0]))


def read(cluster: MoveEnd, topic: str, partitions: int = 1) -> list[Copied]:
    """All visible records of a topic."""
    positions = {(topic, partition): 0 for partition in range(partitions)}
    return [record for _, record in read_from(cluster, positions)]


def commit_offset(cluster: MoveEnd, group: str, topic: str, offset: int, *, partition: int = 0) -> None:
    """Commit an offset with metadata for a group without members."""
    place = TopicPartition(topic, partition, offset, metadata=f"at {offset}")
    admin = AdminClient(quick(cluster.bootstrap_servers))
    request = ConsumerGroupTopicPartitions(group, [place])
    admin.alter_consumer_group_offsets([request])[group].result(PATIENCE)


def offset_of(cluster: MoveEnd, group: str, topic: str, partition: int = 0) -> tuple[int, str] | None:
    """The committed offset of a group, and its metadata, once no open transaction may replace it."""
    place = Place(topic, partition)
    found = eventually(lambda: _offset_now(cluster, group, place), lambda found: None not in found.values())
    if place not in found:
        return None
    committed = found[place]
    assert committed is not None, "a transaction is still open"
    return committed.offset, committed.metadata.removesuffix("\0")  # confluent-kafka's AdminClient adds it


def has_offset(cluster: MoveEnd, group: str, topic: str) -> bool:
    """Whether a group has a committed offset in partition 0; an open transaction's is none."""
    place = Place(topic, 0)
    return _offset_now(cluster, group, place).get(place) is not None


def _offset_now(cluster: MoveEnd, group: str, place: Place) -> Mapping[Place, CommittedOffset | None]:
    """confluent-kafka's AdminClient reads beyond the end of metadata, and may raise UnicodeDecodeError there."""
    return stable_offsets(quick(cluster.bootstrap_servers), [group], [place])[group]


def rest_of(cluster: MoveEnd, group: str, topic: str, partition: int = 0) -> list[Copied]:
    """What the group still has to read in a partition."""
    committed = offset_of(cluster, group, topic, partition)
    assert committed is not None
    return [record for _, record in read_from(cluster, {(topic, partition): committed[0]})]
