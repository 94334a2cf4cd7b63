"""ORM sessions on the connection of a unit of work, found by SQLAlchemy's events: the application's own, too.

Like those of ``tx.session``, their pending objects are flushed when the block ends, or when the session is closed.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, object_mapper

from dualwrite.coordinator.unit.flushed_objects import FlushedObjects, require_usable
from dualwrite.coordinator.unit.session import (
    UnitSession,
    flush_all,
    is_pending,
    refuse_lost_savepoint,
    require_rolled_back,
)
from dualwrite.coordinator.unit.unit_transaction import SessionInUnit, UnitTransaction, unit_on
from dualwrite.errors import InvalidTransactionStateError

_CLOSING = ("close", "reset", "invalidate")
"""Methods of a session that drop pending objects."""


class TrackedSession:
    """An application's own session on the connection of a unit of work.

    :param session: whose methods that drop pending objects flush them first, until :meth:`let_go`.
    """

    def __init__(self, session: Session, unit: UnitTransaction) -> None:
        self.session = session
        self._unit = unit
        self._flushed = FlushedObjects()
        self._handled = sys.exc_info()[1]
        """The exception that the application handles meanwhile."""
        self._joined: WeakSet[SessionTransaction] = WeakSet()
        self._listeners: dict[str, Callable[..., None]] = {
            "before_flush": self._flushed.note_flush,
            "pending_to_persistent": self._flushed.note_insert,
            "persistent_to_detached": self._flushed.note_departure,
            "persistent_to_deleted": self._flushed.note_departure,
            "after_rollback": self._after_rollback,
        }
        for name in _CLOSING:
            plain = getattr(session, name, None)
            if plain is not None:
                setattr(session, name, partial(self._close, plain))
        for name, listener in self._listeners.items():
            event.listen(session, name, listener)

    def note_attach(self, instance: object) -> None:
        """Note an object that is added to the session."""
        self._flushed.note_attach(self.session, instance)

    def note_begin(self, transaction: SessionTransaction) -> None:
        """Note that ``transaction`` of the session has begun on the unit's connection."""
        if transaction.parent is None and not _uses_savepoint(self.session, self._unit.connection):
            self._joined.add(transaction)

    def let_go(self, *, is_undone: bool | None) -> None:
        """Leave the session to the application.

        :param is_undone: True if what it has written is gone, None if that is not known; see UnitSession.end.
        """
        for name in _CLOSING:
            vars(self.session).pop(name, None)
        for name, listener in self._listeners.items():
            if event.contains(self.session, name, listener):
                event.remove(self.session, name, listener)
        if is_undone is not False:
            self._flushed.end(self.session, is_undone=is_undone is True)

    def _after_rollback(self, session: Session) -> None:
        if session.get_transaction() in self._joined and not session.in_nested_transaction():
            require_rolled_back(self._unit)

    def _close(self, plain: Callable[[], None]) -> None:
        """Close the session without losing pending objects."""
        unit, session = self._unit, self.session
        if unit.in_user_code:
            refuse_lost_savepoint(session, unit)
        if unit.in_user_code and is_pending(session):
            error = sys.exc_info()[1]
            error = None if error is self._handled else error
            if error is not None or _uses_savepoint(session, unit.connection):
                where = "inside a savepoint" if error is None else f"after {error!r}"
                unit.refuse(
                    InvalidTransactionStateError(
                        f"a session on tx.connection was closed {where} with objects that were never flushed: their "
                        "rows are lost, so the unit of work is rolled back; call its commit(), or expunge() what is "
                        "not to be kept"
                    )
                )
            else:
                flush_all(lambda: [session])
        plain()


def watch_sessions() -> None:
    """Let units of work find the sessions on their connections; called once per process. Adding an object to a session
    then costs a fraction of a microsecond more."""
    for target, name, listener in _LISTENERS:
        if not event.contains(target, name, listener):
            event.listen(target, name, listener)


def _after_attach(session: Session, instance: object) -> None:
    for bind in _binds(session, instance):
        unit = unit_on(bind)
        if unit is not None:
            noting = session if isinstance(session, UnitSession) else _track(session, unit)
            try:
                require_usable(instance)
            except InvalidTransactionStateError as error:
                unit.refuse(error)
                raise
            noting.note_attach(instance)


def _after_begin(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    unit = unit_on(connection)
    if unit is not None and not isinstance(session, UnitSession):
        _track(session, unit).note_begin(transaction)


def _binds(session: Session, instance: object) -> list[Any]:
    """The engines and connections that ``session`` may use for ``instance``."""
    if isinstance(session, UnitSession):
        return [session.unit_connection]
    shards = vars(session).get("_ShardedSession__shards")
    if shards is not None:  # its get_bind() would choose the object's shard now, for good
        return list(shards.values())
    if type(session).get_bind is not Session.get_bind:
        try:
            return [session.get_bind(object_mapper(instance))]
        except Exception:  # noqa: BLE001 - the application's own error: its flush will raise it
            return []
    # SQLAlchemy 2.1 calls it binds; in 2.0 it is private.
    others = vars(session).get("binds") or vars(session).get("_Session__binds") or {}
    return [session.bind, *others.values()]


def _track(session: Session, unit: UnitTransaction) -> SessionInUnit:
    tracked = unit.sessions.get(id(session))
    if tracked is None:
        unit.sessions[id(session)] = tracked = TrackedSession(session, unit)
    return tracked


def _uses_savepoint(session: Session, connection: Connection) -> bool:
    """True if ``session``, which has begun on ``connection``, has a savepoint of its own there."""
    mode = session.join_transaction_mode
    return mode == "create_savepoint" or (mode == "conditional_savepoint" and connection.in_nested_transaction())


_LISTENERS: tuple[tuple[type[Session], str, Callable[..., None]], ...] = (
    (Session, "after_attach", _after_attach),
    (Session, "after_begin", _after_begin),
    (UnitSession, "before_flush", UnitSession.note_flush),
    (UnitSession, "pending_to_persistent", UnitSession.note_insert),
    (UnitSession, "persistent_to_detached", UnitSession.note_departure),
    (UnitSession, "persistent_to_deleted", UnitSession.note_departure),
    (UnitSession, "after_rollback", UnitSession.note_rollback),
)
