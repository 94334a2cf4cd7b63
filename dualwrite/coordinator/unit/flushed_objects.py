"""The ORM objects whose rows a unit of work has written, and what becomes of them if it fails.

An object that looks stored is not written again. If a unit fails, and is run again with the same objects (``retries``),
its records would be committed without their rows. So an object that the failed unit has inserted is made new again. If
that is impossible, or the object was changed or deleted, no later unit of work accepts it.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, RelationshipProperty, Session, make_transient
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.orm.interfaces import MANYTOMANY, MANYTOONE

from dualwrite.errors import InvalidTransactionStateError

_UNLOADED = ("dynamic", "write_only")
"""Loaders of relationships that keep no collection on the object."""

_refused: WeakSet[InstanceState[Any]] = WeakSet()


class FlushedObjects:
    """The objects whose rows one unit of work has written."""

    def __init__(self) -> None:
        self._inserted: WeakSet[InstanceState[Any]] = WeakSet()
        self._changed: WeakSet[InstanceState[Any]] = WeakSet()

    def note_insert(self, _: Session, instance: object) -> None:
        """Note an INSERT; SQLAlchemy's event ``pending_to_persistent``."""
        self._inserted.add(inspect(instance))

    def note_changes(self, session: Session, *_: Any) -> None:
        """Note what ``session`` is going to UPDATE or DELETE; SQLAlchemy's event ``before_flush``."""
        for instances in (session.dirty, session.deleted):
            self._changed.update(inspect(instance) for instance in instances)

    def undo(self) -> None:
        """Make the inserted objects new again: their rows are gone. Refuse the others from now on."""
        for state in tuple(self._inserted):
            if (instance := state.obj()) is not None:
                is_whole = self._is_whole(state)
                if state.key is not None:
                    make_transient(instance)
                if not is_whole:
                    _refused.add(state)
        for state in tuple(self._changed - self._inserted):
            if state.deleted and (instance := state.obj()) is not None:
                make_transient(instance)  # or it would belong to its session for ever
            _refused.add(state)

    def _is_whole(self, state: InstanceState[Any]) -> bool:
        """True if ``state``, inserted anew, gives the same rows again."""
        mapper = state.mapper
        lost = state.expired_attributes.intersection(mapper.column_attrs.keys())
        return not any(_is_needed(mapper.column_attrs[name].columns) for name in lost) and not any(
            self._loses_rows(state, relationship) for relationship in mapper.relationships
        )

    def _loses_rows(self, state: InstanceState[Any], relationship: RelationshipProperty[Any]) -> bool:
        """True if rows of other tables keep ``relationship``, and a new INSERT of ``state`` does not write them:
        SQLAlchemy writes only what was added since the last flush."""
        if relationship.viewonly or relationship.direction is MANYTOONE:
            return False
        if relationship.lazy in _UNLOADED:
            return True
        related = state.dict.get(relationship.key)
        if related is None or relationship.direction is MANYTOMANY:
            return bool(related)
        members = collection_adapter(related) if relationship.uselist else [related]
        return any(inspect(member) not in self._inserted for member in members)


def require_usable(instance: object) -> None:
    """Require that no failed unit of work has made ``instance`` unusable.

    :raises InvalidTransactionStateError: otherwise. Make or load the object anew, inside the function that is repeated.
    """
    if _refused and inspect(instance) in _refused:
        raise InvalidTransactionStateError(
            f"{type(instance).__name__} object: a unit of work that failed has written it, and it is unknown what it "
            "was before: make or load the object inside the function of the unit of work, which may run again"
        )


def _is_needed(columns: Iterable[Any]) -> bool:
    """True if neither Python nor the database makes the values of ``columns``."""
    return any(
        getattr(column, "table", None) is not None and column.default is None and column.server_default is None
        for column in columns
    )
