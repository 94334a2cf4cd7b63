"""The staging table of a run: a table beside the target, with the types of its columns.

Tasks add rows to it, each under its partition and attempt. The driver moves the rows of the attempts that count, in the
order of the partitions, and deletes the rest. The driver makes the table once for each set of columns, and keeps it
for as long as the target has them.
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
    Table,
    TableClause,
    column,
    func,
    inspect,
    or_,
    select,
    table,
    text,
)
from sqlalchemy.exc import CompileError, DBAPIError, NoSuchTableError
from sqlalchemy.schema import CreateTable, DropTable
from sqlalchemy.types import TypeEngine

from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.tables import ON_MYSQL
from dualwrite.errors import ConfigurationError, DatabaseBusyError, DualWriteError
from dualwrite.spark.batch.runs import RUN_COLUMN, Run
from dualwrite.spark.error_translation import first_line
from dualwrite.spark.plan.columns import TableColumn
from dualwrite.spark.tables.bulk_load import adding, table_clause
from dualwrite.spark.tables.target_table import table_place

_LOG = logging.getLogger("dualwrite")

PART, ATTEMPT, ROW = "dualwrite_part", "dualwrite_attempt", "dualwrite_row"
_MARKS = (RUN_COLUMN, PART, ATTEMPT, ROW)
_RANK = "dualwrite_rank"
_LONGEST_NAME = 30
"""How many bytes of the target's name are in the table's name, which has at most 63 bytes on PostgreSQL."""
_PATIENCE = 1.0
"""Seconds to wait for the lock of a table that is to be dropped: it is free unless the table is in use."""
_ATTEMPTS = 500
"""How many attempts' rows one statement moves."""


class Staging(NamedTuple):
    """A table for staged rows.

    :param place: its schema and name.
    :param is_new: True if it was missing.
    """

    place: tuple[str | None, str]
    is_new: bool


class Attempt(NamedTuple):
    """A task's attempt, as its rows are marked.

    :param attempt: Spark's number of the attempt, which no other attempt of the run has.
    :param rows: the number of its rows.
    """

    part: int
    attempt: int
    rows: int


class _Type(NamedTuple):
    """The type of a column.

    :param said: its name in the database; None if SQLAlchemy does not know it.
    :param number: its number in PostgreSQL: a type may be replaced by another one of the same name.
    """

    kind: TypeEngine[Any]
    said: str | None
    number: int | None


def make_staging(engine: Engine, dbtable: str, columns: Sequence[TableColumn]) -> Staging:
    """The table for staged rows with ``columns`` of ``dbtable``; made if it is missing.

    :raises ConfigurationError: if the database refuses, SQLAlchemy does not know the type of a column, or a column has
        the name of one that marks rows.
    """
    schema, name = table_place(dbtable)
    with engine.connect() as connection:
        names = [each.name for each in columns]
        found = _types_of(connection, schema, name)
        for each in names:
            if each.lower() in (*_MARKS, _RANK):
                raise ConfigurationError(
                    f"column {each!r} of table {dbtable} is called what a table for staged rows has of its own: rename "
                    "it, or write the DataFrame partition by partition"
                )
            if found[each].said is None:
                raise ConfigurationError(
                    f"column {each!r} of table {dbtable} is of a type that no table for staged rows can be made with: "
                    "leave it out, or write the DataFrame partition by partition"
                )
        staged = Table(
            _staged_name((schema, name), found, names),
            MetaData(),
            *(
                Column(each, Integer if each == PART else BigInteger, primary_key=True, autoincrement=False)
                for each in _MARKS
            ),
            *(Column(each, found[each].kind) for each in names),
            schema=schema,
            # If a crash of the server loses rows, move_rows notices it, and the run is aborted.
            prefixes=["UNLOGGED"] if engine.dialect.name == "postgresql" else [],
            **_like(connection, schema, name),
        )
        is_new = _make(connection, staged)
    return Staging((schema, staged.name), is_new)


