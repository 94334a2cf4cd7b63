"""``with dw.transaction() as tx``: the block, and ``tx`` with the database connection and the Kafka transaction."""

import os
import sys
import threading
import weakref
from asyncio import Future
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from traceback import walk_tb
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from sqlalchemy import Connection, CursorResult, Executable, ScalarResult
from sqlalchemy.orm import Session

from dualwrite.coordinator.offsets.consumers import KafkaConsumer
from dualwrite.coordinator.ports import Headers
from dualwrite.coordinator.unit.driver import UnitDriver
from dualwrite.coordinator.unit.observers import Watch
from dualwrite.coordinator.unit.offsets import UnitOffsets
from dualwrite.errors import InvalidTransactionStateError

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
T = TypeVar("T", bound="BaseTransaction")


_USED = "this unit of work has ended: its block cannot be left twice"


class UnitsOfWork(Protocol):
    """The DualWrite, as its blocks use it."""

    def enter(self, unit: "Unit") -> None:
        """Begin ``unit``, and give it its driver."""

    def leave(self, unit: "Unit", error: BaseException | None) -> None:
        """End ``unit``, with the block's exception or None, and raise the exception for the caller."""

    def let_go(self, unit: "Unit", error: BaseException) -> None:
        """End what is left of ``unit``, if anything: ``error`` came while it began or ended."""

    def truth(self, unit: "Unit", raised: BaseException) -> BaseException:
        """The exception that leaves the block of ``unit``, which has ended, in place of ``raised``; see
        outgoing_error.py."""

    def let_go_later(self, unit: "Unit", error: BaseException) -> None:
        """Schedule :meth:`let_go`; called from a finalizer, which may run anywhere."""


class Unit:
    """One unit of work: the user of a slot in the pool, and its driver. It may outlive its block.

    :param place: the thread, or the task of an event loop, that began it.
    :param is_repeated: the caller will begin it again, with the same records, if it does not come to run.
    """

    def __init__(self, place: object, *, is_repeated: bool = False) -> None:
        self.place = place
        self.driver: UnitDriver | None = None
        self.watch: Watch | None = None
        """Its observers; None without any."""
        self.offsets: UnitOffsets | None = None
        """The consumers' offsets in it; None before it begins."""
        self.is_repeated = is_repeated
        self.has_run = False
        self.is_over = False
        """True once it has given back all that it held."""
        self.cancelled: BaseException | None = None
        """The cancellation of its task during its end: the reason to roll it back, if that is still possible."""
        self.ending: Future[None] | None = None
        """The task that ends it, or has tried to; None for a unit of a thread."""


