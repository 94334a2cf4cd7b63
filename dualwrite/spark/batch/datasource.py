"""``df.write.format("dualwrite")`` and ``writeStream``: whole batches through PySpark's Python data sources.

Spark runs the parts of a write in separate processes. One process makes the writer, which begins the run. Tasks write.
Another process commits or aborts. They share only the database and the messages that Spark passes on.
"""

import os
import time
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dualwrite.errors import ConfigurationError
from dualwrite.extras import brought_by
from dualwrite.spark.batch.task_input import Observe, TaskInput
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.batch.whole_batch import WholeBatch
from dualwrite.spark.plan.options import WriteOptions, options_of
from dualwrite.spark.plan.to_json import zone_of
from dualwrite.spark.unpickling import ReducedObject, reduced
from dualwrite.spark.workers import WRITTEN_TWICE

with brought_by("spark"):
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

NAME = "dualwrite"
"""The data source's name."""

_ZONE_PROPERTY = "spark.sql.session.timeZone"
_ZONE_FILE = Path("/etc/localtime")
_BATCH_PROPERTY = "streaming.sql.batchId"
"""Spark's name of the micro-batch number in the properties of its tasks."""


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """The message from a task to Spark's driver.

    :param task: None if the batch is already committed.
    """

    task: PreparedTask | None


