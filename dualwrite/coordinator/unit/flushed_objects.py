"""The ORM objects whose rows a unit of work has written, and what becomes of them if it fails.

An object that looks stored is not written again. If a unit fails, and is run again with the same objects (``retries``),
its records would be committed without their rows. So an object that the failed unit has inserted is made new again. If
that is impossible, or the object was changed or deleted, no later unit of work accepts it.
"""

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, RelationshipProperty, Session, make_transient
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.orm.interfaces import MANYTOMANY, MANYTOONE

from dualwrite.errors import InvalidTransactionStateError

_UNLOADED = ("dynamic", "write_only")
"""Loaders of relationships that keep no collection on the object."""

_refused: WeakSet[InstanceState[Any]] = WeakSet()


class FlushedObjects:
    """The objects whose rows one unit of work has written. The methods ``note_…`` are listeners of SQLAlchemy."""

    def __init__(self) -> None:
        self._new: WeakKeyDictionary[InstanceState[Any], frozenset[str]] = WeakKeyDictionary()
        """The inserted objects, each with the names of the attributes that it had before."""
        self._changed: WeakSet[InstanceState[Any]] = WeakSet()
        self._unrestorable: WeakSet[InstanceState[Any]] = WeakSet()

    def note_flush(self, session: Session, *_: Any) -> None:
        """Note what ``session`` is going to write; the event ``before_flush``."""
        for instance in session.new:
            self.note_insert(session, instance)
        changed = [instance for instance in session.dirty if _is_changed(session, instance)]
        self._changed.update(inspect(instance) for instance in (*changed, *session.deleted))

    def note_insert(self, _: Session, instance: object) -> None:
        """Note an INSERT; the event ``pending_to_persistent``."""
        state = inspect(instance)
        self._new[state] = self._new.get(state, frozenset()) | _given(state)
        if any(state.attrs[name].history.added for name in _unloaded_relationships(state)):
            self._unrestorable.add(state)

    def note_departure(self, _: Session, instance: object) -> None:
        """Note that an object leaves the session with the values of this transaction; the events
        ``persistent_to_detached`` and ``persistent_to_deleted``."""
        self._changed.add(inspect(instance))

    def end(self, session: Session, *, is_undone: bool) -> None:
        """Take note of the failure of the unit, as far as it concerns ``session``.

        :param is_undone: False if its outcome is not known.
        """
        self.note_flush(session)
        if is_undone:
            self.undo()
        else:
            self.refuse()
        session.expire_all()

    def undo(self) -> None:
        """Make the inserted objects new again: their rows are gone. Refuse the others from now on."""
        self.refuse()  # first: after an interrupt none may look stored
        for state, given in list(self._new.items()):
            if (instance := state.obj()) is not None:
                is_whole = self._is_whole(state, given)
                if state.key is not None:
                    make_transient(instance)
                if is_whole:
                    _refused.discard(state)
        for state in self._changed:
            if state.deleted and (instance := state.obj()) is not None:
                make_transient(instance)  # or it would belong to its session for ever

    def refuse(self) -> None:
        """Refuse every object from now on: it is not known whether its row was committed."""
        _refused.update(self._new.keys())
        _refused.update(self._changed)

    def _is_whole(self, state: InstanceState[Any], given: frozenset[str]) -> bool:
        """True if ``state``, inserted anew, gives the same rows again."""
        return (
            state not in self._unrestorable
            and given <= state.dict.keys()
            and not any(self._loses_rows(state, relationship) for relationship in state.mapper.relationships)
        )

    def _loses_rows(self, state: InstanceState[Any], relationship: RelationshipProperty[Any]) -> bool:
        """True if rows of other tables keep ``relationship``, and a new INSERT of ``state`` does not write them:
        SQLAlchemy writes only what was added since the last flush."""
        related = state.dict.get(relationship.key)
        is_elsewhere = relationship.viewonly or relationship.direction is MANYTOONE or relationship.lazy in _UNLOADED
        if is_elsewhere or not related:
            return False
        if relationship.direction is MANYTOMANY:
            return True
        members = collection_adapter(related) if relationship.uselist else [related]
        return any(inspect(member) not in self._new for member in members)


def require_usable(instance: object) -> None:
    """Require that no failed unit of work has made ``instance`` unusable.

    :raises InvalidTransactionStateError: otherwise. Make or load the object anew, inside the function that is repeated.
    """
    if _refused and inspect(instance, raiseerr=False) in _refused:
        raise InvalidTransactionStateError(
            f"{type(instance).__name__} object: a unit of work that failed has written it, and it is unknown what it "
            "was before: make or load the object inside the function of the unit of work, which may run again"
        )


def _given(state: InstanceState[Any]) -> frozenset[str]:
    """The names of the attributes that have a value: an expression of SQL, for example, which a flush replaces."""
    names = state.mapper.attrs.keys()
    return frozenset(name for name, value in state.dict.items() if name in names and not _is_nothing(value))


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, list | set | dict) and not value)


def _is_changed(session: Session, instance: object) -> bool:
    """True if a flush of ``session`` writes ``instance``, or rows that keep its relationships. A new object that refers
    to ``instance`` writes its own row only."""
    if session.is_modified(instance, include_collections=False):
        return True
    state = inspect(instance)
    for relationship in state.mapper.relationships:
        if relationship.uselist and not relationship.viewonly:
            history = state.attrs[relationship.key].history
            is_stored = any(inspect(member).key is not None for member in history.added or ())
            if history.deleted or is_stored or (history.added and relationship.direction is MANYTOMANY):
                return True
    return False


def _unloaded_relationships(state: InstanceState[Any]) -> list[str]:
    return [relationship.key for relationship in state.mapper.relationships if relationship.lazy in _UNLOADED]
