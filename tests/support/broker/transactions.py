"""Builders for the coordinator's rules: one coordinator without a disk, and the situations that it can be in."""

from collections.abc import Callable
from itertools import chain, count

from dualwrite.broker.core.commands import (
    AddPartitions,
    Command,
    Decision,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    Reply,
    TimeOut,
    VerifyPartitions,
)
from dualwrite.broker.core.transaction_rules import Moment, TransactionSettings, decide
from dualwrite.broker.core.transactions import TransactionTable
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus, TransactionVersion
from dualwrite.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker

TXN_ID = "app-0"
MAX = MAX_PRODUCER_EPOCH
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
TV1, TV2 = TransactionVersion.TV1, TransactionVersion.TV2
COMMIT, ABORT = Marker.COMMIT, Marker.ABORT
TIMEOUT_MS = 60_000
START_MS = 1_000_000
_MOST_IDS = 2
"""Producer ids that one command takes."""
C4, C5, C6, C7 = (ProducerIdentity(42, epoch) for epoch in range(4, 8))


def who(producer_id: int, epoch: int) -> ProducerIdentity:
    return ProducerIdentity(producer_id, epoch)


def init(
    keep: bool = False, expected: ProducerIdentity = NO_PRODUCER, timeout_ms: int = TIMEOUT_MS, two_phase: bool = False
) -> InitProducerId:
    return InitProducerId(TXN_ID, timeout_ms, two_phase, keep, expected)


def add(producer: ProducerIdentity, *partitions: TopicPartition) -> AddPartitions:
    return AddPartitions(TXN_ID, producer, frozenset(partitions or (P0,)))


def verify(producer: ProducerIdentity, *partitions: TopicPartition) -> VerifyPartitions:
    return VerifyPartitions(TXN_ID, producer, frozenset(partitions or (P0,)))


def end(producer: ProducerIdentity, result: Marker = COMMIT, version: TransactionVersion = TV2) -> EndTransaction:
    return EndTransaction(TXN_ID, producer, result, version)


def recorded(
    status: TransactionStatus = TransactionStatus.EMPTY,
    producer: ProducerIdentity = C5,
    timeout_ms: int = TIMEOUT_MS,
    partitions: frozenset[TopicPartition] = frozenset(),
    started_ms: int = -1,
    next_producer: ProducerIdentity = NO_PRODUCER,
    previous: ProducerIdentity = NO_PRODUCER,
    version: TransactionVersion = TV1,
) -> TransactionRecorded:
    return TransactionRecorded(
        TXN_ID, producer, status, timeout_ms, START_MS, partitions, started_ms, previous, next_producer, version
    )


class CoordinatorWorld:
    """A coordinator without disk; ``fresh_ids`` are handed out in order, and after them 1000, 1001 and so on."""

    def __init__(self, *fresh_ids: int, settings: TransactionSettings | None = None) -> None:
        self.table = TransactionTable()
        self.settings = settings or TransactionSettings()
        self.now_ms = START_MS
        self._fresh_ids = chain(fresh_ids, count(1000))
        self.fresh_id = next(self._fresh_ids)

    @property
    def entry(self) -> TransactionRecorded:
        return self.table.entries[TXN_ID]

    def begin_at(self, entry: TransactionRecorded) -> "CoordinatorWorld":
        self.table.apply(entry)
        return self

    def decide(self, command: Command) -> Decision:
        entry = self.table.entries.get(command.transactional_id)
        open_ms = self.now_ms - entry.started_ms if entry is not None and entry.started_ms >= 0 else 0
        return decide(self.table, command, Moment(self.now_ms, self.fresh_id, open_ms), self.settings)

    def step(self, command: Command) -> Decision:
        """Decide ``command`` and take its facts in; its effects are left to the caller."""
        decision = self.decide(command)
        for fact in decision.facts:
            self.table.apply(fact)
        if decision.takes(self.fresh_id):
            self.fresh_id = next(self._fresh_ids)
        return decision

    def execute(self, command: Command) -> Reply:
        """Carry ``command`` out to its end, as the coordinator does: markers are written at once."""
        while True:
            decision = self.step(command)
            for effect in decision.effects:
                self.step(MarkersWritten(effect.transactional_id))
            if decision.reply is not None:
                return decision.reply
            assert decision.effects, "the same command would be decided again without an end"


def carried_out(entry: TransactionRecorded, command: Command, fresh_id: int) -> tuple[TransactionRecorded, int, Reply]:
    """Carry ``command`` out on ``entry``: the entry after it, the producer id that is fresh then, and the answer."""
    world = CoordinatorWorld(*range(fresh_id, fresh_id + _MOST_IDS + 1)).begin_at(entry)
    reply = world.execute(command)
    return world.entry, world.fresh_id, reply


def _situation(*commands: Command) -> Callable[[], CoordinatorWorld]:
    def build() -> CoordinatorWorld:
        world = CoordinatorWorld(100).begin_at(recorded(producer=C4))
        for command in commands:
            if isinstance(command, TimeOut):
                world.now_ms += TIMEOUT_MS
            world.step(command)
        return world

    return build


_DONE = MarkersWritten(TXN_ID)
_LATE = TimeOut(TXN_ID)

SITUATIONS: dict[str, Callable[[], CoordinatorWorld]] = {
    "unknown": CoordinatorWorld,
    "empty": _situation(init()),
    "ongoing": _situation(init(), add(C5)),
    "kept": _situation(init(), add(C5), init(keep=True)),
    "prepare-commit-1": _situation(init(), add(C5), end(C5, COMMIT, TV1)),
    "prepare-commit-2": _situation(init(), add(C5), end(C5, COMMIT, TV2)),
    "prepare-abort-2": _situation(init(), add(C5), end(C5, ABORT, TV2)),
    "prepare-kept": _situation(init(), add(C5), init(keep=True), end(C6, COMMIT, TV2)),
    "fencing": _situation(init(), add(C5), init()),
    "committed-1": _situation(init(), add(C5), end(C5, COMMIT, TV1), _DONE),
    "aborted-1": _situation(init(), add(C5), end(C5, ABORT, TV1), _DONE),
    "committed-2": _situation(init(), add(C5), end(C5, COMMIT, TV2), _DONE),
    "aborted-2": _situation(init(), add(C5), end(C5, ABORT, TV2), _DONE),
    "kept-committed-1": _situation(init(), add(C5), init(keep=True), end(C6, COMMIT, TV1), _DONE),
    "kept-committed-2": _situation(init(), add(C5), init(keep=True), end(C6, COMMIT, TV2), _DONE),
    "fenced": _situation(init(), add(C5), init(), _DONE),
    "timed-out": _situation(init(), add(C5), _LATE, _DONE),
}
"""name -> a world in which TXN_ID is so; all of them reached from 42:4 by commands, the transaction being 42:5's."""
