"""Writers for ``foreachPartition`` and ``foreachBatch``: each partition is one unit of work, and is written once.

Spark's driver runs every check in advance and counts the partitions. The executors get a plan.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.sql.engine.database_errors import as_library_errors, connected
from dualwrite.coordinator.sql.engine.error_meanings import is_transient
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, DatabaseBusyError, InputError
from dualwrite.spark.error_translation import as_raised_in_the_task, database_errors_translated
from dualwrite.spark.known.targets import SKIP, batch_target_of
from dualwrite.spark.partitions.batches import begin_batch
from dualwrite.spark.partitions.end_of_rows import up_to_the_end
from dualwrite.spark.partitions.progress import BatchPartition, BegunBatch, claim, finish, require_same
from dualwrite.spark.plan.columns import TableColumn, ValueFidelity, WritePlan, match_columns, plan_of
from dualwrite.spark.plan.converted_row import ConvertedRow
from dualwrite.spark.plan.options import WriteOptions, batch_id_of, options_of
from dualwrite.spark.plan.rows import RowConverter, RowsDigest
from dualwrite.spark.tables.bulk_load import Loader, chunks, table_clause
from dualwrite.spark.tables.target_table import checked_target_of
from dualwrite.spark.task_socket import SentToTask
from dualwrite.spark.unpickling import ReducedObject, reduced
from dualwrite.spark.workers import (
    Worker,
    dual_write_of,
    engine_of,
    first_connection,
    require_classic,
    require_kafka,
    require_number,
    require_shared,
    worker_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PAUSE = 0.2
"""Seconds before a task looks again whether another attempt still writes its partition."""
_ALL_ONE_BATCH = (
    "without a batchId every micro-batch would be batch 0 of the job: use foreachBatch(batch_writer(…)), which gives "
    "each its number"
)
_WAITING_ERRORS = (DBAPIError, DatabaseBusyError)
"""Errors that a task gets while another attempt writes its partition."""


@dataclass(frozen=True)
class PartitionWriter(SentToTask):
    """Writes one partition's rows, in a Spark task. Made by :func:`partition_writer`; it can be pickled.

    :param batch: None if all of it was written before, and is to be skipped.
    """

    options: WriteOptions
    plan: WritePlan
    columns: tuple[TableColumn, ...]
    keeps: ValueFidelity
    batch: BegunBatch | None

    def __reduce__(self) -> ReducedObject:
        return reduced(self)

    def __call__(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write ``rows``, unless an earlier attempt has written them.

        :param rows: all rows of the task's partition.
        :raises BatchChangedError: if the earlier attempt wrote other rows, or if the batch has another number of
            partitions or another target now.
        :raises InputError: if the table or Kafka cannot take a row. After this and every other error, nothing is
            written.
        :raises ConnectionError: if Spark has ended the task before it has sent all rows.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            raise ConfigurationError("a partition writer is called by Spark: df.foreachPartition(writer)")
        if isinstance(rows, tuple):
            raise ConfigurationError("the writer was given one row: use df.foreachPartition(writer), not df.foreach")
        partition = context.partitionId()
        if self.batch is not None and partition >= self.batch.partitions:
            raise ConfigurationError(
                f"the writer was made for {self.batch.partitions} partitions, and this is partition {partition}: make "
                "the writer for the DataFrame that is written"
            )
        self.write(worker_of(self.options), partition, up_to_the_end(rows))

    def write(self, worker: Worker, partition: int, rows: Iterable[Sequence[Any]]) -> bool:
        """Write ``rows``, with the engine and the DualWrite of ``worker``. False if the partition was written before.

        Raises the same errors as a call of this object.

        :param partition: the partition's number, counted from 0.
        :param rows: all rows of the partition.
        """
        if self.batch is None:
            for _ in rows:
                pass  # a stateful query stores its state while its rows are read
            return False
        share = BatchPartition(self.batch, partition)
        unread_rows = _UnreadRows(RowConverter(self.plan, self.columns, self.keeps).rows(rows))
        deadline = time.monotonic() + self.options.run_timeout
        while True:
            try:
                manager_of(worker.dual_write).require_kafka()
                with worker.dual_write.transaction() as tx:
                    is_ours = claim(tx.connection, share)
                    if is_ours:
                        self._load(tx, share, unread_rows)
                break
            except InputError as error:
                raise InputError(f"{share}: {error}") from error
            except Exception as error:
                # The rows can be read only once. So wait while another attempt may still write them.
                is_final = unread_rows.is_read or time.monotonic() > deadline
                if is_final or not isinstance(error, _WAITING_ERRORS) or not is_transient(error, worker.engine.dialect):
                    with database_errors_translated(str(share)):
                        raise
            time.sleep(_PAUSE)
        if not is_ours:
            self._compare(worker, share, unread_rows)
        return is_ours

    def _load(self, tx: Transaction, share: BatchPartition, rows: Iterable[ConvertedRow]) -> None:
        target = table_clause(self.options.dbtable, self.columns)
        loader = Loader(tx.connection, target, self._upsert_keys())
        digest = RowsDigest()
        for chunk in chunks(rows, self.options.batchsize):
            loader.write([row.values for row in chunk])
            for row in chunk:
                tx.produce(row.topic, row.value, row.key, row.partition, headers=row.headers)
                digest.add(row)
        finish(tx.connection, share, digest)

    def _compare(self, worker: Worker, share: BatchPartition, rows: Iterable[ConvertedRow]) -> None:
        digest = RowsDigest()
        for row in rows:
            digest.add(row)
        with as_library_errors(worker.engine.dialect), connected(worker.engine) as connection:
            require_same(connection, share, digest)

    def _upsert_keys(self) -> tuple[str, ...]:
        return self.options.upsert_keys


class _UnreadRows:
    """Rows that can be read only once; remembers whether reading has begun."""

    def __init__(self, rows: Iterator[ConvertedRow]) -> None:
        self._rows = rows
        self.is_read = False

    def __iter__(self) -> Iterator[ConvertedRow]:
        self.is_read = True
        return self._rows


class BatchWriter:
    """Writes a whole DataFrame, partition by partition. Made by :func:`batch_writer`."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def __call__(self, df: "DataFrame", batch_id: int) -> None:
        """Write those partitions of ``df`` that are not written yet, as batch ``batch_id`` of the job.

        If a task raises an error of this library, this raises the same error. Otherwise it raises Spark's error.

        :raises BatchChangedError: if a part of the batch was written, with other rows or another number of partitions,
            or to another target.
        :raises ConfigurationError: as :func:`partition_writer` does.
        :raises KafkaUnavailableError: as :func:`partition_writer` does.
        """
        with as_raised_in_the_task():
            df.foreachPartition(_writer(df, replace(self._options, batch_id=batch_id_of(batch_id))))


