"""What user code holds inside ``with dw.transaction() as tx``: the database connection and the Kafka transaction."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol

from sqlalchemy import Connection, CursorResult, Executable, ScalarResult
from sqlalchemy.orm import Session

from dualwrite.coordinator.driver import BlockingDriver
from dualwrite.coordinator.participants import Headers
from dualwrite.errors import InvalidTransactionStateError

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class UnitsOfWork(Protocol):
    """What a Transaction asks of the DualWrite that it belongs to."""

    def enter(self) -> BlockingDriver:
        """A driver that has begun."""

    def leave(self, driver: BlockingDriver, error: BaseException | None) -> None:
        """End it, with the block's exception or None, and raise what the caller must know."""


_open: ContextVar[tuple["Transaction", ...]] = ContextVar("dualwrite_open_units", default=())
"""The units of work that are open here, in whatever DualWrite. A context and not a thread: two tasks of an event loop
share a thread, and have units of their own."""


class Transaction:
    """One unit of work: a context manager to be entered once. Leaving the block commits both sides; raising, neither.

    Entered inside the block of another one of the same DualWrite, in the same thread, it joins that one: it returns the
    outer Transaction, leaving it commits nothing, and an exception that leaves it is the end of the whole unit.

    Inside the block, use it from one thread only. Commit and rollback belong to the block's end: a ``commit()`` on the
    connection raises, a ``rollback()`` makes the whole unit of work fail; SQL text that says COMMIT is not noticed.
    Savepoints (``begin_nested()``) are free to use; rolling one back takes no record back.
    """

    def __init__(self, units: UnitsOfWork) -> None:
        self._units = units
        self._driver: BlockingDriver | None = None
        self._outer: Transaction | None = None
        self._thread = 0

    def __enter__(self) -> "Transaction":
        if self._driver is not None or self._outer is not None:
            raise InvalidTransactionStateError("this unit of work has been used: call transaction() for each one")
        self._outer = open_unit(self._units)
        if self._outer is not None:
            self._outer._running().require_user_code()
            return self._outer
        self._driver = self._units.enter()
        self._thread = threading.get_ident()
        _open.set((*_open.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._outer is not None:
            if error is not None:
                self._outer._running().doom(error)
            return
        driver = self._running()
        if not driver.machine.in_user_code:
            raise InvalidTransactionStateError("this unit of work has ended: its block cannot be left twice")
        try:
            self._units.leave(driver, error)
        finally:
            _open.set(tuple(unit for unit in _open.get() if unit is not self))

    def is_open_here(self, units: UnitsOfWork) -> bool:
        """True if this is a unit of work of ``units`` that this thread of this process has begun and not ended."""
        driver = self._driver
        return (
            self._units is units
            and self._thread == threading.get_ident()
            and driver is not None
            and driver.process == os.getpid()
            and not driver.is_released
        )

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy Connection of this unit's database transaction."""
        return self._running().connection

    @property
    def session(self) -> Session:
        """An ORM Session on the same connection and transaction, made at first use; flushed at the block's end.

        Its ``commit()`` raises; its ``rollback()`` makes the whole unit of work fail.
        """
        return self._running().session

    def execute(self, statement: Executable, parameters: Parameters = None) -> CursorResult[Any]:
        """``Connection.execute`` in this unit's database transaction."""
        return self.connection.execute(statement, parameters)

    def scalars(self, statement: Executable, parameters: Parameters = None) -> ScalarResult[Any]:
        """``Connection.scalars`` in this unit's database transaction."""
        return self.connection.scalars(statement, parameters)

    def scalar(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """``Connection.scalar`` in this unit's database transaction."""
        return self.connection.scalar(statement, parameters)

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
        on_delivery: Callable[[Any, Any], None] | None = None,
    ) -> None:
        """Add a record to this unit's Kafka transaction, as confluent-kafka's ``Producer.produce``.

        :param partition: -1 lets the partitioner choose by key.
        :param timestamp: milliseconds since the epoch; 0 is now.
        :param on_delivery: called as ``on_delivery(error, message)`` when the record is acknowledged, which is before
            the unit of work is committed.
        :raises KafkaUnavailableError: and every other error of the participant. A record that raised is not part of the
            unit of work; if you catch the error, the rest may still be committed.
        """
        self._running().produce(
            lambda participant: participant.produce(topic, value, key, partition, timestamp, headers, on_delivery)
        )

    def _running(self) -> BlockingDriver:
        if self._driver is None:
            raise InvalidTransactionStateError("tx can be used only inside its own with block")
        return self._driver


def open_unit(units: UnitsOfWork) -> Transaction | None:
    """The unit of work of ``units`` that is open in this thread and context, if there is one."""
    return next((unit for unit in reversed(_open.get()) if unit.is_open_here(units)), None)
