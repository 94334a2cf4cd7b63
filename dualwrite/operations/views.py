"""The view of one transactional id: its row in the database, its state in Kafka, and the conclusion from both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from dualwrite.client.terms.transaction_states import ONGOING
from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import RecoveryDecision, verdict
from dualwrite.coordinator.rules.slot_rules import (
    RECOVERABLE,
    SlotRow,
    SlotStatus,
    application_of,
    is_another,
    left_in_another_cluster,
    named,
)
from dualwrite.ids import (
    TWO_PHASE_TIMEOUTS_MS,
    UNKNOWN_START,
    OngoingTransaction,
    PreparedTxnState,
    ProducerIdentity,
    TopicPartition,
)

OPEN_STATES = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""Kafka's states of a transaction that has not ended. Only in the first state it waits for a decision."""


@dataclass(frozen=True, slots=True)
class RowView:
    """A row of the state table.

    :param slot: the row for the rules of leasing.
    :param status: the slot's status according to the row.
    :param state: the state stored by the last committed unit of work.
    :param updated_at: the time of the last write to the row, apart from renewals of its lease; in UTC.
    :param is_new: True if the row is new in its cluster and not recovered yet (LeaseMemory.is_new).
    :param is_locked: True if another database transaction has locked the row, and so may change ``state`` yet. Looked
        at only if the slot's transaction in Kafka waits, and its owner is gone.
    """

    slot: SlotRow
    status: SlotStatus
    state: PreparedTxnState
    updated_at: datetime
    is_new: bool = False
    is_locked: bool = False


@dataclass(frozen=True, slots=True)
class KafkaView:
    """The transaction as its coordinator describes it.

    :param state: Kafka's name of the state: Ongoing, PrepareCommit, CompleteAbort, …
    :param producer: the identity that wrote the transaction's records.
    :param started_at: when the transaction began, in UTC; None if it has ended.
    :param timeout_ms: the time after which Kafka aborts it by itself.
    :param partitions: the partitions with its records.
    :param starts: the offset of its first record, by partition; only if requested.
    """

    state: str
    producer: ProducerIdentity
    started_at: datetime | None
    timeout_ms: int
    partitions: frozenset[TopicPartition]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """True if the transaction holds up read_committed consumers of its partitions."""
        return self.state in OPEN_STATES

    @property
    def ongoing(self) -> OngoingTransaction:
        """The open transaction, for the comparison with a stored state."""
        start = UNKNOWN_START if self.started_at is None else round(self.started_at.timestamp() * 1000)
        return OngoingTransaction(self.producer, self.starts, self.partitions, start)

    @property
    def waits(self) -> bool:
        """True if the transaction waits for a decision."""
        return self.state == ONGOING

    @property
    def never_expires(self) -> bool:
        """True for two-phase commit: Kafka waits for a decision without a timeout."""
        return self.timeout_ms in TWO_PHASE_TIMEOUTS_MS


class Situation(Enum):
    """The situation of a transactional id, from which an operator's action follows."""

    QUIET = "nothing is open"
    AT_WORK = "its owner is at work, or will be recovered when its lease runs out"
    ENDING = "Kafka is writing the markers of its end"
    LEFT_BEHIND = "open, and its owner is gone: recovery ends it"
    UNKNOWN = "open, and no row names it: another database's, or no dual write"
    FOREIGN = "its open transaction is in another Kafka cluster, and is recovered there"
    AT_WORK_ELSEWHERE = "its owner is at work in another Kafka cluster, or will be recovered there"


@dataclass(frozen=True, slots=True)
class TransactionView:
    """One transactional id.

    :param row: the state table's row; None if there is none.
    :param kafka: Kafka's description; None if the coordinator does not know the transactional id.
    :param cluster_id: the Kafka cluster that was queried; None if unknown.
    :param forecast: what recovery would find and do; None if recovery does not take the slot, or was not foretold.
    """

    transactional_id: str
    row: RowView | None
    kafka: KafkaView | None
    cluster_id: str | None = None
    forecast: Forecast | None = None

    @property
    def application(self) -> str | None:
        """The application of the slot; None if the name is not that of a slot."""
        return application_of(self.transactional_id)

    @property
    def row_state(self) -> PreparedTxnState:
        """The state that the database has decided to commit; the empty state if there is none."""
        return PreparedTxnState() if self.row is None else self.row.state

    @property
    def verdict(self) -> RecoveryDecision | None:
        """The action of recovery if it ran now; None if this database has not the decision.

        A unit of work in its commit may change the row (see RowView.is_locked). Recovery itself locks the row before it
        decides.
        """
        if self.is_foreign:
            return None
        if self.kafka is None or not self.kafka.waits:
            return RecoveryDecision.NOTHING
        if self.row is None:
            return None
        return verdict(PreparedTxnState() if self.is_new_here else self.row_state, self.kafka.ongoing)

    @property
    def is_recoverable(self) -> bool:
        """True if a call of recovery takes the slot."""
        return self.row is not None and self.application is not None and self.row.status in RECOVERABLE

    @property
    def is_foreign(self) -> bool:
        """True if the row's transaction is in another Kafka cluster than the one that was queried."""
        return self.row is not None and self.row.status is SlotStatus.FOREIGN

    @property
    def is_elsewhere(self) -> bool:
        """True if the row was last leased for another Kafka cluster than the one that was queried. The answer of that
        one about the transactional id then says nothing about the row's last unit of work."""
        return self.row is not None and is_another(self.row.slot.cluster_id, self.cluster_id)

    @property
    def is_new_here(self) -> bool:
        """True if no unit of work of the row has left a transaction open in the Kafka cluster that was queried
        (LeaseMemory.is_new): the row is new there, or the process that takes it next marks it as new, because it was
        last leased for another cluster."""
        return self.row is not None and (self.row.is_new or self.is_elsewhere)

    @property
    def situation(self) -> Situation:
        """The situation that follows from the row and from Kafka's description."""
        if self.is_foreign:
            return Situation.FOREIGN
        if self.kafka is None or not self.kafka.is_open:
            is_held = self.row is not None and self.row.status is SlotStatus.HELD
            return Situation.AT_WORK_ELSEWHERE if is_held and self.is_elsewhere else Situation.QUIET
        if not self.kafka.waits:
            return Situation.ENDING
        if self.row is None:
            return Situation.UNKNOWN
        return Situation.AT_WORK if self.row.status is SlotStatus.HELD else Situation.LEFT_BEHIND


def used_elsewhere_message(views: Iterable[TransactionView]) -> str:
    """The message about those of ``views`` that are used in another Kafka cluster, or were given back there; empty if
    there are none. The FOREIGN ones have a message of their own."""
    used = [view for view in views if view.is_elsewhere and not view.is_foreign]
    if not used:
        return ""
    names = named([view.transactional_id for view in used])
    theirs = sorted({view.row.slot.cluster_id or "" for view in used if view.row is not None})
    return (
        f"last used in the Kafka cluster {' and '.join(theirs)}, and this is the cluster {used[0].cluster_id}: "
        f"{names}. KAFKA and RECOVERY say nothing about what is open there"
    )


def foreign_cluster_message(views: Iterable[TransactionView]) -> str:
    """The message about the FOREIGN ones of ``views``, with their cluster and advice; empty if there are none."""
    foreign = [view for view in views if view.is_foreign]
    rows = [view.row.slot for view in foreign if view.row is not None]
    return left_in_another_cluster(rows, foreign[0].cluster_id) if foreign else ""
