"""The answers to an administrator and clients, and whether the broker still honours them (``admin_simulation``)."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.broker.log.compaction import AbortedRange
from dualwrite.broker.runtime.partition import Partition
from dualwrite.ids import ProducerIdentity
from dualwrite.records.batch import iterate_records
from dualwrite.records.control import Marker
from dualwrite.records.header import iterate_batches, peek_header
from tests.support.broker.compactions import read_committed
from tests.support.broker.simulated import TOPIC, Rooms

KEEPS_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
PER_INCARNATION = 1000

Place = tuple[UUID, int]
"""A partition of one incarnation of the topic."""


@dataclass(frozen=True, slots=True)
class Write:
    """A record that was appended, and maybe acknowledged."""

    place: Place
    offset: int
    key: bytes
    value: bytes


@dataclass(eq=False, slots=True)
class AdminUnit:
    """One transaction as its clients know it."""

    transactional_id: str
    producer: ProducerIdentity
    appended: list[Write] = field(default_factory=list)
    acknowledged: list[Write] = field(default_factory=list)
    asked: set[Marker] = field(default_factory=set)
    answered: Marker | None = None


@dataclass(slots=True)
class AdminHistory:
    """What everybody did and was told, in all lives of the broker."""

    now_ms: int = 1_000_000
    units: list[AdminUnit] = field(default_factory=list)
    plain: list[Write] = field(default_factory=list)
    open: dict[str, AdminUnit] = field(default_factory=dict)
    incarnations: dict[UUID, int] = field(default_factory=dict)
    partitions: dict[UUID, int] = field(default_factory=dict)
    """The requested number of partitions."""
    doomed: set[UUID] = field(default_factory=set)
    deleted: set[UUID] = field(default_factory=set)
    may_begin: dict[Place, int] = field(default_factory=dict)
    """The highest offset up to which a client asked to delete records."""
    begins: dict[Place, int] = field(default_factory=dict)
    """The acknowledged log start offset."""
    retained: set[UUID] = field(default_factory=set)
    compacted: set[UUID] = field(default_factory=set)
    events: Counter[str] = field(default_factory=Counter)

    def let_abort(self, transactional_id: str) -> None:
        self.open.pop(transactional_id, None)
        for unit in self.units:
            if unit.transactional_id == transactional_id and unit.answered is None:
                unit.asked.add(Marker.ABORT)

    def note_settings(self, topic_id: UUID, configs: dict[str, str]) -> None:
        if any(configs.get(name) != "-1" for name in KEEPS_ALL):
            self.retained.add(topic_id)
        if "compact" in configs.get("cleanup.policy", ""):
            self.compacted.add(topic_id)

    def note_partitions(self, topic_id: UUID, count: int) -> None:
        if topic_id not in self.doomed:
            self.partitions[topic_id] = max(count, self.partitions.get(topic_id, 0))


def seen_in(partition: Partition) -> dict[int, tuple[bytes | None, bytes | None]]:
    """What a read_committed consumer sees, by offset."""
    batches, offset, before = list[bytes](), partition.log.start_offset, partition.visible_before(True)
    while offset < before and (data := partition.log.read(offset, 1 << 20, before)):
        for header, batch in iterate_batches(data):
            batches.append(bytes(batch))
            offset = header.next_offset
    start = partition.log.start_offset
    aborted = [
        AbortedRange(each.producer_id, each.first_offset, each.last_offset)
        for each in partition.state.aborted_between(start, before)
    ]
    visible = {record.offset for record in read_committed(batches, aborted, start)}
    records = (record for batch in batches if not peek_header(batch).is_control for record in iterate_records(batch))
    return {record.offset: (record.key, record.value) for record in records if record.offset in visible}


def check(rooms: Rooms, history: AdminHistory) -> None:
    """Compare what a recovered broker holds with what everybody was told."""
    topic = rooms.cluster.topic(TOPIC)
    alive = [topic_id for topic_id in history.partitions if topic_id not in history.doomed]
    assert not alive or (topic is not None and [topic.topic_id] == alive), f"lost topic: {alive}, found {topic}"
    if topic is not None:
        assert topic.topic_id not in history.deleted, "a deleted topic came back"
        assert topic.partitions >= history.partitions.get(topic.topic_id, 1), "lost partitions"
        incarnation = history.incarnations[topic.topic_id]
        for offsets in rooms.offsets.table.groups.values():
            for fact in offsets.values():
                assert fact.offset // PER_INCARNATION == incarnation, f"inherited offset: {fact}, not {incarnation}"
        for index, partition in enumerate(rooms.partitions()):
            _check_partition(partition, (topic.topic_id, index), history)
            _check_hanging(partition, rooms)
    for unit in history.open.values():
        entry = rooms.coordinator.table.entries.get(unit.transactional_id)
        assert entry is not None, f"lost transaction: {unit}"
        assert entry.status is TransactionStatus.ONGOING, f"an open transaction was ended: {unit}, {entry}"
        assert entry.producer == unit.producer, f"another transaction: {unit}, {entry}"


def _check_partition(partition: Partition, place: Place, history: AdminHistory) -> None:
    start, seen = partition.log.start_offset, seen_in(partition)
    assert start >= history.begins.get(place, 0), f"deleted records came back: {partition.name} begins at {start}"
    is_whole = place[0] not in history.retained
    assert not is_whole or start <= history.may_begin.get(place, 0), f"lost beginning: {start} of {partition.name}"
    committed = [write for unit in history.units if unit.answered is Marker.COMMIT for write in unit.acknowledged]
    for unit in history.units:
        if unit.answered is Marker.ABORT or Marker.COMMIT not in unit.asked:
            for write in unit.appended:
                is_seen = write.place == place and seen.get(write.offset) == (write.key, write.value)
                assert not is_seen, f"shown, but not committed: {write}"
    latest = {key: offset for offset, (key, _) in sorted(seen.items())}
    for write in (*history.plain, *committed):
        if write.place != place or not start <= write.offset < partition.visible_before(True):
            continue
        if place[0] in history.compacted:
            assert latest.get(write.key, -1) >= write.offset, f"lost key: {write}"
        else:
            assert seen.get(write.offset) == (write.key, write.value), f"lost write: {write}"


def _check_hanging(partition: Partition, rooms: Rooms) -> None:
    ongoing = {
        entry.producer.producer_id
        for entry in rooms.coordinator.table.entries.values()
        if entry.status is TransactionStatus.ONGOING and partition.name in entry.partitions
    }
    assert partition.state.open_transactions.keys() <= ongoing, f"hanging transaction in {partition.name}"


def memory(rooms: Rooms) -> dict[str, Any]:
    """What has to be the same after a replay. Of aborted transactions and batches that compaction took a replay does
    not know: what is seen says whether that matters."""
    found: dict[str, Any] = {"cluster": rooms.cluster.state, "transactions": rooms.coordinator.table}
    found["offsets"] = rooms.offsets.table.groups
    for partition in rooms.cluster.partitions():
        producers = {
            producer.producer_id: (
                producer.epoch,
                producer.last_sequence,
                producer.last_data_offset,
                producer.transaction_start,
            )
            for producer in partition.state.producers.values()
        }
        bounds = partition.log.start_offset, partition.end_offset, partition.last_stable_offset
        open_ones = list(partition.state.open_transactions.items())
        found[str(partition.name)] = bounds, open_ones, producers
        if partition.name.topic == TOPIC:
            found[f"seen in {partition.name}"] = seen_in(partition)
    return found
