"""The state that a Python worker of Spark keeps between tasks: an engine, and a DualWrite with its leased slots.

PySpark lets a worker run many tasks. The worker keeps one pair for each set of options. PySpark forks its workers, so
each pair belongs to the process that made it.
"""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.config.librdkafka_settings import LibrdkafkaSettings
from dualwrite.coordinator.branch import Branches
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.process.after_fork import INHERITED
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.coordinator.rules.two_phase import completed_config
from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.dialects.supported import DATABASES, EXAMPLE_URLS, database_at, titles
from dualwrite.coordinator.sql.engine.database_errors import as_library_errors, connected
from dualwrite.errors import ConfigurationError, DatabaseUnavailableError, KafkaUnavailableError
from dualwrite.extras import advice, missing_library
from dualwrite.spark.plan.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PATIENCE = 300.0
"""Seconds that a task waits for its turn to write, on a database with a single writer. Meanwhile another task writes
its partition. The URL may set another time."""


FIRST_ANSWER = 5.0
"""Seconds for which Spark's driver waits for Kafka's first answer, before it begins anything. The caller may
try again later, and needs no executors meanwhile."""


_STREAM = "sql.streaming.queryId"
"""A property of the thread that runs a micro-batch."""
WRITTEN_TWICE = "a restarted query runs its last batch again, which would be written twice"
"""Why a whole batch in ``foreachBatch`` needs a number."""


class Worker(NamedTuple):
    """The engine and the DualWrite that a process keeps."""

    engine: Engine
    dual_write: DualWrite

    @property
    def branches(self) -> Branches:
        """The branches of its DualWrite."""
        return Branches(manager_of(self.dual_write))


def engine_of(options: WriteOptions) -> Engine:
    """A new engine for the database of ``options``. SQLAlchemy's messages contain no rows.

    Transactions have the library's own isolation level. The database stores every value unchanged, independent of the
    server's settings (Database.exact_connections, exact_session).

    :raises ConfigurationError: if the URL is malformed, its driver is missing, or the database is not supported.
    """
    url, database = _parsed(options.url)
    try:
        if url.get_dialect().is_async:
            raise ConfigurationError(
                f"option 'url': {url.get_driver_name()} is a driver for asyncio; use a blocking one"
            )
        arguments: dict[str, Any] = {"hide_parameters": True, "pool_pre_ping": True}
        if database.own_isolation_level is not None:
            arguments["isolation_level"] = database.own_isolation_level
        engine = create_engine(url, connect_args=database.exact_connections(url, _PATIENCE), **arguments)
    except (ArgumentError, ValueError):  # in the URL's query
        raise _unknown_url() from None
    except ModuleNotFoundError as error:
        missing = missing_library(error)
        reason = advice(missing) if missing else f"the driver {error.name} is not installed"
        raise ConfigurationError(f"option 'url': {reason}") from None
    if database.exact_session:
        event.listen(engine, "connect", partial(_execute, database.exact_session))
    return engine


def _parsed(text: str) -> tuple[URL, Database]:
    """The URL, and its database. An error repeats no part of the text: after a mistake any part may be the password."""
    try:
        url = make_url(text)
        return url, database_at(url)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise _unknown_url() from None


def _unknown_url() -> ConfigurationError:
    return ConfigurationError(
        f"option 'url' is not a database URL that SQLAlchemy knows; examples: {', '.join(EXAMPLE_URLS)}"
    )


@contextmanager
def first_connection(engine: Engine) -> Iterator[Connection]:
    """The first connection of Spark's driver to the database.

    :raises DatabaseUnavailableError: if the server cannot be reached now, or the block loses the connection; the caller
        may try again.
    :raises ConfigurationError: if a retry cannot help: the host or the database does not exist, or the database refuses
        the user.
    """
    try:
        connection = connected(engine)
    except DatabaseUnavailableError as error:
        raise error from None
    except ConfigurationError as error:
        raise ConfigurationError(f"option 'url': {error}") from None
    with connection, as_library_errors(engine.dialect):
        yield connection


def require_kafka(options: WriteOptions, work: str) -> None:
    """Check that the cluster answers before the work begins. Otherwise every task would wait for the cluster.

    :param work: a description of the work, for the message.
    :raises KafkaUnavailableError: if the cluster does not answer within FIRST_ANSWER seconds, or delivery.timeout.ms if
        that is less. Nothing was begun; the caller may try again.
    """
    settings = completed_config(options.kafka_config, options.two_phase)
    config = LibrdkafkaSettings.of({**settings, "transactional.id": slot_id(options.application, 0)})
    control = ControlPlane(settings, timeout=min(FIRST_ANSWER, config.delivery_timeout))
    try:
        control.transaction_version()
    except KafkaUnavailableError as error:
        raise KafkaUnavailableError(f"{work}: nothing was begun: {error}") from error
    finally:
        control.close()


