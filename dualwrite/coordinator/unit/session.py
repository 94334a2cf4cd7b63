"""ORM sessions on the connection of a unit of work: the unit's own session, and the application's.

A session's pending objects are flushed when the block ends, or when the session is closed before that: otherwise rows
would be lost whose records are kept. If an object cannot be flushed then, the unit of work fails.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event, inspect
from sqlalchemy.orm import InstanceState, Session, make_transient, object_mapper

from dualwrite.coordinator.unit.unit_transaction import LEAVE_TO_END, UnitTransaction
from dualwrite.errors import InvalidTransactionStateError

_MOST_FLUSHES = 100
"""The limit of SQLAlchemy's own commit(): listeners of a flush may leave more to flush."""
_CLOSING = ("close", "reset", "invalidate")
"""Methods of a session that drop pending objects."""


class UnitSession(Session):
    """An ORM session inside a unit of work. Only the unit commits.

    :param connection: the unit's.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(bind=connection, join_transaction_mode="rollback_only")
        self.inserted: WeakSet[InstanceState[Any]] = WeakSet()
        """The states of the objects whose rows it has inserted."""

    def end(self, *, is_undone: bool) -> None:
        """Forget every object, without a flush.

        :param is_undone: the rows are gone, so the objects are new again: an object that looks stored is not written
            if the unit is run again with it, and its record would be.
        """
        super().close()
        for state in self.inserted if is_undone else ():
            instance = state.obj()
            if instance is not None and state.detached:
                make_transient(instance)

    def commit(self) -> None:
        """Refuse, and change nothing.

        :raises InvalidTransactionStateError: always.
        """
        raise InvalidTransactionStateError(
            f"commit() of tx.session is refused inside a unit of work, and changed nothing: {LEAVE_TO_END}"
        )

    def rollback(self) -> None:
        """Roll the unit's whole database transaction back; the unit of work fails at its end."""
        super().rollback()
        # A session that was not used yet would roll back nothing.
        bind = self.get_bind()
        if isinstance(bind, Connection):
            bind.rollback()

    def close(self) -> None:
        """Flush pending objects, and close."""
        _flush_in_block(self, _unit_of(self.bind))
        super().close()

    def reset(self) -> None:
        """Flush pending objects, and forget every object."""
        _flush_in_block(self, _unit_of(self.bind))
        super().reset()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.left_by(error)
            super().close()
        else:
            self.close()

    def left_by(self, error: BaseException) -> None:
        """Note that ``error`` left a ``with`` block of this session: the unit of work fails, even if it is caught."""
        unit = _unit_of(self.bind)
        if unit is not None:
            refusal = InvalidTransactionStateError(
                f"the block of this unit's session raised {error!r}, and the error was caught: all of the unit is "
                "rolled back; let the error leave the unit's block, or use a savepoint (begin_nested) instead"
            )
            refusal.__cause__ = error
            unit.refuse(refusal)


def flush_all(sessions: Iterable[Session]) -> None:
    """Flush ``sessions`` until no object is pending.

    :raises InvalidTransactionStateError: if there are pending objects after _MOST_FLUSHES flushes.
    """
    sessions = list(sessions)
    for _ in range(_MOST_FLUSHES):
        pending = [session for session in sessions if is_pending(session)]
        if not pending:
            return
        for session in pending:
            session.flush()
    raise InvalidTransactionStateError(
        f"a session of this unit of work has something to flush after {_MOST_FLUSHES} flushes: does a listener of its "
        "change an object at each?"
    )


def _after_insert(session: UnitSession, instance: object) -> None:
    session.inserted.add(inspect(instance))


def watch_sessions() -> None:
    """Let units of work find the sessions on their connections; called once per process. Adding an object to a session
    then costs a fraction of a microsecond more."""
    for target, name, listener in _LISTENERS:
        if not event.contains(target, name, listener):
            event.listen(target, name, listener)


def forget_sessions(unit: UnitTransaction) -> None:
    """Forget the sessions that :func:`watch_sessions` has found."""
    while unit.sessions:
        session = unit.sessions.pop()
        for name in _CLOSING:
            vars(session).pop(name, None)


def _after_attach(session: Session, instance: object) -> None:
    for bind in _binds(session, instance):
        _track(session, bind)


def _after_begin(session: Session, _: Any, connection: Connection) -> None:
    _track(session, connection)


def _binds(session: Session, instance: object) -> list[Any]:
    """The engines and connections that ``session`` may use for ``instance``."""
    if type(session).get_bind is not Session.get_bind:
        try:
            return [session.get_bind(object_mapper(instance))]
        except Exception:  # noqa: BLE001 - the application's own error: its flush will raise it
            return []
    # SQLAlchemy 2.1 calls it binds; in 2.0 it is private.
    others = vars(session).get("binds") or vars(session).get("_Session__binds") or {}
    return [session.bind, *others.values()]


def _unit_of(bind: object) -> UnitTransaction | None:
    """The transaction of the unit of work whose block runs on ``bind``."""
    transaction = bind.get_transaction() if isinstance(bind, Connection) else None
    return transaction if isinstance(transaction, UnitTransaction) and transaction.in_user_code else None


def _track(session: Session, bind: object) -> None:
    unit = _unit_of(bind)
    if unit is None or isinstance(session, UnitSession) or any(known is session for known in unit.sessions):
        return
    unit.sessions.append(session)
    for name in _CLOSING:
        plain = getattr(session, name, None)
        if plain is not None:
            setattr(session, name, partial(_close, session, unit, plain))


def _close(session: Session, unit: UnitTransaction, plain: Callable[[], None]) -> None:
    """Close an application's own session on a unit's connection without losing pending objects."""
    if unit.in_user_code and is_pending(session):
        error = sys.exc_info()[1]
        if error is not None or _uses_savepoint(session, unit.connection):
            where = "inside a savepoint" if error is None else f"after {error!r}"
            unit.refuse(
                InvalidTransactionStateError(
                    f"a session on tx.connection was closed {where} with objects that were never flushed: their rows "
                    "are lost, so the unit of work is rolled back; call its commit(), or expunge() what is not to be "
                    "kept"
                )
            )
        else:
            flush_all([session])
    plain()


def _flush_in_block(session: Session, unit: UnitTransaction | None) -> None:
    if unit is not None and unit.is_active:
        flush_all([session])


def is_pending(session: Session) -> bool:
    """True if ``session`` has objects to flush."""
    return bool(session.new or session.deleted or session.dirty)


def _uses_savepoint(session: Session, connection: Connection) -> bool:
    """True if closing ``session`` rolls a savepoint back."""
    mode = session.join_transaction_mode
    return mode == "create_savepoint" or (mode == "conditional_savepoint" and connection.in_nested_transaction())


_LISTENERS: tuple[tuple[type[Session], str, Callable[..., None]], ...] = (
    (Session, "after_attach", _after_attach),
    (Session, "after_begin", _after_begin),
    (UnitSession, "pending_to_persistent", _after_insert),
)
