"""The two sides of a dual write, as Protocols.

The machine, the driver and recovery use these Protocols only. ``native.py`` and ``librdkafka.py`` implement
KafkaParticipant, ``decision_store.py`` implements DecisionStore; the tests have fakes that can fail at every call.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, runtime_checkable

from sqlalchemy import Connection

from dualwrite.coordinator.rules.identities import UNKNOWN_CLUSTER, ClusterIdentity
from dualwrite.coordinator.rules.lease import Lease as Lease
from dualwrite.coordinator.rules.lease import LeaseLostError as LeaseLostError
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.recovery_decision import Outcome as Outcome
from dualwrite.coordinator.rules.slot_rules import Candidate, SlotRow
from dualwrite.ids import PreparedTxnState

T = TypeVar("T")
Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
Record = tuple[str | bytes | None, str | bytes | None, int, Headers | None]
"""A record's value, key, partition and headers; partition -1 lets the partitioner choose."""


class KafkaParticipant(Protocol):
    """One transactional id on Kafka: KIP-939's producer methods under Python names.

    Not thread-safe. Every method may raise KafkaUnavailableError (retriable), KafkaRefusedError, FencedError (another
    producer took over) and InvalidTransactionStateError (wrong order of calls). After any error of commit or abort,
    close the participant and make a new one; its producer epoch is never used again.
    """

    @property
    def is_reusable(self) -> bool:
        """False if a request in flight could still reach a later transaction, though every call succeeded. Then close
        the participant; recovery makes a new one, and its epoch fences that request."""

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Fence every earlier producer of the transactional id. Abort its open transaction, unless
        ``keep_prepared_txn``."""

    def begin_transaction(self) -> None:
        """Begin a transaction; local: sends no request."""

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """Add a record to the transaction; it is sent in the background. ``on_delivery(error, message)`` is called as
        by confluent-kafka."""

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447). After an error: abort.

        :param positions: the next offset to read of each partition, as confluent_kafka.TopicPartition.
        :param group_metadata: the result of the consumer's ``consumer_group_metadata()``.
        :raises KafkaRefusedError: with the group coordinator's code, for example if the member's generation is over.
        """

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush; return the state that identifies the transaction, after every record was acknowledged.

        :raises PrepareFailedError: if a record was not acknowledged under this producer's one id and epoch. Abort.
        """

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise. Only after
        ``init_transactions(keep_prepared_txn=True)`` or :meth:`prepare_transaction`.

        After the former, a heuristic Outcome reports that the transaction of ``state`` ended otherwise, as far as that
        can be known.
        """

    def commit_transaction(self) -> None:
        """Commit. An error leaves the outcome unknown. After a DualWriteError, the participant's own, the unit of work
        is finished in the background. Any other error counts as a time limit and is also raised to the caller."""

    def abort_transaction(self) -> None:
        """Abort. An error leaves the outcome unknown."""

    def close(self) -> None:
        """Release sockets and threads. Leaves an open transaction open. Never raises; a second call does nothing."""


@runtime_checkable
class ProducesMany(Protocol):
    """A KafkaParticipant that adds many records faster than by single calls."""

    def produce_many(self, topic: str, records: Iterable[Record]) -> None:
        """Like KafkaParticipant.produce for one record after the other."""


