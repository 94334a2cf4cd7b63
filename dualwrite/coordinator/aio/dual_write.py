"""AsyncDualWrite: the same coordinator for applications on asyncio, with an AsyncEngine. greenlets.py explains how.

A unit of work's statements run in the caller's event loop. Calls that block run in threads: those of its Kafka
participant (awaited_slot.py), waiting for a slot, recovery.
"""

import asyncio
import functools
import inspect
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.coordinator.aio.awaited_slot import AwaitedSlot
from dualwrite.coordinator.aio.consumers import AsyncSeekingConsumers, awaited
from dualwrite.coordinator.aio.transaction import AsyncBlock, AsyncTransaction
from dualwrite.coordinator.concurrency.greenlets import current_task, greenlet_spawn, wait_for
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka.choice import ProducerName
from dualwrite.coordinator.offsets.consumers import KafkaConsumer
from dualwrite.coordinator.offsets.consuming import Consuming
from dualwrite.coordinator.ports import KafkaParticipant, Outcome
from dualwrite.coordinator.recovery.two_phase import TwoPhase
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.usage import Usage
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.coordinator.unit.driver import UnitDriver
from dualwrite.coordinator.unit.observers import Observer
from dualwrite.coordinator.unit.retry import Retrying, require_tx
from dualwrite.coordinator.unit.transaction import Unit, open_unit
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError

P = ParamSpec("P")
R = TypeVar("R")

RECOVERERS = 8
"""Slots that are recovered at the same time, each with a database connection of its own."""

_BEFORE_THE_DECISION = ("PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE")


