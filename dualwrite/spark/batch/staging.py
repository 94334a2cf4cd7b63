"""The staging table of a run: a table beside the target, whose columns have the same types.

Tasks add rows to it and mark each row with its partition and attempt. Spark's driver moves the rows of the attempts
that count, in the order of the partitions, and deletes the others. The driver makes one table for each set of columns,
and keeps it for as long as the target has these columns.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnClause,
    Connection,
    Dialect,
    Engine,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    TableClause,
    column,
    func,
    inspect,
    or_,
    select,
    table,
)
from sqlalchemy.exc import CompileError, DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.types import TypeEngine

from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import first_line
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DualWriteError
from dualwrite.spark.batch.runs import RUN_COLUMN, Run
from dualwrite.spark.plan.columns import TableColumn
from dualwrite.spark.tables.bulk_load import table_clause
from dualwrite.spark.tables.target_table import parse_table_name

_LOG = logging.getLogger("dualwrite")

PART, ATTEMPT, ROW = "dualwrite_part", "dualwrite_attempt", "dualwrite_row"
_MARK_COLUMNS = (RUN_COLUMN, PART, ATTEMPT, ROW)
_RANK = "dualwrite_rank"
_LONGEST_NAME = 30
"""How many bytes of the target's name are in the staging table's name. PostgreSQL's names have at most 63 bytes."""
_PATIENCE = 1.0
"""Seconds to wait for the lock of a table that is to be dropped. The lock is free unless the table is in use."""
ATTEMPTS = 500
"""How many attempts' rows one statement moves."""


class Staging(NamedTuple):
    """A staging table.

    :param qualified_name: its schema, None for the connection's own, and its name.
    :param is_new: True if it was missing.
    """

    qualified_name: tuple[str | None, str]
    is_new: bool


class Attempt(NamedTuple):
    """The attempt of a task. Its staged rows are marked with it.

    :param attempt: Spark's number of the attempt, which no other attempt of the run has.
    :param rows: the number of its rows.
    """

    part: int
    attempt: int
    rows: int


class _Type(NamedTuple):
    """The type of a column.

    :param name: its name in the database; None if SQLAlchemy does not know it.
    :param number: its number, on a database where another type of the same name may replace it.
    :param texts: the table's options for texts, if it is a text.
    """

    kind: TypeEngine[Any]
    name: str | None
    number: int | None
    texts: Mapping[str, str]


def make_staging(engine: Engine, dbtable: str, columns: Sequence[TableColumn]) -> Staging:
    """Make the staging table for ``columns`` of ``dbtable``, unless it exists.

    :raises ConfigurationError: if the database refuses, if SQLAlchemy does not know the type of a column, or if a
        column has the name of a column that marks rows.
    :raises DatabaseBusyError: if a column is gone, because the table was changed since it was checked.
    """
    schema, name = parse_table_name(dbtable)
    with engine.connect() as connection:
        column_names = [table_column.name for table_column in columns]
        types = _types_if_there(connection, schema, name)
        if not types.keys() >= set(column_names):
            raise DatabaseBusyError(f"table {dbtable} was changed meanwhile: run the batch again")
        for column_name in column_names:
            if column_name.lower() in (*_MARK_COLUMNS, _RANK):
                raise ConfigurationError(
                    f"column {column_name!r} of table {dbtable} has the name of a column of the table of staged rows: "
                    "rename it, or write the DataFrame partition by partition"
                )
            if types[column_name].name is None:
                raise ConfigurationError(
                    f"column {column_name!r} of table {dbtable} has a type that the table of staged rows cannot have: "
                    "leave the column out, or write the DataFrame partition by partition"
                )
        staged = Table(
            _staging_name((schema, name), types, column_names),
            MetaData(),
            *(
                Column(
                    column_name, Integer if column_name == PART else BigInteger, primary_key=True, autoincrement=False
                )
                for column_name in _MARK_COLUMNS
            ),
            *(Column(column_name, types[column_name].kind) for column_name in column_names),
            schema=schema,
            # If a crash of the server loses rows, move_rows notices it, and the run is aborted.
            **database_of(engine.dialect).staging_options(connection, schema, name),
        )
        is_new = _make(connection, staged)
    return Staging((schema, staged.name), is_new)


def drop_outdated(engine: Engine, dbtable: str, is_used: Callable[[tuple[str | None, str]], bool]) -> None:
    """Drop the staging tables of ``dbtable`` that were made for columns or types that it no longer has. Raises no
    database error, because such tables do no harm.

    :param is_used: takes a schema and a name, and returns True if an open run needs that table. Called while no run can
        begin to use the table.
    """
    schema, name = parse_table_name(dbtable)
    try:
        with engine.connect() as connection:
            outdated = _outdated(connection, schema, name)
        for outdated_name in outdated:
            _drop(engine, Table(outdated_name, MetaData(), schema=schema), is_used)
    except (DBAPIError, NoSuchTableError, DualWriteError) as error:
        _LOG.info("outdated tables for staged rows of %s were not dropped: %s", dbtable, error)


