"""DualWrite: a database and Kafka commit together or not at all. The coordinator's public API."""

import functools
import os
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from sqlalchemy import Engine

from dualwrite.coordinator.branch import Branches
from dualwrite.coordinator.concurrency.after_fork import INHERITED, after_fork
from dualwrite.coordinator.concurrency.greenlets import own_engine
from dualwrite.coordinator.kafka.choice import ProducerChoice, ProducerName
from dualwrite.coordinator.kafka.known_cluster import KnownCluster
from dualwrite.coordinator.offsets.consuming import Consuming
from dualwrite.coordinator.offsets.seeking import SeekingConsumers
from dualwrite.coordinator.ports import KafkaParticipant, Outcome
from dualwrite.coordinator.recovery.bulk import Settlers
from dualwrite.coordinator.recovery.two_phase import RESUME, TwoPhase, producer_settings, require_mode
from dualwrite.coordinator.replay.replay import LeftReplays, Replayer
from dualwrite.coordinator.rules.identities import ClusterIdentity
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.coordinator.slots.lease_registry import LeaseRegistry
from dualwrite.coordinator.slots.lent_slot import LentSlot
from dualwrite.coordinator.slots.owner import new_owner
from dualwrite.coordinator.slots.pool import Pool
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.sweeper import Sweeper, by_control_plane, by_participants
from dualwrite.coordinator.slots.usage import PoolSettings, Usage
from dualwrite.coordinator.sql.connecting import bound_connections
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.lease_store import SqlLeases
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, acknowledge, outcomes
from dualwrite.coordinator.sql.own_tables import with_schema
from dualwrite.coordinator.unit.driver import UnitDriver
from dualwrite.coordinator.unit.observers import Observed, no_observer
from dualwrite.coordinator.unit.offsets import UnitOffsets
from dualwrite.coordinator.unit.outgoing_error import raise_outcome, truth
from dualwrite.coordinator.unit.retry import Retrying, require_plain
from dualwrite.coordinator.unit.session import watch_sessions
from dualwrite.coordinator.unit.transaction import Block, Transaction, Unit, open_unit
from dualwrite.coordinator.unit.unit_transaction import watch_statements
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError

P = ParamSpec("P")
R = TypeVar("R")

_COUNTED: Mapping[Result | None, str] = {Result.SUCCEEDED: "committed", Result.ROLLED_BACK: "rolled_back"}