class AsyncUnits(DualWrite):
    """A DualWrite whose units of work are begun and ended in greenlets of one event loop."""

    def __init__(self, engine: AsyncEngine, kafka: Mapping[str, Any], **options: Any) -> None:
        super().__init__(engine, kafka, **options)  # type: ignore[arg-type]  # see _checked
        self.engine = engine
        self._unit_store = self._make_store(self._engine)

    @staticmethod
    def _checked(engine: Any) -> Engine:
        if not isinstance(engine, AsyncEngine):
            hint = (
                "use DualWrite"
                if isinstance(engine, Engine)
                else "pass sqlalchemy.ext.asyncio.create_async_engine(url)"
            )
            raise ConfigurationError(f"engine is a {type(engine).__name__}: {hint}")
        return engine.sync_engine

    def _begin_process(self) -> None:
        super()._begin_process()
        size = self._settings.size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._knows_database = False
        self._waiting = 0
        self._endings: set[asyncio.Task[None]] = set()
        name = f"dualwrite-{self._settings.application}"
        # Units of work wait for a slot in turn; so one thread waits for all of them.
        self._door = ThreadPoolExecutor(1, f"{name}-door")
        self._recoverers = ThreadPoolExecutor(RECOVERERS, f"{name}-recovery")
        self._callers = ThreadPoolExecutor(size, f"{name}-kafka")
        self._consumers = ThreadPoolExecutor(RECOVERERS, f"{name}-consumers")
        self._consuming = Consuming(self._own_engine, self._store, current_task)

    def check_loop(self) -> None:
        """Remember the event loop of the first use, and refuse another: connections and tasks belong to one."""
        self._check_process()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            state = "one that is closed" if self._loop.is_closed() else "another one"
            raise InvalidTransactionStateError(
                f"this AsyncDualWrite was used in an event loop before, {state}: make one in each event loop"
            )

    def require_outside(self) -> None:
        """Refuse a task that is inside a unit of work."""
        self._require_outside()

    def end(self, unit: Unit, error: BaseException | None) -> None:
        """Leave ``unit``, and let go of it in any case."""
        try:
            self.leave(unit, error)
        except BaseException as raised:
            self.let_go(unit, raised)
            told = self.truth(unit, raised)
            if told is raised:
                raise
            raise told from raised

    def let_go(self, unit: Unit, error: BaseException) -> None:
        """Let go of ``unit``, see DualWrite; a thread that waits for the unit's slot is woken."""
        unit.cancelled = unit.cancelled or error
        super().let_go(unit, error)

    def let_go_later(self, unit: Unit, error: BaseException) -> None:
        """Let go of ``unit`` later, in the event loop; see DualWrite. If the loop has ended, drop the connection."""
        driver = unit.driver
        if driver is not None and self._keep_inherited(driver):
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._let_go_soon, unit, error)
            return
        if driver is not None:
            driver.drop_database()
        self._pool.left_behind.put(functools.partial(self.let_go, unit, error))

    def _let_go_soon(self, unit: Unit, error: BaseException) -> None:
        before = unit.ending

        async def let_go() -> None:
            if before is not None and not before.done():
                await asyncio.wait([before])
            await greenlet_spawn(self.let_go, unit, error)

        unit.ending = task = asyncio.ensure_future(let_go())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def let_go_of_orphans(self) -> None:
        """End the units of work that no block will end. An interrupt may come where no code can handle it, and its
        exception keeps the block alive, which would end its unit if it were collected."""
        here = current_task()
        error = InvalidTransactionStateError("the block was never left")
        for unit in self._pool.users():
            if not isinstance(unit, Unit) or (unit.ending is not None and not unit.ending.done()):
                continue
            task = unit.place() if isinstance(unit.place, weakref.ref) else None
            if task is None or task is here or task.done() or self._loop is None or self._loop.is_closed():
                self.let_go_later(unit, error)

    def run_again(self, retrying: Retrying, once: Callable[[], Awaitable[R]], last: Sequence[AsyncTransaction]) -> R:
        """Run ``once``, again as often as ``retrying`` allows; return its result.

        :param last: the last unit of work that ``once`` ran.
        """
        with self._consuming.failures_count():
            return retrying.run(lambda: wait_for(once()), lambda: not last or last[0].is_undone)

    def know_database(self) -> None:
        """Connect once in the event loop before any thread does: at its first connection SQLAlchemy examines the
        server, under a lock that only tasks of one loop can share."""
        if not self._knows_database:
            with self._unit_store.connection():
                pass
            self._knows_database = True

    def in_thread(self, act: Callable[[], R], threads: ThreadPoolExecutor | None = None) -> R:
        """Run ``act`` in a thread and wait for it. If the wait is cancelled, ``act`` goes on there.

        :param threads: None for a new thread: the loop's own may all wait for something that only ``act`` would end.
        """
        its = threads or ThreadPoolExecutor(1, f"dualwrite-{self._settings.application}")
        try:
            return wait_for(asyncio.get_running_loop().run_in_executor(its, self._store.in_thread, act))
        finally:
            if threads is None:
                its.shutdown(wait=False)

    def run_in_this_thread(self, act: Callable[[], R]) -> R:
        """Call ``act`` in this thread, with an event loop of its own."""
        return self._store.in_thread(act)

    def awaited(self, consumer: Any) -> KafkaConsumer:
        """``consumer``, for use in a greenlet."""
        return awaited(consumer, self._consumers)

    def _acquire(self, unit: Unit) -> LentSlot:
        self.know_database()
        slot = None if self._waiting else self._pool.acquire_now(unit)
        if slot is None:
            deadline = time.monotonic() + self._settings.acquire_timeout

            def acquire() -> Any:
                slot = self._pool.acquire(unit, deadline)
                if unit.cancelled is not None:
                    self._pool.release(unit)  # let_go() may have done so before there was anything to be released
                return slot

            self._waiting += 1
            try:
                slot = self.in_thread(acquire, self._door)
            finally:
                self._waiting -= 1
        if not slot.is_warm:
            self.in_thread(slot.recover, self._recoverers)
        return AwaitedSlot(slot, self._callers)

    def _make_driver(self, unit: Unit, slot: LentSlot) -> UnitDriver:
        def observe(step: str) -> None:
            self._observe(step)
            if unit.cancelled is not None and step in _BEFORE_THE_DECISION:
                raise asyncio.CancelledError(*unit.cancelled.args)

        limit = self._unit_store.limit(slot.transactional_id)
        return UnitDriver(self._engine, self._unit_store, slot, observe, limit, self._pool.unmatched)

    def close(self, timeout: float = 10.0) -> None:
        """Close, in a thread; see DualWrite."""
        super().close(timeout)
        for threads in (self._recoverers, self._callers, self._consumers):
            threads.shutdown(wait=False)


