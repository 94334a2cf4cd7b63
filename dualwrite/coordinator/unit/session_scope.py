"""An application's ``scoped_session`` (Flask-SQLAlchemy's ``db.session``) during a unit of work: it is the unit's.

The scope had perhaps another session before. Nothing that is done with the objects of that session during the block is
part of the unit: so the unit fails if they are changed, as its records would be committed without these changes.
"""

import threading
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.util import ScopedRegistry

from dualwrite.coordinator.unit.session import UnitSession, is_pending
from dualwrite.coordinator.unit.uncommitted_writes import has_uncommitted_writes
from dualwrite.errors import InvalidTransactionStateError


def settled_session(registry: ScopedRegistry[Any], engine: Engine) -> Session | None:
    """The session of ``registry`` now, if it has one.

    :raises InvalidTransactionStateError: if it has changes that are not committed: objects that were never flushed, or
        rows in the database of ``engine``.
    """
    session: Session | None = registry() if registry.has() else None
    if session is None or (isinstance(session, UnitSession) and session.is_over):
        return None
    is_of_a_unit = isinstance(session, UnitSession)  # of another DualWrite
    if is_pending(session) or (not is_of_a_unit and has_uncommitted_writes(session, engine)):
        raise InvalidTransactionStateError(
            "the session of the session_factory has changes from before this unit of work: commit them or roll them "
            "back before it begins"
        )
    return session


class SessionScope:
    """The scope of a unit of work: the thread, or what else the application's scoped_session distinguishes.

    :param registry: of the scoped_session.
    :param engine: of the units of work.
    :raises InvalidTransactionStateError: as :func:`settled_session`.
    """

    def __init__(self, registry: ScopedRegistry[Any], engine: Engine) -> None:
        self._registry = registry
        self._session: Session | None = None
        self._scope = self._current()
        self._refused: InvalidTransactionStateError | None = None
        self._previous = settled_session(registry, engine)

    def enter(self, session: UnitSession) -> None:
        """Make ``session`` that of the scope."""
        if self._previous is not None:
            event.listen(self._previous, "before_flush", self._refuse_flush)
            event.listen(self._previous, "do_orm_execute", self._refuse_writing)
        self._session = session
        self._registry.set(session)

    def failure(self) -> InvalidTransactionStateError | None:
        """The error that prevents a commit, if any."""
        if self._refused is not None or self._session is None:
            return self._refused
        if not self._is_entered:
            return InvalidTransactionStateError(
                "the session of the session_factory was removed or replaced inside a unit of work: what was done since "
                "is not part of the unit, which is rolled back; leave remove() to the time after it"
            )
        return self._changes_elsewhere() if self._previous is not None and is_pending(self._previous) else None

    def leave(self) -> None:
        """Give the scope back the session that it had before; not from another scope."""
        for name, listener in (("before_flush", self._refuse_flush), ("do_orm_execute", self._refuse_writing)):
            if self._previous is not None and event.contains(self._previous, name, listener):
                event.remove(self._previous, name, listener)
        if self._session is None or self._current() != self._scope:
            return
        if self._registry.has() and self._registry() is not self._session:
            self._registry().close()  # made inside the block, after a remove()
        if self._previous is None:
            self._registry.clear()
        else:
            self._registry.set(self._previous)
        self._session = None

    @property
    def _is_entered(self) -> bool:
        """True if the unit's session is that of the scope."""
        return self._registry.has() and self._registry() is self._session

    def _current(self) -> object:
        """The scope that asks; None for one that is gone: Flask-SQLAlchemy's, without an application context."""
        try:
            return getattr(self._registry, "scopefunc", threading.get_ident)()
        except RuntimeError:
            return None

    def _refuse_writing(self, state: ORMExecuteState) -> None:
        if state.is_insert or state.is_update or state.is_delete:
            self._refuse_flush()

    def _refuse_flush(self, *_: Any) -> None:
        self._refused = self._changes_elsewhere()
        raise self._refused

    @staticmethod
    def _changes_elsewhere() -> InvalidTransactionStateError:
        return InvalidTransactionStateError(
            "objects that were loaded before this unit of work were changed inside it: their session is not part of "
            "the unit, which is rolled back; load them inside the block"
        )
