"""The ORM objects whose rows a unit of work has written, and what becomes of them if it fails.

An object that looks stored is not written again. If a unit fails, and is run again with the same objects (``retries``),
its records would be committed without their rows. So an object that the failed unit has inserted is made new again. If
that is impossible, or the object was changed or deleted, no later unit of work accepts it.
"""

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import inspect
from sqlalchemy.orm import InstanceState, RelationshipProperty, Session, make_transient
from sqlalchemy.orm.attributes import History, get_history
from sqlalchemy.orm.base import PASSIVE_NO_INITIALIZE, PassiveFlag
from sqlalchemy.orm.collections import collection_adapter
from sqlalchemy.orm.interfaces import MANYTOMANY, MANYTOONE

from dualwrite.errors import InvalidTransactionStateError

_UNLOADED = ("dynamic", "write_only")
"""Loaders of relationships that keep no collection on the object."""

_WITHOUT_A_QUERY = PASSIVE_NO_INITIALIZE | PassiveFlag.INCLUDE_PENDING_MUTATIONS

_refused: WeakSet[InstanceState[Any]] = WeakSet()


class FlushedObjects:
    """The objects whose rows one unit of work has written. The methods ``note_…`` are listeners of SQLAlchemy."""

    def __init__(self) -> None:
        self._new: WeakKeyDictionary[InstanceState[Any], frozenset[str]] = WeakKeyDictionary()
        """The inserted objects, each with the names of the attributes that it had before."""
        self._members: WeakKeyDictionary[InstanceState[Any], WeakSet[InstanceState[Any]]] = WeakKeyDictionary()
        """What a new object's collections held as it was added, without what was in the session before it."""
        self._changed: WeakSet[InstanceState[Any]] = WeakSet()
        self._unrestorable: WeakSet[InstanceState[Any]] = WeakSet()

    def note_attach(self, session: Session, instance: object) -> None:
        """Note an object that is added to ``session``; the event ``after_attach``."""
        state = inspect(instance)
        added = [
            inspect(member)
            for relationship in _kept_elsewhere(state)
            for member in _history(state, relationship).added or ()
            if member is not None and inspect(member).session is not session
        ]
        if added and state.key is None:
            self._members[state] = WeakSet(added)
        elif added:
            self._changed.add(state)  # the collection is expired after a failure, and so these are forgotten

    def note_flush(self, session: Session, *_: Any) -> None:
        """Note what ``session`` is going to write; the event ``before_flush``."""
        for instance in session.new:
            state = inspect(instance)
            self._new[state] = self._new.get(state, frozenset()) | _given(state)
            if any(state.attrs[name].history.added for name in _unloaded_relationships(state)):
                self._unrestorable.add(state)
        changed = [instance for instance in session.dirty if _is_changed(instance)]
        self._changed.update(inspect(instance) for instance in (*changed, *session.deleted))

    def note_insert(self, _: Session, instance: object) -> None:
        """Note the INSERT of an object that another listener of the flush has added; the event
        ``pending_to_persistent``."""
        state = inspect(instance)
        if state not in self._new:
            self._new[state] = _given(state)

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
                    _forget_generated_key(state, given)
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
            and not any(self._loses_rows(state, relationship) for relationship in _kept_elsewhere(state))
        )

    def _loses_rows(self, state: InstanceState[Any], relationship: RelationshipProperty[Any]) -> bool:
        """True if a new INSERT of ``state`` does not write the rows that keep ``relationship``, as SQLAlchemy writes
        only what was added since the last flush; or if it writes more, as the unit has added to them."""
        members = _members(state, relationship)
        if relationship.direction is MANYTOMANY:
            return bool(members)
        before = self._members.get(state, ())
        return any(member not in self._new or member not in before for member in members)


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
    names = {*state.mapper.column_attrs.keys(), *state.mapper.relationships.keys()}
    return frozenset(name for name, value in state.dict.items() if name in names and not _is_nothing(value))


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, list | set | dict) and not value)


def _forget_generated_key(state: InstanceState[Any], given: frozenset[str]) -> None:
    """Remove a primary key that the database has made, unless rows of related objects may refer to it."""
    mapper = state.mapper
    if not mapper.relationships:
        for column in mapper.primary_key:
            name = mapper.get_property_by_column(column).key
            if name not in given:
                state.dict.pop(name, None)


def _is_changed(instance: object) -> bool:
    """True if a flush writes the row of ``instance``, or rows that keep its relationships. A new object that refers to
    ``instance`` writes its own row only."""
    state = inspect(instance)
    mapper = state.mapper
    own = [*mapper.column_attrs.keys(), *(each.key for each in mapper.relationships if each.direction is MANYTOONE)]
    if any(state.attrs[name].history.has_changes() for name in own):
        return True
    for relationship in _kept_elsewhere(state):
        history = _history(state, relationship)
        is_stored = any(member is not None and inspect(member).key is not None for member in history.added or ())
        removed = any(member is not None for member in history.deleted or ())
        if removed or is_stored or (history.added and relationship.direction is MANYTOMANY):
            return True
    return False


def _kept_elsewhere(state: InstanceState[Any]) -> list[RelationshipProperty[Any]]:
    """The relationships of an object that rows of other tables keep, and whose members it holds."""
    return [
        relationship
        for relationship in state.mapper.relationships
        if not (relationship.viewonly or relationship.direction is MANYTOONE or relationship.lazy in _UNLOADED)
    ]


def _history(state: InstanceState[Any], relationship: RelationshipProperty[Any]) -> History:
    """What was added and removed, without a query; by a backref, too."""
    return get_history(state.obj(), relationship.key, _WITHOUT_A_QUERY)


def _members(state: InstanceState[Any], relationship: RelationshipProperty[Any]) -> list[InstanceState[Any]]:
    related = state.dict.get(relationship.key)
    if related is None:
        return []
    members = collection_adapter(related) if relationship.uselist else [related]
    return [inspect(member) for member in members]


def _unloaded_relationships(state: InstanceState[Any]) -> list[str]:
    return [relationship.key for relationship in state.mapper.relationships if relationship.lazy in _UNLOADED]