class DualWriteDataSource(DataSource):
    """The data source "dualwrite", for writing: ``spark.dataSource.register(DualWriteDataSource)``, or ``register``.

    :param options: the options of OPTIONS (docs/spark-batches.md).
    """

    on_step: ClassVar[Observe | None] = None
    """Called with the name of each step before it, on the driver and in tasks. For tests, in a subclass."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._was_sent = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._was_sent = True

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return NAME

    def writer(self, schema: "StructType", overwrite: bool) -> "WholeBatchWriter":
        """A writer whose run has begun.

        :raises ConfigurationError: naming the option or column that is wrong.
        """
        options = self._options(overwrite)
        batch, work = self._check(options, schema)
        return WholeBatchWriter(options, batch.begin(work, options.batch_id))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "WholeBatchStreamWriter":  # noqa: N802 - PySpark's name
        """A writer of one micro-batch.

        Spark sends this data source to the process that commits. There, the writer commits the run of another writer.
        In every other process, the writer's own run has begun.

        :raises ConfigurationError: as :meth:`writer`.
        """
        options = self._options(overwrite)
        options.require_job()
        if options.batch_id is not None:
            raise ConfigurationError("option 'batchId': a stream numbers its batches itself; remove it")
        batch, work = self._check(options, schema)
        return WholeBatchStreamWriter(options, work if self._was_sent else batch.begin(work, None))

    def _options(self, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise ConfigurationError(
                'records in Kafka cannot be overwritten: use mode("append") or outputMode("append"); to replace rows '
                "by their key, use the option upsertKeys"
            )
        return options_of(self.options)

    def _check(self, options: WriteOptions, schema: "StructType") -> tuple[WholeBatch, TaskInput]:
        batch = WholeBatch(options, type(self).on_step)
        return batch, batch.check(schema.jsonValue(), _own_zone())  # tasks know the session's, if it was set


class WholeBatchWriter(DataSourceWriter):
    """Writes a DataFrame atomically; called by PySpark."""

    def __init__(self, options: WriteOptions, work: TaskInput) -> None:
        self._options = options
        self._work = work

    def __reduce__(self) -> ReducedObject:
        return reduced(self)

    @property
    def work(self) -> TaskInput:
        """The input of the tasks."""
        return self._work

    def write(self, iterator: "Iterator[Row]") -> Message:
        """Write one task's partition.

        :raises ConfigurationError: without a number in ``foreachBatch``.
        """
        if self._options.batch_id is None and _micro_batch() is not None:
            raise ConfigurationError(f"{WRITTEN_TWICE}: give the option batchId the number that foreachBatch passes")
        return _written(self._work, iterator)

    def commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Decide the run, as WholeBatch.commit does."""
        self._batch().commit(self._work, _tasks(messages), self._options.batch_id)

    def abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Roll back the run unless it is decided. Spark calls this if a task or the commit has failed for good."""
        self._batch().abort(self._work.run, self._options.batch_id)

    def _batch(self) -> WholeBatch:
        return WholeBatch(self._options, self._work.on_step)


class WholeBatchStreamWriter(DataSourceStreamWriter):
    """Writes a micro-batch atomically; called by PySpark.

    :param work: with a run in a writer that writes, without one in a writer that only commits.
    """

    def __init__(self, options: WriteOptions, work: TaskInput) -> None:
        self._options = options
        self._work = work

    def __reduce__(self) -> ReducedObject:
        return reduced(self)

    @property
    def work(self) -> TaskInput:
        """The input of the tasks."""
        return self._work

    def write(self, iterator: "Iterator[Row]") -> Message:
        """Write one task's partition."""
        return _written(self._work, iterator, _micro_batch())

    def commit(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        """Decide the run. A micro-batch that was committed before has no second effect."""
        batch, tasks = WholeBatch(self._options, self._work.on_step), _tasks(messages)
        runs = [task.run for task in tasks if task is not None and task.run is not None]
        # A micro-batch without partitions has no message that names its run.
        work = self._work.numbered(batchId).of(runs[0]) if runs else batch.begin(self._work, batchId)
        batch.commit(work, tasks, batchId)

    def abort(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        """Roll back the run unless it is decided. If no message names the run, the job's next run does it."""
        for task in _tasks(messages):
            if task is not None:
                WholeBatch(self._options, self._work.on_step).abort(task.run, batchId)
                return


def register(spark: "SparkSession") -> None:
    """Register ``format("dualwrite")`` with ``spark``.

    This sets the session's time zone to the zone that it has: Spark tells its tasks only a zone that was set, and
    Java's default (``user.timezone``) may be another than that of Python.
    """
    spark.dataSource.register(DualWriteDataSource)
    spark.conf.set(_ZONE_PROPERTY, str(spark.conf.get(_ZONE_PROPERTY)))


def _written(work: TaskInput, rows: "Iterator[Row]", micro_batch: int | None = None) -> Message:
    """The message of this task, which has written its partition.

    :param micro_batch: the batch's number, if the driver could not know it.
    """
    context = _context()
    part, attempt = context.partitionId(), context.taskAttemptId()
    zone = context.getLocalProperty(_ZONE_PROPERTY)
    with _process_in_utc():
        return Message(work.returning(None).write(rows, part, attempt, zone=zone, batch_id=micro_batch))


def _micro_batch() -> int | None:
    """The number of the micro-batch that this task belongs to; None outside of streams."""
    number = _context().getLocalProperty(_BATCH_PROPERTY)
    return None if number is None else int(number)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def _own_zone() -> str:
    """The time zone of this process: its name, or its offset if Python does not know the name. On Spark's driver it is
    the default of the session's time zone."""
    name = os.environ.get("TZ", "").removeprefix(":") or str(_ZONE_FILE.resolve()).partition("/zoneinfo/")[2]
    try:
        zone_of(name)
    except ConfigurationError:
        return f"{datetime.now().astimezone():%z}"
    return name


@contextmanager
def _process_in_utc() -> Iterator[None]:
    """In this block, the time zone of this process is UTC. PySpark converts a row's timestamps from Arrow to local time
    when the row is read. In a zone whose clocks are set back, two hours have one local time, and PySpark does not keep
    which of them it is."""
    zone = os.environ.get("TZ")
    _set_zone("UTC")
    try:
        yield
    finally:
        _set_zone(zone)


def _set_zone(name: str | None) -> None:
    if name is None:
        os.environ.pop("TZ", None)
    else:
        os.environ["TZ"] = name
    if hasattr(time, "tzset"):  # Windows lacks it
        time.tzset()


def _tasks(messages: Iterable[WriterCommitMessage | None]) -> list[PreparedTask | None]:
    return [message.task if isinstance(message, Message) else None for message in messages]
