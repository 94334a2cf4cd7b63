"""The ORM session of a unit of work: ``tx.session``.

Its pending objects are flushed when the block ends, or when it is closed before that: otherwise rows would be lost
whose records are kept. If an object cannot be flushed then, the unit of work fails.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.sql.dialects.url_text import url_text
from dualwrite.coordinator.unit.flushed_objects import FlushedObjects, require_usable
from dualwrite.coordinator.unit.unit_transaction import LEAVE_TO_END, UnitTransaction, unit_on
from dualwrite.errors import InvalidTransactionStateError

_LOG = logging.getLogger("dualwrite")
_MOST_FLUSHES = 100
"""The limit of SQLAlchemy's own commit(): listeners of a flush may leave more to flush."""
_JOINED: dict[str, Any] = {"join_transaction_mode": "rollback_only", "twophase": False, "autobegin": True}
"""The options of Session that belong to the unit of work."""


class UnitSession(Session):
    """An ORM session inside a unit of work. Only the unit commits.

    :param connection: the unit's.
    :param options: of SQLAlchemy's Session, or of the application's subclass of it.
    """

    def __init__(self, connection: Connection, **options: Any) -> None:
        self.unit_connection = connection
        self.is_over = False
        """True once its unit of work has ended."""
        self._has_announced_end = False
        """True once its transaction has ended, and listeners hear of it."""
        self._has_announced_rollback = False
        """True once SQLAlchemy has called the listeners of a rollback in the block; perhaps another transaction of the
        session has begun since."""
        self._flushed_in_unit = FlushedObjects()
        super().__init__(**{**options, "bind": connection, **_JOINED})

    def get_bind(self, *args: Any, **options: Any) -> Any:
        """The unit's connection, wherever the session finds the unit's database.

        :raises InvalidTransactionStateError: for another database; or once the unit has ended.
        """
        if self._has_announced_end:
            raise InvalidTransactionStateError(
                "the unit of work of this session has ended, and the session can run no statement any more, nor can a "
                "listener of after_commit or after_rollback: use another session"
            )
        bind = super().get_bind(*args, **options)
        if bind is not self.unit_connection and not _is_same_database(bind, self.unit_connection):
            raise InvalidTransactionStateError(
                f"{url_text(bind.engine.url)}: a unit of work writes through the engine of its DualWrite alone, "
                f"{url_text(self.unit_connection.engine.url)}: give the DualWrite the engine that its sessions have, "
                "and use a session outside the unit of work for another database"
            )
        return self.unit_connection

    def end(self, *, is_undone: bool | None, resting: Callable[[], AbstractContextManager[None]]) -> None:
        """Call the listeners of SQLAlchemy's event ``after_commit`` or ``after_rollback``, and forget every object,
        without a flush.

        :param resting: the block in which listeners run: their time is not the database's.
        :param is_undone: True if the rows are gone. Inserted objects are new again, and the others are expired, as
            after SQLAlchemy's rollback; see FlushedObjects for those that no later unit of work accepts. None if that
            is not known: then none is accepted.
        """
        try:
            if is_undone is not False:
                self._flushed_in_unit.end(self, is_undone=is_undone is True)
            if is_undone is not None and not self._has_announced_end:
                with resting():
                    self._announce_end(is_undone=is_undone)
        finally:
            super().close()
        self.is_over = True

    def announce_commit(self) -> None:
        """Call the listeners of SQLAlchemy's event ``before_commit``, as its commit() does before it flushes. They may
        add objects."""
        if lost_savepoint(self) is None:
            self.dispatch.before_commit(self)

    def _announce_end(self, *, is_undone: bool) -> None:
        self._has_announced_end = True
        if is_undone and self._has_announced_rollback:
            transaction = self.get_transaction()
            if transaction is None or not transaction.is_active:
                return
        name = "after_rollback" if is_undone else "after_commit"
        try:
            getattr(self.dispatch, name)(self)
        except Exception as error:
            if THIS_PROCESS.is_interrupt(error):
                raise
            # The unit of work has ended; a caller that got this error might run it again.
            _LOG.exception("a listener of the session's event %s failed", name)

    def commit(self) -> None:
        """Refuse, and change nothing.

        :raises InvalidTransactionStateError: always.
        """
        if self.is_over:
            raise InvalidTransactionStateError(
                "commit() of tx.session changed nothing: its unit of work is over, and the end of the block has "
                "committed or rolled back; begin another unit of work"
            )
        raise InvalidTransactionStateError(
            f"commit() of tx.session is refused inside a unit of work, and changed nothing: {LEAVE_TO_END}"
        )

    def rollback(self) -> None:
        """Roll the unit's whole database transaction back; the unit of work fails at its end."""
        super().rollback()
        # A session that was not used yet would roll back nothing.
        self.unit_connection.rollback()

    def close(self) -> None:
        """Flush pending objects, and close."""
        self._flush_in_block()
        super().close()

    def reset(self) -> None:
        """Flush pending objects, and forget every object."""
        self._flush_in_block()
        super().reset()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None:
            self.left_by(error)
            super().close()
        else:
            self.close()

    def left_by(self, error: BaseException) -> None:
        """Note that ``error`` left a ``with`` block of this session: the unit of work fails, even if it is caught."""
        unit = unit_on(self.unit_connection)
        if unit is not None:
            refusal = InvalidTransactionStateError(
                f"the block of this unit's session raised {error!r}, and the error was caught: all of the unit is "
                "rolled back; let the error leave the unit's block, or use a savepoint (begin_nested) instead"
            )
            refusal.__cause__ = error
            unit.refuse(refusal)

    def merge(self, instance: Any, *args: Any, **options: Any) -> Any:
        """SQLAlchemy's merge.

        :raises InvalidTransactionStateError: for an object that a failed unit of work has written.
        """
        require_usable(instance)
        return super().merge(instance, *args, **options)

    def bulk_save_objects(self, objects: Iterable[object], *args: Any, **options: Any) -> None:
        """SQLAlchemy's bulk_save_objects; see :meth:`merge`."""
        objects = list(objects)
        for instance in objects:
            require_usable(instance)
        super().bulk_save_objects(objects, *args, **options)

    def note_attach(self, instance: object) -> None:
        """SQLAlchemy's event ``after_attach``."""
        self._flushed_in_unit.note_attach(self, instance)

    def note_flush(self, *_: Any) -> None:
        """SQLAlchemy's event ``before_flush``."""
        self._flushed_in_unit.note_flush(self)

    def note_insert(self, instance: object) -> None:
        """SQLAlchemy's event ``pending_to_persistent``."""
        self._flushed_in_unit.note_insert(self, instance)

    def note_departure(self, instance: object) -> None:
        """SQLAlchemy's events ``persistent_to_detached`` and ``persistent_to_deleted``."""
        if not self.is_over and unit_on(self.unit_connection) is not None:
            self._flushed_in_unit.note_departure(self, instance)

    def note_rollback(self) -> None:
        """SQLAlchemy's event ``after_rollback``."""
        if self.in_nested_transaction():
            return
        self._has_announced_rollback = True
        unit = unit_on(self.unit_connection)
        if unit is not None:
            require_rolled_back(unit)

    def _flush_in_block(self) -> None:
        unit = unit_on(self.unit_connection)
        if unit is not None and unit.is_active:
            refuse_lost_savepoint(self, unit)
            flush_all(lambda: [self])


