"""AsyncUnitManager: a UnitManager whose units of work are begun and ended in greenlets of an event loop.

A unit of work's statements run in the caller's event loop. Calls that block run in threads: those of its Kafka
participant (awaited_slot.py), waiting for a slot, recovery.
"""

import asyncio
import functools
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.coordinator.aio.awaited_slot import AwaitedSlot
from dualwrite.coordinator.aio.consumers import awaited
from dualwrite.coordinator.aio.session import UnitAsyncSession
from dualwrite.coordinator.aio.thread_calls import submitted
from dualwrite.coordinator.manager.settings import ManagerSettings
from dualwrite.coordinator.manager.unit_manager import UnitManager
from dualwrite.coordinator.offsets.consumers import KafkaConsumer
from dualwrite.coordinator.process.greenlets import current_task, greenlet_spawn, wait_for
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.unit.unit_database import unit_driver
from dualwrite.coordinator.unit.unit_of_work import Unit
from dualwrite.errors import InvalidTransactionStateError

R = TypeVar("R")

RECOVERERS = 8
"""Slots that are recovered at the same time, each with a database connection of its own."""

_BEFORE_THE_DECISION = ("PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE")


class AsyncUnitManager(UnitManager):
    """The UnitManager of an AsyncDualWrite. It belongs to one event loop, that of its first use.

    :ivar async_engine: the user's AsyncEngine.
    :ivar session_class: of ``tx.session``.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        settings: ManagerSettings,
        session_class: type[UnitAsyncSession] = UnitAsyncSession,
    ) -> None:
        super().__init__(engine.sync_engine, settings)
        self.async_engine = engine
        self.session_class = session_class
        self._unit_store = self._make_store(self.engine)
        """For the transactions of units of work, in the event loop."""

    def _begin_process(self) -> None:
        super()._begin_process()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._knows_database = False
        self.waiting = 0
        """The units of work that wait for a slot."""
        self._endings: set[asyncio.Task[None]] = set()
        name = f"dualwrite-{self.settings.application}"
        # Units of work wait for a slot in turn; so one thread waits for all of them.
        self._door = ThreadPoolExecutor(1, f"{name}-door")
        self._recoverers = ThreadPoolExecutor(RECOVERERS, f"{name}-recovery")
        self._callers = ThreadPoolExecutor(self.settings.pool.size, f"{name}-kafka")
        self._consumers = ThreadPoolExecutor(RECOVERERS, f"{name}-consumers")

    @staticmethod
    def _worker() -> object:
        return current_task()

    def check_loop(self) -> None:
        """Remember the event loop of the first use, and refuse another: connections and tasks belong to one."""
        self.check_process()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidTransactionStateError(
                "no event loop of asyncio runs here: use an AsyncDualWrite in a coroutine that asyncio runs"
            ) from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            state = "one that is closed" if self._loop.is_closed() else "another one"
            raise InvalidTransactionStateError(
                f"this AsyncDualWrite was used in an event loop before, {state}: make one in each event loop"
            )

    def end(self, unit: Unit, error: BaseException | None) -> None:
        """Leave ``unit``, and let go of it in any case."""
        try:
            self.leave(unit, error)
        except BaseException as raised:
            self.force_end(unit, raised)
            cause = self.outcome_error(unit, raised)
            if cause is raised:
                raise
            raise cause from raised

    def force_end(self, unit: Unit, error: BaseException) -> None:
        """Let go of ``unit``, see UnitManager; a thread that waits for the unit's slot is woken."""
        if unit.cancelled is None:
            unit.cancelled = error
        super().force_end(unit, error)

    def force_end_later(self, unit: Unit, error: BaseException) -> None:
        """Let go of ``unit`` later, in the event loop; see UnitManager. If the loop has ended, drop the
        connection."""
        driver = unit.driver
        if driver is not None and self._keep_inherited(driver):
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._force_end_soon, unit, error)
            return
        if driver is not None:
            driver.drop_database()
        self.process.pool.abandoned.append(functools.partial(self.force_end, unit, error))

    def _force_end_soon(self, unit: Unit, error: BaseException) -> None:
        before = unit.ending

        async def force_end() -> None:
            if before is not None and not before.done():
                await asyncio.wait([before])
            await greenlet_spawn(self.force_end, unit, error)

        unit.ending = task = asyncio.ensure_future(force_end())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def end_orphans(self) -> None:
        """End the units of work that no block will end. An interrupt may come where no code can handle it, and its
        exception keeps the block alive, which would end its unit if it were collected."""
        this_task = current_task()
        error = InvalidTransactionStateError("the block was never left")
        for unit in self.process.pool.users():
            if not isinstance(unit, Unit) or (unit.ending is not None and not unit.ending.done()):
                continue
            task = unit.owner() if isinstance(unit.owner, weakref.ref) else None
            if task is None or task is this_task or task.done() or self._loop is None or self._loop.is_closed():
                self.force_end_later(unit, error)

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
        its = threads or ThreadPoolExecutor(1, f"dualwrite-{self.settings.application}")
        try:
            return wait_for(asyncio.wrap_future(submitted(its, functools.partial(self.store.in_thread, act))))
        finally:
            if threads is None:
                its.shutdown(wait=False)

    def run_in_this_thread(self, act: Callable[[], R]) -> R:
        """Call ``act`` in this thread, with an event loop of its own."""
        return self.store.in_thread(act)

    def awaited(self, consumer: Any) -> KafkaConsumer:
        """``consumer``, for use in a greenlet."""
        return awaited(consumer, self._consumers)

    def acquire(self, unit: Unit) -> LentSlot:
        """Acquire a slot and make it ready, without blocking the event loop."""
        self.know_database()
        if self.process.pool.is_cold and (refusal := self.in_thread(self.process.kafka_refusal)) is not None:
            return self._begin_without_slot(unit, refusal)
        slot = None if self.waiting else self.process.pool.acquire_now(unit)
        if slot is None:
            deadline = time.monotonic() + self.settings.pool.acquire_timeout

            def take() -> Any:
                slot = self.process.pool.acquire(unit, deadline)
                if unit.cancelled is not None:  # force_end() may have come before there was anything to release
                    self.process.pool.release(unit)
                return slot

            self.waiting += 1
            try:
                slot = self.in_thread(take, self._door)
            finally:
                self.waiting -= 1
        slot.collect_commit(wait=False)
        if not slot.is_warm:
            self.in_thread(functools.partial(slot.recover, unit), self._recoverers)
        return AwaitedSlot(slot, self._callers)

    def _make_driver(self, unit: Unit, slot: LentSlot) -> UnitDriver:
        def observe(step: str) -> None:
            self.settings.observe(step)
            if unit.cancelled is not None and step in _BEFORE_THE_DECISION:
                raise asyncio.CancelledError(*unit.cancelled.args)

        return unit_driver(
            self.engine,
            self._unit_store,
            slot,
            observe,
            self.process.pool.unmatched,
            sends_commit=self.settings.sends_commit,
            sessions=self.settings.sessions,
        )

    def close(self, timeout: float) -> None:
        """Close, in a thread; see UnitManager. A unit of work that has not ended by then goes on as one of a DualWrite
        does, so its threads stay; and a consumer can be positioned afterwards."""
        super().close(timeout)
        if all(slot.user is None for slot in self.process.pool.slots()):
            for threads in (self._recoverers, self._callers):
                threads.shutdown(wait=False)
