"""Which sessions of an application have written rows that they have not committed, by SQLAlchemy's events.

Rows that a Core statement in a text (``text("INSERT …")``) has written are not noticed.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, event
from sqlalchemy.orm import ORMExecuteState, Session, SessionTransaction, object_mapper


class _Writes:
    """The writes of a transaction or a savepoint: the engines, and the writes of savepoints inside that have ended."""

    def __init__(self) -> None:
        self.engines: set[Engine] = set()
        self.inner: list[_Writes] = []

    def are_to(self, engine: Engine) -> bool:
        """True if one is to the database of ``engine``."""
        return any(own.pool is engine.pool for own in self.engines) or any(each.are_to(engine) for each in self.inner)

    def undo(self) -> None:
        """Forget them: they were rolled back."""
        self.engines.clear()
        self.inner.clear()


_WRITES: WeakKeyDictionary[SessionTransaction, _Writes] = WeakKeyDictionary()


def watch_writes(factory: Any) -> None:
    """Note the writes of the sessions that ``factory`` makes: a sessionmaker, or a subclass of Session."""
    for name, listener in _LISTENERS.items():
        if not event.contains(factory, name, listener):
            event.listen(factory, name, listener)


def has_uncommitted_writes(session: Session, engine: Engine) -> bool:
    """True if ``session`` has written to the database of ``engine``, and may still roll that back."""
    return any(_WRITES[each].are_to(engine) for each in _open(session) if each in _WRITES)


def _open(session: Session) -> Iterator[SessionTransaction]:
    """The transaction of ``session`` and its savepoints, the innermost first."""
    transaction = session.get_nested_transaction() or session.get_transaction()
    while transaction is not None:
        yield transaction
        transaction = transaction.parent


def _note(session: Session, engines: Iterable[Engine]) -> None:
    transaction = next(_open(session), None)
    if transaction is not None:
        _WRITES.setdefault(transaction, _Writes()).engines.update(engines)


def _after_flush(session: Session, _: object) -> None:
    changed = (instance for instance in session.dirty if session.is_modified(instance))
    written = chain(session.new, session.deleted, changed)
    _note(session, (session.get_bind(object_mapper(instance)).engine for instance in written))


def _do_orm_execute(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        connection = state.session.connection(bind_arguments=dict(state.bind_arguments))  # begins the transaction
        _note(state.session, [connection.engine])


def _after_transaction_end(_: Session, transaction: SessionTransaction) -> None:
    writes, parent = _WRITES.get(transaction), transaction.parent
    if writes is not None and transaction.nested and parent is not None:
        _WRITES.setdefault(parent, _Writes()).inner.append(writes)


def _after_soft_rollback(_: Session, transaction: SessionTransaction) -> None:
    """SQLAlchemy calls it after :func:`_after_transaction_end`."""
    if transaction in _WRITES:
        _WRITES[transaction].undo()


_LISTENERS: dict[str, Callable[..., None]] = {
    "after_flush": _after_flush,
    "do_orm_execute": _do_orm_execute,
    "after_transaction_end": _after_transaction_end,
    "after_soft_rollback": _after_soft_rollback,
}
