"""ORM sessions on the connection of a unit of work: its own one, and the application's.

What is pending in a session when the block ends is flushed, so that no row is lost whose record is kept. So is what is
pending when a session is closed before; an object that cannot be flushed then makes the unit of work fail.
"""

import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, object_mapper

from dualwrite.coordinator.unit.unit_transaction import LEAVE_TO_END, UnitTransaction
from dualwrite.errors import InvalidTransactionStateError

_MOST_FLUSHES = 100
"""As SQLAlchemy's own commit(): a flush's listeners may leave something to be flushed."""
_CLOSING = ("close", "reset", "invalidate")
"""Methods of a session that drop what is pending."""


class UnitSession(Session):
    """An ORM session inside a unit of work, which alone commits."""

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
        # A session that has not yet done anything would roll back nothing.
        bind = self.get_bind()
        if isinstance(bind, Connection):
            bind.rollback()

    def close(self) -> None:
        """Flush what is pending, and close."""
        _flush_in_block(self, _unit_of(self.bind))
        super().close()

    def reset(self) -> None:
        """Flush what is pending, and forget every object."""
        _flush_in_block(self, _unit_of(self.bind))
        super().reset()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.left_by(error)
            super().close()
        else:
            self.close()

    def left_by(self, error: BaseException) -> None:
        """``error`` has left a ``with`` block of this session's: the unit of work fails, even if it is caught."""
        unit = _unit_of(self.bind)
        if unit is not None:
            refusal = InvalidTransactionStateError(
                f"the block of this unit's session raised {error!r}, and the error was caught: all of the unit is "
                "rolled back; let the error leave the unit's block, or use a savepoint (begin_nested) instead"
            )
            refusal.__cause__ = error
            unit.refuse(refusal)


def flush_all(sessions: Iterable[Session]) -> None:
    """Flush until nothing is pending in ``sessions``.

    :raises InvalidTransactionStateError: if that never comes to an end.
    """
    sessions = list(sessions)
    for _ in range(_MOST_FLUSHES):
        pending = [session for session in sessions if _is_pending(session)]
        if not pending:
            return
        for session in pending:
            session.flush()
    raise InvalidTransactionStateError(
        f"a session of this unit of work has something to flush after {_MOST_FLUSHES} flushes: does a listener of its "
        "change an object at each?"
    )


def watch_sessions() -> None:
    """Let units of work know the sessions on their connections. Once for the process; an object that is added to a
    session costs a fraction of a microsecond more."""
    for name, listener in (("after_attach", _after_attach), ("after_begin", _after_begin)):
        if not event.contains(Session, name, listener):
            event.listen(Session, name, listener)


def forget_sessions(unit: UnitTransaction) -> None:
    """Let go of the sessions that :func:`watch_sessions` has found."""
    while unit.sessions:
        session = unit.sessions.pop()
        for name in _CLOSING:
            vars(session).pop(name, None)


def _after_attach(session: Session, instance: object) -> None:
    for bind in _binds(session, instance):
        _note(session, bind)


def _after_begin(session: Session, _: Any, connection: Connection) -> None:
    _note(session, connection)


def _binds(session: Session, instance: object) -> list[Any]:
    """What ``session`` may be bound to, as far as ``instance`` goes."""
    if type(session).get_bind is not Session.get_bind:
        try:
            return [session.get_bind(object_mapper(instance))]
        except Exception:  # noqa: BLE001 - the application's own: its flush will say it
            return []
    # SQLAlchemy 2.1 calls it binds, and 2.0 has it for itself.
    others = vars(session).get("binds") or vars(session).get("_Session__binds") or {}
    return [session.bind, *others.values()]


def _unit_of(bind: object) -> UnitTransaction | None:
    """The transaction of the unit of work whose block runs on ``bind``."""
    transaction = bind.get_transaction() if isinstance(bind, Connection) else None
    return transaction if isinstance(transaction, UnitTransaction) and transaction.in_user_code else None


def _note(session: Session, bind: object) -> None:
    unit = _unit_of(bind)
    if unit is None or isinstance(session, UnitSession) or any(each is session for each in unit.sessions):
        return
    unit.sessions.append(session)
    for name in _CLOSING:
        plain = getattr(session, name, None)
        if plain is not None:
            setattr(session, name, partial(_close, session, unit, plain))


def _close(session: Session, unit: UnitTransaction, plain: Callable[[], None]) -> None:
    """Close an application's own session on a unit's connection, and lose nothing that is pending."""
    if unit.in_user_code and _is_pending(session):
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


def _is_pending(session: Session) -> bool:
    return bool(session.new or session.deleted or session.dirty)


def _uses_savepoint(session: Session, connection: Connection) -> bool:
    """True if closing ``session`` rolls a savepoint back."""
    mode = session.join_transaction_mode
    return mode == "create_savepoint" or (mode == "conditional_savepoint" and connection.in_nested_transaction())
