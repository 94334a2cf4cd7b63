"""Topics, their partitions, and producer ids at run time."""

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dualwrite.broker.core.cluster import (
    MAX_PARTITIONS,
    PRODUCER_ID_BLOCK,
    ClusterState,
    CreateTopic,
    TopicDecision,
    TopicDefaults,
)
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.core.topic_configs import TopicConfig, topic_config
from dualwrite.broker.facts.cluster import (
    ClusterCreated,
    ClusterFact,
    ProducerIdsReserved,
    TopicCreated,
    decode_fact,
    encode_fact,
)
from dualwrite.broker.log.partition_log import PartitionLog, is_segment, read_recovery_point
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.journaling import FlushedJournal
from dualwrite.broker.runtime.partition import Partition, replay_into
from dualwrite.ids import TopicPartition
from dualwrite.ports import Clock, Entropy, Files
from dualwrite.records.batch import Record
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

JOURNAL_DIRECTORY = "__cluster_metadata-0"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The broker's num.partitions, the defaults that its settings give to those of topics (by the topics' names), and
    how many partitions it may open in all, as each is at least one open file."""

    num_partitions: int = 1
    defaults: Mapping[str, str] = field(default_factory=dict)
    most_partitions: int = MAX_PARTITIONS


class Cluster:
    """Everything that has a name in this cluster, read from ``data_dir``. Belongs to the event loop's thread."""

    def __init__(
        self, files: Files, data_dir: Path, flusher: Flusher, clock: Clock, entropy: Entropy, settings: TopicSettings
    ) -> None:
        self.state = ClusterState()
        self._files = files
        self._data_dir = data_dir
        self._flusher = flusher
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._partitions: dict[str, list[Partition]] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._internal: dict[str, TopicCreated] = {}
        directory = data_dir / JOURNAL_DIRECTORY
        self._journal = FlushedJournal.open(files, directory, flusher, self._replay)
        self.next_producer_id = self.state.reserved_before
        for topic in self.state.topics.values():
            self._open_partitions(topic)
        if not self.state.cluster_id:
            self._record(ClusterCreated(self._new_id().hex))

    def _replay(self, record: Record) -> None:
        assert record.key is not None, "a cluster fact has a key"
        assert record.value is not None, "a cluster fact has a value"
        self.state.apply(decode_fact(record.key, record.value))

    def _record(self, fact: ClusterFact) -> None:
        with self._flusher.critical():
            self.state.apply(fact)  # first: it checks, and an illegal fact on disk would forbid every restart
            self._journal.append([Record(*encode_fact(fact), self._clock.wall_ms())])

    def _open_partitions(self, topic: TopicCreated) -> None:
        self._partitions[topic.name] = [self._open_partition(topic, index) for index in range(topic.partitions)]

    def _open_partition(self, topic: TopicCreated, index: int) -> Partition:
        name = TopicPartition(topic.name, index)
        state = PartitionState()
        segment_bytes = self.config(topic.name).segment_bytes
        log = PartitionLog.open(self._files, self._data_dir / str(name), segment_bytes, replay_into(state))
        if log.cut_bytes:
            logger.warning("%s: cut %d bytes that a crash left unfinished", name, log.cut_bytes)
        state.advance(state.end_offset)  # what was found on disk is durable: opening the log has synced it
        return Partition(name, log, state, self._flusher)

    # --- topics

    def create_topic(self, command: CreateTopic, validate_only: bool = False) -> TopicDecision:
        """Create a topic as ``command`` wants it. Wait at the flusher's barrier before telling anybody."""
        room = self._settings.most_partitions - sum(map(len, self._partitions.values()))
        defaults = TopicDefaults(self._settings.num_partitions, self._settings.defaults)
        decision = self.state.decide_topic(command, self._new_id(), defaults, room)
        if decision.fact is not None:
            stray = self._stray(decision.fact)
            if stray is not None:
                message = f"{stray} holds a log that no topic accounts for: move it away"
                return TopicDecision(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        if decision.fact is not None and not validate_only:
            self._record(decision.fact)
            with self._flusher.critical():
                self._discard_leftovers(decision.fact)
                self._open_partitions(decision.fact)
        return decision

    def _stray(self, topic: TopicCreated) -> Path | None:
        """A directory of a new topic that has seen a clean stop: it is of some topic that was forgotten."""
        directories = self._directories(topic)
        return next((each for each in directories if read_recovery_point(self._files, each)), None)

    def _discard_leftovers(self, topic: TopicCreated) -> None:
        """Empty the directories of a new topic. A power cut can leave them behind though it lost the topic's creation,
        which nobody was told of; nor was anybody told of what they hold."""
        for directory in self._directories(topic):
            for name in filter(is_segment, self._files.list(directory)):
                logger.warning("removing %s, which a crash left without its topic", directory / name)
                self._files.remove(directory / name)

    def _directories(self, topic: TopicCreated) -> list[Path]:
        return [self._data_dir / str(TopicPartition(topic.name, index)) for index in range(topic.partitions)]

    def add_internal(self, topic: TopicCreated, partition: Partition) -> None:
        """Make one of the broker's own topics, which has one partition, known under its name and id."""
        self._internal[topic.name] = topic
        self._partitions[topic.name] = [partition]

    def topic(self, name: str) -> TopicCreated | None:
        """The topic called ``name``, which may be one of the broker's own."""
        return self.state.topics.get(name) or self._internal.get(name)

    def topic_name(self, topic_id: uuid.UUID | None) -> str | None:
        """The name of the topic with ``topic_id``."""
        if topic_id is None:
            return None
        own = (name for name, topic in self._internal.items() if topic.topic_id == topic_id)
        return self.state.topic_names.get(topic_id) or next(own, None)

    def topics(self) -> Mapping[str, TopicCreated]:
        """Every topic by name, the broker's own (``core.cluster.INTERNAL_TOPICS``) among them."""
        return {**self.state.topics, **self._internal}

    def partition(self, name: TopicPartition) -> Partition | None:
        """The partition ``name``, if it exists."""
        partitions = self._partitions.get(name.topic, ())
        return partitions[name.partition] if 0 <= name.partition < len(partitions) else None

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        return chain.from_iterable(self._partitions.values())

    def expire_producers(self, idle_ms: int) -> None:
        """Let every partition forget the producers that wrote nothing for ``idle_ms``; never one with an open
        transaction (producer.id.expiration.ms)."""
        before_ms = self._clock.wall_ms() - idle_ms
        for partition in self.partitions():
            expired = partition.state.expire_producers(before_ms)
            if expired:
                logger.debug("%s: %d producer ids have expired", partition.name, expired)

    def config(self, topic: str) -> TopicConfig:
        """What the settings of ``topic`` come to, now."""
        found = self._configs.get(topic)
        if found is None:
            known = self._internal.get(topic) or self.state.topics[topic]
            found = topic_config(self._settings.defaults, known.configs)
            self._configs[topic] = found
        return found

    def checkpoint(self) -> None:
        """Note the ends of every log as recovery points, for a clean stop."""
        self._journal.checkpoint()
        for partitions in self._partitions.values():
            for partition in partitions:
                partition.log.checkpoint()

    # --- producer ids

    def reserve_producer_ids(self) -> None:
        """See to it that ``next_producer_id`` is reserved on disk, once the flusher's barrier is passed."""
        if self.next_producer_id >= self.state.reserved_before:
            self._record(ProducerIdsReserved(self.next_producer_id + PRODUCER_ID_BLOCK))

    def skip_producer_ids(self, before: int) -> None:
        """Give out no producer id below ``before``, whatever was reserved."""
        self.next_producer_id = max(self.next_producer_id, before)

    def take_producer_id(self) -> int:
        """A producer id that nobody has had. Wait at the flusher's barrier before telling anybody."""
        self.reserve_producer_ids()
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def _new_id(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._entropy.random_bytes(16), version=4)
