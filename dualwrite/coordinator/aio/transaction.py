"""A unit of work under asyncio: ``async with dw.transaction() as tx``. UnitDriver does the work, in greenlets.

CancelledError leaves the block only if the unit of work was rolled back on both sides. The end of the block is not
interrupted: a cancellation before the decision turns it into a rollback; a cancellation after the decision is delivered
when both sides are committed.
"""

import asyncio
import functools
import inspect
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar, cast

from sqlalchemy import CursorResult, Executable, ScalarResult
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from dualwrite.client.producer.arguments import one_callback
from dualwrite.coordinator.aio.session import UnitAsyncSession
from dualwrite.coordinator.offsets.consumers import KafkaConsumer
from dualwrite.coordinator.process.greenlets import current_task, greenlet_spawn
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.unit.block import BaseBlock, NamesTheAsyncBlock
from dualwrite.coordinator.unit.serializers import RecordGiven, Serializers
from dualwrite.coordinator.unit.transaction import BaseTransaction, Parameters
from dualwrite.coordinator.unit.unit_of_work import Unit, UnitLifecycle
from dualwrite.errors import ConfigurationError, InDoubtError, InvalidTransactionStateError
from dualwrite.records.outgoing import HeadersGiven, OnDelivery, OutgoingRecord

P = ParamSpec("P")
R = TypeVar("R")


class AsyncUnitsOfWork(UnitLifecycle, Protocol):
    """The AsyncUnitManager, as its AsyncBlocks use it; all methods but check_loop() run in a greenlet."""

    async_engine: AsyncEngine
    session_class: type[UnitAsyncSession]

    def awaited(self, consumer: Any) -> KafkaConsumer:
        """``consumer``, for use in a greenlet."""

    def check_loop(self) -> None:
        """Refuse an event loop that is not the one of the first use."""

    def end(self, unit: Unit, error: BaseException | None) -> None:
        """Leave ``unit``, and let go of it in any case."""