def drop_outdated(engine: Engine, dbtable: str, is_used: Callable[[tuple[str | None, str]], bool]) -> None:
    """Drop the tables for staged rows of ``dbtable`` whose columns, or their types, it no longer has. Raises no
    database error: such tables do no harm.

    :param is_used: returns True for the place of a table that an open run needs. Called while no run can begin to use
        it.
    """
    schema, name = table_place(dbtable)
    try:
        with engine.connect() as connection:
            outdated = _outdated(connection, schema, name)
        for each in outdated:
            _drop(engine, Table(each, MetaData(), schema=schema), is_used)
    except (DBAPIError, NoSuchTableError, DualWriteError) as error:
        _LOG.info("tables for staged rows that %s has outgrown were not dropped: %s", dbtable, error)


def _outdated(connection: Connection, schema: str | None, name: str) -> list[str]:
    """The staging tables of the table ``name`` that were made for other columns, or types of them, than it has now."""
    inspector, own = inspect(connection), _prefix(schema, name)
    types = _types_of(connection, schema, name)
    found = []
    for each in inspector.get_table_names(schema):
        if each.startswith(own):
            names = [column["name"] for column in inspector.get_columns(each, schema)][len(_MARKS) :]
            if not _is_for((schema, name), types, names, each):
                found.append(each)
    return found


def _is_for(target: tuple[str | None, str], types: Mapping[str, _Type], names: Sequence[str], staged: str) -> bool:
    """True if the table called ``staged`` is the one for the columns ``names`` of ``target`` as they are now."""
    is_made = all(each in types and types[each].said is not None for each in names)
    return is_made and _staged_name(target, types, names) == staged


def _drop(engine: Engine, staged: Table, is_used: Callable[[tuple[str | None, str]], bool]) -> None:
    """Drop ``staged`` unless ``is_used``. A run that begins to use it reads it in the transaction that begins the run:
    one of the two transactions waits for the other."""
    quoted = engine.dialect.identifier_preparer.format_table(staged)
    with (
        SqlDecisionStore(engine, _PATIENCE).transaction(commit=True) as connection,
        database_of(engine.dialect).locked_tables(connection, [quoted]),
    ):
        if is_used((staged.schema, staged.name)):
            return
        connection.execute(DropTable(staged))
    _LOG.info("the table for staged rows %s was dropped: its target has other columns now", staged.name)


def _types_of(connection: Connection, schema: str | None, name: str) -> dict[str, _Type]:
    """The current types of the columns of the table ``name``."""
    dialect = connection.dialect
    kinds = {each["name"]: each["type"] for each in inspect(connection).get_columns(name, schema)}
    numbers = {}
    if dialect.name == "postgresql":
        quoted = dialect.identifier_preparer.format_table(table(name, schema=schema))
        columns = text("SELECT attname, atttypid FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0")
        numbers = {each: int(number) for each, number in connection.execute(columns, {"name": quoted})}
    return {each: _Type(kind, _said(kind, dialect), numbers.get(each)) for each, kind in kinds.items()}


def _said(kind: TypeEngine[Any], dialect: Dialect) -> str | None:
    try:
        return kind.compile(dialect)
    except CompileError:
        return None


def _staged_name(target: tuple[str | None, str], types: Mapping[str, _Type], names: Sequence[str]) -> str:
    """The name of the table for staged rows with the columns ``names`` of ``target``. Other columns or other types
    result in another name."""
    return _prefix(*target) + _digest([[each, types[each].said, types[each].number] for each in names], 9)


def _prefix(schema: str | None, name: str) -> str:
    """The common prefix of the names of all tables for staged rows of one target."""
    shown = name.encode()[:_LONGEST_NAME].decode(errors="ignore")
    return f"dualwrite_staged_{shown}_{_digest([schema, name], 6)}"


def _digest(said: Sequence[object], length: int) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:length]


