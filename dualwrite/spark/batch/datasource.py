"""``df.write.format("dualwrite")`` and ``writeStream``: whole batches through PySpark's Python data sources.

Spark calls the parts of it in processes of their own: one makes the writer, which begins the run; tasks write; another
one is told to commit or to abort. Nothing of it lasts from one to the next but what is sent, and the database.
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
"""Of the data source."""

_ZONE = "spark.sql.session.timeZone"
_BATCH = "streaming.sql.batchId"
"""What Spark calls the number of a micro-batch, in the properties of its tasks."""


@dataclass(frozen=True)
class Message(WriterCommitMessage):
    """What a task tells the driver."""

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
        """As ``format`` takes it."""
        return NAME

    def writer(self, schema: "StructType", overwrite: bool) -> "WholeBatchWriter":
        """A writer that has begun a run.

        :raises ConfigurationError: naming what is wrong with the options, or which column does not fit.
        """
        options = self._options(overwrite)
        batch, work = self._look(options, schema)
        return WholeBatchWriter(options, batch.begin(work, options.batch_id))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "WholeBatchStreamWriter":  # noqa: N802 - PySpark's name
        """A writer of one micro-batch. It has begun a run, unless it is made to commit what another one has begun: then
        this data source was sent here.

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
        return batch, batch.look(schema.jsonValue(), "UTC")  # tasks know the session's zone


class WholeBatchWriter(DataSourceWriter):
    """Writes a DataFrame as one act. PySpark's."""

    def __init__(self, options: WriteOptions, work: Work) -> None:
        self._options = options
        self._work = work

    def write(self, iterator: "Iterator[Row]") -> Message:
        """One task's partition."""
        return _written(self._work, iterator)

    def commit(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Decide. See WholeBatch.commit."""
        self._batch().commit(self._work, _sides(messages), self._options.batch_id)

    def abort(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """A task has failed for good, or the commit: undo what is not decided."""
        self._batch().abort(self._work.run, self._options.batch_id)

    def _batch(self) -> WholeBatch:
        return WholeBatch(self._options, self._work.on_step)


class WholeBatchStreamWriter(DataSourceStreamWriter):
    """Writes a micro-batch as one act. PySpark's.

    :param work: with a run for who writes, without one for who commits.
    """

    def __init__(self, options: WriteOptions, work: Work) -> None:
        self._options = options
        self._work = work

    def write(self, iterator: "Iterator[Row]") -> Message:
        """One task's partition."""
        return _written(self._work, iterator)

    def commit(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        """Decide. A micro-batch that was committed before has no second effect."""
        batch, sides = WholeBatch(self._options, self._work.on_step), _sides(messages)
        runs = [side.run for side in sides if side is not None]
        # A micro-batch without partitions has no task that would say which run it is.
        work = self._work.of(runs[0]) if runs else batch.begin(self._work, batchId)
        batch.commit(work, sides, batchId)

    def abort(self, messages: Iterable[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's
        """Undo what is not decided; if no task says which run it is, the next one does that."""
        for side in _sides(messages):
            if side is not None:
                WholeBatch(self._options, self._work.on_step).abort(side.run, batchId)
                return


def register(spark: "SparkSession") -> None:
    """Make ``format("dualwrite")`` known to ``spark``."""
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
