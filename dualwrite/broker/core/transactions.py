"""The state of every transactional id, and its only legal transitions.

The table ``TRANSITIONS`` is complete: a status, the statuses that may precede it, and the command that causes the step.
``apply`` checks each fact against the table and the general rules, and raises an error for an illegal one. An illegal
fact is a bug in ``transaction_rules``, and must not reach memory. (Kafka: TransactionState.validPreviousStates,
TransactionMetadata.completeTransitionTo.)
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionFact,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
)
from dualwrite.ids import MAX_PRODUCER_EPOCH, ProducerIdentity, TopicPartition

_IDLE = (TransactionStatus.EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)

TRANSITIONS: Mapping[TransactionStatus, Mapping[TransactionStatus, str]] = {
    TransactionStatus.EMPTY: dict.fromkeys(_IDLE, "InitProducerId"),
    TransactionStatus.ONGOING: {
        **dict.fromkeys(_IDLE, "AddPartitions"),
        TransactionStatus.ONGOING: "AddPartitions, or InitProducerId with keepPreparedTxn",
    },
    TransactionStatus.PREPARE_COMMIT: {TransactionStatus.ONGOING: "EndTransaction"},
    TransactionStatus.PREPARE_ABORT: {
        **dict.fromkeys(_IDLE, "EndTransaction under TV2, without partitions"),
        TransactionStatus.ONGOING: "EndTransaction, InitProducerId, or TimeOut",
    },
    TransactionStatus.COMPLETE_COMMIT: {TransactionStatus.PREPARE_COMMIT: "MarkersWritten"},
    TransactionStatus.COMPLETE_ABORT: {TransactionStatus.PREPARE_ABORT: "MarkersWritten"},
    TransactionStatus.DEAD: dict.fromkeys(_IDLE, "Expire"),
}
"""status -> {previous status: cause of the step}. A transactional id begins as EMPTY."""


class IllegalTransitionError(AssertionError):
    """A fact contradicts the state before it. The broker stops, because its memory would be wrong."""


@dataclass(slots=True)
class TransactionTable:
    """Every transactional id that is known, by name."""

    entries: dict[str, TransactionRecorded] = field(default_factory=dict)
    _owners: dict[int, str] = field(default_factory=dict, compare=False)
    """The transactional id that each producer id was given to. Derived from ``entries``."""

    def apply(self, fact: TransactionFact) -> None:
        """Apply ``fact``.

        The first fact of an id may have any status, because a compacted journal may begin anywhere.

        :raises IllegalTransitionError: if it cannot follow the current state.
        """
        before = self.entries.get(fact.transactional_id)
        if isinstance(fact, TransactionForgotten):
            _check(before is None or before.status in TRANSITIONS[TransactionStatus.DEAD], before, fact)
            self.entries.pop(fact.transactional_id, None)
            self._disown(before)
            return
        _check_alone(fact)
        if before is not None:
            _check_step(before, fact)
        self.entries[fact.transactional_id] = fact
        self._disown(before)
        for producer_id in _producer_ids(fact):
            self._owners[producer_id] = fact.transactional_id

    def _disown(self, before: TransactionRecorded | None) -> None:
        for producer_id in () if before is None else _producer_ids(before):
            self._owners.pop(producer_id, None)

    def owner_of(self, producer_id: int) -> TransactionRecorded | None:
        """The transactional id that ``producer_id`` was given to; None for an idempotent producer's id."""
        owner = self._owners.get(producer_id)
        return None if owner is None else self.entries.get(owner)

    @property
    def highest_producer_id(self) -> int:
        """The highest producer id of any client, -1 if there is none."""
        return max((entry.client.producer_id for entry in self.entries.values()), default=-1)

    def timed_out(self, open_ms: Callable[[TransactionRecorded], int]) -> Iterator[str]:
        """Transactional ids whose transaction is past its timeout. A transaction of two-phase commit has none.

        :param open_ms: how long a transaction has been open, in milliseconds.
        """
        return (
            entry.transactional_id
            for entry in self.entries.values()
            if entry.status is TransactionStatus.ONGOING and has_timed_out(entry, open_ms(entry))
        )

    def idle_since(self, moment_ms: int) -> Iterator[str]:
        """Transactional ids without a transaction that were last used before ``moment_ms``."""
        return (
            entry.transactional_id
            for entry in self.entries.values()
            if entry.status in _IDLE and entry.updated_ms <= moment_ms
        )

    def is_coordinated(self, producer_id: int, name: TopicPartition) -> bool:
        """True if the producer has an unfinished transaction in the partition ``name`` that may be prepared, because it
        is of two-phase commit or was kept. Only the coordinator ends such a transaction."""
        entry = self.owner_of(producer_id)
        if entry is None or entry.producer.producer_id != producer_id or name not in entry.partitions:
            return False
        is_unfinished = entry.status is TransactionStatus.ONGOING or entry.is_ended
        return is_unfinished and (entry.timeout_ms == NO_TIMEOUT or entry.is_kept)

    def unfinished(self) -> Iterator[TransactionRecorded]:
        """Decided transactions whose markers may be missing. A restart completes them."""
        return (entry for entry in self.entries.values() if entry.is_ended)


