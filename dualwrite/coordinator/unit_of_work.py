"""DualWrite: a database and Kafka that commit together or not at all. The public face of the coordinator."""

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from sqlalchemy import Engine
from sqlalchemy.pool import Pool as ConnectionPool

from dualwrite.coordinator.book import LeaseBook
from dualwrite.coordinator.database import SqlDecisionStore
from dualwrite.coordinator.driver import BlockingDriver
from dualwrite.coordinator.holders import PoolSettings
from dualwrite.coordinator.leases import SqlLeases
from dualwrite.coordinator.leasing import slot_id
from dualwrite.coordinator.machine import Result
from dualwrite.coordinator.owners import new_owner
from dualwrite.coordinator.participants import KafkaParticipant, Outcome
from dualwrite.coordinator.pool import Pool
from dualwrite.coordinator.producers import ProducerChoice, ProducerName
from dualwrite.coordinator.retrying import Retrying
from dualwrite.coordinator.slots import Counters
from dualwrite.coordinator.sweep import Settlers, Sweeper, by_control_plane
from dualwrite.coordinator.transaction import Transaction, open_unit
from dualwrite.errors import ConfigurationError, InDoubtError, InvalidTransactionStateError

P = ParamSpec("P")
R = TypeVar("R")

OWNED_SETTINGS = frozenset(
    {
        "transactional.id",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "enable.idempotence",
    }
)
"""Settings of the producer that follow from the recipe: a user's value would be ignored or would break it."""


_inherited: list[BlockingDriver | ConnectionPool] = []
"""What a forked process got from its parent: units of work, and connections. A connection that is collected is rolled
back or closed, so they are kept for as long as the process lives."""