class AsyncDualWrite(AsyncSeekingConsumers):
    """DualWrite for asyncio: ``async with dw.transaction() as tx``, on an AsyncEngine.

    Units of work, slots, recovery and errors are the same as DualWrite's; an application may have processes of both
    kinds. All tasks must run in one event loop, the one of the first use; AsyncDualWrite does not block it. A unit of
    work belongs to the task that begins it.

    If a task is cancelled before its unit of work is decided, the unit is rolled back on both sides. CancelledError
    never leaves a block whose unit of work was committed: the block is left normally, and the task is cancelled at its
    next ``await``; or not at all, if an ``asyncio.timeout()`` that ends with the block cancelled it. The end of a block
    is not interrupted: it may last as long as Kafka's timeouts.

    Delivery callbacks that are given to ``produce()`` are called in the event loop. A callback that is set in ``kafka``
    is called in any thread, as is ``on_step`` during recovery.

    :param engine: an AsyncEngine on SQLite (aiosqlite, a file), PostgreSQL (asyncpg or psycopg), MariaDB or MySQL
        (aiomysql or asyncmy), after ``dualwrite db upgrade``. The library's own threads open connections with the same
        settings, outside the engine's pool.

    All other parameters are DualWrite's.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        kafka: Mapping[str, Any],
        *,
        application: str,
        pool_size: int = 64,
        acquire_timeout: float = 30.0,
        lease_timeout: float = 30.0,
        database_timeout: float = 60.0,
        producer: ProducerName | None = None,
        two_phase: TwoPhase = "keep-prepared",
        replay: bool = False,
        schema: str | None = None,
        participant: Callable[[Mapping[str, Any]], KafkaParticipant] | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self._seeker = self._units = AsyncUnits(
            engine,
            kafka,
            application=application,
            pool_size=pool_size,
            acquire_timeout=acquire_timeout,
            lease_timeout=lease_timeout,
            database_timeout=database_timeout,
            producer=producer,
            two_phase=two_phase,
            replay=replay,
            schema=schema,
            participant=participant,
            on_step=on_step,
        )

    @property
    def producer(self) -> str | None:
        """The producer in use; see DualWrite.producer."""
        return self._units.producer

    @property
    def counters(self) -> Counters:
        """Counters of this process; see DualWrite.counters."""
        return self._units.counters

    def transaction(self) -> AsyncBlock:
        """Make a unit of work, for ``async with dw.transaction() as tx``. Entering it runs recovery first, if needed.

        Raises the same errors as DualWrite.transaction(), and InvalidTransactionStateError in another event loop than
        that of the first use. Inside a unit of work of this AsyncDualWrite, in the same task, it joins that one.
        """
        return AsyncBlock(self._units)

    @overload
    def transactional(
        self, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def transactional(
        self, /, *, retries: int
    ) -> Callable[[Callable[Concatenate[AsyncTransaction, P], Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    def transactional(self, function: Any = None, /, *, retries: int = 0) -> Any:
        """Decorate ``async def function(tx, …)`` so that each call ``await function(…)`` is a unit of work of its own.

        Like DualWrite.transactional, ``retries`` included.

        :raises ConfigurationError: if ``function`` is not a coroutine function.
        """
        retrying = Retrying(retries, self._units.engine.dialect, lambda seconds: wait_for(asyncio.sleep(seconds)))
        return functools.partial(self._decorated, retrying) if function is None else self._decorated(retrying, function)

    def _decorated(
        self, retrying: Retrying, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigurationError(f"{name} is not a coroutine function: decorate one that is defined by async def")
        require_tx(function)

        @functools.wraps(function)
        async def unit_of_work(*args: P.args, **kwargs: P.kwargs) -> R:
            last: list[AsyncTransaction] = []

            async def once() -> R:
                async with AsyncBlock(self._units, is_repeated=True) as tx:
                    last[:] = [tx]
                    return await function(tx, *args, **kwargs)

            if open_unit(self._units) is not None:
                return await once()
            return await greenlet_spawn(self._units.run_again, retrying, once, last)

        return unit_of_work

    async def recover(self) -> dict[str, Outcome]:
        """Recover now; see DualWrite.recover. If the call is cancelled, recovery goes on in its thread."""
        self._units.check_loop()
        self._units.require_outside()
        await greenlet_spawn(self._units.know_database)
        return await greenlet_spawn(self._units.in_thread, self._units.recover)

    def pending(self) -> int:
        """Count the units of work being completed in the background; see DualWrite.pending."""
        return self._units.pending()

    @property
    def usage(self) -> Usage:
        """How this process uses its slots; see DualWrite.usage."""
        return self._units.usage

    def add_observer(self, observer: Observer) -> None:
        """Add an observer, which is called in the event loop's thread; see DualWrite.add_observer."""
        self._units.add_observer(observer)

    async def outcomes(self, acknowledged: bool = False) -> list[HeuristicOutcome]:
        """List the heuristic outcomes; see DualWrite.outcomes."""
        return await greenlet_spawn(self._units.outcomes, acknowledged)

    async def acknowledge(self, outcome: HeuristicOutcome | int, *, by: str) -> HeuristicOutcome:
        """Acknowledge a heuristic outcome; see DualWrite.acknowledge."""
        return await greenlet_spawn(self._units.acknowledge, outcome, by=by)

    async def close(self, timeout: float = 10.0) -> None:
        """Wait for the units of work of other tasks and release all, in any event loop; see DualWrite.close."""
        self._units.require_outside()
        self._units.let_go_of_orphans()
        await greenlet_spawn(self._units.in_thread, lambda: self._units.close(timeout))

    async def __aenter__(self) -> "AsyncDualWrite":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
