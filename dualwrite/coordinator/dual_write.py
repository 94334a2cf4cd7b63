"""DualWrite: a database and Kafka commit together or not at all. The coordinator's public API."""

import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy import Engine

from dualwrite.coordinator.manager.settings import Completion, ManagerSettings
from dualwrite.coordinator.manager.unit_manager import UnitManager
from dualwrite.coordinator.offsets.seeking import SeekingConsumers
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.producer_names import ProducerName
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.two_phase import TwoPhase
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.usage import PoolSettings, Usage
from dualwrite.coordinator.sql.engine.error_meanings import transient_errors_of
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, acknowledge, outcomes
from dualwrite.coordinator.steps.observers import Observer, no_observer
from dualwrite.coordinator.steps.retry import Retrying, require_plain, with_tx
from dualwrite.coordinator.unit.block import Block, NamesTheBlock, open_unit
from dualwrite.coordinator.unit.session_factory import SessionFactory, unit_sessions
from dualwrite.coordinator.unit.transaction import Transaction, unit_of
from dualwrite.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class TransactionalDecorator(Protocol):
    """What ``dw.transactional(retries=…)`` returns; see DualWrite.transactional."""

    @overload
    def __call__(self, function: Callable[Concatenate[Transaction, P], R], /) -> Callable[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[S, Transaction, P], R], /) -> Callable[Concatenate[S, P], R]: ...