class BaseTransaction:
    """The common part of Transaction and AsyncTransaction."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit

    @property
    def unit(self) -> Unit:
        """The unit of work. For the block only."""
        return self._unit

    @property
    def is_undone(self) -> bool:
        """False if the unit of work has ended and may have left rows, which its block committed past the library."""
        return self._unit.driver is None or not self._unit.driver.left_rows

    def running(self) -> UnitDriver:
        """The driver of the unit of work. For the block only."""
        assert self._unit.driver is not None
        return self._unit.driver

    def _offsets(self) -> UnitOffsets:
        assert self._unit.offsets is not None
        return self._unit.offsets


_open: ContextVar[tuple["weakref.ref[BaseBlock[Any]]", ...]] = ContextVar("dualwrite_open_units", default=())
"""The units of work of all DualWrites that are open in this context. Not per thread: two tasks of an event loop share a
thread, and have units of their own."""


class BaseBlock(Generic[T]):
    """A unit of work as a ``with`` block, entered once; the subclasses define entering and leaving."""

    _unit: Unit | None = None

    def __init__(self, units: UnitsOfWork) -> None:
        self._units = units
        self._transaction: T | None = None
        self._joined: T | None = None

    @staticmethod
    def _here() -> object:
        """The place of a unit of work that begins now."""
        return threading.get_ident()

    def _join(self) -> T | None:
        """The unit of work that is open here, if any; this block then joins it."""
        if self._unit is not None or self._joined is not None:
            raise InvalidTransactionStateError("this unit of work has been used: call transaction() for each one")
        joined: T | None = open_unit(self._units)
        self._joined = joined
        if joined is not None:
            joined.running().require_user_code()
        return joined

    def _to_leave(self) -> Unit:
        unit = self._unit
        if unit is None or unit.is_over:
            raise InvalidTransactionStateError(_USED)
        return unit

    def _note_open(self, transaction: T) -> None:
        self._transaction = transaction
        self.announce()

    def announce(self) -> None:
        """Let later blocks in this context join this unit of work, once it is open."""
        _open.set((*self._others(), weakref.ref(self)))

    def _note_left(self) -> None:
        _open.set(self._others())

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{name}: it is tx that has it, inside the block of `with dw.transaction() as tx`")

    def __del__(self) -> None:
        if self._unit is not None and not self._unit.is_over:
            self._units.let_go_later(self._unit, InvalidTransactionStateError("the block was never left"))

    def _others(self) -> tuple["weakref.ref[BaseBlock[Any]]", ...]:
        """All other blocks that are open here."""
        blocks = ((reference, reference()) for reference in _open.get())
        return tuple(
            reference
            for reference, block in blocks
            if block is not None and block is not self and block._unit is not None and not block._unit.is_over
        )

    def open_here(self, units: UnitsOfWork) -> T | None:
        """The unit of work, if it belongs to ``units``, began here and in this process, and has not ended."""
        unit = self._unit
        if self._units is not units or unit is None or unit.place != self._here():
            return None
        driver = unit.driver
        if driver is None or driver.process != os.getpid() or driver.is_released:
            return None
        if self._was_left():
            self._units.let_go(unit, InvalidTransactionStateError("the block was never left"))
            return None
        return self._transaction

    def _was_left(self) -> bool:
        """True if the exception being handled came while the block was left, before that could do anything."""
        return False


class _Exit:
    """``Block.__exit__``, bound so that the function it calls holds no strong reference to the block.

    CPython runs signal handlers at the entry of a Python function, before any ``try`` in it. An exception that a
    handler raises there keeps that function's frame in its traceback, and with it the function's arguments, as long as
    the exception is kept. So the function gets a weak reference to the block. The callable of the ``with`` statement
    holds the block; it is a C object and has no frame: the statement drops both as the exception leaves it, and the
    block's ``__del__`` ends the unit of work.

    Read from the class, as contextlib.ExitStack does, it is a plain function of the block.
    """

    def __get__(self, block: "Block | None", owner: "type[Block]") -> Callable[..., None]:
        if block is None:
            return owner.leave
        bound = partial(block.leave, weakref.ref(block))
        vars(bound)["block"] = block
        return bound


class Block(BaseBlock["Transaction"]):
    """``with dw.transaction() as tx``: a unit of work, entered once. Leaving the block commits both sides; an exception
    rolls both back.

    Entered inside another block of the same DualWrite, in the same thread, it joins that one: it returns the outer
    Transaction, leaving it commits nothing, and an exception that leaves it rolls back the whole unit.

    Only the ``with`` statement holds the block, ``tx`` does not: if a signal handler raises as ``__exit__`` begins,
    where no code can handle it, the unit of work is ended as that exception leaves the statement.
    """

    def __init__(self, units: UnitsOfWork, *, is_repeated: bool = False) -> None:
        super().__init__(units)
        self._is_repeated = is_repeated

    def __enter__(self) -> "Transaction":
        joined = self._join()
        if joined is not None:
            return joined
        self._unit = unit = Unit(self._here(), is_repeated=self._is_repeated)
        try:
            self._units.enter(unit)
            transaction = Transaction(unit)
            self._note_open(transaction)
            unit.has_run = True
            return transaction
        except BaseException as error:
            self._let_go(unit, error)
            raise

    @staticmethod
    def leave(
        held: "Block | weakref.ref[Block]",
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the block; called by ``__exit__``, see _Exit.

        :param held: the block; a weak reference if a ``with`` statement leaves it.
        """
        block = held() if isinstance(held, weakref.ref) else held
        # No call between this line and ``try``: an exception could come there, with the block in this frame and the
        # unit not ended.
        assert block is not None
        unit, joined = block._unit, block._joined
        if joined is not None:
            if error is not None:
                joined.running().doom(error)
            return
        if unit is None or unit.is_over:
            raise InvalidTransactionStateError(_USED)
        try:
            block._units.leave(unit, error)
            block._note_left()
        except BaseException as raised:
            block._let_go(unit, raised)
            told = block._units.truth(unit, raised)
            if told is raised:
                raise
            raise told from raised

    if TYPE_CHECKING:

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None:
            """Commit both sides if ``error`` is None, roll both back otherwise."""

    else:
        __exit__ = _Exit()

        def __aenter__(self) -> NoReturn:
            raise TypeError("a unit of work of a DualWrite is a `with` block; `async with` is AsyncDualWrite's")

        async def __aexit__(self, *_: object) -> None:
            """Never called: ``async with`` asks for it first, and then fails."""

    def _let_go(self, unit: Unit, error: BaseException) -> None:
        """End what is left of ``unit``; if that is interrupted, too, leave it to another thread."""
        try:
            self._units.let_go(unit, error)
        except BaseException:
            self._units.let_go_later(unit, error)
            raise
        finally:
            self._note_left()

    def _was_left(self) -> bool:
        """True if the exception being handled came out of :meth:`leave` before that could do anything, and the block is
        still referenced."""
        error = sys.exc_info()[1]
        while error is not None:
            for frame, _ in walk_tb(error.__traceback__):
                if frame.f_code is Block.leave.__code__ and frame.f_locals["held"] in (self, weakref.ref(self)):
                    return True
            error = error.__context__
        return False


