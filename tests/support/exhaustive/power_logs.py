"""The logs of :mod:`tests.support.exhaustive.power_cut`: what of them is on disk, and what readers see of them.

The state of a partition is always the replay of its log, by the product's own ``PartitionState``.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.core.transaction_recovery import LastDecisions
from dualwrite.broker.facts.transactions import TransactionRecorded
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.batch import Record, build_batch
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import BatchFields, BatchHeader, peek_header
from tests.support.broker.transactions import COMMIT, P0, P1

PARTITIONS: tuple[TopicPartition, ...] = (P0, P1)
_BATCH = peek_header(build_batch([Record(None, b"")], BatchFields(ProducerIdentity(0, 0), 0, transactional=True)))
_MARKER = peek_header(build_marker(COMMIT, ProducerIdentity(0, 0), 0, 0))


class KeptEntry(NamedTuple):
    """A batch of one record of ``unit``, or a marker."""

    producer: ProducerIdentity
    sequence: int = -1
    unit: int = 0
    marker: Marker | None = None

    def header(self, offset: int) -> BatchHeader:
        """Its header in a log, at ``offset``."""
        header = _BATCH if self.marker is None else _MARKER
        sequence = header.base_sequence if self.marker is not None else self.sequence
        return header._replace(
            base_offset=offset,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence,
        )


class UnitEnd(NamedTuple):
    """How a unit of work has ended in one partition: None if it is open."""

    partition: int
    unit: int
    marker: Marker | None


class KeptLog(NamedTuple):
    """A partition's log: its first ``synced`` entries are on disk whatever happens."""

    entries: tuple[KeptEntry, ...] = ()
    synced: int = 0

    @property
    def state(self) -> PartitionState:
        """What the partition knows of its producers; must not be changed."""
        return _replayed(self.entries, self.synced)

    def with_entry(self, entry: KeptEntry) -> "KeptLog":
        """The log after an append."""
        return self._replace(entries=(*self.entries, entry))

    def after_sync(self) -> "KeptLog":
        """The log after a round of fsyncs."""
        return self._replace(synced=len(self.entries))

    def after_cut(self) -> Iterator["KeptLog"]:
        """What a power cut may leave."""
        for kept in range(self.synced, len(self.entries) + 1):
            yield KeptLog(self.entries[:kept], kept)

    def ends(self, partition: int) -> tuple[UnitEnd, ...]:
        """How each unit with a record here has ended."""
        return _ends(self.entries, partition)

    def visible(self, partition: int) -> Iterator[UnitEnd]:
        """What a read_committed reader sees: the ends of the units below the last stable offset."""
        stable = self.state.last_stable_offset
        below = {entry.unit for entry in self.entries[:stable] if entry.marker is None}
        return (end for end in self.ends(partition) if end.unit in below)


@lru_cache(maxsize=1 << 16)
def _replayed(entries: tuple[KeptEntry, ...], synced: int) -> PartitionState:
    state = PartitionState()
    for offset, entry in enumerate(entries):
        state.apply(entry.header(offset), entry.marker)
    state.advance(synced)
    return state


@lru_cache(maxsize=1 << 16)
def _ends(entries: tuple[KeptEntry, ...], partition: int) -> tuple[UnitEnd, ...]:
    found: dict[int, Marker | None] = {}
    open_units: dict[int, int] = {}
    for entry in entries:
        if entry.marker is None:
            found.setdefault(entry.unit, None)
            open_units[entry.producer.producer_id] = entry.unit
        elif entry.producer.producer_id in open_units:
            found[open_units.pop(entry.producer.producer_id)] = entry.marker
    return tuple(UnitEnd(partition, unit, marker) for unit, marker in found.items())


def forget_replays() -> None:
    """Replay again: a negative control may have broken what replays."""
    _replayed.cache_clear()
    _ends.cache_clear()


class FactLog(NamedTuple):
    """The coordinator's log.

    :param durable: what a start needs of the part that is on disk: the last decision if a start may have to repeat
        its markers, and the last fact.
    :param fresh: the facts that a power cut may take.
    :param unwritten: ends of transactions that wait for the next fact (TransactionCoordinator.write_ends).
    """

    durable: tuple[TransactionRecorded, ...]
    fresh: tuple[TransactionRecorded, ...] = ()
    unwritten: tuple[TransactionRecorded, ...] = ()

    def with_facts(self, facts: tuple[TransactionRecorded, ...]) -> "FactLog":
        """The log after an append, with what waited for it."""
        return self._replace(fresh=(*self.fresh, *self.unwritten, *facts), unwritten=())

    def after_sync(self) -> "FactLog":
        """The log after a round of fsyncs."""
        return self._replace(durable=_needed(self.durable + self.fresh), fresh=())

    def after_cut(self) -> Iterator["FactLog"]:
        """What a power cut may leave."""
        for kept in range(len(self.fresh) + 1):
            yield FactLog(_needed(self.durable + self.fresh[:kept]))

    def last_decisions(self) -> list[TransactionRecorded]:
        """Those whose markers a start looks for."""
        noted = LastDecisions()
        for fact in self.durable:
            noted.note(fact)
        return list(noted)


def _needed(facts: tuple[TransactionRecorded, ...]) -> tuple[TransactionRecorded, ...]:
    noted = LastDecisions()
    for fact in facts[:-1]:
        noted.note(fact)
    last = facts[-1]
    return (last,) if last.is_ended else (*noted, last)