class DualWrite(SeekingConsumers, NamesTheBlock):
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
        ``key.serializer`` and ``value.serializer`` are those of confluent-kafka's SerializingProducer.
    :param application: name of this application, unique among all that use the cluster and the database.
    :param pool_size: number of slots: units of work that may run at once in all processes of the application together.
        SQLite allows one writer at a time, so a process uses one slot there. Use the same value in all processes.
    :param acquire_timeout: seconds that a unit of work waits for a slot.
    :param lease_timeout: seconds after which other processes may take the slots of a process that is dead or cannot
        reach the database. Leases are renewed three times in that time, and by each unit with records. After a death on
        the same machine, other processes do not wait for it.
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
    :param completion: "await": a unit of work ends when Kafka has answered its commit. "background", with the native
        producer only: it ends when the database has committed and Kafka's commit is sent; the slot's next unit or the
        heartbeat (a third of ``lease_timeout``) collects the answer, and recovery completes the unit if there is none.
        read_committed consumers see its records a moment later.
    :param schema: schema of the library's tables (on MariaDB and MySQL: the database). The default is the one that
        the engine's ``schema_translate_map`` gives for tables without a schema; else the schema where the tables are
        found, once for the engine, by the ``search_path`` that its sessions begin with.
    :param session_factory: makes ``tx.session``: a sessionmaker, or a subclass of Session (SQLModel's, for example).
        With a scoped_session (Flask-SQLAlchemy's ``db.session``), that is the unit's session inside the block.
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
        completion: Completion = "await",
        schema: str | None = None,
        session_factory: SessionFactory | None = None,
        participant: Callable[[Mapping[str, Any]], KafkaParticipant] | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        pool = PoolSettings(application, pool_size, acquire_timeout, lease_timeout, database_timeout)
        observe = on_step or no_observer
        self._manager = UnitManager(
            _blocking(engine),
            ManagerSettings(
                kafka,
                pool,
                producer,
                two_phase,
                replay,
                schema,
                participant,
                observe,
                completion,
                sessions=unit_sessions(session_factory),
            ),
        )

    @property
    def _seeker(self) -> UnitManager:
        return self._manager

    @property
    def producer(self) -> str | None:
        """The producer in use: "native" or "librdkafka". None before the first use if the choice depends on the
        cluster; also None with a participant of your own."""
        return self._manager.producer

    @property
    def counters(self) -> Counters:
        """Counters of this process. Always the same object, which goes on counting."""
        return self._manager.process.counters

    @property
    def usage(self) -> Usage:
        """The application's name and its number of slots, and how this process uses its own slots."""
        return self._manager.usage

    def transaction(self) -> Block:
        """Make a unit of work, for ``with dw.transaction() as tx``. Entering it runs recovery first, if needed.

        Entering raises NoFreeSlotError if every slot is in use, KafkaUnavailableError or DatabaseUnavailableError if
        Kafka or the database does not answer, DatabaseNotReadyError before ``dualwrite db upgrade``. If no broker
        accepts a connection, entering succeeds, and the first record raises KafkaUnavailableError. Inside a unit of
        work of this DualWrite, in the same thread, it joins that one. If the unit cannot be committed, it is rolled
        back on both sides, and leaving the block raises the cause. Leaving may also raise InDoubtError or a
        UnitCommitted: then do not run the unit again.
        """
        return Block(self._manager)

    @overload
    def transactional(self, function: Callable[Concatenate[Transaction, P], R], /) -> Callable[P, R]: ...

    @overload
    def transactional(
        self, function: Callable[Concatenate[S, Transaction, P], R], /
    ) -> Callable[Concatenate[S, P], R]: ...

    @overload
    def transactional(self, /, *, retries: int) -> TransactionalDecorator: ...

    def transactional(self, function: Any = None, /, *, retries: int = 0) -> Any:
        """Decorate ``function(tx, …)`` so that each call ``function(…)`` is a unit of work of its own.

        For plain functions, and for methods ``def method(self, tx, …)``: the transaction is the parameter called
        ``tx``, or the first one. Use it as ``@dw.transactional`` or ``@dw.transactional(retries=3)``. Retries are for
        errors that are likely to pass: a deadlock, a serialization failure, a lock that was not free in time, a
        ``retriable`` error of this library. The unit is rolled back on both sides and run again, up to ``retries``
        times, after pauses of up to 0.05 s, twice that, and so on to 2 s. So ``function`` may run several times: its
        other side effects should be harmless if they happen twice. Inside another unit of work ``function`` is not run
        again; the outer unit is.

        :raises ConfigurationError: if ``function`` is not callable, or is a coroutine or a generator: its body would
            run after the commit.
        """
        retrying = Retrying(
            retries, transient_errors_of(self._manager.engine.dialect), THIS_PROCESS.sleep, THIS_PROCESS.chance
        )
        return functools.partial(self._decorated, retrying) if function is None else self._decorated(retrying, function)

    def _decorated(self, retrying: Retrying, function: Callable[Concatenate[Transaction, P], R]) -> Callable[P, R]:
        require_plain(function)
        manager, call = self._manager, with_tx(function)

        @functools.wraps(function)
        def unit_of_work(*args: P.args, **kwargs: P.kwargs) -> R:
            last: list[Transaction] = []

            def once() -> R:
                with Block(manager, is_repeated=True) as tx:
                    last[:] = [tx]
                    return call(tx, *args, **kwargs)

            if open_unit(manager) is not None:
                return once()
            try:
                return manager.run_again(retrying, once, last)
            except BaseException as raised:  # a limit may strike between the block's end and this one
                cause = manager.outcome_error(unit_of(last[0]), raised) if last else raised
                if cause is raised:
                    raise
                raise cause from raised

        return unit_of_work

    @property
    def is_recovered(self) -> bool:
        """True once :meth:`recover` has succeeded in this process: for a readiness probe."""
        return self._manager.is_recovered

    def recover(self, *, wait: bool = True) -> dict[str, Outcome]:
        """Complete or abort the transactions of processes that ended or are silent, and make a slot ready.

        Recovery covers every slot of the application that no process holds, those beyond ``pool_size`` included. The
        first unit of work does the same in the background, and so does every heartbeat.

        :param wait: False to return at once, so that a service starts while Kafka or the database is down: recovery
            goes on in the background until it has succeeded (:attr:`is_recovered`), and logs each change of its
            error. A ConfigurationError ends it; the next unit of work raises that, too. The result is empty then.

        Returns the outcome of each slot by transactional id: what was open and how it ended; mostly Outcome.NOTHING.
        Raises the same errors as entering ``transaction()``, after trying every slot that it can.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        if wait:
            return self._manager.recover()
        self._manager.recover_in_background()
        return {}

    def pending(self) -> int:
        """Count the earlier units of work that the database has committed, and that are not known to be committed in
        Kafka: the background completes them, or their commit is sent and not answered (``completion``)."""
        return self._manager.pending()

    def wait_idle(self, timeout: float = 10.0) -> bool:
        """Wait until no unit of work of this process is open, :meth:`pending` is 0, and no recovery runs in the
        background; for example before a planned restart. Units that begin meanwhile are waited for, too.

        :param timeout: in seconds.
        :returns: False if the time was over before that.
        :raises InvalidTransactionStateError: inside a unit of work.
        """
        return self._manager.wait_idle(timeout)

    def add_observer(self, observer: Observer) -> None:
        """Call ``observer`` for every unit of work that begins from now on, and for its steps; also in forked
        children."""
        self._manager.add_observer(observer)

    def outcomes(self, acknowledged: bool = False) -> list[HeuristicOutcome]:
        """Heuristic outcomes: units of work of this application that ended differently on the two sides, as recovery
        found them. Examples: a prepared transaction was terminated by force; one side was restored from an older copy.

        The oldest first; with ``acknowledged``, also those that an operator has acknowledged. docs/outcomes.md lists
        the cases and what to do about each. Slots stay usable meanwhile.
        """
        return outcomes(self._manager.engine, self._manager.settings.application, acknowledged=acknowledged)

    def acknowledge(self, outcome: HeuristicOutcome | int, *, by: str) -> HeuristicOutcome:
        """Note that ``by`` has dealt with ``outcome``, given as such or by its id. It stays on record.

        :raises InputError: if no outcome has that id, or ``by`` is empty.
        """
        return acknowledge(self._manager.engine, outcome, by=by)

    def close(self, timeout: float = 10.0) -> None:
        """Wait up to ``timeout`` seconds for the units of work of other threads and for ``pending()``; release all.

        The slots are given back. Another process under this application name, or the next start, completes what is
        still pending; it may roll back a unit of work that still runs in another thread. A heuristic outcome that the
        database does not take now is logged at ERROR. A second call waits for the units that the first has left, and
        tries that again.

        :raises InvalidTransactionStateError: inside a unit of work.
        """
        self._manager.close(timeout)

    def __enter__(self) -> "DualWrite":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _blocking(engine: Any) -> Engine:
    """``engine``, if it is an Engine whose driver blocks."""
    if not isinstance(engine, Engine):
        hint = "use AsyncDualWrite" if hasattr(engine, "sync_engine") else "pass sqlalchemy.create_engine(url)"
        raise ConfigurationError(f"engine is a {type(engine).__name__}: {hint}")
    if engine.dialect.is_async:
        raise ConfigurationError(f"{engine.dialect.driver} is a driver for asyncio: use AsyncDualWrite")
    return engine
