"""UnitManager: begins and ends the units of work of one DualWrite, and recovers those of dead processes.

DualWrite and AsyncDualWrite have the public methods only. Each owns a UnitManager with the internal ones. Spark's
writers and the tests get it by :func:`manager_of`.
"""

import functools
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sqlalchemy import Engine

from dualwrite.coordinator.concurrency.background import Background
from dualwrite.coordinator.manager.process import ProcessObjects
from dualwrite.coordinator.manager.settings import ManagerSettings
from dualwrite.coordinator.offsets.consumers import KafkaConsumer, OffsetReset
from dualwrite.coordinator.process.after_fork import INHERITED, after_fork
from dualwrite.coordinator.process.greenlets import own_engine
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.replay.replay import Replayer
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.slots.no_slot import NoSlot
from dualwrite.coordinator.slots.usage import Usage
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.engine.connecting import bound_connections
from dualwrite.coordinator.sql.engine.database_errors import as_library_error, as_library_errors
from dualwrite.coordinator.sql.own_tables import with_schema
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.coordinator.steps.observers import Observer, UnitObservers
from dualwrite.coordinator.steps.outgoing_error import OutgoingErrors
from dualwrite.coordinator.steps.retry import Retrying
from dualwrite.coordinator.unit.block import open_unit
from dualwrite.coordinator.unit.offsets import UnitOffsets
from dualwrite.coordinator.unit.session_scope import settled_session
from dualwrite.coordinator.unit.session_tracking import watch_sessions
from dualwrite.coordinator.unit.transaction import BaseTransaction, unit_of
from dualwrite.coordinator.unit.unit_database import unit_driver
from dualwrite.coordinator.unit.unit_of_work import Unit
from dualwrite.coordinator.unit.unit_transaction import watch_statements
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError, KafkaUnavailableError

R = TypeVar("R")

_COUNTED: Mapping[Result | None, str] = {Result.SUCCEEDED: "committed", Result.ROLLED_BACK: "rolled_back"}