def _to_be_awaited(
    method: Callable[Concatenate["AsyncTransaction", P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["AsyncTransaction", P], Coroutine[Any, Any, R]]:
    """Decorate ``method`` so that its calls are remembered until they begin: a call without ``await`` does nothing, and
    Python reports no error."""

    @functools.wraps(method)
    def call(self: "AsyncTransaction", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        made = method(self, *args, **kwargs)
        self._made.append((method.__name__, made))
        return made

    return call


class AsyncTransaction(BaseTransaction):
    """The unit of work inside its block: like Transaction, with ``await`` for calls that may wait.

    One call at a time: while one task waits for a call, a call by another task is refused. A call that is not awaited
    in the block makes the whole unit of work fail. The block's end commits or rolls back: a ``commit()`` on the
    connection or the session raises, a ``rollback()`` makes the whole unit of work fail. Savepoints
    (``begin_nested()``) are allowed; rolling one back does not remove records.
    """

    def __init__(self, unit: Unit, units: AsyncUnitsOfWork) -> None:
        super().__init__(unit)
        self._units = units
        self._connection: AsyncConnection | None = None
        self._session: AsyncSession | None = None
        self._call: asyncio.Future[None] | None = None
        """The call in progress."""
        self._made: list[tuple[str, Coroutine[Any, Any, Any]]] = []
        """Calls that have perhaps not begun."""

    @property
    def connection(self) -> AsyncConnection:
        """The SQLAlchemy AsyncConnection of this unit's database transaction."""
        connection = self._driver.connection
        if self._connection is None:
            self._connection = AsyncConnection(self._units.async_engine, connection)
        return self._connection

    @property
    def session(self) -> AsyncSession:
        """An ORM AsyncSession on the same connection and transaction, made at first use; flushed at the block's end.

        Its ``commit()`` raises; its ``rollback()`` makes the whole unit of work fail.
        """
        session = self._driver.session
        if self._session is None:
            made = self._units.session_class(sync_session_class=cast(type[Session], lambda **_: session))
            if made.sync_session is not session:
                raise ConfigurationError(
                    f"session_factory: {type(made).__name__}.__init__() must hand sync_session_class on to AsyncSession"
                )
            self._session = made
        return self._session

    @_to_be_awaited
    async def execute(self, statement: Executable, parameters: Parameters = None) -> CursorResult[Any]:
        """``AsyncConnection.execute`` in this unit's database transaction."""
        async with self._alone("execute()"):
            return await self.connection.execute(statement, parameters)

    @_to_be_awaited
    async def scalars(self, statement: Executable, parameters: Parameters = None) -> ScalarResult[Any]:
        """``AsyncConnection.scalars`` in this unit's database transaction."""
        async with self._alone("scalars()"):
            return await self.connection.scalars(statement, parameters)

    @_to_be_awaited
    async def scalar(self, statement: Executable, parameters: Mapping[str, Any] | None = None) -> Any:
        """``AsyncConnection.scalar`` in this unit's database transaction."""
        async with self._alone("scalar()"):
            return await self.connection.scalar(statement, parameters)

    @_to_be_awaited
    async def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: HeadersGiven | None = None,
        on_delivery: OnDelivery | None = None,
        *,
        callback: OnDelivery | None = None,
    ) -> None:
        """Add a record to this unit's Kafka transaction; see Transaction.produce.

        After a cancelled call the transaction can only be rolled back.

        :param on_delivery: called as ``on_delivery(error, message)``, in the event loop, when the record is
            acknowledged, which is before the unit of work is committed.
        :param callback: another name of ``on_delivery``, as in confluent-kafka.
        """
        if callback is not None:
            on_delivery = await self._one_callback(on_delivery, callback)
        if (serializers := self._unit.serializers) is not None:
            given = RecordGiven(topic, value, key, partition, timestamp, headers, on_delivery)
            await self._produce_serialized(serializers, given)
            return
        self._require_alone("produce()")
        try:
            record = OutgoingRecord(topic, value, key, partition, timestamp, headers, on_delivery)
        except BaseException:  # the headers may be the user's iterator, which may raise anything
            async with self._alone("produce()"):
                await greenlet_spawn(self._driver.refuse_record)
            raise
        if self._driver.produce_at_once(record):
            return
        async with self._alone("produce()"):
            await greenlet_spawn(self._driver.produce, record)

    async def _one_callback(self, on_delivery: OnDelivery | None, callback: OnDelivery) -> OnDelivery | None:
        try:
            return one_callback(on_delivery, callback)
        except TypeError:
            async with self._alone("produce()"):
                await greenlet_spawn(self._driver.refuse_record)
            raise

    async def _produce_serialized(self, serializers: Serializers, given: RecordGiven) -> None:
        async with self._alone("produce()"):
            try:
                record = await serializers.awaited_record(given)
            except BaseException as error:
                if not isinstance(error, Exception):  # a cancelled call
                    self._driver.require_rollback(error)
                await greenlet_spawn(self._driver.refuse_record)
                raise
            await greenlet_spawn(self._driver.produce, record)

    @_to_be_awaited
    async def send_offsets(self, consumer: Any, offsets: Iterable[Any] | None = None) -> None:
        """Commit the offsets of ``consumer`` in this unit's Kafka transaction; see Transaction.send_offsets.

        :param consumer: confluent_kafka.aio.AIOConsumer, or confluent_kafka.Consumer.
        """
        async with self._alone("send_offsets()"):
            await greenlet_spawn(self._offsets().send, self._driver, self._units.awaited(consumer), offsets)

    @_to_be_awaited
    async def store_offsets(self, consumer: Any, offsets: Iterable[Any] | None = None) -> None:
        """Write the offsets of ``consumer`` into the database; see Transaction.store_offsets.

        :param consumer: confluent_kafka.aio.AIOConsumer, or confluent_kafka.Consumer.
        """
        async with self._alone("store_offsets()"):
            await greenlet_spawn(self._offsets().store, self._driver, self._units.awaited(consumer), offsets)

    @asynccontextmanager
    async def _alone(self, verb: str) -> AsyncIterator[None]:
        self._require_alone(verb)
        self._call = call = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._call = None
            call.set_result(None)

    def _require_alone(self, verb: str) -> None:
        self._units.check_loop()  # an asyncio driver notices another loop only when the database has the statement
        if self._call is not None:
            raise InvalidTransactionStateError(
                f"{verb}: another task is using this unit of work: a unit of work makes one call at a time"
            )
        self._forget_begun()

    def _forget_begun(self) -> None:
        self._made = [call for call in self._made if inspect.getcoroutinestate(call[1]) == inspect.CORO_CREATED]

    async def _wait_for_calls(self) -> InvalidTransactionStateError | None:
        """Wait for a call that is still in progress at the block's end. Return the error for it, or for a call that
        never began."""
        self._forget_begun()
        forgotten, self._made = self._made, []
        if self._call is not None:
            await asyncio.wait([self._call])  # which leaves the future to that call if this task is cancelled
            return InvalidTransactionStateError(
                "a call of another task was in progress when the block of this unit of work ended: await all calls in "
                "the block"
            )
        if forgotten:
            verb, _ = forgotten[0]
            return InvalidTransactionStateError(
                f"{verb}() was called and not awaited in the block of this unit of work: write await tx.{verb}(…)"
            )
        return None


class AsyncBlock(NamesTheAsyncBlock, BaseBlock[AsyncTransaction]):
    """``async with dw.transaction() as tx``: a unit of work, entered once. Leaving the block commits both sides; an
    exception rolls both back.

    Entered inside another block of the same AsyncDualWrite, in the same task, it joins that one: it returns the outer
    AsyncTransaction, leaving it commits nothing, and an exception that leaves it rolls back the whole unit.
    """

    def __init__(self, units: AsyncUnitsOfWork, *, is_repeated: bool = False) -> None:
        super().__init__(units)
        self._async_units = units
        self._is_repeated = is_repeated

    @staticmethod
    def _current_context() -> object:
        return weakref.ref(current_task())  # weak: a task that is collected lets go of its unit

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError("a unit of work of an AsyncDualWrite is an `async with` block; `with` is DualWrite's")

        def __exit__(self, *_: object) -> None:
            """Never called: ``with`` asks for it first, and then fails."""

    async def __aenter__(self) -> AsyncTransaction:
        units = self._async_units
        units.check_loop()
        joined = self._join()
        if joined is not None:
            return joined
        self._unit = unit = Unit(self._current_context(), is_repeated=self._is_repeated)
        try:
            await greenlet_spawn(units.enter, unit)
        except BaseException as error:
            await self._let_go(unit, error)
            raise
        transaction = AsyncTransaction(unit, units)
        self._register(transaction)
        unit.has_run = True
        return transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._joined is not None:
            self._leave_joined(self._joined, error)
            return
        unit = self._to_leave()
        try:
            if isinstance(error, GeneratorExit):
                await self._let_go(unit, error)
            else:
                await self._end(unit, error)
        finally:
            self._unregister()

    async def _let_go(self, unit: Unit, error: BaseException) -> None:
        if isinstance(error, GeneratorExit):  # the coroutine is being closed, perhaps without a loop: it cannot await
            self._units.force_end_later(unit, error)
            return
        ending, _ = await self._to_the_end(greenlet_spawn(self._units.force_end, unit, error), unit)
        if not ending.cancelled() and (raised := ending.exception()) is not None:
            raise raised

    async def _end(self, unit: Unit, error: BaseException | None) -> None:
        ending, cancelled = await self._to_the_end(self._finish(unit, error), unit)
        raised = asyncio.CancelledError() if ending.cancelled() else ending.exception()
        driver = unit.driver
        assert driver is not None
        has_happened = error is None and driver.machine.result is Result.SUCCEEDED
        if cancelled is not None:
            if has_happened or isinstance(raised, InDoubtError):
                _cancel_again(cancelled)
            elif not isinstance(error, asyncio.CancelledError):
                raise cancelled from raised
        # A caller that got CancelledError for a committed unit might run it again.
        if raised is not None and not (has_happened and isinstance(raised, asyncio.CancelledError)):
            raise raised

    async def _finish(self, unit: Unit, error: BaseException | None) -> None:
        assert self._transaction is not None
        left_alone = await self._transaction._wait_for_calls()
        await greenlet_spawn(self._async_units.end, unit, left_alone if error is None else error)
        if left_alone is not None and error is None:
            raise left_alone

    async def _to_the_end(
        self, act: Awaitable[None], unit: Unit
    ) -> tuple["asyncio.Future[None]", asyncio.CancelledError | None]:
        """Wait for ``act``, which ends ``unit``, even if this task is cancelled. A cancellation meanwhile is noted in
        ``unit`` and reported here."""
        unit.ending = ending = asyncio.ensure_future(act)
        cancelled = None
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                unit.cancelled = cancelled = error
            if ending.done() and not unit.is_over and (interrupt := _interrupt_of(ending)) is not None:
                # All tasks were cancelled, as by a loop that ends, and this one had hardly begun.
                unit.ending = ending = asyncio.ensure_future(greenlet_spawn(self._units.force_end, unit, interrupt))
        return ending, cancelled


def _interrupt_of(ending: "asyncio.Future[None]") -> BaseException | None:
    """The interrupt that ended ``ending`` before it finished; None for its own errors."""
    raised = asyncio.CancelledError() if ending.cancelled() else ending.exception()
    return None if isinstance(raised, Exception) else raised


def _cancel_again(error: asyncio.CancelledError) -> None:
    """Cancel this task at its next ``await``, unless the requester (a timeout that ends with the block) has withdrawn
    the cancellation by then."""
    task = asyncio.current_task()
    assert task is not None
    # Python 3.10 does not count the requests.
    count: Callable[[], int] | None = getattr(task, "cancelling", None)
    take_back: Callable[[], int] = getattr(task, "uncancel", int)
    requests = 0 if count is None else count()

    def again() -> None:
        if not task.done() and (count is None or count() >= requests):
            take_back()
            task.cancel(*error.args)

    asyncio.get_running_loop().call_soon(again)
