"""The database's side of a dual write, as Protocols: the decision store, and the transaction of a unit of work.

``sql/decision_store.py`` and ``unit/unit_database.py`` implement them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar

from dualwrite.coordinator.rules.lease import Lease
from dualwrite.coordinator.rules.lease_memory import RowSeen, Unmatched
from dualwrite.coordinator.rules.machine import DualWriteMachine
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import PreparedTxnState

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.orm import Session

T = TypeVar("T")


class LockedStateRow(Protocol):
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

    def locked(self, lease: Lease) -> AbstractContextManager[LockedStateRow]:
        """Hold the row's lock for the length of the ``with`` block.

        While the lock is held, no process can take over or commit a unit of work under this transactional id.

        :raises LeaseLostError: if another process has taken over.
        :raises DatabaseBusyError: if another transaction held the row for too long.
        """

    def locked_at_once(self, leases: Sequence[Lease]) -> AbstractContextManager[Mapping[Lease, LockedStateRow]]:
        """Like :meth:`locked`, for those of ``leases`` that are valid and whose rows are not locked by others; it waits
        for no row. All share one connection: use one at a time.

        :raises DatabaseBusyError: if the database has one lock for all rows, and another transaction held it too long.
        """

    def record(self, lease: Lease, outcome: Outcome) -> None:
        """Move the state from the row into the record of heuristic outcomes, with ``outcome``.

        Its transaction is not open any more, so the state decides nothing; and a cluster that lost its data would give
        the same identity to another transaction. Uses its own database transaction: call it while no lock is held.

        :raises LeaseLostError: if another process has taken over; that process finds the same outcome.
        """

    def mark_recovered(self, lease: Lease, unclaimed: PreparedTxnState) -> None:
        """Note in the row of ``lease`` that it is no longer new (LeaseMemory.is_new), before a transaction begins under
        it. In the same database transaction put ``unclaimed`` on record, before it is aborted; and move the state of
        the row, if it has one, from the row into the record. Call it while no lock is held.

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

        :param row: the row as the lease holder saw it at the contradiction, if it is its own; None if another process
            may have written it. If the row is unchanged, its state is removed: that transaction was completed long ago,
            and recovery would report it as overtaken in the log.
        """

    def outcome_insert_sql(self, transactional_id: str, unit: Unmatched) -> str:
        """The statement that puts ``unit`` on record, for an operator to run."""


class UnitDatabase(Protocol):
    """The database transaction of one unit of work. The state is stored in it, and its COMMIT is the decision.

    An exception of a signal handler may end any call; the driver then calls what follows, ``roll_back`` and ``release``
    possibly more than once.
    """

    @property
    def limit(self) -> AbstractContextManager[object]:
        """A time limit for one step, for its ``with`` block. The methods limit themselves."""

    @property
    def commit_was_sent(self) -> bool:
        """True once the database may have received the COMMIT."""

    @property
    def was_committed(self) -> bool:
        """True if the database driver has reported a successful COMMIT."""

    @property
    def may_have_left_rows(self) -> bool:
        """True if the transaction was ended outside the unit's control and may have left rows."""

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost before the unit was rolled back."""

    @property
    def is_on_record(self) -> bool:
        """True once :meth:`put_on_record` was successful."""

    @property
    def connection(self) -> "Connection":
        """SQLAlchemy's Connection, for the block."""

    @property
    def session(self) -> "Session":
        """An ORM Session on it, made at first use, for the block."""

    def begin(self, machine: DualWriteMachine) -> None:
        """Begin the transaction.

        :param machine: of the unit: while it is in user code, nothing but the database may end the transaction.
        """

    @property
    def has_unflushed(self) -> bool:
        """True if a session has objects whose rows :meth:`failure` will write."""

    def failure(self) -> BaseException | None:
        """Flush the sessions, and return the error that prevents a commit, if any. A flush may run user code that
        produces records."""

    def store(self, state: PreparedTxnState) -> None:
        """Write ``state`` into the row of the lease: one UPDATE, a compare-and-set against the lease's memory.

        :raises LeaseLostError: if another process has taken over.
        :raises LeaseContradictedError: if the database has forgotten a decision, or this process was copied.
        """

    def commit(self) -> None:
        """Commit. After an error the outcome is unknown: :meth:`discard`, and read the row."""

    def discard(self) -> None:
        """Drop the connection, and with it what is open in the database. Raises no error of its own."""

    def roll_back(self, *, is_struck: bool) -> None:
        """Roll back what has begun, if anything.

        :param is_struck: a signal handler's exception may have come while the transaction began.
        """

    def put_on_record(self, state: PreparedTxnState) -> None:
        """Put on record that the transaction was ended outside the unit's control.

        :param state: names the Kafka transaction; the empty state if there was none.
        """

    def release(self) -> None:
        """Give back the connection; a transaction that is still open on it is rolled back."""
