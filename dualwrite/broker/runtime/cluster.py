"""Topics, their partitions, and producer ids at run time."""

import asyncio
import logging
import uuid
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from dualwrite.broker.core.cluster import (
    CLUSTER_METADATA,
    PRODUCER_ID_BLOCK,
    ClusterState,
    CreateTopic,
    TopicDecision,
    TopicDefaults,
)
from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.core.topic_changes import decide_configs, decide_partitions
from dualwrite.broker.facts.cluster import (
    BrokerConfigured,
    ClusterCreated,
    ClusterFact,
    GroupConfigured,
    InternalTopicCreated,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
    decode_fact,
    encode_fact,
)
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.runtime.expiry_clock import ExpiryClock
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.journaling import FlushedJournal
from dualwrite.broker.runtime.partition import Partition, log_settings, replay_into
from dualwrite.broker.runtime.security_journal import SecurityJournal
from dualwrite.broker.runtime.topic_directories import TopicDirectories, stray_message
from dualwrite.broker.settings.broker_settings import MAX_PARTITIONS
from dualwrite.broker.settings.topic_configs import TopicConfig, broker_defaults, topic_config
from dualwrite.ids import TopicPartition
from dualwrite.ports import Clock, Entropy, Files
from dualwrite.records.batch import Record
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)

JOURNAL_DIRECTORY = f"{CLUSTER_METADATA}-0"
Each = Callable[[Callable[[Partition], None], Iterable[Partition]], Iterable[None]]
"""Calls a function for each partition, as the built-in ``map`` does."""
NODE, EVERY_NODE = "0", ""
"""The targets of dynamic settings in the journal: the one node, which may have any id, or every node."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The broker's num.partitions, its settings as text, the most partitions that it may open, and the node's id. Each
    partition takes at least one open file."""

    num_partitions: int = 1
    given: Mapping[str, str] = field(default_factory=dict)
    most_partitions: int = MAX_PARTITIONS
    node_id: int = 0


