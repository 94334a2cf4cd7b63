"""What user code holds inside ``with dw.transaction() as tx``: the database connection and the Kafka transaction."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from sqlalchemy import Connection, CursorResult, Executable, ScalarResult
from sqlalchemy.orm import Session

from dualwrite.coordinator.driver import BlockingDriver
from dualwrite.coordinator.participants import Headers
from dualwrite.errors import InvalidTransactionStateError

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Transaction:
    """One unit of work: a context manager to be entered once. Leaving the block commits both sides; raising, neither.

    Inside the block, use it from one thread only. Commit and rollback belong to the block's end: a ``commit()`` on the
    connection raises, a ``rollback()`` makes the whole unit of work fail; SQL text that says COMMIT is not noticed.
    Savepoints (``begin_nested()``) are free to use; rolling one back takes no record back.

    :param enter: makes a driver that has begun, or raises.
    :param leave: ends it, with the block's exception or None, and raises what the caller must know.
    """

    def __init__(
        self,
        enter: Callable[[], BlockingDriver],
        leave: Callable[[BlockingDriver, BaseException | None], None],
    ) -> None:
        self._enter = enter
        self._leave = leave
        self._driver: BlockingDriver | None = None

    def __enter__(self) -> "Transaction":
        if self._driver is not None:
            raise InvalidTransactionStateError("this unit of work has been used: call transaction() for each one")
        self._driver = self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        driver = self._running()
        if not driver.machine.in_user_code:
            raise InvalidTransactionStateError("this unit of work has ended: its block cannot be left twice")
        self._leave(driver, error)

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
