"""Histories of a partition: a log and the state that its batches make, with recovery points, restarts and crashes."""

import random
from dataclasses import dataclass, field

from dualwrite.broker.core.partitions import PartitionState
from dualwrite.broker.log.partition_log import PartitionLog
from dualwrite.broker.log.settings import LogSettings
from dualwrite.broker.runtime.partition import replay_into
from dualwrite.ids import ProducerIdentity
from dualwrite.ports import Files
from dualwrite.records.batch import Record
from dualwrite.records.control import Marker, build_marker
from dualwrite.records.header import BatchFields, iterate_batches, peek_header
from tests.support.broker.logs import DIRECTORY
from tests.support.strategies import placed

SETTINGS = LogSettings(segment_bytes=1500, index_interval_bytes=150)


@dataclass
class LogHistory:
    """A partition on ``files`` as a broker has it, and what a random ``rng`` does to it."""

    files: Files
    rng: random.Random
    settings: LogSettings = SETTINGS
    sequences: dict[ProducerIdentity, int] = field(default_factory=dict)
    clock: int = 1000

    def __post_init__(self) -> None:
        self.log, self.state = opened_with_state(self.files, self.settings)

    def append(self, batch: bytearray, marker: Marker | None = None) -> None:
        self.log.append(batch)
        self.state.apply(peek_header(batch), marker, 0)

    def write(self, producer: ProducerIdentity | None = None, transactional: bool = False, count: int = 1) -> None:
        self.clock += self.rng.choice((-5, 0, 0, 1, 20))
        records = [Record(b"k", b"v" * self.rng.randint(0, 90), self.clock + index % 2) for index in range(count)]
        fields = BatchFields()
        if producer is not None:
            first = self.sequences.get(producer, 0)
            self.sequences[producer] = first + count
            fields = BatchFields(producer, first, transactional=transactional)
        self.append(placed(records, self.log.end_offset, fields))

    def end(self, producer: ProducerIdentity, marker: Marker) -> None:
        batch = bytearray(build_marker(marker, producer, 0, self.clock))
        batch[:8] = self.log.end_offset.to_bytes(8, "big")
        self.append(batch, marker)

    def step(self) -> None:
        """One random append."""
        producer = ProducerIdentity(self.rng.randrange(4), 0)
        kind = self.rng.random()
        if kind < 0.25:
            self.write(count=self.rng.randint(1, 3))
        elif kind < 0.45:
            self.write(ProducerIdentity(10 + producer.producer_id, self.rng.randrange(2)))
        elif kind < 0.75 or producer.producer_id not in self.state.open_transactions:
            self.write(producer, transactional=True, count=self.rng.randint(1, 3))
        else:
            self.end(producer, self.rng.choice((Marker.COMMIT, Marker.ABORT)))

    def take_point(self) -> None:
        self.log.plan_recovery_point(self.state.snapshot(), self.state.aborted_since)
        self.log.write_recovery_points()


def opened_with_state(files: Files, settings: LogSettings = SETTINGS) -> tuple[PartitionLog, PartitionState]:
    """The log of ``files`` and its state, from the last recovery point on."""
    state = PartitionState()
    log = PartitionLog.open(files, DIRECTORY, settings, replay_into(state), state.restore)
    state.open_at(log.end_offset)
    return log, state


def replayed(log: PartitionLog) -> PartitionState:
    """The state that every batch of ``log`` together makes."""
    state, offset = PartitionState(), log.start_offset
    apply = replay_into(state)
    while data := log.read(offset, 1 << 20, log.end_offset):
        for header, batch in iterate_batches(data):
            apply(header, bytes(batch) if header.is_control else None)
            offset = header.next_offset
    state.open_at(log.end_offset)
    return state


def known(state: PartitionState) -> tuple[object, ...]:
    """Everything that has to be the same after a restart."""
    aborted = [(txn, txn.last_stable_offset) for txn in state.aborted]
    return state.end_offset, state.producers, list(state.open_transactions.items()), aborted
