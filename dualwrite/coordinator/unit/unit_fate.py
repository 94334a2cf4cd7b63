"""How the database transaction of an uncommitted unit of work ended, and the heuristic record of it.

A block can end the transaction past SQLAlchemy, and then fail for any reason. Then Kafka's side is aborted, and the
committed rows have no records: that goes on record before the unit's error is raised.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.ports.database import DecisionStore
from dualwrite.coordinator.rules.lease_memory import Unmatched
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.unmatched import UnmatchedUnits, log_not_yet
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.dialects.unit_transactions import Fate, TransactionEndedError
from dualwrite.coordinator.sql.unit_bounds import fate_of_unit, require_unit
from dualwrite.coordinator.unit.unit_transaction import UnitTransaction
from dualwrite.errors import InvalidTransactionStateError
from dualwrite.ids import PreparedTxnState

_LOG = logging.getLogger("dualwrite")
_ON_RECORD = {
    Fate.COMMITTED: (
        Outcome.HEURISTIC_ABORT,
        "the block of the unit of work committed its database transaction without the library, and the unit was "
        "aborted in Kafka. Rows from before that commit, and perhaps from after it, have no records",
    ),
    Fate.UNKNOWN: (
        Outcome.HEURISTIC_HAZARD,
        "the block of the unit of work ended its database transaction without the library, and the unit was aborted in "
        "Kafka. It is unknown whether any of its rows were committed; if so, they have no records",
    ),
}


class UnitFate:
    """How the database transaction of one unit of work ended, as far as the database was asked.

    :param unmatched: keeps a record that the database does not accept now; None to log it only.
    """

    def __init__(self, unmatched: UnmatchedUnits | None) -> None:
        self._unmatched = unmatched
        self._handled = sys.exc_info()[1]
        """The exception that the application handles around the unit. It says nothing about the unit's transaction."""
        self._fate: Fate | None = None
        self._is_asked = False
        self._is_kept = False
        self._error: TransactionEndedError | None = None
        """The error that was raised to the block about it."""
        self.is_on_record = False
        """True once it is on record that the transaction was ended outside the unit's control."""

    @property
    def may_have_left_rows(self) -> bool:
        """True if the unit of work may have left rows without records."""
        return self._fate in _ON_RECORD

    def require_open(self, transaction: UnitTransaction, *, storing: bool) -> None:
        """Require that a COMMIT would commit ``transaction``; see Database.require_unit."""
        self._is_asked = True
        with self.noted(transaction):
            require_unit(transaction.connection, transaction.mark, storing=storing)
        self._fate = Fate.OPEN

    @contextmanager
    def noted(self, transaction: UnitTransaction) -> Iterator[None]:
        """Note what an error in the ``with`` block says about ``transaction``."""
        try:
            yield
        except TransactionEndedError as error:
            self._fate, self._error = self._known(transaction, error.fate, error), error
            raise
        except InvalidTransactionStateError:
            self._is_asked = False  # the transaction has failed; only a rollback shows which transaction it was
            raise

    def ask(self, transaction: UnitTransaction, error: BaseException | None) -> None:
        """Ask the database how ``transaction`` ended, before any rollback; only once.

        :param error: the exception that ended the block.
        """
        if not self._is_asked:
            self._is_asked = True
            # Not again after a time limit: asking ends the mark of SQLite and MariaDB.
            fate = _asked(transaction)
            self._fate = None if fate is None else self._known(transaction, fate, error)

    def put_on_record(self, store: DecisionStore, transactional_id: str, state: PreparedTxnState) -> None:
        """Put on record, once, a transaction that was or may have been committed outside the unit's control. If the
        database does not accept the record now, it waits with the unmatched units.

        :param state: names its Kafka transaction; the empty state if it had none.
        """
        if self._fate not in _ON_RECORD or self.is_on_record or self._is_kept:
            return
        unit = Unmatched(state, *_ON_RECORD[self._fate])
        try:
            store.note_outcome(transactional_id, *unit)
            self.is_on_record = True
        except BaseException as error:
            if self._unmatched is not None:
                self._unmatched.keep(transactional_id, unit)  # first: two records are better than none
                self._is_kept = True
                if self._error is not None:
                    self._error.record_waits = True
            log_not_yet(transactional_id, unit, error)
            raise

    def _known(self, transaction: UnitTransaction, fate: Fate, error: BaseException | None) -> Fate:
        """The ``fate`` of ``transaction`` that the database reports, corrected by the errors that it raised before."""
        if fate is not Fate.UNKNOWN:
            return fate
        if transaction.rolled_back_by is not None or self._is_rolled_back(transaction.connection, error):
            return Fate.ROLLED_BACK
        return fate

    def _is_rolled_back(self, connection: Connection, error: BaseException | None) -> bool:
        database = database_of(connection.dialect)
        return any(database.rolls_back(connection, cause) for cause in _chain(error, self._handled))


def _asked(transaction: UnitTransaction) -> Fate | None:
    """How ``transaction`` ended; None if the database cannot tell any more."""
    connection = transaction.connection
    if connection.closed or connection.invalidated:
        return None
    try:
        return fate_of_unit(connection, transaction.mark)
    except Exception as raised:
        if not is_step_error(raised):
            raise
        _LOG.debug("the outcome of a unit's transaction could not be read: %r", raised)
        return None  # most likely the connection is lost: then the server rolls back


def _chain(error: BaseException | None, end: BaseException | None) -> Iterator[BaseException]:
    """``error`` and its causes and contexts, up to ``end``."""
    seen: set[int] = set()
    while error is not None and error is not end and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__context__ if error.__cause__ is None else error.__cause__
