"""``df.write.format("dualwrite")`` and ``writeStream``: whole batches through PySpark's Python data sources.

Spark calls its parts in separate processes: one makes the writer, which begins the run; tasks write; another process
commits or aborts. They share nothing but the messages that Spark passes on, and the database.
"""

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dualwrite.errors import ConfigurationError
from dualwrite.extras import brought_by
from dualwrite.spark.batch.batch import Observe, WholeBatch, Work
from dualwrite.spark.batch.tasks import PreparedTask
from dualwrite.spark.plan.options import WriteOptions, options_of

with brought_by("spark"):
    from pyspark import TaskContext
    from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.types import StructType

NAME = "dualwrite"
"""The data source's name."""

_ZONE = "spark.sql.session.timeZone"
_BATCH = "streaming.sql.batchId"
"""Spark's name of the micro-batch number in the properties of its tasks."""


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """The message from a task to the driver."""

    side: PreparedTask | None


class DualWriteDataSource(DataSource):
    """The data source "dualwrite", for writing: ``spark.dataSource.register(DualWriteDataSource)``, or ``register``.

    :param options: see OPTIONS (docs/spark-batches.md).
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
        batch, work = self._look(options, schema)
        return WholeBatchWriter(options, batch.begin(work, options.batch_id))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "WholeBatchStreamWriter":  # noqa: N802 - PySpark's name
        """A writer of one micro-batch. Its run has begun, unless the writer only commits a run that another one has
        begun: that is so if this data source was sent to this process.

        :raises ConfigurationError: as :meth:`writer`.
        """
        options = self._options(overwrite)
        options.require_job()
        if options.batch_id is not None:
            raise ConfigurationError("option 'batchId': a stream numbers its batches itself; remove it")
        batch, work = self._look(options, schema)
        return WholeBatchStreamWriter(options, work if self._was_sent else batch.begin(work, None))

    def _options(self, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise ConfigurationError(
                'what is in Kafka cannot be overwritten: use mode("append"), or outputMode("append"); to replace rows '
                "by their key, the option upsertKeys"
            )
        return options_of(self.options)

    def _look(self, options: WriteOptions, schema: "StructType") -> tuple[WholeBatch, Work]:
        batch = WholeBatch(options, type(self).on_step)
        return batch, batch.look(schema.jsonValue(), "UTC")  # tasks know the session's time zone


class WholeBatchWriter(DataSourceWriter):
    """Writes a DataFrame atomically; called by PySpark."""

    def __init__(self, options: WriteOptions, work: Work) -> None:
        self._options = options
        self._work = work

    def write(self, iterator: "Iterator[Row]") -> Message:
        """Write one task's partition."""
        return _written(self._work, iterator)

    def commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Decide the run; see WholeBatch.commit."""
        self._batch().commit(self._work, _sides(messages), self._options.batch_id)

    def abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Roll back what is not decided: a task has failed for good, or the commit has."""
        self._batch().abort(self._work.run, self._options.batch_id)

    def _batch(self) -> WholeBatch:
        return WholeBatch(self._options, self._work.on_step)


class WholeBatchStreamWriter(DataSourceStreamWriter):
    """Writes a micro-batch atomically; called by PySpark.

    :param work: with a run in a writer that writes, without one in a writer that only commits.
    """

    def __init__(self, options: WriteOptions, work: Work) -> None:
        self._options = options
        self._work = work

    def write(self, iterator: "Iterator[Row]") -> Message:
        """Write one task's partition."""
        return _written(self._work, iterator)

    def commit(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        """Decide the run. A micro-batch that was committed before has no second effect."""
        batch, sides = WholeBatch(self._options, self._work.on_step), _sides(messages)
        runs = [side.run for side in sides if side is not None]
        # A micro-batch without partitions has no task that tells its run.
        work = self._work.of(runs[0]) if runs else batch.begin(self._work, batchId)
        batch.commit(work, sides, batchId)

    def abort(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        """Roll back what is not decided. If no task tells the run, the next run does it."""
        for side in _sides(messages):
            if side is not None:
                WholeBatch(self._options, self._work.on_step).abort(side.run, batchId)
                return


def register(spark: "SparkSession") -> None:
    """Register ``format("dualwrite")`` with ``spark``."""
    spark.dataSource.register(DualWriteDataSource)


def _written(work: Work, rows: "Iterator[Row]") -> Message:
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty(_BATCH)
    return Message(
        work.write(
            rows,
            context.partitionId(),
            context.taskAttemptId(),
            zone=context.getLocalProperty(_ZONE),
            batch_id=None if number is None else int(number),
        )
    )


def _sides(messages: Iterable[WriterCommitMessage | None]) -> list[PreparedTask | None]:
    return [message.side if isinstance(message, Message) else None for message in messages]