def require_classic(df: "DataFrame") -> None:
    """Refuse a DataFrame of Spark Connect, whose driver is another process, and objects that are not DataFrames.

    :raises ConfigurationError: if ``df`` is such an object.
    """
    if not hasattr(df, "isStreaming"):
        module = type(df).__module__
        library = module.partition(".")[0]
        whose = "" if library == "builtins" else f" of {library}"
        if module.startswith("pyspark.pandas."):
            whose = " of pyspark.pandas: its to_spark() makes one of Spark"
        raise ConfigurationError(f"expected a DataFrame of Spark, got a {type(df).__name__}{whose}")
    if type(df).__module__.startswith("pyspark.sql.connect."):
        raise ConfigurationError(
            "the DataFrame belongs to Spark Connect: make the session with master(…), or use format('dualwrite')"
        )


def is_micro_batch(df: "DataFrame") -> bool:
    """True in ``foreachBatch``."""
    return bool(df.sparkSession.sparkContext.getLocalProperty(_STREAM))


def require_number(df: "DataFrame", batch_id: int | None, why: str) -> None:
    """Refuse a write without a number in ``foreachBatch``.

    :param why: the message: the reason, and what the user can do.
    :raises ConfigurationError: if there is none.
    """
    if batch_id is None and is_micro_batch(df):
        raise ConfigurationError(why)


def require_shared(options: WriteOptions, master: str) -> None:
    """Refuse a database file unless Spark is local: executors on other machines cannot reach the file.

    :param master: Spark's master URL.
    :raises ConfigurationError: if the executors cannot reach the database.
    """
    is_local = master == "local" or master.startswith("local[")
    _, database = _parsed(options.url)
    if not is_local and database.is_file:
        servers = titles(database for database in DATABASES if not database.is_file)
        raise ConfigurationError(
            f"{database.title} works only with a local Spark master, not with {master}: use {servers}"
        )


def dual_write_of(options: WriteOptions, engine: Engine) -> DualWrite:
    """A new DualWrite on ``engine``.

    :raises ConfigurationError: if a setting is wrong.
    """
    return DualWrite(
        engine,
        options.kafka_config,
        application=options.application,
        pool_size=options.pool_size,
        acquire_timeout=options.acquire_timeout,
        lease_timeout=options.lease_timeout,
        database_timeout=options.database_timeout,
        producer=options.producer,
        two_phase=options.two_phase,
    )


class _Workers:
    """The workers of this process, by their options."""

    def __init__(self) -> None:
        self._workers: dict[WriteOptions, Worker] = {}
        self._lock = threading.Lock()
        self.excluded_in: int | None = None
        """The process whose objects are excluded from Python's garbage collection."""
        os.register_at_fork(after_in_child=self._after_fork)
        atexit.register(self.close)

    def get(self, options: WriteOptions) -> Worker:
        key = _connection_options(options)
        with self._lock:
            if key not in self._workers:
                engine = engine_of(options)
                self._workers[key] = Worker(engine, dual_write_of(options, engine))
                exclude_from_collection_in_a_task(again=True)
            return self._workers[key]

    def close(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.dual_write.close()
            worker.engine.dispose()

    def _after_fork(self) -> None:
        """In a forked child: keep the parent's objects alive and do not touch them; DualWrite says why."""
        INHERITED.append(self._workers)
        self._workers = {}
        self._lock = threading.Lock()


def worker_of(options: WriteOptions) -> Worker:
    """The worker of this process for ``options``; made at the first call.

    :raises ConfigurationError: as :func:`engine_of` and DualWrite do.
    """
    return _workers.get(options)


def close_workers() -> None:
    """Close the slots and connections that this process keeps. The next task makes new ones."""
    _workers.close()


def _is_in_a_task() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    return TaskContext.get() is not None


def exclude_from_collection_in_a_task(*, again: bool = False) -> None:
    """In a task, exclude the objects that exist now, mostly code, from Python's garbage collection, for the life of
    this process. PySpark runs a full collection after each task, which takes longer than a task of few rows.

    :param again: exclude the objects that were made since the first call, too.
    """
    if (again or _workers.excluded_in != os.getpid()) and _is_in_a_task():
        _workers.excluded_in = os.getpid()
        gc.collect()
        gc.freeze()


def _connection_options(options: WriteOptions) -> WriteOptions:
    """``options`` with fixed values for those that neither an engine nor a DualWrite depends on."""
    return replace(
        options,
        dbtable="",
        topic=None,
        job=None,
        batch_id=None,
        upsert_keys=(),
        table_columns=None,
        value_columns=None,
        batchsize=1,
        driver_bytes=0,
        run_timeout=1.0,
        keep_batches=1,
        known_batch="compare",
    )


def _execute(statements: Sequence[str], connection: Any, pool_record: object) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


_workers = _Workers()
