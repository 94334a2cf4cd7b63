"""What a Python worker of Spark keeps between tasks: an engine, and a DualWrite with its leased slots.

PySpark lets a worker run many tasks. The worker keeps one pair for each set of options. It belongs to the process that
made it, as workers are forked.
"""

import atexit
import gc
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.librdkafka.producer_config import ProducerConfig
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.kafka.choice import ProducerChoice
from dualwrite.coordinator.recovery.two_phase import producer_settings, step_timeout
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.coordinator.sql.dialects.supported import EXAMPLE_URLS, database_of, require_supported
from dualwrite.errors import ConfigurationError, DatabaseUnavailableError, KafkaUnavailableError
from dualwrite.extras import advice, missing_library
from dualwrite.spark.error_translation import first_line
from dualwrite.spark.plan.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SQLITE_PATIENCE = 300.0
"""Seconds that a task waits for SQLite's only writer, unless the URL sets it: another task writes its partition
then."""


class Worker(NamedTuple):
    """The engine and the DualWrite that a process keeps."""

    engine: Engine
    dual_write: DualWrite


def engine_of(options: WriteOptions) -> Engine:
    """A new engine for the database of ``options``. SQLAlchemy's messages contain no rows.

    Transactions are READ COMMITTED except on SQLite. The client encoding of PostgreSQL is UTF-8, whatever the
    database's setting: in another encoding, a character that Kafka gets could be another one, or none. On MariaDB and
    MySQL, timestamps are in UTC, and 0 in an auto-increment column stays 0, instead of the next number.

    :raises ConfigurationError: if the URL is malformed, its driver is missing, or the database is not supported.
    """
    try:
        url = make_url(options.url)
        require_supported(url.get_backend_name())
        if url.get_dialect().is_async:
            raise ConfigurationError(
                f"option 'url': {url.get_driver_name()} is a driver for asyncio; use a blocking one"
            )
        arguments: dict[str, Any] = {"hide_parameters": True, "pool_pre_ping": True}
        if url.get_backend_name() == "sqlite":
            patience = {} if "timeout" in url.query else {"timeout": _SQLITE_PATIENCE}
            engine = create_engine(url, connect_args=patience, **arguments)
        else:
            encoding = {"client_encoding": "utf8"} if url.get_driver_name() == "psycopg" else {}
            engine = create_engine(url, isolation_level="READ COMMITTED", connect_args=encoding, **arguments)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigurationError(
            f"option 'url' is no database URL that SQLAlchemy knows; examples: {', '.join(EXAMPLE_URLS)}"
        ) from None
    except ModuleNotFoundError as error:
        missing = missing_library(error)
        reason = advice(missing) if missing else f"the driver {error.name} is not installed"
        raise ConfigurationError(f"option 'url': {reason}") from None
    if engine.dialect.name in ("mysql", "mariadb"):
        event.listen(engine, "connect", _as_given)
    return engine


@contextmanager
def first_connection(engine: Engine) -> Iterator[Connection]:
    """The driver's first connection to the database.

    :raises DatabaseUnavailableError: if the server cannot be reached now.
    :raises ConfigurationError: if a retry cannot help: there is no such host or database, or it refuses the user.
    """
    try:
        connection = engine.connect()
    except DBAPIError as error:
        secrets = [name for name in engine.url.query if "pass" in name.lower()]
        url = engine.url.difference_update_query(secrets).render_as_string(hide_password=True)
        said = f"no connection to {url}: {first_line(error)}"
        if database_of(engine.dialect).is_away(error):
            raise DatabaseUnavailableError(said) from None
        raise ConfigurationError(f"option 'url': {said}") from None
    with connection:
        yield connection


def require_known_settings(options: WriteOptions) -> None:
    """Refuse on the driver settings that no producer knows: otherwise every task would fail with them.

    :raises ConfigurationError: naming the setting.
    """
    settings = producer_settings(options.kafka_config, options.two_phase)
    config = {**settings, "transactional.id": slot_id(options.application, 0)}
    ProducerChoice(config, options.producer).require_known_settings()


def require_kafka(options: WriteOptions, what: str) -> None:
    """Check that the cluster answers, before anything begins: otherwise every task would wait for it.

    :param what: a description of the work that would begin.
    :raises KafkaUnavailableError: if it does not answer within delivery.timeout.ms, or 30 s if that is more.
    """
    settings = producer_settings(options.kafka_config, options.two_phase)
    config = ProducerConfig.of({**settings, "transactional.id": slot_id(options.application, 0)})
    control = ControlPlane(settings, timeout=step_timeout(config.delivery_timeout))
    try:
        control.transaction_version()
    except KafkaUnavailableError as error:
        raise KafkaUnavailableError(f"{what}: nothing was begun: {error}") from error
    finally:
        control.close()


def require_classic(df: "DataFrame") -> None:
    """Refuse a DataFrame of Spark Connect, whose driver is another process, and objects that are not DataFrames.

    :raises ConfigurationError: if it is one.
    """
    if not hasattr(df, "isStreaming"):
        raise ConfigurationError(f"this writes a DataFrame, and is given a {type(df).__name__}")
    if type(df).__module__.startswith("pyspark.sql.connect."):
        raise ConfigurationError("the DataFrame is Spark Connect's: use a session that is made with master(…)")


def require_shared(options: WriteOptions, master: str) -> None:
    """Refuse a database that the executors of ``master`` cannot reach: SQLite is a file of this machine.

    :raises ConfigurationError: if that is so.
    """
    is_local = master == "local" or master.startswith("local[")
    if not is_local and _url(options).get_backend_name() == "sqlite":
        raise ConfigurationError(f"SQLite is for a local master, not for {master}: use PostgreSQL, MariaDB or MySQL")


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


class _Kept:
    """The workers of this process, by their options."""

    def __init__(self) -> None:
        self._workers: dict[WriteOptions, Worker] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._begin_anew)
        atexit.register(self.close)

    def get(self, options: WriteOptions) -> Worker:
        key = _connecting(options)
        with self._lock:
            if key not in self._workers:
                engine = engine_of(options)
                self._workers[key] = Worker(engine, dual_write_of(options, engine))
                if _is_in_a_task():
                    _spare()
            return self._workers[key]

    def close(self) -> None:
        with self._lock:
            workers, self._workers = self._workers, {}
        for worker in workers.values():
            worker.dual_write.close()
            worker.engine.dispose()

    def _begin_anew(self) -> None:
        """In a forked child: keep the parent's objects alive and do not touch them; DualWrite says why."""
        self._inherited = self._workers
        self._workers = {}
        self._lock = threading.Lock()


def worker_of(options: WriteOptions) -> Worker:
    """The worker of this process for ``options``; made at the first call.

    :raises ConfigurationError: as :func:`engine_of` and DualWrite do.
    """
    return _kept.get(options)


def close_workers() -> None:
    """Close the slots and connections that this process keeps. The next task makes new ones."""
    _kept.close()


def _is_in_a_task() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    return TaskContext.get() is not None


def _spare() -> None:
    """Exclude the objects that exist now, mostly code, from Python's garbage collector, for the life of this process.
    PySpark runs a full collection after each task, which takes longer than a task of few rows."""
    gc.collect()
    gc.freeze()


def _connecting(options: WriteOptions) -> WriteOptions:
    """``options`` without those that do not matter to an engine and a DualWrite."""
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
        run_timeout=1.0,
        keep_batches=1,
    )


def _url(options: WriteOptions) -> URL:
    return make_url(options.url)


def _as_given(connection: Any, record: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = CONCAT(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')")


_kept = _Kept()