class Cluster:
    """The topics, partitions and settings of this cluster, read from ``data_dir``. Belongs to the event loop's
    thread."""

    def __init__(
        self, files: Files, data_dir: Path, flusher: Flusher, clock: Clock, entropy: Entropy, settings: TopicSettings
    ) -> None:
        self.state = ClusterState()
        self.data_dir = data_dir
        self.node_id = settings.node_id
        self._files = files
        self._flusher = flusher
        self._clock = clock
        self._expiry_clock = ExpiryClock(clock)
        self._entropy = entropy
        self._settings = settings
        self._partitions: dict[str, list[Partition]] = {}
        self._open_count = 0
        """How many partitions there are, of all topics."""
        self._configs: dict[str, TopicConfig] = {}
        self._internal: dict[str, TopicCreated] = {}
        self.topics_by_name: Mapping[str, TopicCreated] = ChainMap(self.state.topics, self._internal)
        """Every topic, as :meth:`topics` has it, but as it changes."""
        self._directories = TopicDirectories(files, data_dir)
        self._leaving: set[str] = set()
        self.deletion_listeners: list[Callable[[TopicCreated], None]] = []
        """Called with every topic that is deleted, in the same step as the deletion."""
        self.configuration_listeners: list[Callable[[], None]] = []
        """Called after every change of the broker's dynamic settings, in the same step."""
        directory = data_dir / JOURNAL_DIRECTORY
        self._journal = FlushedJournal.open(files, directory, flusher, self._replay)
        self.next_producer_id = self.state.reserved_before
        deleted = self.state.deleted.items()
        left = chain.from_iterable(self._directories.paths(name, range(count)) for name, count in deleted)
        self._directories.remove(self._directories.existing(left))
        known = {**dict.fromkeys(self.state.internal, 1), **{t.name: t.partitions for t in self.state.topics.values()}}
        self._directories.check(TopicPartition(name, index) for name in known for index in range(known[name]))
        for topic in self.state.topics.values():
            self._add(topic.name, self._open_partitions(topic))
        if not self.state.cluster_id:
            self.record(ClusterCreated(self.new_id().hex))
        self.security = SecurityJournal(self.state, self.record, entropy)
        """The users' credentials."""

    def _replay(self, record: Record) -> None:
        assert record.key is not None, "a cluster fact has a key"
        self.state.apply(decode_fact(record.key, record.value))

    def record(self, *facts: ClusterFact) -> None:
        """Apply ``facts`` and append them to the journal, all or none. The caller waits at the flusher's barrier before
        it replies."""
        with self._flusher.critical():
            for fact in facts:
                self.state.apply(fact)  # first, because it checks: an illegal fact on disk prevents every restart
            now_ms = self._clock.wall_ms()
            self._journal.append([Record(*encode_fact(fact), now_ms) for fact in facts])

    def _open_partitions(self, topic: TopicCreated, first: int = 0) -> list[Partition]:
        config = topic_config(self.defaults, topic.configs)
        names = [TopicPartition(topic.name, index) for index in range(first, topic.partitions)]
        return [self._open_partition(name, config) for name in names]

    def _open_partition(self, name: TopicPartition, config: TopicConfig) -> Partition:
        state, path, settings = PartitionState(), self._directories.path(name), log_settings(config)
        log = PartitionLog.open(self._files, path, settings, replay_into(state), state.restore)
        if log.cut_bytes:
            logger.warning("%s: cut %d bytes that a crash left unfinished", name, log.cut_bytes)
        for repair in log.repairs:
            logger.warning("%s: %s", name, repair)
        state.open_at(log.end_offset)  # all of it is durable: opening the log has synced it
        partition = Partition(name, log, state, self._flusher)
        partition.configure(config)
        return partition

    # --- topics

    def create_topic(self, command: CreateTopic, validate_only: bool = False) -> TopicDecision:
        """Create a topic by ``command``. The caller waits at the flusher's barrier before it replies."""
        if command.name in self._leaving:
            return TopicDecision(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{command.name}' is marked for deletion.")
        defaults = TopicDefaults(self._settings.num_partitions, self.defaults)
        decision = self.state.decide_topic(command, self.new_id(), defaults, self.room, self.node_id)
        return self._carry_out(decision, 0, validate_only)

    def add_partitions(self, name: str, count: int, assignments: int | None, validate_only: bool) -> TopicDecision:
        """Extend the topic ``name`` to ``count`` partitions. The caller waits at the flusher's barrier before it
        replies.

        :param assignments: the number of new partitions whose replicas the client names; None if the broker chooses
            them.
        """
        topic = self.state.topics[name]
        decision = decide_partitions(topic, count, assignments, self.room)
        return self._carry_out(decision, topic.partitions, validate_only)

    def configure_topic(self, name: str, configs: Mapping[str, str], validate_only: bool) -> TopicDecision:
        """Replace the settings of the topic ``name`` by ``configs``. The caller waits at the flusher's barrier before
        it replies."""
        topic = self.state.topics[name]
        decision = decide_configs(topic, configs, self.defaults)
        return self._carry_out(decision, topic.partitions, validate_only)

    def _carry_out(self, decision: TopicDecision, present: int, validate_only: bool) -> TopicDecision:
        """Carry out ``decision`` unless it is a refusal. ``present`` is the number of existing partitions."""
        topic = decision.fact
        if topic is None:
            return decision
        paths = self._directories.paths(topic.name, range(present, topic.partitions))
        stray = self._directories.stray(paths)
        if stray is not None:
            return TopicDecision(ErrorCode.INVALID_TOPIC_EXCEPTION, stray_message(stray))
        if not validate_only:
            with self._flusher.critical():
                self._directories.clear(paths)
                added = self._open_partitions(topic, present)  # before the fact, which needs its directories
            self.record(topic)
            self._add(topic.name, added)
            self._apply_config(topic.name)
            self._sync_topics(topic.name)
        return decision

    async def delete_topic(self, name: str) -> None:
        """Delete the topic ``name``, which must exist. It disappears at once; the deletion is durable on return.

        The broker removes the topic's files and all other data about it once the deletion is durable. Otherwise a power
        cut could bring back the topic without them. Until then no topic of that name can be created.
        """
        topic = self.state.topics[name]
        self._leaving.add(name)
        self.record(TopicDeleted(name))
        self._configs.pop(name, None)
        retired = self._partitions.pop(name)
        self._open_count -= len(retired)
        for partition in retired:
            partition.retire()
        await self._flusher.barrier()
        for listener in self.deletion_listeners:
            listener(topic)
        paths = self._directories.paths(name, range(topic.partitions))
        with self._flusher.critical():
            await asyncio.get_running_loop().run_in_executor(None, self._directories.remove, paths)
        await self._flusher.barrier()
        self._leaving.discard(name)

    def configure_broker(self, node: str, configs: Mapping[str, str]) -> None:
        """Set ``configs``, which must be valid, on the running broker. The caller waits at the flusher's barrier.

        :param node: NODE, or EVERY_NODE.
        """
        self.record(BrokerConfigured(node, configs))
        self._configs.clear()
        for name in self._partitions:
            self._apply_config(name)
        self._sync_topics(*self._partitions)
        for listener in self.configuration_listeners:
            listener()

    def configure_group(self, group: str, configs: Mapping[str, str]) -> None:
        """Replace the settings that ``group`` has of its own by ``configs``, which must be valid. The caller waits at
        the flusher's barrier."""
        if configs or group in self.state.group_configs:
            self.record(GroupConfigured(group, configs))

    def group_configs(self, group: str) -> Mapping[str, str]:
        """The settings that ``group`` has of its own. No such group need exist."""
        return self.state.group_configs.get(group, {})

    def _sync_topics(self, *names: str) -> None:
        """Sync the journal if flush.messages or flush.ms of one of the topics has an effect: a record on disk is lost
        without its topic."""
        if any(self._partitions[name][0].has_flush_limits for name in names):
            self._flusher.sync(self._journal)

    @property
    def defaults(self) -> Mapping[str, str]:
        """The defaults of topic settings that the broker's settings give, by the names of the topic settings."""
        return broker_defaults(self.broker_configs())

    def broker_configs(self, changed: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, str]:
        """The effective settings of the broker. The node's own dynamic settings override those of every node, which
        override those of the start.

        :param changed: the dynamic settings of NODE or EVERY_NODE, in place of the present ones.
        """
        dynamic = {**self.state.broker_configs, **(changed or {})}
        return {**self._settings.given, **dynamic.get(EVERY_NODE, {}), **dynamic.get(NODE, {})}

    def given_while_running(self) -> dict[str, str]:
        """The dynamic settings: those that clients set on the running broker, now or in an earlier run."""
        return {**self.dynamic_configs(EVERY_NODE), **self.dynamic_configs(NODE)}

    def dynamic_configs(self, node: str) -> Mapping[str, str]:
        """The dynamic settings of ``node``, which is NODE or EVERY_NODE."""
        return self.state.broker_configs.get(node, {})

    @property
    def room(self) -> int:
        """How many more partitions the broker can open."""
        return self._settings.most_partitions - self._open_count

    def _add(self, topic: str, partitions: Sequence[Partition]) -> None:
        self._partitions.setdefault(topic, []).extend(partitions)
        self._open_count += len(partitions)

    def _apply_config(self, topic: str) -> None:
        self._configs.pop(topic, None)
        config = self.config(topic)
        for partition in self._partitions[topic]:
            partition.configure(config)

    def add_internal(self, topic: TopicCreated, partition: Partition) -> None:
        """Register one of the broker's own topics. It has one partition, whose directory exists."""
        if topic.name not in self.state.internal:
            self.record(InternalTopicCreated(topic.name))
        self._internal[topic.name] = topic
        self._add(topic.name, [partition])
        self._apply_config(topic.name)

    def topic(self, name: str) -> TopicCreated | None:
        """The topic called ``name``, also if it is one of the broker's own; None if there is none."""
        return self.state.topics.get(name) or self._internal.get(name)

    def topic_name(self, topic_id: uuid.UUID | None) -> str | None:
        """The name of the topic with ``topic_id``."""
        if topic_id is None:
            return None
        internal_names = (name for name, topic in self._internal.items() if topic.topic_id == topic_id)
        return self.state.topic_names.get(topic_id) or next(internal_names, None)

    def topics(self) -> Mapping[str, TopicCreated]:
        """Every topic by name, including the broker's own (``core.cluster.INTERNAL_TOPICS``)."""
        return dict(self.topics_by_name)

    def partition(self, name: TopicPartition) -> Partition | None:
        """The partition ``name``, if it exists."""
        partitions = self._partitions.get(name.topic, ())
        return partitions[name.partition] if 0 <= name.partition < len(partitions) else None

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every topic."""
        return chain.from_iterable(self._partitions.values())

    def expire_producers(self, idle_ms: int) -> None:
        """Let every partition forget the producers that were idle for ``idle_ms`` and have no open transaction
        (producer.id.expiration.ms)."""
        before_ms = self._expiry_clock.now_ms() - idle_ms
        for partition in self.partitions():
            expired = partition.state.expire_producers(before_ms)
            if expired:
                logger.debug("%s: %d producer ids have expired", partition.name, expired)

    def config(self, topic: str) -> TopicConfig:
        """The current effective settings of ``topic``."""
        config = self._configs.get(topic)
        if config is None:
            topic_fact = self._internal.get(topic) or self.state.topics[topic]
            config = topic_config(self.defaults, topic_fact.configs)
            self._configs[topic] = config
        return config

    @property
    def journal_end_offset(self) -> int:
        """The offset after the last fact of the cluster's journal."""
        return self._journal.end_offset

    def volume(self) -> tuple[int, int]:
        """The size and the free space of the volume with the data directory, in bytes."""
        return self._files.space(self.data_dir)

    def checkpoint(self, each: Each = map) -> None:
        """Store the ends of all logs as recovery points, for a clean stop. No other thread may use the cluster.

        :param each: as the built-in ``map``: that of a pool of threads syncs several files at a time.
        """
        self._journal.checkpoint()
        for _ in each(Partition.checkpoint, self.partitions()):
            pass

    # --- producer ids

    def reserve_producer_ids(self) -> None:
        """Reserve ``next_producer_id``. It is reserved on disk once the flusher's barrier is passed, also with
        ``durability=os``: if a power cut took the reservation, a new producer could get the id of one whose records the
        logs have, and its own would pass for those."""
        if self.next_producer_id >= self.state.reserved_before:
            self.record(ProducerIdsReserved(self.next_producer_id + PRODUCER_ID_BLOCK))
            if not self._flusher.is_durable:
                self._flusher.sync(self._journal)

    def skip_producer_ids(self, before: int) -> None:
        """Never allocate a producer id below ``before``, even if it is reserved."""
        self.next_producer_id = max(self.next_producer_id, before)

    def take_producer_id(self) -> int:
        """An unused producer id. The caller waits at the flusher's barrier before it replies."""
        self.reserve_producer_ids()
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def new_id(self) -> uuid.UUID:
        """A random id, for a topic or an ACL."""
        return uuid.UUID(bytes=self._entropy.random_bytes(16), version=4)