class _AfterFork:
    """The lock under which a child begins anew. It is new in every process: the parent's may be held for ever."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.Lock()


_after_fork = _AfterFork()


class DualWrite:
    """Units of work that are in the database and in Kafka, or in neither, through any crash.

    Thread-safe. Each unit of work uses one of the application's slots, the transactional ids ``application-0`` to
    ``application-(pool_size - 1)``, so that many run at the same time: in the threads of a process, and in as many
    processes, on as many machines, as use the same application name and database. A process leases a slot when it
    needs one more than before, keeps it, and gives its slots back in :meth:`close`. The slots of a process that died
    are recovered by the others, or by the next start.

    It may be made before a fork (gunicorn, Celery): the child leaves to its parent what is the parent's, the engine's
    connections included, and leases slots of its own.

    :param engine: a SQLAlchemy Engine on SQLite (a file), PostgreSQL, MariaDB or MySQL, after ``dualwrite db upgrade``.
        The decision is kept in the same database as the user's rows.
    :param kafka: configuration by librdkafka's names; ``bootstrap.servers`` is required. See OWNED_SETTINGS.
    :param application: names this application among all that use the cluster and the database.
    :param pool_size: slots of the application: units of work that may run at once in all its processes together. SQLite
        writes for one at a time, so a process uses one slot there. Give it the same value in all processes.
    :param acquire_timeout: seconds that a unit of work waits for a slot.
    :param lease_timeout: seconds after which the slots of a process that is dead, or that cannot reach the database,
        may be taken by others; they are renewed three times in that time. After a death on the same machine nobody
        waits for it.
    :param producer: "native" or "librdkafka". If it is not given, native is taken where the cluster speaks transaction
        version 2 and every setting in ``kafka`` is one of the native producer's, librdkafka elsewhere; the log and
        :attr:`producer` say which. Either recovers what the other left.
    :param participant: makes the Kafka side from its configuration, instead of a ``producer``.
    :param on_step: called with the name of each Step (machine.py) but RUN, and of each step of recovery ("RECOVER_…"),
        right before it; may be called from a background thread. For tests that kill the process at an exact place. An
        exception that it raises counts as that step's failure.
    :raises ConfigurationError: if a setting is missing, wrong, or ours.
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
        producer: ProducerName | None = None,
        participant: Callable[[Mapping[str, Any]], KafkaParticipant] | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigurationError(f"engine is a {type(engine).__name__}: pass sqlalchemy.create_engine(url)")
        settings = PoolSettings(application, pool_size, acquire_timeout, lease_timeout)
        settings.check()
        if producer is not None and participant is not None:
            raise ConfigurationError(f"producer {producer!r} and a participant of your own: give one of the two")
        self._config = {**_validated(kafka), "transactional.id": slot_id(application, 0)}
        self._wanted = producer
        self._participant = participant
        self._settings = settings
        self._engine = engine
        self._store = SqlDecisionStore(engine)
        self._observe = on_step or _ignore
        self._begin_process()

    @property
    def producer(self) -> str | None:
        """The Kafka side in use: "native" or "librdkafka". None before the first use, where the cluster must be asked
        which; None, too, with a participant of your own."""
        return None if self._choice is None else self._choice.chosen

    @property
    def counters(self) -> Counters:
        """What this process has done so far; the object stays the same and goes on counting."""
        return self._counters

    def transaction(self) -> Transaction:
        """A unit of work, for ``with dw.transaction() as tx``. Entering it recovers first, where that is needed.

        Entering raises NoFreeSlotError if every slot is in use, KafkaUnavailableError if Kafka cannot be reached,
        DatabaseNotReadyError before ``dualwrite db upgrade``. Inside a unit of work of this DualWrite, in the same
        thread, it joins that one. Leaving raises what kept the unit from being committed, after it was rolled
        back on both sides; or InDoubtError, and then it must not be run again.
        """
        return Transaction(self)

    @overload
    def transactional(self, function: Callable[Concatenate[Transaction, P], R], /) -> Callable[P, R]: ...

    @overload
    def transactional(
        self, /, *, retries: int
    ) -> Callable[[Callable[Concatenate[Transaction, P], R]], Callable[P, R]]: ...

    def transactional(self, function: Any = None, /, *, retries: int = 0) -> Any:
        """Decorate ``function(tx, …)`` so that each call ``function(…)`` is a unit of work of its own.

        For plain functions. In a method use the ``with`` block: ``tx`` would come before ``self``. As
        ``@dw.transactional``, or as ``@dw.transactional(retries=3)``: then a unit that ended with an error that is
        likely to pass (a deadlock, a serialization failure, a lock that was not free in time, one of this library's
        errors that is ``retriable``) is run again up to so many times, rolled back on both sides first, after pauses of
        up to 0.05 s, twice that, and so on to 2 s. So ``function`` may run several times: what it does elsewhere should
        be as harmless twice. Inside another unit of work it is not run again; the outer one is.

        :raises ConfigurationError: if ``function`` is a coroutine or a generator: its body would run after the commit.
        """
        retrying = Retrying(retries, self._engine.dialect)
        return functools.partial(self._decorated, retrying) if function is None else self._decorated(retrying, function)

    def _decorated(self, retrying: Retrying, function: Callable[Concatenate[Transaction, P], R]) -> Callable[P, R]:
        if (
            inspect.iscoroutinefunction(function)
            or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise ConfigurationError(
                f"{function.__qualname__} is a coroutine or a generator: decorate a plain function"
            )

        @functools.wraps(function)
        def unit_of_work(*args: P.args, **kwargs: P.kwargs) -> R:
            def once() -> R:
                with self.transaction() as tx:
                    return function(tx, *args, **kwargs)

            return retrying.run(once) if open_unit(self) is None else once()

        return unit_of_work

    def recover(self) -> dict[str, Outcome]:
        """Complete or abort now what is left of processes that ended or are silent, and have a slot ready.

        It looks at every slot of the application that nobody holds, those beyond ``pool_size`` included. The first unit
        of work does the same in the background, and so does every heartbeat.

        Returns what was found open, and what became of it, by transactional id; Outcome.NOTHING for most. Raises as
        entering ``transaction()`` does, after all was tried that could be.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        self._require_outside()
        with self._sweeper.alone():
            found = {}
            try:
                slot = self._pool.acquire()
                if not slot.is_warm:
                    found[slot.transactional_id] = slot.recover()
            finally:
                self._pool.release_used_here()
            return {**found, **self._sweeper.sweep()}

    def pending(self) -> int:
        """How many earlier units of work are being finished in the background: their Kafka side, as decided."""
        return self._pool.pending if os.getpid() == self._pid else 0

    def close(self, timeout: float = 10.0) -> None:
        """Wait for the units of work of other threads, and up to ``timeout`` seconds for ``pending()``; release all.

        The slots are given back. What is still pending is finished by another process, or by the next start, under this
        application name. Closing twice does nothing.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the sockets and threads are its parent's
        self._require_outside()
        self._pool.close(timeout)

    def __enter__(self) -> "DualWrite":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def enter(self) -> BlockingDriver:
        """Begin a unit of work. Transaction's."""
        self._check_process()
        try:
            slot = self._pool.acquire()
            slot.recover()
            driver = BlockingDriver(self._engine, self._store, slot, self._observe)
            self._counters.add("units")
            driver.begin()
            if driver.machine.result is not None:
                self._report(driver, None)
        except BaseException:
            self._pool.release_used_here()
            raise
        return driver

    def leave(self, driver: BlockingDriver, error: BaseException | None) -> None:
        """End a unit of work. Transaction's."""
        if driver.process != os.getpid():
            # A child forked inside the block. The connection is its parent's: a rollback here would be the parent's.
            _inherited.append(driver)
            if error is None:
                raise InvalidTransactionStateError(
                    f"this unit of work was begun in process {driver.process}, which alone can end it: begin one after "
                    "the fork"
                )
            return
        try:
            driver.finish(error)
            self._report(driver, error)
        finally:
            self._pool.release(driver.slot)

    def _begin_process(self) -> None:
        """Make what belongs to one process: locks, threads, leases, producers."""
        self._pid = os.getpid()
        self._counters = Counters()
        settings = self._settings
        settlers: Settlers
        if self._participant is None:
            self._choice: ProducerChoice | None = ProducerChoice(self._config, self._wanted)
            make = self._choice.participant
            settlers = functools.partial(by_control_plane, self._config)
        else:
            self._choice = None
            make = functools.partial(_made_by, self._participant, self._config)
            settlers = functools.partial(_always, make)
        leases = SqlLeases(self._engine, self._store)
        book = LeaseBook(leases, settings.application, new_owner(), settings.lease_timeout)
        self._sweeper = Sweeper(book, self._store, settlers, self._counters, self._observe)
        self._pool = Pool(settings, self._store, book, self._sweeper, make, self._counters, self._observe)

    def _check_process(self) -> None:
        """In a forked child, leave to the parent what is the parent's. Nothing of it is closed or collected where that
        could be noticed by the other end."""
        if self._pid == os.getpid():
            return
        with _after_fork.lock:
            if self._pid != os.getpid():
                inherited = self._pool
                _inherited.append(self._engine.pool)
                self._engine.dispose(close=False)
                self._begin_process()
                inherited.abandon()

    def _require_outside(self) -> None:
        """Refuse a thread that is inside a unit of work: waiting for itself might never end."""
        self._check_process()
        if open_unit(self) is not None:
            raise InvalidTransactionStateError("a unit of work is open in this thread: end it before that")

    def _report(self, driver: BlockingDriver, error: BaseException | None) -> None:
        """Count the unit of work, and raise what its caller must know unless that is ``error``, on its way already."""
        machine = driver.machine
        if machine.result is Result.SUCCEEDED:
            self._counters.add("committed")
        elif machine.result is Result.ROLLED_BACK:
            self._counters.add("rolled_back")
        else:
            self._counters.add("in_doubt")
        if driver.interrupt is not None and driver.interrupt is not error:
            raise driver.interrupt
        if error is not None or machine.result is Result.SUCCEEDED:
            return
        if machine.result is Result.IN_DOUBT:
            raise InDoubtError(
                f"a unit of work of application {self._settings.application!r} is in both or in neither, and it is not "
                f"known which: the COMMIT failed ({machine.error}), and the database could not be asked. Do not run it "
                "again before recovery: it ends both sides alike"
            ) from machine.error
        assert machine.error is not None
        raise machine.error


def _validated(kafka: Mapping[str, Any]) -> Mapping[str, Any]:
    """``kafka`` if the recipe can work with it."""
    if not kafka.get("bootstrap.servers"):
        raise ConfigurationError('kafka: "bootstrap.servers" is missing: name at least one broker as HOST:PORT')
    for key in sorted(OWNED_SETTINGS.intersection(kafka)):
        raise ConfigurationError(f'kafka: "{key}" is set by DualWrite itself: remove it')
    return kafka


def _made_by(
    participant: Callable[[Mapping[str, Any]], KafkaParticipant], config: Mapping[str, Any], transactional_id: str
) -> KafkaParticipant:
    """The user's own participant of ``transactional_id``."""
    return participant({**config, "transactional.id": transactional_id})


@contextmanager
def _always(make: Callable[[str], KafkaParticipant]) -> Iterator[Callable[[str], KafkaParticipant]]:
    """The user's own participants recover, too."""
    yield make


def _ignore(step: str) -> None:
    """The observer when nobody observes."""