class DualWrite(Observed, SeekingConsumers, Branches):
    """Runs units of work that commit in the database and in Kafka, or in neither, through any crash.

    Thread-safe. Each unit of work uses one of the application's slots, the transactional ids ``application-0`` to
    ``application-(pool_size - 1)``. Units of work run concurrently: in the threads of a process, and in all processes,
    on any number of machines, that use the same application name and database. A process leases another slot when it
    needs one more than before, keeps it, and gives its slots back in :meth:`close`. Other processes, or the next
    start, recover the slots of a process that died.

    A DualWrite may be made before a fork (gunicorn, Celery): the child does not touch its parent's slots and producers
    or the engine's connections, and leases slots of its own.

    :param engine: a SQLAlchemy Engine on SQLite (a file), PostgreSQL, MariaDB or MySQL, after ``dualwrite db upgrade``.
        The decision is stored in the same database as the user's rows.
    :param kafka: configuration by librdkafka's names; ``bootstrap.servers`` is required. See two_phase.OWNED_SETTINGS.
    :param application: name of this application, unique among all that use the cluster and the database.
    :param pool_size: number of slots: units of work that may run at once in all processes of the application together.
        SQLite allows one writer at a time, so a process uses one slot there. Use the same value in all processes.
    :param acquire_timeout: seconds that a unit of work waits for a slot.
    :param lease_timeout: seconds after which other processes may take the slots of a process that is dead or cannot
        reach the database. Leases are renewed three times in that time. After a death on the same machine, other
        processes do not wait for it.
    :param database_timeout: limit in seconds for each of the library's own steps and transactions in the database; then
        the connection is cut. A unit whose COMMIT is not answered ends within twice that: with InDoubtError, if
        the database does not answer on a new connection. Statements of the block, and SQLite, are not limited.
    :param producer: "native" or "librdkafka". By default native is used where the cluster supports transaction
        version 2 and the native producer knows every setting in ``kafka``, librdkafka elsewhere; the log and
        :attr:`producer` say which. Each producer recovers transactions of the other.
    :param two_phase: "keep-prepared" is KIP-939: the broker keeps a prepared transaction until recovery decides it.
        With "resume", for today's Apache Kafka, the broker keeps it for transaction.timeout.ms (15 minutes, unless
        ``kafka`` sets it) and then aborts it, even if the database has committed: a heuristic abort, which recovery
        finds and stores. "resume" is never chosen automatically.
    :param replay: with "resume", keep each unit's records in the database until the slot's next unit, and produce them
        again after such an abort: later than records that others have produced meanwhile.
    :param schema: schema of the library's tables (on MariaDB and MySQL: the database). The default is the one that
        the engine's ``schema_translate_map`` gives for tables without a schema; else the schema where the tables are
        found, once for the engine, by the ``search_path`` that its sessions begin with.
    :param participant: makes the Kafka participant from its configuration, instead of a ``producer``.
    :param on_step: called right before each Step (machine.py) but RUN, and each step of recovery ("RECOVER_…"), with
        its name; possibly in a background thread. For tests that kill the process at an exact place. An exception that
        it raises counts as that step's failure.
    :raises ConfigurationError: if a setting is missing or wrong, or is reserved for the library.
    """

    def __init__(
        self,
        engine: Engine,
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
        self._engine = with_schema(self._checked(engine), schema)
        settings = PoolSettings(application, pool_size, acquire_timeout, lease_timeout, database_timeout)
        settings.check()
        if producer is not None and participant is not None:
            raise ConfigurationError(f"producer {producer!r} and a participant of your own: give one of the two")
        require_mode(two_phase, replay=replay)
        self._config = {**producer_settings(kafka, two_phase), "transactional.id": slot_id(application, 0)}
        self._wanted = producer
        self._participant = participant
        self._settings = settings
        watch_statements(self._engine)
        watch_sessions()
        bound_connections(self._engine)
        self._own_engine = own_engine(self._engine)
        self._observe = on_step or no_observer
        self._replayer = Replayer(self._own_engine, self._config, self._observe, database_timeout) if replay else None
        self._checks_lease = two_phase == RESUME
        self._store = self._make_store(self._own_engine)
        """For the library's own transactions, in any thread."""
        self._begin_process()

    def _make_store(self, engine: Engine) -> SqlDecisionStore:
        """A store whose transactions use ``engine``."""
        if self._replayer is not None:
            return self._replayer.store_in(engine)
        timeout = self._settings.database_timeout
        return SqlDecisionStore(engine, checks_lease=self._checks_lease, database_timeout=timeout)

    @staticmethod
    def _checked(engine: Any) -> Engine:
        if not isinstance(engine, Engine):
            hint = "use AsyncDualWrite" if hasattr(engine, "sync_engine") else "pass sqlalchemy.create_engine(url)"
            raise ConfigurationError(f"engine is a {type(engine).__name__}: {hint}")
        if engine.dialect.is_async:
            raise ConfigurationError(f"{engine.dialect.driver} is a driver for asyncio: use AsyncDualWrite")
        return engine

    @property
    def producer(self) -> str | None:
        """The producer in use: "native" or "librdkafka". None before the first use if the choice depends on the
        cluster; also None with a participant of your own."""
        return None if self._choice is None else self._choice.chosen

    @property
    def counters(self) -> Counters:
        """Counters of this process. Always the same object, which goes on counting."""
        return self._counters

    @property
    def usage(self) -> Usage:
        """The application's name and its number of slots, and how this process uses its own slots."""
        return self._pool.usage() if os.getpid() == self._pid else self._settings.unused()

    def transaction(self) -> Block:
        """Make a unit of work, for ``with dw.transaction() as tx``. Entering it runs recovery first, if needed.

        Entering raises NoFreeSlotError if every slot is in use, KafkaUnavailableError if Kafka cannot be reached,
        DatabaseNotReadyError before ``dualwrite db upgrade``. Inside a unit of work of this DualWrite, in the same
        thread, it joins that one. If the unit cannot be committed, it is rolled back on both sides, and leaving the
        block raises the cause. Leaving may also raise InDoubtError or a UnitCommitted: then do not run the unit again.
        """
        return Block(self)

    @overload
    def transactional(self, function: Callable[Concatenate[Transaction, P], R], /) -> Callable[P, R]: ...

    @overload
    def transactional(
        self, /, *, retries: int
    ) -> Callable[[Callable[Concatenate[Transaction, P], R]], Callable[P, R]]: ...

    def transactional(self, function: Any = None, /, *, retries: int = 0) -> Any:
        """Decorate ``function(tx, …)`` so that each call ``function(…)`` is a unit of work of its own.

        For plain functions. In a method use the ``with`` block: ``tx`` would come before ``self``. Use it as
        ``@dw.transactional`` or ``@dw.transactional(retries=3)``. Retries are for errors that are likely to pass: a
        deadlock, a serialization failure, a lock that was not free in time, a ``retriable`` error of this library. The
        unit is rolled back on both sides and run again, up to ``retries`` times, after pauses of up to 0.05 s, twice
        that, and so on to 2 s. So ``function`` may run several times: its other side effects should be harmless if
        they happen twice. Inside another unit of work ``function`` is not run again; the outer unit is.

        :raises ConfigurationError: if ``function`` is not callable, or is a coroutine or a generator: its body would
            run after the commit.
        """
        retrying = Retrying(retries, self._engine.dialect)
        return functools.partial(self._decorated, retrying) if function is None else self._decorated(retrying, function)

    def _decorated(self, retrying: Retrying, function: Callable[Concatenate[Transaction, P], R]) -> Callable[P, R]:
        require_plain(function)

        @functools.wraps(function)
        def unit_of_work(*args: P.args, **kwargs: P.kwargs) -> R:
            last: list[Transaction] = []

            def once() -> R:
                with Block(self, is_repeated=True) as tx:
                    last[:] = [tx]
                    return function(tx, *args, **kwargs)

            if open_unit(self) is not None:
                return once()
            try:
                with self._consuming.failures_count():
                    return retrying.run(once, lambda: not last or last[0].is_undone)
            except BaseException as raised:  # a limit may strike between the block's end and this one
                told = self.truth(last[0].unit, raised) if last else raised
                if told is raised:
                    raise
                raise told from raised

        return unit_of_work

    def recover(self) -> dict[str, Outcome]:
        """Complete or abort the transactions of processes that ended or are silent, and make a slot ready.

        Recovery covers every slot of the application that no process holds, those beyond ``pool_size`` included. The
        first unit of work does the same in the background, and so does every heartbeat.

        Returns the outcome of each slot by transactional id: what was open and how it ended; mostly Outcome.NOTHING.
        Raises the same errors as entering ``transaction()``, after trying every slot that it can.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        self._require_outside()
        with self._sweeper.alone:
            found = {}
            user = object()
            try:
                slot = self._pool.acquire(user)
                if not slot.is_warm:
                    found[slot.transactional_id] = slot.recover()
            finally:
                self._pool.release(user)
            return {**found, **self._sweeper.sweep()}

    def sweep(self, only: Collection[str] | None = None) -> tuple[dict[str, Outcome], list[Exception]]:
        """Like :meth:`recover`, but without making a slot ready, so that no slot is held afterwards: for operators.

        :param only: these transactional ids, unless a process holds them; None for all slots of the application.
        :returns: the outcomes by transactional id; and the errors of other slots. A slot that is in neither was taken
            by another process, or Kafka did not answer before its turn.
        :raises InvalidTransactionStateError: inside a unit of work.
        """
        self._require_outside()
        return self._sweeper.attempt(only)

    def pending(self) -> int:
        """Count the earlier units of work whose Kafka transaction is being completed in the background, as decided."""
        return self._pool.pending if os.getpid() == self._pid else 0

    def outcomes(self, acknowledged: bool = False) -> list[HeuristicOutcome]:
        """Heuristic outcomes: units of work of this application that ended differently on the two sides, as recovery
        found them. Examples: a prepared transaction was terminated by force; one side was restored from an older copy.

        The oldest first; with ``acknowledged``, also those that an operator has acknowledged. docs/outcomes.md lists
        the cases and what to do about each. Slots stay usable meanwhile.
        """
        return outcomes(self._engine, self._settings.application, acknowledged=acknowledged)

    def acknowledge(self, outcome: HeuristicOutcome | int, *, by: str) -> HeuristicOutcome:
        """Note that ``by`` has dealt with ``outcome``, given as such or by its id. It stays on record.

        :raises InputError: if no outcome has that id, or ``by`` is empty.
        """
        return acknowledge(self._engine, outcome, by=by)

    def close(self, timeout: float = 10.0) -> None:
        """Wait up to ``timeout`` seconds for the units of work of other threads and for ``pending()``; release all.

        The slots are given back. Another process under this application name, or the next start, completes what is
        still pending; it may roll back a unit of work that still runs in another thread. A heuristic outcome that the
        database does not take now is logged at ERROR. A second call only tries that again.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the sockets and threads are its parent's
        self._require_outside()
        self._pool.close(timeout)
        self._store.close()

    def __enter__(self) -> "DualWrite":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def enter(self, unit: Unit) -> None:
        """Begin a unit of work. For Block, as are the next three."""
        self._check_process()
        unit.watch = self._watch()
        unit.offsets = UnitOffsets(self._consuming)
        slot = self._acquire(unit)
        unit.driver = driver = self._make_driver(unit, slot)
        if unit.watch is not None:
            unit.watch.slot_taken(slot.transactional_id)
            driver.watch = unit.watch
        self._counters.add("units")
        driver.begin()
        if driver.machine.result is not None:
            self._release(unit)
            raise_outcome(self._settings.application, driver, None)

    def leave(self, unit: Unit, error: BaseException | None) -> None:
        """End a unit of work."""
        driver = unit.driver
        assert driver is not None
        if self._keep_inherited(driver):
            if error is None:
                raise InvalidTransactionStateError(
                    f"this unit of work was begun in process {driver.process}, which alone can end it: begin one after "
                    "the fork"
                )
            return
        driver.finish(error)
        self._release(unit)
        raise_outcome(self._settings.application, driver, error)

    def let_go(self, unit: Unit, error: BaseException) -> None:
        """End what is left of a unit of work that was interrupted at any point; in most cases nothing."""
        driver = unit.driver
        if driver is not None and self._keep_inherited(driver):
            return
        if driver is not None and not driver.is_released:
            driver.finish(error)
        self._release(unit, error)

    def truth(self, unit: Unit, raised: BaseException) -> BaseException:
        """The exception that leaves the block of ``unit``, which has ended, in place of ``raised``."""
        return truth(self._settings.application, unit.driver, raised)

    def let_go_later(self, unit: Unit, error: BaseException) -> None:
        """Let go at the next use or heartbeat. The database transaction ends at once, as others may wait for it."""
        driver = unit.driver
        if driver is None or not self._keep_inherited(driver):
            if driver is not None:
                driver.release_database()
            self._pool.left_behind.put(functools.partial(self.let_go, unit, error))

    def _acquire(self, unit: Unit) -> LentSlot:
        """Acquire a slot for ``unit`` and make it ready."""
        slot = self._pool.acquire(unit)
        slot.recover()
        return slot

    def _make_driver(self, unit: Unit, slot: LentSlot) -> UnitDriver:
        limit = self._store.limit(slot.transactional_id)
        return UnitDriver(self._engine, self._store, slot, self._observe, limit, self._pool.unmatched)

    def _keep_inherited(self, driver: UnitDriver) -> bool:
        """True in a child forked inside the block. The driver is kept: a rollback here would be the parent's."""
        if driver.process == os.getpid():
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
        self._pool.release(unit)
        unit.is_over = True
        if unit.offsets is not None and (unit.has_run or not unit.is_repeated):
            unit.offsets.ended(succeeded=driver is not None and driver.machine.result is Result.SUCCEEDED)
        if driver is not None:
            self._counters.add(_COUNTED.get(driver.machine.result, "in_doubt"))
            if driver.is_on_record:
                self._counters.add("heuristic")
        if unit.watch is not None:
            machine = None if driver is None else driver.machine
            unit.watch.ended(*(None, error) if machine is None else (machine.result, machine.error))

    def _begin_process(self) -> None:
        """Make the objects that belong to one process: locks, threads, leases, producers."""
        self._pid = os.getpid()
        self._counters = Counters()
        settings = self._settings
        settlers: Settlers
        make: Callable[[str], KafkaParticipant]
        cluster: Callable[[], ClusterIdentity] = ClusterIdentity
        if self._participant is None:
            self._choice: ProducerChoice | None = ProducerChoice(self._config, self._wanted)
            known = cluster = KnownCluster(self._config, with_place=self._engine.dialect.name == "sqlite")
            make = functools.partial(_made_in, known, self._choice)
            settlers = functools.partial(by_control_plane, self._config, known.require_same)
        else:
            self._choice = None
            make = functools.partial(_made_by, self._participant, self._config)
            settlers = functools.partial(by_participants, make)
        repair = repairs = None
        if self._replayer is not None:
            make = self._replayer.watching(make)
            repair, repairs = self._replayer.replay, LeftReplays(self._replayer, make, self._counters, self._observe)
        self._consuming = Consuming(self._own_engine, self._store)
        leases = SqlLeases(self._own_engine, self._store)
        book = LeaseRegistry(leases, settings.application, new_owner(), settings.lease_timeout, cluster)
        self._sweeper = Sweeper(book, self._store, settlers, self._counters, self._observe, repairs)
        self._pool = Pool(settings, self._store, book, self._sweeper, make, self._counters, self._observe, repair)

    def _check_process(self) -> None:
        """In a forked child, leave the parent's resources to the parent. None is closed or collected where the server
        could notice it."""
        if self._pid == os.getpid():
            return
        with after_fork.lock:
            if self._pid != os.getpid():
                inherited = self._pool
                INHERITED.append(self._engine.pool)
                self._engine.dispose(close=False)
                self._begin_process()
                inherited.abandon()

    def _require_outside(self) -> None:
        """Refuse a thread that is inside a unit of work: it might wait for itself forever."""
        self._check_process()
        if open_unit(self) is not None:
            raise InvalidTransactionStateError("a unit of work is open in this thread: end it before that")


def _made_in(cluster: KnownCluster, choice: ProducerChoice, transactional_id: str) -> KafkaParticipant:
    """The participant of ``transactional_id`` in the cluster that the process began with."""
    cluster.require_same()
    return choice.participant(transactional_id)


def _made_by(
    participant: Callable[[Mapping[str, Any]], KafkaParticipant], config: Mapping[str, Any], transactional_id: str
) -> KafkaParticipant:
    """The user's own participant of ``transactional_id``."""
    return participant({**config, "transactional.id": transactional_id})
