"""``tx.session`` under asyncio: an AsyncSession over the unit's own session, of the application's kind if it gives
one."""

from types import TracebackType
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from dualwrite.coordinator.unit.session import UnitSession
from dualwrite.coordinator.unit.session_factory import UnitSessions, subclass_of, unit_sessions
from dualwrite.errors import ConfigurationError

AsyncSessionFactory = async_sessionmaker[Any] | type[AsyncSession]


class UnitAsyncSession(AsyncSession):
    """An AsyncSession over a UnitSession."""

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None and isinstance(self.sync_session, UnitSession):
            self.sync_session.left_by(error)
        await super().__aexit__(kind, error, traceback)


def async_unit_sessions(factory: AsyncSessionFactory | None) -> tuple[type[UnitAsyncSession], UnitSessions]:
    """The class of ``tx.session``, and the sessions inside it, made like those of ``factory``.

    :raises ConfigurationError: if it is none of the kinds of AsyncSessionFactory.
    """
    if factory is None:
        return UnitAsyncSession, UnitSessions()
    session_class, options = factory, {}
    if isinstance(factory, async_sessionmaker):
        session_class, options = factory.class_, dict(factory.kw)
    if not (isinstance(session_class, type) and issubclass(session_class, AsyncSession)):
        raise ConfigurationError(
            f"session_factory {factory!r:.100}: give an async_sessionmaker, or a subclass of AsyncSession"
        )
    inner = options.pop("sync_session_class", None) or session_class.sync_session_class
    own = UnitAsyncSession if session_class is AsyncSession else subclass_of(UnitAsyncSession, session_class)
    return own, unit_sessions(inner)._replace(options=options)
