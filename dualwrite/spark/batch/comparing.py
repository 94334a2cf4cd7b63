"""Compares a batch that is run again with the batch that was committed under its number.

The number alone may be wrong: the caller's numbers may begin again, the table may have been created again, or the job
may write to another topic. Without a comparison those rows would be thrown away in silence.
"""

import logging
from typing import NamedTuple

from sqlalchemy import Connection, inspect, literal, select, table
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import BatchChangedError
from dualwrite.spark.batch.known_batches import BatchContent, BatchTarget
from dualwrite.spark.batch.row_sums import digests_differ
from dualwrite.spark.tables.target_table import parse_table_name

_LOG = logging.getLogger("dualwrite")

COMPARE, SKIP = "compare", "skip"
"""The values of the option knownBatch."""
_ADVICE = (
    "give other rows another number, or another target another job; if the batch is right as it was written, set "
    "knownBatch=skip for this run"
)


class BatchResult(NamedTuple):
    """The result of a whole batch.

    :param is_written: True if this call has written the batch; False if it was committed before, and this call has
        written nothing.
    :param rows: the number of the batch's rows.
    :param records: the number of its records in Kafka: one for each row.
    """

    is_written: bool
    rows: int
    records: int


def batch_target_of(connection: Connection, dbtable: str, topic: str | None) -> BatchTarget:
    """The target of a batch, as it is now.

    :param topic: None if each row names its topic.
    """
    schema, name = parse_table_name(dbtable)
    own_schema = schema or inspect(connection).default_schema_name
    identity = database_of(connection.dialect).table_id(connection, schema, name)
    return BatchTarget(f"{own_schema}.{name}" if own_schema else name, identity, topic)


def require_same_target(batch: str, known: BatchContent, target: BatchTarget) -> None:
    """Pass if ``batch`` was written to ``target``, as far as that is known.

    :param batch: the batch's name, for messages.
    :raises BatchChangedError: if it was written to another table or topic, or to an earlier table of the same name.
    """
    before = known.target
    if before is None:
        return
    if before.table != target.table and (before.table_id is None or before.table_id != target.table_id):
        raise BatchChangedError(f"{batch} was written to table {before.table}, and not to {target.table}: {_ADVICE}")
    if before.topic != target.topic:
        raise BatchChangedError(f"{batch} was written to {_topic(before)}, and not to {_topic(target)}: {_ADVICE}")
    if _was_made_again(before.table_id, target.table_id):
        raise BatchChangedError(
            f"{batch} was written to a table {before.table} that is gone, and not to the present {target.table}, which "
            f"was created later: {_ADVICE}"
        )


def require_rows_there(connection: Connection, batch: str, known: BatchContent, dbtable: str) -> None:
    """Pass if the table has rows, or if the batch has none. A single row is enough: rows may be changed or deleted
    for good reasons, but an empty table cannot be told from one that was created again.

    :param batch: the batch's name, for messages.
    :raises BatchChangedError: if the table is empty.
    """
    schema, name = parse_table_name(dbtable)
    if not known.rows:
        return
    try:
        is_empty = connection.scalar(select(literal(1)).select_from(table(name, schema=schema)).limit(1)) is None
    except DBAPIError as error:
        _LOG.info("%s: it is not known whether its rows are in %s: %s", batch, dbtable, error)
        return
    if is_empty:
        raise BatchChangedError(f"{batch} was written with {known.rows} rows, and table {dbtable} is empty: {_ADVICE}")


def require_same_rows(batch: str, known: BatchContent, rows: BatchContent) -> None:
    """Pass if ``rows`` are the rows that ``batch`` was written with, in any order and in any partitions.

    :param batch: the batch's name, for messages.
    :raises BatchChangedError: if they differ.
    """
    if known.rows != rows.rows:
        raise BatchChangedError(f"{batch} was written with {known.rows} rows, and has {rows.rows} now: {_ADVICE}")
    before, now = known.digest, rows.digest
    if before is not None and now is not None and digests_differ(before, now):
        raise BatchChangedError(f"{batch} was written with {known.rows} rows, and some of them differ now: {_ADVICE}")


def _topic(target: BatchTarget) -> str:
    return "a topic for each row" if target.topic is None else f"topic {target.topic}"


def _was_made_again(before: str | None, now: str | None) -> bool:
    """True if both are tables of one database, and differ."""
    if before is None or now is None:
        return False
    return before != now and before.rpartition(":")[0] == now.rpartition(":")[0]
