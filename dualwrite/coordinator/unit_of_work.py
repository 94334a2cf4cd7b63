"""DualWrite: a database and Kafka that commit together or not at all. The public face of the coordinator."""

import functools
import inspect
import os
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Engine

from dualwrite.coordinator.database import SqlDecisionStore
from dualwrite.coordinator.driver import BlockingDriver
from dualwrite.coordinator.machine import Result
from dualwrite.coordinator.participants import KafkaParticipant, Outcome
from dualwrite.coordinator.producers import ProducerChoice
from dualwrite.coordinator.slots import Counters, Slot
from dualwrite.coordinator.transaction import Transaction
from dualwrite.errors import ConfigurationError, InDoubtError, InvalidTransactionStateError
from dualwrite.ids import validated_transactional_id

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


_inherited: list[BlockingDriver] = []
"""Units of work that a forked process got from its parent. A connection that is collected is rolled back by its pool,
so they are kept for as long as the process lives."""


class DualWrite:
    """Units of work that are in the database and in Kafka, or in neither, through any crash.

    Thread-safe: the units of work of one DualWrite run one after the other. Make it once per process and application;
    in a process that forks (gunicorn, Celery), make it after the fork.

    :param engine: a SQLAlchemy Engine on SQLite (a file) or PostgreSQL, after ``dualwrite db upgrade``. The decision is
        kept in the same database as the user's rows.
    :param kafka: configuration by librdkafka's names; ``bootstrap.servers`` is required. See OWNED_SETTINGS.
    :param application: names this application among all that use the cluster and the database. A process that starts
        under the name of a running one takes over from it: the earlier one gets FencedError and stays closed.
    :param producer: "native" or "librdkafka". If it is not given, native is taken where the cluster speaks transaction
        version 2 and every setting in ``kafka`` is one of the native producer's, librdkafka elsewhere; the log and
        :attr:`producer` say which. Either recovers what the other left.
    :param participant: makes the Kafka side from its configuration, instead of a ``producer``.
    :param recovery_timeout: seconds that a unit of work waits while an earlier one is being finished in the background.
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
        producer: str | None = None,
        participant: Callable[[Mapping[str, Any]], KafkaParticipant] | None = None,
        recovery_timeout: float = 30.0,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        if not isinstance(engine, Engine):
            raise ConfigurationError(f"engine is a {type(engine).__name__}: pass sqlalchemy.create_engine(url)")
        if not application:
            raise ConfigurationError("application is empty: name this application, differently from every other")
        transactional_id = validated_transactional_id(f"{application}-0")
        config = {**_validated(kafka), "transactional.id": transactional_id}
        self._choice: ProducerChoice | None = None
        if participant is None:
            self._choice = ProducerChoice(config, producer)
            make = self._choice.participant
        elif producer is None:
            make = functools.partial(participant, config)
        else:
            raise ConfigurationError(f"producer {producer!r} and a participant of your own: give one of the two")
        self._application = application
        self._engine = engine
        self._store = SqlDecisionStore(engine)
        self._observe = on_step or _ignore
        self._recovery_timeout = recovery_timeout
        self._pid = os.getpid()
        owner = f"{socket.gethostname()}:{self._pid}"[:255]
        self._slot = Slot(transactional_id, self._store, make, owner, self._observe)

    @property
    def producer(self) -> str | None:
        """The Kafka side in use: "native" or "librdkafka". None before the first use, where the cluster must be asked
        which; None, too, with a participant of your own."""
        return None if self._choice is None else self._choice.chosen

    @property
    def counters(self) -> Counters:
        """What was done so far; the object stays the same and goes on counting."""
        return self._slot.counters

    def transaction(self) -> Transaction:
        """A unit of work, for ``with dw.transaction() as tx``. Entering it recovers first, where that is needed.

        Entering raises KafkaUnavailableError if Kafka cannot be reached for that, FencedError if another process has
        taken over, DatabaseNotReadyError before ``dualwrite db upgrade``, InvalidTransactionStateError if this thread
        is inside a unit of work already. Leaving raises what kept the unit from being committed, after it was rolled
        back on both sides; or InDoubtError, and then it must not be run again.
        """
        return Transaction(self._enter, self._leave)

    def transactional(self, function: Callable[Concatenate[Transaction, P], R]) -> Callable[P, R]:
        """Decorate ``function(tx, …)`` so that each call ``function(…)`` is a unit of work of its own.

        For plain functions. In a method use the ``with`` block: ``tx`` would come before ``self``.

        :raises ConfigurationError: if ``function`` is a coroutine or a generator: its body would run after the commit.
        """
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
            with self.transaction() as tx:
                return function(tx, *args, **kwargs)

        return unit_of_work

    def recover(self) -> Outcome:
        """Complete or abort now what a predecessor left, as the first unit of work would do.

        Returns what was found open and what became of it. Raises as entering ``transaction()`` does.
        """
        self._check_process()
        self._slot.require_unused_here()
        try:
            self._slot.acquire()
            return self._slot.make_ready(self._recovery_timeout)
        finally:
            self._slot.release_if_used_here()

    def pending(self) -> bool:
        """True while the Kafka side of an earlier unit of work is being finished in the background."""
        return self._slot.pending

    def close(self, timeout: float = 10.0) -> None:
        """Wait for the unit of work of another thread, and up to ``timeout`` seconds for ``pending()``; release all.

        What is still pending is finished by the next start under this application name. Closing twice does nothing.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the sockets and threads are its parent's
        self._slot.require_unused_here()
        try:
            self._slot.acquire()
            self._slot.close(timeout)
        finally:
            self._slot.release_if_used_here()

    def __enter__(self) -> "DualWrite":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _enter(self) -> BlockingDriver:
        self._check_process()
        self._slot.require_unused_here()
        try:
            self._slot.acquire()
            self._slot.make_ready(self._recovery_timeout)
            driver = BlockingDriver(self._engine, self._store, self._slot, self._observe)
            self.counters.units += 1
            driver.begin()
            if driver.machine.result is not None:
                self._report(driver, None)
        except BaseException:
            self._slot.release_if_used_here()
            raise
        return driver

    def _leave(self, driver: BlockingDriver, error: BaseException | None) -> None:
        if os.getpid() != self._pid:
            # A child forked inside the block. The connection is its parent's: a rollback here would be the parent's.
            _inherited.append(driver)
            if error is None:
                self._check_process()
            return
        try:
            driver.finish(error)
            self._report(driver, error)
        finally:
            self._slot.release()

    def _report(self, driver: BlockingDriver, error: BaseException | None) -> None:
        """Count the unit of work, and raise what its caller must know unless that is ``error``, on its way already."""
        machine = driver.machine
        if machine.result is Result.SUCCEEDED:
            self.counters.committed += 1
        elif machine.result is Result.ROLLED_BACK:
            self.counters.rolled_back += 1
        else:
            self.counters.in_doubt += 1
        if driver.interrupt is not None and driver.interrupt is not error:
            raise driver.interrupt
        if error is not None or machine.result is Result.SUCCEEDED:
            return
        if machine.result is Result.IN_DOUBT:
            raise InDoubtError(
                f"a unit of work of application {self._application!r} is in both or in neither, and it is not known "
                f"which: the COMMIT failed ({machine.error}), and the database could not be asked. Do not run it "
                "again before recovery: it ends both sides alike"
            ) from machine.error
        assert machine.error is not None
        raise machine.error

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidTransactionStateError(
                f"this DualWrite was made in process {self._pid} and is used in {os.getpid()}: a fork cannot share its "
                "producer; make a DualWrite in each process, after the fork"
            )


def _validated(kafka: Mapping[str, Any]) -> Mapping[str, Any]:
    """``kafka`` if the recipe can work with it."""
    if not kafka.get("bootstrap.servers"):
        raise ConfigurationError('kafka: "bootstrap.servers" is missing: name at least one broker as HOST:PORT')
    for key in sorted(OWNED_SETTINGS.intersection(kafka)):
        raise ConfigurationError(f'kafka: "{key}" is set by DualWrite itself: remove it')
    return kafka


def _ignore(step: str) -> None:
    """The observer when nobody observes."""