def require_rolled_back(unit: UnitTransaction) -> None:
    """Let ``unit`` fail: a session on its connection was rolled back. If a savepoint of the connection has ended since
    the session was first used inside it, the session has rolled back nothing."""
    if unit.is_active:
        unit.refuse(
            InvalidTransactionStateError(
                "a session of this unit of work was rolled back, perhaps by a flush that failed: all of the unit is "
                "rolled back; to try something, use a savepoint of the session (session.begin_nested())"
            )
        )


def lost_savepoint(session: Session) -> InvalidTransactionStateError | None:
    """The error of a session in which a failed flush has rolled a savepoint back that the application has not ended:
    SQLAlchemy's own commit() would refuse, too."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    if transaction is None or transaction.is_active:
        return None
    return InvalidTransactionStateError(
        "a flush of a session of this unit of work failed inside a savepoint, and the error was caught, but the "
        "savepoint was not ended: its rows are lost, so all of the unit is rolled back; use `with "
        "session.begin_nested():` inside the `try`, or call the savepoint's rollback()"
    )


def refuse_lost_savepoint(session: Session, unit: UnitTransaction) -> None:
    """Let ``unit`` fail if ``session`` is to be closed after what :func:`lost_savepoint` finds."""
    if (error := lost_savepoint(session)) is not None:
        unit.refuse(error)


def flush_all(sessions: Callable[[], Iterable[Session]]) -> None:
    """Flush ``sessions`` until no object is pending.

    :param sessions: asked before each flush, which may make others.
    :raises InvalidTransactionStateError: if there are pending objects after _MOST_FLUSHES flushes.
    """
    for _ in range(_MOST_FLUSHES):
        pending = [session for session in sessions() if is_pending(session)]
        if not pending:
            return
        for session in pending:
            session.flush()
    raise InvalidTransactionStateError(
        f"a session of this unit of work has something to flush after {_MOST_FLUSHES} flushes: does a listener of its "
        "change an object at each?"
    )


def is_pending(session: Session) -> bool:
    """True if ``session`` has objects to flush."""
    return bool(session.new or session.deleted or session.dirty)


def _is_same_database(bind: Any, connection: Connection) -> bool:
    """True if ``bind`` leads to the database of ``connection``, with the same names of schemas."""
    translated = bind.get_execution_options().get("schema_translate_map")
    return bind.engine.pool is connection.engine.pool and (
        translated is None or translated == connection.get_execution_options().get("schema_translate_map")
    )
