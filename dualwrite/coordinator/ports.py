"""The two sides of a dual write, as the recipe sees them.

The machine, the driver and recovery are written against these Protocols. ``native.py`` and ``librdkafka.py`` have a
KafkaParticipant each, ``database.py`` a DecisionStore; the tests have fakes that can fail at every call.
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
    """One transactional id on Kafka: KIP-939's producer verbs in Python names.

    Not thread-safe. Every method may raise KafkaUnavailableError (retriable), KafkaRefusedError, FencedError (another
    producer took over) and InvalidTransactionStateError (wrong order of calls). After any error of commit or abort the
    participant must be closed and a new one made; its producer epoch is never used again.
    """

    @property
    def is_reusable(self) -> bool:
        """False if a request may still be under way that could reach a later transaction, though every call succeeded.
        Then close the participant; recovery makes a new one, and its epoch fences that request."""

    def init_transactions(self, keep_prepared_txn: bool = False) -> None:
        """Fence every earlier producer of the transactional id. Aborts what is open, unless ``keep_prepared_txn``."""

    def begin_transaction(self) -> None:
        """Begin a transaction; local, no request is sent."""

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
        """Add a record to the transaction; it is sent meanwhile. ``on_delivery(error, message)`` as confluent-kafka."""

    def send_offsets_to_transaction(self, positions: Sequence[Any], group_metadata: Any) -> None:
        """Commit a consumer group's offsets as part of the transaction (KIP-447). After an error: abort.

        :param positions: of each partition the next offset to read, as confluent_kafka.TopicPartition has it.
        :param group_metadata: what the consumer's ``consumer_group_metadata()`` gives.
        :raises KafkaRefusedError: with the group coordinator's code, if the member's generation is over, say.
        """

    def prepare_transaction(self) -> PreparedTxnState:
        """Flush, and return the state that identifies the transaction once every record is acknowledged.

        :raises PrepareFailedError: if a record was not acknowledged under this producer's one id and epoch. Abort.
        """

    def complete_transaction(self, state: PreparedTxnState) -> Outcome:
        """Commit the open transaction if ``state`` identifies it, abort it otherwise. Only after
        ``init_transactions(keep_prepared_txn=True)`` or :meth:`prepare_transaction`.

        After the former it also says, by a heuristic Outcome, if that is not what became of the transaction of
        ``state``, as far as it can be known.
        """

    def commit_transaction(self) -> None:
        """Commit. An error leaves the outcome unknown. A DualWriteError is the participant's own: the unit of work is
        finished in the background. Any other is taken for a limit that struck it, and reaches the caller as well."""

    def abort_transaction(self) -> None:
        """Abort. An error leaves the outcome unknown."""

    def close(self) -> None:
        """Release sockets and threads. Does not end an open transaction. Never raises; a second call does nothing."""


@runtime_checkable
class ProducesMany(Protocol):
    """A KafkaParticipant that takes many records in a fraction of the time of as many calls."""

    def produce_many(self, topic: str, records: Iterable[Record]) -> None:
        """As KafkaParticipant.produce of one record after the other."""


@runtime_checkable
class ProducesAtOnce(Protocol):
    """A KafkaParticipant with which an event loop's thread can add most records by itself."""

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
        """As KafkaParticipant.produce, if that would neither wait, nor send, nor call a delivery callback. False if it
        would: nothing was added."""


@runtime_checkable
class NamesOpenTransaction(Protocol):
    """A KafkaParticipant that can name its transaction before that is prepared."""

    @property
    def open_transaction(self) -> PreparedTxnState:
        """What names the open transaction, as far as it is known without a request; the empty state if nothing is."""


def name_of_open_transaction(participant: KafkaParticipant) -> PreparedTxnState:
    """What names the open transaction of ``participant``, as far as it can tell."""
    return participant.open_transaction if isinstance(participant, NamesOpenTransaction) else PreparedTxnState()


@runtime_checkable
class NamesLeftTransaction(Protocol):
    """What recovers a transactional id, and can name what a predecessor left open before that is ended."""

    def name_left_transaction(self) -> PreparedTxnState:
        """After ``init_transactions(keep_prepared_txn=True)``: what names the transaction that is open and was neither
        committed nor aborted; the empty state if there is none."""


def name_of_left_transaction(recoverable: object) -> PreparedTxnState:
    """What names the transaction that ``recoverable`` has found open, as far as it can tell."""
    return recoverable.name_left_transaction() if isinstance(recoverable, NamesLeftTransaction) else PreparedTxnState()


class HeldDecision(Protocol):
    """The state row of a transactional id while its lock is held."""

    @property
    def state(self) -> PreparedTxnState:
        """The state that the row stored when it was locked; the empty state if no unit of work was committed yet."""

    def verify(self) -> None:
        """Read the fencing token again, through the connection that holds the lock.

        :raises LeaseLostError: if the lock was lost and somebody else has taken over. A lost connection raises the
            database's own error. After either, nothing may be decided.
        """


