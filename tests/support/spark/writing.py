"""A table, a topic and a writer for them, as an executor has it: no Spark is needed for that."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, text

from dualwrite.spark.known.targets import SKIP, batch_target_of
from dualwrite.spark.partitions.batches import begin_batch
from dualwrite.spark.partitions.progress import BegunBatch
from dualwrite.spark.partitions.writers import PartitionWriter
from dualwrite.spark.plan.columns import match_columns, plan_of
from dualwrite.spark.plan.options import WriteOptions
from dualwrite.spark.tables.target_table import target_of
from dualwrite.spark.workers import Worker, dual_write_of, engine_of
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import await_sweeps
from tests.support.spark.expected_rows import options, schema

PATIENCE = 60.0
"""Seconds that a test waits for what must come."""

THINGS = "CREATE TABLE things (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(100))"
COLUMNS = {"id": "long", "note": "string"}


def url_of(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


class SparkPlace:
    """Where a test writes to: the table ``things`` and a topic of its own."""

    def __init__(self, engine: Engine, broker: KafkaBroker, application: str) -> None:
        self.engine = engine
        self.broker = broker
        self.topic = broker.create_topic(partitions=2)
        self._application = application
        with engine.begin() as connection:
            connection.execute(text(THINGS))

    def options(self, **changed: Any) -> WriteOptions:
        return options(**{**self.keywords(), **changed})

    def keywords(self) -> dict[str, Any]:
        """The options, as a user gives them."""
        return {
            "url": url_of(self.engine),
            "dbtable": "things",
            "application": self._application,
            "topic": self.topic,
            "job": "nightly",
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
        }

    def writer(self, partitions: int = 1, columns: Any = None, begin: bool = True, **changed: Any) -> PartitionWriter:
        """What the driver makes, of the columns of THINGS unless others are given."""
        given = self.options(**changed)
        plan = plan_of(schema(**(columns or COLUMNS)), given, "UTC")
        with self.engine.connect() as connection:
            target = target_of(connection, given.dbtable)
        batch = self.begin(given, partitions) if begin else self.batch(given, partitions)
        return PartitionWriter(given, plan, match_columns(plan, target, given), target.keeps, batch)

    def batch(self, given: WriteOptions, partitions: int) -> BegunBatch:
        with self.engine.connect() as connection:
            target = batch_target_of(connection, given.dbtable, given.topic)
        return BegunBatch(given.require_job(), given.batch_id or 0, partitions, target)

    def begin(self, given: WriteOptions, partitions: int) -> BegunBatch | None:
        """What the driver does before the tasks begin."""
        skips = given.known_batch == SKIP
        batch = self.batch(given, partitions)
        return begin_batch(self.engine, batch, given.dbtable, given.keep_batches, skips=skips)

    @contextmanager
    def worker(self, **changed: Any) -> Iterator[Worker]:
        """As a Python worker of Spark's has one."""
        given = self.options(**changed)
        engine = engine_of(given)
        try:
            with dual_write_of(given, engine) as dual_write:
                yield Worker(engine, dual_write)
        finally:
            await_sweeps()
            engine.dispose()

    def write(self, rows: Iterable[Sequence[Any]], partition: int = 0, **changed: Any) -> bool:
        with self.worker() as worker:
            return self.writer(partition + 1, **changed).write(worker, partition, rows)

    def stored(self) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text("SELECT * FROM things ORDER BY id"))]

    def produced(self) -> list[bytes | None]:
        """The values that a read_committed consumer sees, of both partitions."""
        return sorted((record.value for record in self.broker.read(self.topic)), key=repr)

    def progress(self) -> list[tuple[Any, ...]]:
        asked = "SELECT batch_id, row_count FROM dualwrite_spark_progress WHERE digest <> '' ORDER BY 1"
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(asked))]


def rows_of(number: int, first: int = 0) -> list[tuple[int, str]]:
    return [(each, f"note {each}") for each in range(first, first + number)]


def values_of(rows: Iterable[tuple[int, str]]) -> list[bytes | None]:
    """What is produced for ``rows``, sorted as Place.produced() sorts."""
    return sorted((f'{{"id":{key},"note":"{note}"}}'.encode() for key, note in rows), key=repr)