class UnitManager:
    """Begins and ends units of work; recovers. Thread-safe, and usable after a fork, like DualWrite.

    :param engine: the user's Engine; of an AsyncEngine the one inside.
    :ivar store: makes the library's own transactions, in any thread.
    :ivar process: the objects of this process.
    """

    def __init__(self, engine: Engine, settings: ManagerSettings) -> None:
        self.engine = with_schema(engine, settings.schema)
        self.settings = settings
        watch_statements(self.engine)
        watch_sessions()
        bound_connections(self.engine)
        self._own_engine = own_engine(self.engine)
        dialect = self.engine.dialect
        self._errors = OutgoingErrors(settings.application, lambda error: as_library_error(error, dialect))
        self._observers: tuple[Observer, ...] = ()
        timeout = settings.pool.database_timeout
        self.replayer = (
            Replayer(self._own_engine, settings.kafka, settings.observe, timeout, settings.pool.lease_timeout)
            if settings.replay
            else None
        )
        self.store = self._make_store(self._own_engine)
        self._begin_process()
        if self.process.choice is not None:
            self.process.choice.require_known_settings()

    def _make_store(self, engine: Engine) -> SqlDecisionStore:
        """A store whose transactions use ``engine``."""
        if self.replayer is not None:
            return self.replayer.store_in(engine)
        settings = self.settings
        return SqlDecisionStore(
            engine,
            checks_lease=settings.checks_lease,
            database_timeout=settings.pool.database_timeout,
            lease_timeout=settings.pool.lease_timeout,
        )

    def _begin_process(self) -> None:
        """Make the objects that belong to one process."""
        self.process = ProcessObjects(self.settings, self._own_engine, self.store, self.replayer, self._worker)
        self.is_recovered = False
        """True once a recovery has succeeded."""
        name = f"{self.settings.application}-recovery"
        self._recovery = Background(
            THIS_PROCESS, lambda: self.store.in_thread(self._recover), name, lasting=(ConfigurationError,)
        )

    @staticmethod
    def _worker() -> object:
        """The caller whose units of work use a consumer's records: its thread."""
        return threading.current_thread()

    @property
    def producer(self) -> str | None:
        """The producer in use: "native" or "librdkafka"; see DualWrite.producer."""
        choice = self.process.choice
        return None if choice is None else choice.chosen

    @property
    def usage(self) -> Usage:
        """The application's name and its number of slots; see DualWrite.usage."""
        return self.process.pool.usage() if self._is_own_process else self.settings.pool.unused()

    @property
    def _is_own_process(self) -> bool:
        return os.getpid() == self.process.pid

    def pending(self) -> int:
        """See DualWrite.pending."""
        return self.process.pool.pending if self._is_own_process else 0

    def add_observer(self, observer: Observer) -> None:
        """Call ``observer`` for every unit of work that begins from now on; see DualWrite.add_observer."""
        self._observers = (*self._observers, observer)

    def enter(self, unit: Unit) -> None:
        """Begin ``unit``, and give it its driver."""
        self.check_process()
        unit.watch = UnitObservers(self._observers, THIS_PROCESS.is_interrupt) if self._observers else None
        unit.offsets = UnitOffsets(self.process.consuming)
        unit.serializers = self.settings.serializers
        registry = self.settings.sessions.registry
        if registry is not None:
            settled_session(registry, self.engine)  # before the slot: SQLite's lock may be that session's
        with as_library_errors(self.engine.dialect):
            slot = self.acquire(unit)
        unit.driver = driver = self._make_driver(unit, slot)
        if unit.watch is not None:
            unit.watch.slot_taken(slot.transactional_id)
            driver.watch = unit.watch
        self.process.counters.add("units")
        driver.begin()
        if driver.machine.result is not None:
            self._release(unit)
            self._errors.raise_outcome(driver, None)

    def leave(self, unit: Unit, error: BaseException | None) -> None:
        """End ``unit``, with the block's exception or None, and raise the exception for the caller."""
        driver = unit.driver
        assert driver is not None
        if self._keep_inherited(driver):
            if error is None:
                raise driver.inherited_error()
            return
        driver.finish(error)
        self._release(unit)
        self._errors.raise_outcome(driver, error)

    def force_end(self, unit: Unit, error: BaseException) -> None:
        """End what is left of a unit of work that was interrupted at any point; in most cases nothing."""
        driver = unit.driver
        if driver is not None and self._keep_inherited(driver):
            return
        if driver is not None and not driver.is_released:
            driver.finish(error)
        self._release(unit, error)

    def force_end_later(self, unit: Unit, error: BaseException) -> None:
        """Let go at the next use or heartbeat. The database transaction ends at once, as others may wait for it."""
        driver = unit.driver
        if driver is None or not self._keep_inherited(driver):
            if driver is not None:
                driver.release_database()
            self.process.pool.abandoned.append(functools.partial(self.force_end, unit, error))

    def outcome_error(self, unit: Unit, raised: BaseException) -> BaseException:
        """The exception that leaves the block of ``unit``, which has ended, in place of ``raised``."""
        return self._errors.of(unit.driver, raised)

    def run_again(self, retrying: Retrying, once: Callable[[], R], last: Sequence[BaseTransaction]) -> R:
        """Run ``once``, again as often as ``retrying`` allows; return its result.

        :param last: the last unit of work that ``once`` ran.
        """
        with self.process.consuming.failures_count():
            return retrying.run(once, lambda: not last or unit_of(last[0]).is_undone)

    def seek_to_stored(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, *, auto_offset_reset: OffsetReset
    ) -> None:
        """See DualWrite.seek_to_stored."""
        self._require_seekable()
        with as_library_errors(self.engine.dialect):
            self.process.consuming.seek_to_stored(consumer, partitions, auto_offset_reset)

    def seek_to_committed(
        self, consumer: KafkaConsumer, partitions: Sequence[Any] | None, *, auto_offset_reset: OffsetReset
    ) -> None:
        """See DualWrite.seek_to_committed."""
        self._require_seekable()
        self.process.consuming.seek_to_committed(consumer, partitions, auto_offset_reset)

    def _require_seekable(self) -> None:
        """Refuse a seek inside a unit of work. From the first seek on, recover the slots of dead owners: a consumer may
        have to wait for a transaction that this application's last process has left, and no unit of work would begin
        before that."""
        self.require_outside()
        self.process.pool.start_heartbeat()

    def recover(self) -> dict[str, Outcome]:
        """Complete or abort the transactions of processes that ended or are silent; see DualWrite.recover."""
        self.require_outside()
        return self._recover()

    def _recover(self) -> dict[str, Outcome]:
        pool, sweeper = self.process.pool, self.process.sweeper
        with as_library_errors(self.engine.dialect), sweeper.alone:
            outcomes = {}
            user = object()
            try:
                slot = pool.acquire(user)
                if not slot.is_warm:
                    outcomes[slot.transactional_id] = slot.recover()
            finally:
                pool.release(user)
            outcomes.update(sweeper.sweep())
            self.is_recovered = True
            return outcomes

    def recover_in_background(self) -> None:
        """Recover in a background thread, again and again until that succeeds, or a setting is found to be wrong; see
        DualWrite.recover."""
        self.require_outside()
        if self._recovery.closed:
            raise InvalidTransactionStateError("this DualWrite is closed: make a new one")
        self._recovery.start()

    def sweep(self, only: Collection[str] | None = None) -> tuple[dict[str, Outcome], list[Exception]]:
        """Like :meth:`recover`, but without making a slot ready, so that no slot is held afterwards: for operators.

        :param only: these transactional ids, unless a process holds them; None for all slots of the application.
        :returns: the outcomes by transactional id; and the errors of other slots. A slot that is in neither was taken
            by another process, or Kafka did not answer before its turn.
        :raises InvalidTransactionStateError: inside a unit of work.
        """
        self.require_outside()
        return self.process.sweeper.attempt(only)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no unit of work of this process is open; see DualWrite.wait_idle."""
        self.require_outside()
        return self.process.pool.wait_idle(timeout) and not self._recovery.is_running

    def close(self, timeout: float) -> None:
        """See DualWrite.close."""
        if not self._is_own_process:
            return  # a forked child: the sockets and threads are its parent's
        self.require_outside()
        self._recovery.close(0)
        self.process.pool.close(timeout)
        self.store.close()

    def check_process(self) -> None:
        """In a forked child, leave the parent's resources to the parent. None is closed or collected where the server
        could notice it."""
        if self._is_own_process:
            return
        with after_fork.lock:
            if not self._is_own_process:
                inherited = self.process.pool
                if self.engine.pool not in after_fork.own_pools:
                    INHERITED.append(self.engine.pool)
                    self.engine.dispose(close=False)
                    after_fork.own_pools.add(self.engine.pool)
                self._begin_process()
                inherited.abandon()

    def require_outside(self) -> None:
        """Refuse a thread or task that is inside a unit of work: it might wait for itself forever."""
        self.check_process()
        if open_unit(self) is not None:
            raise InvalidTransactionStateError("a unit of work is open in this thread: end it before that")

    def acquire(self, unit: Unit) -> LentSlot:
        """Acquire a slot for ``unit`` and make it ready. If no broker runs, ``unit`` begins without one."""
        refusal = self._refusal()
        if refusal is not None:
            return self._begin_without_slot(unit, refusal)
        slot = self.process.pool.acquire(unit)
        slot.collect_commit(wait=False)
        slot.recover()
        return slot

    def require_kafka(self) -> None:
        """Require that a unit of work that begins now can have records: before what can be read only once is read.

        :raises KafkaUnavailableError: if no broker accepts a connection.
        """
        refusal = self._refusal()
        if refusal is not None:
            raise refusal

    def _refusal(self) -> KafkaUnavailableError | None:
        """The reason why a unit of work that begins now could have no records; None if it could."""
        return self.process.kafka_refusal() if self.process.pool.is_cold else None

    def _begin_without_slot(self, unit: Unit, refusal: KafkaUnavailableError) -> NoSlot:
        self.process.pool.abandoned.end()
        self.process.pool.enter_without_slot(unit)
        return NoSlot(self.settings.application, refusal)

    def _make_driver(self, unit: Unit, slot: LentSlot) -> UnitDriver:
        settings = self.settings
        return unit_driver(
            self.engine,
            self.store,
            slot,
            settings.observe,
            self.process.pool.unmatched,
            sends_commit=settings.sends_commit,
            sessions=settings.sessions,
        )

    def _keep_inherited(self, driver: UnitDriver) -> bool:
        """True in a child forked inside the block. The driver is kept: a rollback here would be the parent's."""
        if not driver.is_inherited:
            return False
        INHERITED.append(driver)
        return True

    def _release(self, unit: Unit, error: BaseException | None = None) -> None:
        """Give back all that ``unit`` holds, and count how it ended."""
        if unit.is_over:
            return
        driver = unit.driver
        if driver is not None:
            driver.release()
        self.process.pool.release(unit)
        unit.is_over = True
        if unit.offsets is not None and (unit.has_run or not unit.is_repeated):
            unit.offsets.ended(None if driver is None else driver.machine.result)
        if driver is not None:
            self.process.counters.add(_COUNTED.get(driver.machine.result, "in_doubt"))
            if driver.is_on_record:
                self.process.counters.add("heuristic")
        if unit.watch is not None:
            machine = None if driver is None else driver.machine
            unit.watch.ended(*(None, error) if machine is None else (machine.result, machine.error))


M_co = TypeVar("M_co", bound=UnitManager, covariant=True)
M = TypeVar("M", bound=UnitManager)


class Managed(Protocol[M_co]):
    """A DualWrite or an AsyncDualWrite."""

    @property
    def _manager(self) -> M_co: ...


def manager_of(dual_write: Managed[M]) -> M:
    """The UnitManager of ``dual_write``: for this library's own rooms and its tests."""
    return dual_write._manager
