"""What a Python worker of Spark's keeps from one task to the next: an engine, and a DualWrite with its leased slots.

PySpark lets a worker run many tasks. What is kept is known by the options that it was made with, and belongs to the
process that made it: workers are forked.
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
"""Seconds that a task waits for SQLite's one writer, unless the URL says otherwise: another task writes a partition."""


class Worker(NamedTuple):
    """What is kept."""

    engine: Engine
    dual_write: DualWrite


def engine_of(options: WriteOptions) -> Engine:
    """A new engine for the database of ``options``. SQLAlchemy's messages show no rows.

    Transactions are READ COMMITTED but on SQLite. What PostgreSQL is sent is UTF-8, whatever the database's settings
    say: another encoding may have another character, or none, for one that Kafka gets. On MariaDB and MySQL timestamps
    are in UTC, and 0 is 0 in a column that counts up by itself: it would be the next number.

    :raises ConfigurationError: if the URL is none, its driver is missing, or the database is not supported.
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
    """A connection for the driver's first look at the database.

    :raises DatabaseUnavailableError: if there is none to be had now: the server is down.
    :raises ConfigurationError: if there never will be: no such host or database, or it refuses the user.
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
    """Refuse on the driver what no producer knows: tasks would find it out one by one.

    :raises ConfigurationError: naming the setting.
    """
    settings = producer_settings(options.kafka_config, options.two_phase)
    config = {**settings, "transactional.id": slot_id(options.application, 0)}
    ProducerChoice(config, options.producer).require_known_settings()


def require_kafka(options: WriteOptions, what: str) -> None:
    """Pass if the cluster answers: rather an error before anything is begun than tasks that wait for it one by one.

    :param what: is not begun, in words.
    :raises KafkaUnavailableError: if it does not within delivery.timeout.ms, or 30 s if that is more.
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
    """Refuse a DataFrame of Spark Connect, whose driver is in another process, and what is no DataFrame.

    :raises ConfigurationError: if it is one.
    """
    if not hasattr(df, "isStreaming"):
        raise ConfigurationError(f"this writes a DataFrame, and is given a {type(df).__name__}")
    if type(df).__module__.startswith("pyspark.sql.connect."):
        raise ConfigurationError("the DataFrame is Spark Connect's: use a session that is made with master(…)")


def require_shared(options: WriteOptions, master: str) -> None:
    """Refuse a database that the executors of ``master`` do not have: SQLite is a file of this machine.

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
    """The workers of this process, by what they were made with."""

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
        """In a forked child: what is the parent's is kept alive and left alone, as DualWrite says why."""
        self._inherited = self._workers
        self._workers = {}
        self._lock = threading.Lock()


def worker_of(options: WriteOptions) -> Worker:
    """What this process keeps for ``options``, made at the first call.

    :raises ConfigurationError: as :func:`engine_of` and DualWrite do.
    """
    return _kept.get(options)


def close_workers() -> None:
    """Give back what this process keeps: slots and connections. The next task makes them anew."""
    _kept.close()


def _is_in_a_task() -> bool:
    if "pyspark" not in sys.modules:
        return False
    from pyspark import TaskContext

    return TaskContext.get() is not None


def _spare() -> None:
    """Spare Python's collector what there is by now, most of it code, for as long as this process lives: PySpark has
    it look at everything after each task, which takes longer than a task of few rows."""
    gc.collect()
    gc.freeze()


def _connecting(options: WriteOptions) -> WriteOptions:
    """``options`` without what does not matter to an engine and a DualWrite."""
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