def _outdated(connection: Connection, schema: str | None, name: str) -> list[str]:
    """The staging tables of the table ``name`` that were made for other columns or types than it has now."""
    inspector, prefix = inspect(connection), _prefix(schema, name)
    types = _types_of(connection, schema, name)
    outdated_names = []
    for table_name in inspector.get_table_names(schema):
        if table_name.startswith(prefix):
            column_names = [column["name"] for column in inspector.get_columns(table_name, schema)][
                len(_MARK_COLUMNS) :
            ]
            if not _is_for((schema, name), types, column_names, table_name):
                outdated_names.append(table_name)
    return outdated_names


def _is_for(
    target: tuple[str | None, str], types: Mapping[str, _Type], column_names: Sequence[str], staging_name: str
) -> bool:
    """True if the table called ``staging_name`` is the one for the columns ``column_names`` of ``target`` as they are
    now."""
    is_made = all(column_name in types and types[column_name].name is not None for column_name in column_names)
    return is_made and _staging_name(target, types, column_names) == staging_name


def _drop(engine: Engine, staging: Table, is_used: Callable[[tuple[str | None, str]], bool]) -> None:
    """Drop ``staging`` unless ``is_used``. A run that begins to use it reads it in the transaction that begins the run:
    one of the two transactions waits for the other."""
    quoted = engine.dialect.identifier_preparer.format_table(staging)
    with (
        SqlDecisionStore(engine, _PATIENCE).transaction(commit=True) as connection,
        database_of(engine.dialect).locked_tables(connection, [quoted]),
    ):
        if is_used((staging.schema, staging.name)):
            return
        connection.execute(DropTable(staging))
    _LOG.info("the table for staged rows %s was dropped: its target has other columns now", staging.name)


def _types_of(connection: Connection, schema: str | None, name: str) -> dict[str, _Type]:
    """The current types of the columns of the table ``name``."""
    dialect = connection.dialect
    columns = inspect(connection).get_columns(name, schema)
    column_types = {reflected["name"]: reflected["type"] for reflected in columns}
    type_numbers = database_of(dialect).type_numbers(connection, schema, name)
    texts = database_of(dialect).text_options(connection, schema, name)
    return {
        column_name: _Type(
            column_type,
            _type_name(column_type, dialect),
            type_numbers.get(column_name),
            texts if isinstance(column_type, String) else {},
        )
        for column_name, column_type in column_types.items()
    }


def _types_if_there(connection: Connection, schema: str | None, name: str) -> dict[str, _Type]:
    """Like :func:`_types_of`; empty if there is no such table."""
    try:
        return _types_of(connection, schema, name)
    except NoSuchTableError:
        return {}


def _type_name(column_type: TypeEngine[Any], dialect: Dialect) -> str | None:
    try:
        return column_type.compile(dialect)
    except CompileError:
        return None


def _staging_name(target: tuple[str | None, str], types: Mapping[str, _Type], column_names: Sequence[str]) -> str:
    """The name of the staging table for the columns ``column_names`` of ``target``. Other columns, types or collations
    result in another name: with another collation the staged rows would have other keys than the target."""
    parts: list[object] = []
    for column_name in column_names:
        column_type = types[column_name]
        texts = [dict(sorted(column_type.texts.items()))] if column_type.texts else []
        parts.append([column_name, column_type.name, column_type.number, *texts])
    return _prefix(*target) + _digest(parts, 9)


def _prefix(schema: str | None, name: str) -> str:
    """The common prefix of the names of all staging tables of one target."""
    beginning = name.encode()[:_LONGEST_NAME].decode(errors="ignore")
    return f"dualwrite_staged_{beginning}_{_digest([schema, name], 6)}"


def _digest(parts: Sequence[object], length: int) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:length]


def _make(connection: Connection, staging: Table) -> bool:
    """Make the table ``staging``; True if it was missing."""
    if connection.dialect.has_table(connection, staging.name, schema=staging.schema):
        return False
    try:
        connection.execute(CreateTable(staging))
        connection.commit()
    except DBAPIError as error:
        connection.rollback()
        if not connection.dialect.has_table(connection, staging.name, schema=staging.schema):
            statement = " ".join(str(CreateTable(staging).compile(dialect=connection.dialect)).split())
            raise ConfigurationError(
                f"the table for staged rows cannot be made ({first_line(error)}): have it made by {statement}"
            ) from error
    return True


