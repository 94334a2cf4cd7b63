"""The SQLAlchemy transaction of a unit of work. Only the unit's own end commits it."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.engine import ExceptionContext, ExecutionContext
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.orm import Session, SessionTransaction

from dualwrite.coordinator.rules.machine import DualWriteMachine, Step
from dualwrite.coordinator.rules.transaction_statements import ends_transaction
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import InvalidTransactionStateError

LEAVE_TO_END = "leave commit and rollback to the block's end"

_HARMLESS = frozenset(
    word for name in ("SELECT", "INSERT", "UPDATE", "DELETE") for word in (name, name.lower(), name.capitalize())
)
"""The first six letters of most statements, and of none that ends a transaction; another one may follow it in the same
text."""


class SessionInUnit(Protocol):
    """An application's own session on the connection; see session_tracking.TrackedSession."""

    @property
    def session(self) -> Session:
        """The session."""

    def note_attach(self, instance: object) -> None:
        """Note an object that is added to the session."""

    def note_begin(self, transaction: SessionTransaction) -> None:
        """Note that ``transaction`` of the session has begun on the connection."""

    def let_go(self, *, is_undone: bool | None) -> None:
        """Leave the session to the application."""


class UnitTransaction(RootTransaction):
    """The transaction on a unit of work's connection. Every commit in SQLAlchemy goes through it.

    :param machine: knows whether the block runs, or the unit itself commits.
    :param before_end: called before the transaction is rolled back; it may be called again.
    :param is_stored: called after the COMMIT if it is in doubt: true if the database has this unit's state, or if the
        unit has stored none.
    """

    __slots__ = (
        "_before_end",
        "_is_stored",
        "_machine",
        "ended_by",
        "is_lost",
        "late_error",
        "mark",
        "refused",
        "rolled_back_by",
        "sessions",
        "was_asked",
        "was_committed",
    )

    def __init__(
        self,
        connection: Connection,
        machine: DualWriteMachine,
        before_end: Callable[[], None],
        is_stored: Callable[[], bool],
    ) -> None:
        self._machine = machine
        self._before_end = before_end
        self._is_stored = is_stored
        self.mark = secrets.token_hex(8)
        """The unit's name in the database; see unit_transactions.unit_mark."""
        self.refused: InvalidTransactionStateError | None = None
        """The error of a refused commit inside the block; the unit of work fails, even if the error was caught."""
        self.rolled_back_by: BaseException | None = None
        """The database error that is known to have rolled the transaction back."""
        self.is_lost = False
        """True if SQLAlchemy has found that the connection was lost."""
        self.late_error: BaseException | None = None
        """A database error just before the COMMIT, which followed all the same: a listener's or an observer's."""
        self.ended_by: str | None = None
        """The call in the block that rolled the transaction back."""
        self.sessions: dict[int, SessionInUnit] = {}
        """The application's own sessions on the connection, by their identity."""
        self.was_asked = False
        """True once the database may have received the COMMIT."""
        self.was_committed = False
        """True once it is known to have committed."""
        super().__init__(connection)

    @property
    def in_user_code(self) -> bool:
        """True while the block runs."""
        return self._machine.in_user_code

    @property
    def is_committing(self) -> bool:
        """True while the unit's own end commits."""
        return self._machine.step is Step.COMMIT_DATABASE

    def _connection_begin_impl(self) -> None:
        # In place of a transaction whose connection was lost none is begun: that would need another connection, and its
        # error would take the place of the loss. Without one SQLAlchemy refuses what the block does next.
        if not self.connection.invalidated:
            super()._connection_begin_impl()

    def _connection_rollback_impl(self) -> None:
        # A `rollback` listener may commit through the driver: so with one, nothing is left to commit.
        connection = self.connection
        if connection.dispatch.rollback and not (connection.closed or connection.invalidated):
            with suppress(connection.dialect.loaded_dbapi.Error):  # SQLAlchemy's own rollback meets it, too
                connection.dialect.do_rollback(connection.connection)
        super()._connection_rollback_impl()

    def commit(self) -> None:
        """Commit, for the unit's own end.

        Code of the application may run just before the COMMIT, and end the transaction past SQLAlchemy. Then the COMMIT
        reports no error. So if there was such code, the state row says what the COMMIT has committed.

        :raises InvalidTransactionStateError: if the block calls it, or if the row does not hold the unit's state.
        """
        if not self.is_committing:
            raise self.refuse(
                InvalidTransactionStateError(
                    f"commit() is refused inside a unit of work, and nothing was committed: {LEAVE_TO_END}. This unit "
                    "is rolled back on both sides"
                )
            )
        connection = self.connection
        is_doubtful = bool(connection.dispatch.commit) or database_of(connection.dialect).is_over(connection)
        self.was_asked = True
        super().commit()
        if (is_doubtful or self.late_error is not None) and not self._is_stored():
            cause = "" if self.late_error is None else f" ({self.late_error!r})"
            raise InvalidTransactionStateError(
                "the COMMIT of this unit of work reported no error, and the database does not have the unit's state: a "
                f"`commit` listener, another listener or on_step has ended the transaction just before{cause}. Let an "
                "error leave the listener, or use a savepoint (begin_nested) there, and leave the driver's own "
                "connection alone"
            ) from self.late_error
        self.was_committed = True

    def rollback(self) -> None:
        """Roll back. Inside the block that ends the unit of work: later statements are not committed."""
        if not self._machine.in_user_code:
            if self.is_active:
                self._before_end()  # the database cannot be asked afterwards
            super().rollback()
        elif self.is_active:
            self.ended_by = "rollback()"
            self._before_end()
            super().rollback()
            # SQLAlchemy would begin another transaction, and the unit would not notice its commit().
            again = UnitTransaction(self.connection, self._machine, self._before_end, self._is_stored)
            again.sessions = self.sessions

    def close(self) -> None:
        """Roll back; ``Connection.close()`` calls it."""
        if self._machine.in_user_code and self.is_active:
            self.ended_by = "close()"
            self._before_end()
        super().close()

    def end(self) -> InvalidTransactionStateError:
        """The error of a unit of work whose block has ended this transaction."""
        if self.ended_by is None:
            cause = "the connection of this unit of work was closed, lost or given another transaction inside its block"
        else:
            cause = f"{self.ended_by} inside its block rolled this unit of work back"
        return InvalidTransactionStateError(f"{cause}: {LEAVE_TO_END}. The unit of work was rolled back on both sides")

    def refuse(self, error: InvalidTransactionStateError) -> InvalidTransactionStateError:
        """Note that ``error`` makes the unit of work fail."""
        if self.refused is None:
            self.refused = error
        return error


