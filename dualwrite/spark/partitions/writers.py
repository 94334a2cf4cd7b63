"""Writers for ``foreachPartition`` and ``foreachBatch``: each partition is one unit of work, and is written once.

The driver runs every check in advance, and counts the partitions; executors get a plan.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.unit.retry import may_pass
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, DatabaseBusyError, InputError
from dualwrite.spark.error_translation import REFUSALS, as_raised_in_the_task, refused
from dualwrite.spark.partitions.progress import Share, begin_batch, claim, finish, require_same
from dualwrite.spark.plan.columns import TableColumn, WritePlan, fit, plan_of
from dualwrite.spark.plan.options import WriteOptions, batch_id_of, options_of
from dualwrite.spark.plan.rows import RowConverter, RowsDigest, Written
from dualwrite.spark.tables.bulk_load import Loader, chunks, table_clause
from dualwrite.spark.tables.target_table import sound_target_of
from dualwrite.spark.workers import (
    Worker,
    dual_write_of,
    engine_of,
    first_connection,
    require_classic,
    require_known_settings,
    require_shared,
    worker_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAUSE = 0.2
"""Seconds before a task looks again whether another attempt still writes its partition."""
_KEPT_WAITING = (DBAPIError, DatabaseBusyError)
"""Errors of a task while another attempt writes its partition."""


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes one partition's rows, in a Spark task. Made by :func:`partition_writer`; it can be pickled."""

    options: WriteOptions
    plan: WritePlan
    columns: tuple[TableColumn, ...]
    dialect: str
    partitions: int

    def __call__(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write ``rows``, all rows of the task's partition, unless an earlier attempt has.

        :raises BatchChangedError: if that attempt wrote other rows, or the batch has another number of partitions now.
        :raises InputError: if the table or Kafka cannot take a row. As after all other errors, nothing is written then.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise ConfigurationError("a partition writer is called by Spark: df.foreachPartition(writer)")
        partition = context.partitionId()
        if partition >= self.partitions:
            raise ConfigurationError(
                f"partition {partition} is none of the {self.partitions} that the writer was made for: make it for the "
                "DataFrame that is written"
            )
        self.write(worker_of(self.options), partition, rows)

    def write(self, worker: Worker, partition: int, rows: Iterable[Sequence[Any]]) -> bool:
        """Write ``rows`` as those of ``partition``, with the engine and DualWrite of ``worker``; False if they were
        written before.

        Raises the same errors as a call.
        """
        options = self.options
        share = Share(options.require_job(), options.batch_id or 0, partition, self.partitions)
        untaken = _Untaken(RowConverter(self.plan, self.columns, self.dialect).rows(rows))
        deadline = time.monotonic() + options.run_timeout
        while True:
            try:
                with worker.dual_write.transaction() as tx:
                    is_ours = claim(tx.connection, share)
                    if is_ours:
                        self._load(tx, share, untaken)
                break
            except REFUSALS as error:
                raise refused(str(share), error) from error
            except InputError as error:
                raise InputError(f"{share}: {error}") from error
            except Exception as error:
                # The rows can be read only once. So first wait for another attempt, for as long as it takes to write
                # them.
                is_over = untaken.is_taken or time.monotonic() > deadline
                if is_over or not isinstance(error, _KEPT_WAITING) or not may_pass(error, worker.engine.dialect):
                    raise
            time.sleep(_PAUSE)
        if not is_ours:
            self._compare(worker, share, untaken)
        return is_ours

    def _load(self, tx: Transaction, share: Share, rows: Iterable[Written]) -> None:
        into = table_clause(self.options.dbtable, self.columns)
        loader = Loader(tx.connection, into, self._key())
        digest = RowsDigest()
        for chunk in chunks(rows, self.options.batchsize):
            loader.write([row.values for row in chunk])
            for row in chunk:
                tx.produce(row.topic, row.value, row.key, row.partition, headers=row.headers)
                digest.add(row)
        finish(tx.connection, share, digest)

    def _compare(self, worker: Worker, share: Share, rows: Iterable[Written]) -> None:
        digest = RowsDigest()
        for row in rows:
            digest.add(row)
        with worker.engine.connect() as connection:
            require_same(connection, share, digest)

    def _key(self) -> tuple[str, ...]:
        return self.options.upsert_keys


class _Untaken:
    """Rows that can be read only once; remembers whether reading has begun."""

    def __init__(self, rows: Iterator[Written]) -> None:
        self._rows = rows
        self.is_taken = False

    def __iter__(self) -> Iterator[Written]:
        self.is_taken = True
        return self._rows


class BatchWriter:
    """Writes a whole DataFrame, partition by partition. Made by :func:`batch_writer`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        """Write ``df`` as batch ``batch_id`` of the job: its partitions that are not written yet.

        Raises the errors of its tasks if they are this library's, else Spark's errors.

        :raises BatchChangedError: if a part of the batch was written, with other rows or another number of partitions.
        :raises ConfigurationError: as :func:`partition_writer` does.
        """
        with as_raised_in_the_task():
            df.foreachPartition(_writer(df, replace(self._options, batch_id=batch_id_of(batch_id))))


def partition_writer(df: "DataFrame", /, **options: Any) -> PartitionWriter:
    """A writer for the rows of ``df``: ``df.foreachPartition(partition_writer(df, …))``.

    Each partition is one unit of work: its rows are in the table and its records in Kafka, or neither. A partition that
    was written is not written again, neither by another attempt of its task, nor by the same job run again with the
    same ``batchId`` (0 if it is not given). Call this on the driver: it checks the DataFrame, the table and the
    options.

    :param df: the same DataFrame that is written: its number of partitions is a part of the batch.
    :param options: see docs/spark.md. url, dbtable, application, job and kafka are required, and topic unless there is
        a column of that name.
    :raises ConfigurationError: naming the option or the column that is wrong.
    :raises BatchChangedError: if a part of the batch was written with another number of partitions.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    return _writer(df, options_of(options))


def batch_writer(**options: Any) -> BatchWriter:
    """A writer for ``foreachBatch``: ``stream.writeStream.foreachBatch(batch_writer(…))``. A batch that a restarted
    query runs again has no second effect.

    ``batch_writer(…)(df, 7)`` writes any DataFrame as batch 7 of the job, and raises this library's errors.

    :param options: as for :func:`partition_writer`, without ``batchId``, which comes with each batch.
    :raises ConfigurationError: naming the option that is wrong.
    """
    given = options_of(options)
    given.require_job()
    if given.batch_id is not None:
        raise ConfigurationError("option 'batchId': leave it out; each batch comes with its own")
    return BatchWriter(given)


def _writer(df: "DataFrame", options: WriteOptions) -> PartitionWriter:
    job = options.require_job()
    require_classic(df)
    if df.isStreaming:
        raise ConfigurationError("the DataFrame is a stream: use df.writeStream.foreachBatch(batch_writer(…))")
    session = df.sparkSession
    require_shared(options, session.sparkContext.master or "")
    plan = plan_of(df.schema.jsonValue(), options, session.conf.get("spark.sql.session.timeZone") or "UTC")
    engine = engine_of(options)
    try:
        dual_write_of(options, engine).close()  # checks the settings
        require_known_settings(options)
        with first_connection(engine) as connection:
            target = sound_target_of(connection, options.dbtable)
        columns = fit(plan, target, options)
        partitions = df.rdd.getNumPartitions()
        begin_batch(engine, job, options.batch_id or 0, partitions, options.keep_batches)
    finally:
        engine.dispose()
    return PartitionWriter(options, plan, columns, target.dialect, partitions)