class Transaction(BaseTransaction):
    """The unit of work inside its block: database connection and Kafka transaction.

    Use it from one thread only. The block's end commits or rolls back: a ``commit()`` on the connection raises, as do
    COMMIT and ROLLBACK as SQL text, and a ``rollback()`` makes the whole unit of work fail. Savepoints
    (``begin_nested()``) are allowed; rolling one back does not remove records.
    """

    @property
    def connection(self) -> Connection:
        """The SQLAlchemy Connection of this unit's database transaction."""
        return self.running().connection

    @property
    def session(self) -> Session:
        """An ORM Session on the same connection and transaction, made at first use; flushed at the block's end.

        Its ``commit()`` raises; its ``rollback()`` makes the whole unit of work fail.
        """
        return self.running().session

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
        """Add a record to this unit's Kafka transaction, like confluent-kafka's ``Producer.produce``.

        :param partition: -1 lets the partitioner choose by key.
        :param timestamp: milliseconds since the epoch; 0 is now.
        :param on_delivery: called as ``on_delivery(error, message)`` when the record is acknowledged, which is before
            the unit of work is committed.
        :raises KafkaUnavailableError: and every other error of the participant. A record that raised is not part of the
            unit of work; if you catch the error, the rest may still be committed.
        """
        self.running().produce(
            lambda participant: participant.produce(topic, value, key, partition, timestamp, headers, on_delivery)
        )

    def send_offsets(self, consumer: KafkaConsumer, offsets: Iterable[Any] | None = None) -> None:
        """Commit the offsets of ``consumer`` in this unit's Kafka transaction (KIP-447): its group continues there if
        the unit is committed, and not otherwise.

        :param consumer: confluent_kafka.Consumer, a member of its group by
            ``subscribe(topics, on_assign=dw.seek_to_committed)``, with ``enable.auto.commit=false``, and with
            ``isolation.level=read_committed``: only then does the next owner of the partitions wait for a unit that is
            decided but not yet complete in Kafka.
        :param offsets: confluent_kafka.TopicPartition with the next offset to read of each; by default the consumer's
            positions in all assigned partitions that it has read from.
        :raises RebalancedError: if the group has given the partitions to another member. The unit is rolled back, even
            if the error is caught.
        :raises InvalidTransactionStateError: if a unit of work has failed, and the consumer has read on without
            ``seek_to_committed(consumer)``: the records in between would be lost.
        :raises KafkaUnavailableError: and other errors of the participant; the unit is rolled back then, too.
        """
        self._offsets().send(self.running(), consumer, offsets)

    def store_offsets(self, consumer: KafkaConsumer, offsets: Iterable[Any] | None = None) -> None:
        """Write the offsets of ``consumer`` into the database, in this unit's transaction: its group continues there if
        the unit is committed. The consumer must have been positioned by ``seek_to_stored``. One UPDATE.

        Best called first in the block: it waits for another member's unit that uses the same records, and a unit that
        ``retries`` runs again is then recognized as the same unit.

        :param consumer: confluent_kafka.Consumer, with ``enable.auto.commit=false``; a member of its group, or with
            partitions that were assigned by hand.
        :param offsets: as for :meth:`send_offsets`.
        :raises RebalancedError: if another member has advanced one of the partitions since this consumer's
            ``seek_to_stored``. The unit is rolled back, even if the error is caught.
        :raises InvalidTransactionStateError: inside a savepoint; if the consumer was not positioned by
            ``seek_to_stored``; or if a unit of work has failed, and the consumer has read on without
            ``seek_to_stored(consumer)``.
        :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
        """
        self._offsets().store(self.running(), consumer, offsets)


def open_unit(units: UnitsOfWork) -> Any:
    """The BaseTransaction of the unit of work of ``units`` that is open in this thread or task; None without one."""
    blocks = (block() for block in reversed(_open.get()))
    found = (block.open_here(units) for block in blocks if block is not None)
    return next((transaction for transaction in found if transaction is not None), None)