def unit_on(bind: object) -> UnitTransaction | None:
    """The transaction of the unit of work whose block runs on ``bind``."""
    transaction = bind.get_transaction() if isinstance(bind, Connection) else None
    return transaction if isinstance(transaction, UnitTransaction) and transaction.in_user_code else None


def watch_statements(engine: Engine) -> None:
    """Let units of work on ``engine`` refuse statements that end their transaction; called once per engine. The events
    of SQLAlchemy's that the dialect supports cost a statement a few tenths of a microsecond."""
    for name, listener in _LISTENERS.items():
        if not event.contains(engine, name, listener):
            event.listen(engine, name, listener, insert=True)


def _check(statement: str, context: ExecutionContext | None) -> None:
    """Refuse ``statement`` if it ends the transaction of a unit of work.

    :raises InvalidTransactionStateError: if it does.
    """
    transaction = None if context is None else context.root_connection.get_transaction()
    if not isinstance(transaction, UnitTransaction):
        return
    assert context is not None
    if ends_transaction(database_of(context.dialect).grammar, statement):
        raise transaction.refuse(
            InvalidTransactionStateError(
                f"{statement.strip()[:60]!r} is refused inside a unit of work, and was not run: it would end the "
                "unit's transaction or reset its settings, and the end of the block commits or rolls back. This unit "
                "is rolled back on both sides"
            )
        )


def _require_open(context: ExecutionContext | None) -> None:
    """Refuse the rest of many rows, which SQLAlchemy writes by several statements, if another thread has ended the unit
    of work meanwhile: the driver's connection is in the pool, or in the next unit."""
    if context is not None and context.root_connection.closed:
        raise ResourceClosedError("this Connection is closed: another thread has ended its transaction meanwhile")


def _before_statement(_: Any, statement: str, __: Any, context: ExecutionContext | None) -> None:
    _require_open(context)
    if statement[:6] not in _HARMLESS or ";" in statement:
        _check(statement, context)


def _before_plain_statement(_: Any, statement: str, context: ExecutionContext | None) -> None:
    _require_open(context)
    if statement[:6] not in _HARMLESS or ";" in statement:
        _check(statement, context)


def _after_error(context: ExceptionContext) -> None:
    """Note that a unit's connection is lost, or that an error is known to have rolled its transaction back, which needs
    no record."""
    connection = context.connection
    transaction = None if connection is None else connection.get_transaction()
    if not isinstance(transaction, UnitTransaction):
        return
    assert connection is not None
    transaction.is_lost = transaction.is_lost or context.is_disconnect
    if transaction.is_committing and transaction.late_error is None:
        transaction.late_error = context.original_exception
    if transaction.rolled_back_by is None and database_of(context.dialect).rolls_back(
        connection, context.original_exception
    ):
        transaction.rolled_back_by = context.original_exception


_LISTENERS: dict[str, Callable[..., None]] = {
    "do_execute": _before_statement,
    "do_executemany": _before_statement,
    "do_execute_no_params": _before_plain_statement,
    "handle_error": _after_error,
}
