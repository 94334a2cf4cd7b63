"""``tx.session`` of the application's own kind: its sessionmaker, or its subclass of Session, makes it.

A session that exists already cannot join a unit of work ([0030](docs/decisions/0030-sessions-of-the-application.md)).
"""

from collections.abc import Mapping
from types import new_class
from typing import Any, NamedTuple

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.util import ScopedRegistry

from dualwrite.coordinator.unit.session import UnitSession
from dualwrite.coordinator.unit.uncommitted_writes import watch_writes
from dualwrite.errors import ConfigurationError

SessionFactory = sessionmaker[Any] | scoped_session[Any] | type[Session]


class UnitSessions(NamedTuple):
    """Makes the sessions of units of work.

    :param session_class: a subclass of the application's class.
    :param options: for each session: those of the application's sessionmaker.
    :param registry: of the application's scoped_session, which is the unit's session during a unit of work.
    """

    session_class: type[UnitSession] = UnitSession
    options: Mapping[str, Any] = {}
    registry: ScopedRegistry[Any] | None = None

    def make(self, connection: Connection) -> UnitSession:
        """A session on ``connection``, that of a unit of work."""
        return self.session_class(connection, **self.options)


def unit_sessions(factory: SessionFactory | None) -> UnitSessions:
    """The sessions of units of work, made like those of ``factory``; SQLAlchemy's own if that is None.

    :raises ConfigurationError: if it is none of the kinds of SessionFactory.
    """
    if factory is None:
        return UnitSessions()
    if isinstance(factory, scoped_session):
        watch_writes(factory.session_factory)
        return unit_sessions(factory.session_factory)._replace(registry=factory.registry)
    if isinstance(factory, sessionmaker):
        return UnitSessions(_unit_class(factory.class_), factory.kw)  # itself: configure() may change it
    if isinstance(factory, type) and issubclass(factory, Session):
        return UnitSessions(_unit_class(factory))
    raise ConfigurationError(
        f"session_factory {factory!r:.100}: give a sessionmaker, a scoped_session over one, or a subclass of Session"
    )


def subclass_of(first: type[Any], second: type[Any]) -> Any:
    """A class with the methods of ``first`` over those of ``second``, and the name of ``second``."""
    return new_class(second.__name__, (first, second), exec_body=lambda space: space.update(__module__=__name__))


def _unit_class(session_class: type[Session]) -> type[UnitSession]:
    return UnitSession if session_class is Session else subclass_of(UnitSession, session_class)