def _like(connection: Connection, schema: str | None, name: str) -> dict[str, Any]:
    """Options of MariaDB and MySQL: the target's collation, and a transactional engine."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return {}
    found = inspect(connection).get_table_options(name, schema)
    texts = {key: value for key, value in found.items() if key.endswith(("charset", "collate"))}
    return {**texts, f"{connection.dialect.name}_engine": ON_MYSQL["mysql_engine"]}


def _make(connection: Connection, staged: Table) -> bool:
    """Make the table; True if it was missing."""
    if connection.dialect.has_table(connection, staged.name, schema=staged.schema):
        return False
    try:
        connection.execute(CreateTable(staged))
        connection.commit()
    except DBAPIError as error:
        connection.rollback()
        if not connection.dialect.has_table(connection, staged.name, schema=staged.schema):
            wanted = " ".join(str(CreateTable(staged).compile(dialect=connection.dialect)).split())
            raise ConfigurationError(
                f"the table for staged rows cannot be made ({first_line(error)}): have it made by {wanted}"
            ) from error
    return True


def staged_clause(place: tuple[str | None, str], dbtable: str, columns: Sequence[TableColumn]) -> TableClause:
    """The table of staged rows at ``place``: the columns that mark a row, and then ``columns`` of ``dbtable``."""
    schema, name = place
    target = table_clause(dbtable, columns)
    marks: list[ColumnClause[Any]] = [column(each, BigInteger) for each in _MARKS]
    return table(name, *marks, *(column(each.name, each.type) for each in target.columns), schema=schema)


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
        have changed since the batch began. The transaction must not commit then.
    """
    _require_unchanged(connection, run, dbtable, columns)
    staged, target = staged_clause(run.staging, dbtable, columns), table_clause(dbtable, columns)
    names = [each.name for each in columns]
    rest = iter(sorted(each for each in attempts if each.rows))
    number = 0
    while chunk := list(islice(rest, _ATTEMPTS)):
        wanted = sum(each.rows for each in chunk)
        of_chunk = (staged.c[RUN_COLUMN] == run.run_id, staged.c[ATTEMPT].in_([each.attempt for each in chunk]))
        found = connection.scalar(select(func.count()).select_from(staged).where(*of_chunk))
        if found != wanted:
            raise DatabaseBusyError(
                f"{wanted} rows of job {run.job!r} were staged, and {found} are left: the database has lost them in a "
                "crash; run the batch again"
            )
        rows = select(*(staged.c[name] for name in names)).where(*of_chunk)
        rows = _last_of_each(staged, rows, upsert_keys) if upsert_keys else rows.order_by(staged.c[PART], staged.c[ROW])
        moved = partial(_filled, names, rows)
        connection.execute(adding(connection.dialect.name, target, upsert_keys, moved))
        number += wanted
    _require_unchanged(connection, run, dbtable, columns)  # again, under the lock until the commit
    return number


def _require_unchanged(connection: Connection, run: Run, dbtable: str, columns: Sequence[TableColumn]) -> None:
    schema, name = table_place(dbtable)
    try:
        types = _types_of(connection, schema, name)
    except NoSuchTableError:
        types = {}
    if not _is_for((schema, name), types, [each.name for each in columns], run.staging[1]):
        raise DatabaseBusyError(f"table {dbtable} was changed while job {run.job!r} was writing: run the batch again")


def _filled(names: Sequence[str], rows: Select[Any], into: Any) -> Any:
    return into.from_select(names, rows)


def _last_of_each(staged: TableClause, rows: Select[Any], keys: Sequence[str]) -> Select[Any]:
    """The last row of each key: a statement of PostgreSQL cannot replace a row twice. Rows with NULL have no key."""
    latest = (staged.c[PART].desc(), staged.c[ROW].desc())
    rank = func.row_number().over(partition_by=[staged.c[key] for key in keys], order_by=latest)
    ranked = rows.add_columns(rank.label(_RANK)).subquery()
    is_last = or_(ranked.c[_RANK] == 1, *(ranked.c[key].is_(None) for key in keys))
    return select(*(each for each in ranked.c if each.name != _RANK)).where(is_last)