def staged_clause(qualified_name: tuple[str | None, str], dbtable: str, columns: Sequence[TableColumn]) -> TableClause:
    """The staging table as SQL: the columns that mark a row, and then ``columns`` of ``dbtable``.

    :param qualified_name: its schema and name.
    """
    schema, name = qualified_name
    target = table_clause(dbtable, columns)
    marks: list[ColumnClause[Any]] = [column(mark, BigInteger) for mark in _MARK_COLUMNS]
    return table(
        name,
        *marks,
        *(column(target_column.name, target_column.type) for target_column in target.columns),
        schema=schema,
    )


def move_rows(
    connection: Connection,
    run: Run,
    dbtable: str,
    columns: Sequence[TableColumn],
    upsert_keys: Sequence[str],
    attempts: Iterable[Attempt],
) -> int:
    """Move the staged rows of ``attempts`` into ``dbtable``; return their number.

    If several rows have the same ``upsert_keys``, the last row of the last partition counts.

    :raises DatabaseBusyError: if rows are missing because PostgreSQL lost them in a crash, or if the table's columns
        have changed since the batch began. The caller must roll the transaction back then.
    """
    _require_unchanged(connection, run, dbtable, columns)
    staged, target = staged_clause(run.staging, dbtable, columns), table_clause(dbtable, columns)
    names = [table_column.name for table_column in columns]
    in_order = (staged.c[PART], staged.c[ATTEMPT], staged.c[ROW])  # of the primary key: one attempt for each partition
    rest = iter(sorted(attempt for attempt in attempts if attempt.rows))
    moved_rows = 0
    database = database_of(connection.dialect)
    database.read_in_key_order(connection, on=not upsert_keys)
    while chunk := list(islice(rest, ATTEMPTS)):
        staged_rows = sum(attempt.rows for attempt in chunk)
        of_chunk = (staged.c[RUN_COLUMN] == run.run_id, staged.c[ATTEMPT].in_([attempt.attempt for attempt in chunk]))
        rows_left = connection.scalar(select(func.count()).select_from(staged).where(*of_chunk))
        if rows_left != staged_rows:
            raise DatabaseBusyError(
                f"{staged_rows} rows of job {run.job!r} were staged, and {rows_left} are left: the database has lost "
                "them in a crash; run the batch again"
            )
        rows = select(*(staged.c[name] for name in names)).where(*of_chunk)
        if upsert_keys:
            rows = _last_of_each_key(staged, rows, upsert_keys, in_order if database.one_writer else ())
        else:
            rows = rows.order_by(*in_order)
        fill = partial(_fill_from_select, names, rows)
        connection.execute(database.insert(target, upsert_keys, fill))
        moved_rows += staged_rows
    database.read_in_key_order(connection, on=False)
    _require_unchanged(connection, run, dbtable, columns)  # again, under the lock until the commit
    return moved_rows


def _require_unchanged(connection: Connection, run: Run, dbtable: str, columns: Sequence[TableColumn]) -> None:
    schema, name = parse_table_name(dbtable)
    types = _types_if_there(connection, schema, name)
    if not _is_for((schema, name), types, [table_column.name for table_column in columns], run.staging[1]):
        raise DatabaseBusyError(f"table {dbtable} was changed while job {run.job!r} was writing: run the batch again")


def _fill_from_select(names: Sequence[str], rows: Select[Any], into: Any) -> Any:
    return into.from_select(names, rows)


def _last_of_each_key(
    staged: TableClause, rows: Select[Any], keys: Sequence[str], in_order: Sequence[ColumnClause[Any]]
) -> Select[Any]:
    """The last row of each key, because a statement of PostgreSQL cannot replace a row twice. Rows with NULL in a key
    column have no key.

    :param in_order: the order of the rows; empty for the database's own. SQLite's target may take several of them for
        one key (COLLATE NOCASE), and the last one has to count. Elsewhere the order of the keys makes deadlocks of
        concurrent batches rarer.
    """
    names = [column_.name for column_ in rows.selected_columns]
    latest = (staged.c[PART].desc(), staged.c[ROW].desc())
    rank = func.row_number().over(partition_by=[staged.c[key] for key in keys], order_by=latest)
    ranked = rows.add_columns(*in_order, rank.label(_RANK)).subquery()
    is_last = or_(ranked.c[_RANK] == 1, *(ranked.c[key].is_(None) for key in keys))
    last_rows = select(*(ranked.c[name] for name in names)).where(is_last)
    return last_rows.order_by(*(ranked.c[mark.name] for mark in in_order))