def _producer_ids(entry: TransactionRecorded) -> set[int]:
    """The producer ids under which batches of ``entry`` may still come."""
    return {entry.producer.producer_id, entry.client.producer_id, entry.previous.producer_id} - {-1}


def has_timed_out(entry: TransactionRecorded, open_ms: int) -> bool:
    """True if ``entry``'s transaction is past its timeout after ``open_ms`` milliseconds."""
    return entry.timeout_ms != NO_TIMEOUT and open_ms >= entry.timeout_ms


def _check(condition: bool, before: TransactionRecorded | None, fact: TransactionFact) -> None:
    if not condition:
        raise IllegalTransitionError(f"illegal transition from {before} to {fact}")


def _check_alone(fact: TransactionRecorded) -> None:
    """Check the rules for a single fact."""
    has_partitions = bool(fact.partitions)
    started = fact.started_ms >= 0
    _check(fact.status is not TransactionStatus.DEAD, None, fact)  # on disk a dead id is a tombstone
    _check(fact.producer.producer_id >= 0 and 0 <= fact.producer.epoch <= MAX_PRODUCER_EPOCH, None, fact)
    _check(not fact.next_producer or 0 <= fact.next_producer.epoch <= MAX_PRODUCER_EPOCH, None, fact)
    if fact.status is TransactionStatus.EMPTY:
        _check(not has_partitions and not started and not fact.next_producer, None, fact)
        _check(fact.next_timeout_ms < 0, None, fact)
    elif fact.status is TransactionStatus.ONGOING:
        _check(has_partitions and started, None, fact)
    elif not fact.is_ended:
        _check(not has_partitions and not fact.next_producer and fact.next_timeout_ms < 0, None, fact)


def _check_step(before: TransactionRecorded, fact: TransactionRecorded) -> None:
    """Check the rules for two consecutive facts."""
    _check(before.status in TRANSITIONS[fact.status], before, fact)
    _check(_does_not_regress(before.client, fact.client), before, fact)
    if before.status is TransactionStatus.ONGOING:
        _check(fact.started_ms == before.started_ms and fact.timeout_ms >= before.timeout_ms, before, fact)
    if fact.status is TransactionStatus.EMPTY:
        _check(fact.producer != before.producer, before, fact)
    elif fact.status is TransactionStatus.ONGOING:
        _check(fact.producer == before.producer and fact.partitions >= before.partitions, before, fact)
        _check(not fact.is_kept or before.status is TransactionStatus.ONGOING, before, fact)
    elif fact.is_ended:
        _check(fact.producer.producer_id == before.producer.producer_id, before, fact)
        _check(fact.producer.epoch in (before.producer.epoch, before.producer.epoch + 1), before, fact)
        _check(fact.partitions == before.partitions, before, fact)
    else:
        _check(fact.producer == before.client, before, fact)


def _does_not_regress(before: ProducerIdentity, after: ProducerIdentity) -> bool:
    """A client's identity moves to a higher epoch or to another producer id, never back."""
    return before.producer_id != after.producer_id or before.epoch <= after.epoch
