"""The state of every transactional id, and its only legal transitions.

The table ``TRANSITIONS`` is complete: a status, the statuses that may precede it, and the command that causes the step.
``apply`` checks each fact against the table and the general rules, and raises an error for an illegal one. An illegal
fact is a bug in ``transaction_rules``, and must not reach memory. (Kafka: TransactionState.validPreviousStates,
TransactionMetadata.completeTransitionTo.)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionFact,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
)
from dualwrite.ids import MAX_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerIdentity, TopicPartition

# Python 3.11 looks the members of an enum up slowly.
_EMPTY, _ONGOING, _DEAD = TransactionStatus.EMPTY, TransactionStatus.ONGOING, TransactionStatus.DEAD

_IDLE = (_EMPTY, TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT)

TRANSITIONS: Mapping[TransactionStatus, Mapping[TransactionStatus, str]] = {
    _EMPTY: dict.fromkeys(_IDLE, "InitProducerId"),
    _ONGOING: {
        **dict.fromkeys(_IDLE, "AddPartitions"),
        _ONGOING: "AddPartitions, or InitProducerId with keepPreparedTxn",
    },
    TransactionStatus.PREPARE_COMMIT: {_ONGOING: "EndTransaction"},
    TransactionStatus.PREPARE_ABORT: {
        **dict.fromkeys(_IDLE, "EndTransaction under TV2, without partitions"),
        _ONGOING: "EndTransaction, InitProducerId, or TimeOut",
    },
    TransactionStatus.COMPLETE_COMMIT: {TransactionStatus.PREPARE_COMMIT: "MarkersWritten"},
    TransactionStatus.COMPLETE_ABORT: {TransactionStatus.PREPARE_ABORT: "MarkersWritten"},
    _DEAD: dict.fromkeys(_IDLE, "Expire"),
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
            _check(before is None or before.status in TRANSITIONS[_DEAD], before, fact)
            self.entries.pop(fact.transactional_id, None)
            self._disown(_producer_ids(before))
            return
        _check(_is_sound(fact), None, fact)
        _check(before is None or _may_follow(before, fact), before, fact)
        self.entries[fact.transactional_id] = fact
        if before is not None and _lone_id(before) == _lone_id(fact) != NO_PRODUCER_ID:
            return
        ids, ids_before = _producer_ids(fact), _producer_ids(before)
        if ids != ids_before:
            self._disown(ids_before)
            for producer_id in ids:
                self._owners[producer_id] = fact.transactional_id

    def _disown(self, producer_ids: Iterable[int]) -> None:
        for producer_id in producer_ids:
            self._owners.pop(producer_id, None)

    def owner_of(self, producer_id: int) -> TransactionRecorded | None:
        """The transactional id that ``producer_id`` was given to; None for an idempotent producer's id."""
        owner = self._owners.get(producer_id)
        return None if owner is None else self.entries[owner]

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
            if entry.status is _ONGOING and has_timed_out(entry, open_ms(entry))
        )

    def idle_since(self, moment_ms: int) -> Iterator[str]:
        """Transactional ids without a transaction that were last used before ``moment_ms``."""
        return (
            entry.transactional_id
            for entry in self.entries.values()
            if entry.status in _IDLE and entry.updated_ms <= moment_ms
        )

    def is_coordinated(self, producer_id: int, name: TopicPartition) -> bool:
        """True if the producer has an unfinished transaction in the partition ``name`` that is decided, or that may be
        prepared, because it is of two-phase commit or was kept. Only the coordinator ends such a transaction."""
        entry = self.owner_of(producer_id)
        if entry is None or entry.producer.producer_id != producer_id or name not in entry.partitions:
            return False  # only an unfinished transaction has partitions
        return entry.is_ended or entry.timeout_ms == NO_TIMEOUT or entry.is_kept

    def unfinished(self) -> Iterator[TransactionRecorded]:
        """Decided transactions whose markers may be missing. A restart completes them."""
        return (entry for entry in self.entries.values() if entry.is_ended)


def _lone_id(entry: TransactionRecorded) -> int:
    """The only one of :func:`_producer_ids`; NO_PRODUCER_ID if there are several."""
    lone, following, previous = entry.producer.producer_id, entry.next_producer.producer_id, entry.previous.producer_id
    is_alone = following in (lone, NO_PRODUCER_ID) and previous in (lone, NO_PRODUCER_ID)
    return lone if is_alone else NO_PRODUCER_ID


def _producer_ids(entry: TransactionRecorded | None) -> set[int]:
    """The producer ids under which batches of ``entry`` may still come."""
    if entry is None:
        return set()
    ids = {entry.producer.producer_id, entry.client.producer_id, entry.previous.producer_id}
    ids.discard(NO_PRODUCER_ID)
    return ids


def has_timed_out(entry: TransactionRecorded, open_ms: int) -> bool:
    """True if ``entry``'s transaction is past its timeout after ``open_ms`` milliseconds."""
    return entry.timeout_ms != NO_TIMEOUT and open_ms >= entry.timeout_ms


def _check(condition: bool, before: TransactionRecorded | None, fact: TransactionFact) -> None:
    if not condition:
        raise IllegalTransitionError(f"illegal transition from {before} to {fact}")


def _is_sound(fact: TransactionRecorded) -> bool:
    """True if ``fact`` keeps the rules for a single fact."""
    if not (fact.producer.producer_id >= 0 and 0 <= fact.producer.epoch <= MAX_PRODUCER_EPOCH):
        return False
    has_next = fact.next_producer.producer_id >= 0
    if has_next and not 0 <= fact.next_producer.epoch <= MAX_PRODUCER_EPOCH:
        return False
    status, has_partitions = fact.status, bool(fact.partitions)
    if status is _ONGOING:
        return has_partitions and fact.started_ms >= 0
    if status in _IDLE:
        is_new = status is _EMPTY
        return (
            not has_partitions and not has_next and fact.next_timeout_ms < 0 and not (is_new and fact.started_ms >= 0)
        )
    return status is not _DEAD  # on disk a dead id is a tombstone


def _may_follow(before: TransactionRecorded, fact: TransactionRecorded) -> bool:
    """True if ``fact`` keeps the rules for two consecutive facts."""
    status = fact.status
    if before.status not in TRANSITIONS[status] or not _does_not_regress(before.client, fact.client):
        return False
    if before.status is _ONGOING and not (
        fact.started_ms == before.started_ms and fact.timeout_ms >= before.timeout_ms
    ):
        return False
    if status is _EMPTY:
        return before.status is not _EMPTY or (fact.producer, fact.timeout_ms) != (before.producer, before.timeout_ms)
    if status is _ONGOING:
        may_be_kept = before.status is _ONGOING or not fact.is_kept
        return fact.producer == before.producer and fact.partitions >= before.partitions and may_be_kept
    if fact.is_ended:
        bump = fact.producer.epoch - before.producer.epoch
        same_id = fact.producer.producer_id == before.producer.producer_id
        return same_id and bump in (0, 1) and fact.partitions == before.partitions
    return fact.producer == before.client


def _does_not_regress(before: ProducerIdentity, after: ProducerIdentity) -> bool:
    """A client's identity moves to a higher epoch or to another producer id, never back."""
    return before.producer_id != after.producer_id or before.epoch <= after.epoch