class DecisionStore(Protocol):
    """The state table of one database: where the decision of every unit of work is found again after a crash."""

    @property
    def one_writer(self) -> bool:
        """True if the database lets one transaction write at a time: units of work that run at once would only wait
        for each other inside of it."""

    def in_thread(self, act: Callable[[], T]) -> T:
        """Call ``act``, which may use the store, in a thread of the library's own."""

    @property
    def checks_lease(self) -> bool:
        """True if each unit of work is to see at its beginning that its lease is valid."""

    def locked(self, lease: Lease) -> AbstractContextManager[HeldDecision]:
        """Hold the row's lock for the length of the ``with`` block.

        While it is held nobody can take over or commit a unit of work under this transactional id.

        :raises LeaseLostError: if somebody else has taken over.
        :raises DatabaseBusyError: if another transaction held the row for too long.
        """

    def locked_at_once(self, leases: Sequence[Lease]) -> AbstractContextManager[Mapping[Lease, HeldDecision]]:
        """As :meth:`locked`, for those of ``leases`` that are valid and whose rows nobody has locked: none is waited
        for. All are of one connection: use one at a time.

        :raises DatabaseBusyError: where one lock is for all rows, and another transaction held it for too long.
        """

    def store(self, connection: Connection, lease: Lease, state: PreparedTxnState) -> None:
        """Write ``state`` inside the caller's own transaction on ``connection``: one UPDATE, a compare-and-set with
        what ``lease.memory`` says of the row. The caller tells that memory how the transaction ended.

        :raises LeaseLostError: if another process has taken over; the caller rolls back.
        :raises LeaseContradictedError: if the database has forgotten a decision, or this process was copied; the caller
            rolls back.
        """

    def record(self, lease: Lease, outcome: Outcome) -> None:
        """Move the state from the row into the record of heuristic outcomes, as one that ended in ``outcome``.

        Nothing of it is open any more, so nothing can be decided by it; and what it names, a cluster that has lost its
        data would give to another transaction. A transaction of its own: call it while no lock is held.

        :raises LeaseLostError: if somebody else has taken over: whoever that is finds the same.
        """

    def mark_recovered(self, lease: Lease, unclaimed: PreparedTxnState) -> None:
        """Note in the row of ``lease`` that it is new no longer (LeaseMemory.is_new), before a transaction is begun
        under it. In the same transaction put ``unclaimed`` on record, before it is aborted. Call it while no lock is
        held.

        :param unclaimed: what the row's first recovery has found open, and another row may have decided to commit; the
            empty state if nothing.
        :raises LeaseLostError: if somebody else has taken over: whoever that is finds the same.
        """

    def note_outcome(self, transactional_id: str, state: PreparedTxnState, outcome: Outcome, detail: str) -> None:
        """Put on record that the unit of work with ``state`` ended in ``outcome``, whatever the state row holds. A
        transaction of its own.

        :param state: the empty state for a unit of work that had no Kafka transaction yet.
        :param detail: what happened and what is missing where, in a line for the operator.
        """

    def note_unmatched(self, transactional_id: str, units: Sequence[Unmatched], row: RowSeen | None) -> None:
        """As :meth:`note_outcome` for each of ``units``, in one transaction.

        :param row: the row as the holder of the lease saw it when it noticed. If it still is, its state is taken out of
            it: that was completed long ago, and recovery would find in the log that it was overtaken, and report it.
        """


class Leases(Protocol):
    """The leases in the state table. Each method is a short transaction of its own; times are the database's.

    :raises DatabaseNotReadyError: from every method, if there is no state table.
    """

    def rows(self, application: str | None, cluster: ClusterIdentity = UNKNOWN_CLUSTER) -> list[SlotRow]:
        """The slots of ``application`` that have a row, or those of all applications for None; nothing is locked.

        :param cluster: that the caller uses; what it takes from then on is for that one.
        :raises CopiedDatabaseError: if a row of ``application`` was written by another database.
        """

    def name_of(self, application: str) -> str:
        """How transactional ids of ``application`` begin: in a database that was declared a copy, with a suffix. As of
        the last look at the rows."""

    def take(self, candidates: Sequence[Candidate], owner: str, seconds: float, most: int) -> list[Lease]:
        """Take up to ``most`` of ``candidates``, the first ones first: raise the fencing token, sign as ``owner``.

        One whose row is locked or has changed since it was read is passed over. Whatever its former owner tries on a
        row that was taken matches nothing.
        """

    def renew(
        self, leases: Collection[Lease], owner: str, seconds: float, former: Collection[str] = ()
    ) -> list[LeaseLostError]:
        """Let ``leases`` run out ``seconds`` from now, under a new version each; what is said of those that are lost.

        :param former: earlier signatures of ``owner``; a lease under one of them is signed as ``owner`` now.

        A row that is locked is passed over: nobody can take it now. So is one that ``owner`` does not sign any more: it
        was handed over, and runs out when its new owner's does.
        """

    def give_back(self, leases: Collection[Lease], *, finished: bool) -> None:
        """End ``leases``, as far as they are valid: free for anybody if ``finished``; else run out at once, so that the
        next one to look recovers what is left."""