@runtime_checkable
class ProducesAtOnce(Protocol):
    """A KafkaParticipant to which an event loop's thread can add most records without blocking."""

    def produce_at_once(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> bool:
        """Like KafkaParticipant.produce, if that would neither wait, nor send, nor call a delivery callback. Otherwise
        add nothing and return False."""


@runtime_checkable
class NamesOpenTransaction(Protocol):
    """A KafkaParticipant that can name its transaction before the transaction is prepared."""

    @property
    def open_transaction(self) -> PreparedTxnState:
        """The state that names the open transaction, as far as it is known without a request; else the empty state."""


def name_of_open_transaction(participant: KafkaParticipant) -> PreparedTxnState:
    """The state that names the open transaction of ``participant``; the empty state if that is not known."""
    return participant.open_transaction if isinstance(participant, NamesOpenTransaction) else PreparedTxnState()


@runtime_checkable
class NamesLeftTransaction(Protocol):
    """Recovers a transactional id, and can name the predecessor's open transaction before that is ended."""

    def name_left_transaction(self) -> PreparedTxnState:
        """After ``init_transactions(keep_prepared_txn=True)``: the state that names the transaction that is still open,
        neither committed nor aborted; the empty state if there is none."""


def name_of_left_transaction(recoverable: object) -> PreparedTxnState:
    """The state that names the transaction that ``recoverable`` found open; the empty state if that is not known."""
    return recoverable.name_left_transaction() if isinstance(recoverable, NamesLeftTransaction) else PreparedTxnState()


class HeldDecision(Protocol):
    """The state row of a transactional id while its lock is held."""

    @property
    def state(self) -> PreparedTxnState:
        """The state in the row when it was locked; the empty state if no unit of work was committed yet."""

    def verify(self) -> None:
        """Read the fencing token again, through the connection that holds the lock.

        :raises LeaseLostError: if the lock was lost and another process has taken over. A lost connection raises the
            database's own error. After either, nothing may be decided.
        """


class DecisionStore(Protocol):
    """The state table of one database. It holds the decision of every unit of work, for recovery after a crash."""

    @property
    def one_writer(self) -> bool:
        """True if the database allows one writing transaction at a time: concurrent units of work would only wait for
        each other inside the database."""

    def in_thread(self, act: Callable[[], T]) -> T:
        """Call ``act``, which may use the store, in one of the library's own threads."""

    @property
    def checks_lease(self) -> bool:
        """True if each unit of work must check at its beginning that its lease is valid."""

    def locked(self, lease: Lease) -> AbstractContextManager[HeldDecision]:
        """Hold the row's lock for the length of the ``with`` block.

        While the lock is held, no process can take over or commit a unit of work under this transactional id.

        :raises LeaseLostError: if another process has taken over.
        :raises DatabaseBusyError: if another transaction held the row for too long.
        """

    def locked_at_once(self, leases: Sequence[Lease]) -> AbstractContextManager[Mapping[Lease, HeldDecision]]:
        """Like :meth:`locked`, for those of ``leases`` that are valid and whose rows are not locked by others; it waits
        for no row. All share one connection: use one at a time.

        :raises DatabaseBusyError: if the database has one lock for all rows, and another transaction held it too long.
        """

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """Write ``state`` inside the caller's own transaction on ``connection``: one UPDATE, a compare-and-set against
        ``lease.memory``. The caller then notes in that memory how the transaction ended.

        :raises LeaseLostError: if another process has taken over; the caller rolls back.
        :raises LeaseContradictedError: if the database has forgotten a decision, or this process was copied; the caller
            rolls back.
        """

    def record(self, lease: Lease, outcome: Outcome) -> None:
        """Move the state from the row into the record of heuristic outcomes, with ``outcome``.

        Its transaction is not open any more, so the state decides nothing; and a cluster that lost its data would give
        the same identity to another transaction. Uses its own database transaction: call it while no lock is held.

        :raises LeaseLostError: if another process has taken over; that process finds the same outcome.
        """

    def mark_recovered(self, lease: Lease, unclaimed: PreparedTxnState) -> None:
        """Note in the row of ``lease`` that it is no longer new (LeaseMemory.is_new), before a transaction begins under
        it. In the same database transaction put ``unclaimed`` on record, before it is aborted. Call it while no lock is
        held.

        :param unclaimed: the transaction that the row's first recovery found open, and that another row may have
            decided to commit; the empty state if there was none.
        :raises LeaseLostError: if another process has taken over; that process finds the same.
        """

    def note_outcome(self, transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
        """Put on record that the unit of work with ``state`` ended in ``outcome``, independently of the state row. Uses
        its own database transaction. A unit that is on record and not acknowledged is not put there again.

        :param state: the empty state for a unit of work that had no Kafka transaction yet.
        :param detail: one line for the operator: what happened, and what is missing on which side.
        """

    def note_unmatched(self, transactional_id: str, units: Sequence[Unmatched], row: RowSeen | None) -> None:
        """Like :meth:`note_outcome` for each of ``units``, in one transaction.

        :param row: the row as the lease holder saw it at the contradiction. If the row is unchanged, its state is
            removed: that transaction was completed long ago, and recovery would report it as overtaken in the log.
        """


class Leases(Protocol):
    """The leases in the state table. Each method runs one short transaction; times are the database's.

    :raises DatabaseNotReadyError: from every method, if there is no state table.
    """

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        """The slots of ``application`` that have a row, or those of all applications for None; nothing is locked.

        :param cluster: the caller's Kafka cluster; leases taken from then on are for that cluster.
        :raises CopiedDatabaseError: if a row of ``application`` was written by another database.
        """

    def name_of(self, application: str) -> str:
        """The prefix of the transactional ids of ``application``; it has a suffix in a database that was declared a
        copy. As of the last look at the rows."""

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        """Take up to ``most`` of ``candidates``, in order: raise the fencing token, sign as ``owner``.

        Skips a candidate whose row is locked or has changed since it was read. After that, writes of the former owner
        match no row.
        """

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        """Extend ``leases`` to ``seconds`` from now, each under a new version; return the errors of lost leases.

        :param former: earlier signatures of ``owner``; a lease under one of them is signed as ``owner`` now.

        Skips a row that is locked: no process can take it now. Also skips a row that ``owner`` no longer signs: that
        lease was handed over, and expires with its new owner's.
        """

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """End those of ``leases`` that are valid. If ``finished``, the slots are free for any process; otherwise the
        leases expire at once, so that the next process to look recovers the slots."""