def partition_writer(df: "DataFrame", /, **options: Any) -> PartitionWriter:
    """A writer for the rows of ``df``: ``df.foreachPartition(partition_writer(df, …))``.

    Each partition is one unit of work: its rows are in the table and its records in Kafka, or neither. A written
    partition is not written again: neither by another attempt of its task, nor by a later run of the same job with the
    same ``batchId`` (0 by default). Call this on Spark's driver: it checks the DataFrame, the table and the options.

    :param df: the same DataFrame that is written: its number of partitions is a part of the batch.
    :param options: the options of docs/spark.md. url, dbtable, application, job and kafka are required. topic is
        required unless the DataFrame has a column of that name.
    :raises ConfigurationError: naming the option or the column that is wrong.
    :raises BatchChangedError: if a part of the batch was written with another number of partitions or to another
        target, or if the batch was forgotten.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    :raises KafkaUnavailableError: if the cluster does not answer within seconds. Nothing was begun: try again later.
    """
    return _writer(df, options_of(options))


def batch_writer(**options: Any) -> BatchWriter:
    """A writer for ``foreachBatch``: ``stream.writeStream.foreachBatch(batch_writer(…))``. A batch that a restarted
    query runs again has no second effect.

    ``batch_writer(…)(df, 7)`` writes any DataFrame as batch 7 of the job, and raises this library's errors.

    :param options: as for :func:`partition_writer`, without ``batchId``, which comes with each batch.
    :raises ConfigurationError: naming the option that is wrong.
    """
    parsed = options_of(options)
    parsed.require_job()
    if parsed.batch_id is not None:
        raise ConfigurationError("option 'batchId': leave it out; each batch comes with its own")
    return BatchWriter(parsed)


def _writer(df: "DataFrame", options: WriteOptions) -> PartitionWriter:
    job = options.require_job()
    require_classic(df)
    if df.isStreaming:
        raise ConfigurationError("the DataFrame is a stream: use df.writeStream.foreachBatch(batch_writer(…))")
    require_number(df, options.batch_id, _ALL_ONE_BATCH)
    session = df.sparkSession
    require_shared(options, session.sparkContext.master or "")
    plan = plan_of(df.schema.jsonValue(), options, session.conf.get("spark.sql.session.timeZone") or "UTC")
    engine = engine_of(options)
    try:
        dual_write_of(options, engine).close()  # checks the settings
        with first_connection(engine) as connection:
            target = checked_target_of(connection, options.dbtable)
            batch_target = batch_target_of(connection, options.dbtable, plan.topic)
        columns = match_columns(plan, target, options)
        require_kafka(options, f"job {job!r}")
        batch = BegunBatch(job, options.batch_id or 0, df.rdd.getNumPartitions(), batch_target)
        skips = options.known_batch == SKIP
        begun = begin_batch(engine, batch, options.dbtable, options.keep_batches, skips=skips)
    finally:
        engine.dispose()
    return PartitionWriter(options, plan, columns, target.keeps, begun)
