"""Compares the target of a batch that is run again with the target that it was written to.

A batch's number alone may be wrong: the caller's numbers may begin again, the table may have been created again, or the
job may write to another topic. Without a comparison those rows would be thrown away in silence.
"""

import logging
from typing import Any, NamedTuple

from sqlalchemy import Connection, inspect, literal, select, table
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import BatchChangedError
from dualwrite.spark.tables.target_table import parse_table_name

_LOG = logging.getLogger("dualwrite")

COMPARE, SKIP = "compare", "skip"
"""The values of the option knownBatch."""
ADVICE = (
    "give other rows another number, or another target another job; if the batch is right as it was written, set "
    "knownBatch=skip for this run"
)
"""What a user can do if a known batch differs."""
TARGET_COLUMNS = ("table_name", "table_id", "topic")
"""The columns of a target in the library's tables."""


class BatchTarget(NamedTuple):
    """Where a batch is written.

    :param table: the table, with its schema.
    :param table_id: tells the table from an earlier table of the same name (Database.table_id); None if not known.
    :param topic: None if each row names its topic.
    """

    table: str
    table_id: str | None
    topic: str | None

    def __str__(self) -> str:
        return f"table {self.table} and {self.topic_name}"

    @property
    def topic_name(self) -> str:
        """The topic, for messages."""
        return "a topic for each row" if self.topic is None else f"topic {self.topic}"


def target_columns(target: BatchTarget | None) -> dict[str, Any]:
    """The values of the columns of ``target``; nothing if it is not known."""
    return {} if target is None else dict(zip(TARGET_COLUMNS, target, strict=True))


def target_in(row: Any) -> BatchTarget | None:
    """The target in ``row``; None if an earlier release has written the row."""
    return None if row.table_name is None else BatchTarget(row.table_name, row.table_id, row.topic)


def batch_target_of(connection: Connection, dbtable: str, topic: str | None) -> BatchTarget:
    """The target of a batch, as it is now.

    :param topic: None if each row names its topic.
    """
    schema, name = parse_table_name(dbtable)
    own_schema = schema or inspect(connection).default_schema_name
    identity = database_of(connection.dialect).table_id(connection, schema, name)
    return BatchTarget(f"{own_schema}.{name}" if own_schema else name, identity, topic)


def require_same_target(batch: str, before: BatchTarget | None, target: BatchTarget, advice: str = ADVICE) -> None:
    """Pass if ``batch`` was written to ``target``, as far as that is known.

    :param batch: the batch's name, for messages.
    :param before: where it was written; None if that is not known.
    :param advice: what the user can do, for messages.
    :raises BatchChangedError: if it was written to another table or topic, or to an earlier table of the same name.
    """
    if before is None:
        return
    if before.table != target.table and (before.table_id is None or before.table_id != target.table_id):
        raise BatchChangedError(f"{batch} was written to table {before.table}, and not to {target.table}: {advice}")
    if before.topic != target.topic:
        raise BatchChangedError(f"{batch} was written to {before.topic_name}, and not to {target.topic_name}: {advice}")
    if _was_made_again(before.table_id, target.table_id):
        raise BatchChangedError(
            f"{batch} was written to a table {before.table} that is gone, and not to the present {target.table}, which "
            f"was created later: {advice}"
        )


def require_rows_there(connection: Connection, batch: str, rows: int, dbtable: str) -> None:
    """Pass if the table has rows, or if the batch has none. A single row is enough: rows may be changed or deleted
    for good reasons, but an empty table cannot be told from one that was created again.

    :param batch: the batch's name, for messages.
    :param rows: how many rows of the batch were written.
    :raises BatchChangedError: if the table is empty.
    """
    schema, name = parse_table_name(dbtable)
    if not rows:
        return
    try:
        is_empty = connection.scalar(select(literal(1)).select_from(table(name, schema=schema)).limit(1)) is None
    except DBAPIError as error:
        _LOG.info("%s: it is not known whether its rows are in %s: %s", batch, dbtable, error)
        return
    if is_empty:
        raise BatchChangedError(f"{batch} was written with {rows} rows, and table {dbtable} is empty: {ADVICE}")


def _was_made_again(before: str | None, now: str | None) -> bool:
    """True if both are tables of one database, and differ."""
    if before is None or now is None:
        return False
    return before != now and before.rpartition(":")[0] == now.rpartition(":")[0]
