"""Where the rows of a run are before it is decided: a table beside the target, with the types of its columns.

Tasks add to it, each under its partition and attempt; the driver moves what the winners have written, in the order of
the partitions, and deletes the rest. It is made by the driver once for each set of columns, and stays.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnClause,
    Connection,
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
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import NullType

from dualwrite.coordinator.tables import ON_MYSQL
from dualwrite.errors import ConfigurationError, DatabaseBusyError
from dualwrite.spark.columns import TableColumn
from dualwrite.spark.loading import adding, table_clause
from dualwrite.spark.raising import first_line
from dualwrite.spark.reflecting import table_place
from dualwrite.spark.runs import RUN_COLUMN, Run

PART, ATTEMPT, ROW = "dualwrite_part", "dualwrite_attempt", "dualwrite_row"
_LONGEST_NAME = 30
"""Of the target's name in the table's, which has at most 63 characters on PostgreSQL."""
_ATTEMPTS = 500
"""Whose rows one statement moves."""


class Attempt(NamedTuple):
    """A task's, as its rows are marked.

    :param attempt: Spark's number for it, which no other attempt of the run has.
    :param rows: how many there are.
    """

    part: int
    attempt: int
    rows: int


def make_staging(engine: Engine, dbtable: str, columns: Sequence[TableColumn]) -> tuple[str | None, str]:
    """The table for staged rows with ``columns`` of ``dbtable``, made if it is missing: its schema and name.

    :raises ConfigurationError: if the database refuses, or SQLAlchemy does not know the type of a column.
    """
    schema, name = table_place(dbtable)
    with engine.connect() as connection:
        names = [each.name for each in columns]
        target = Table(
            name, MetaData(), schema=schema, autoload_with=connection, include_columns=names, resolve_fks=False
        )
        types = [target.columns[each].type for each in names]
        for each, kind in zip(names, types, strict=True):
            if isinstance(kind, NullType):
                raise ConfigurationError(
                    f"column {each!r} of table {dbtable} is of a type that no table for staged rows can be made with: "
                    "leave it out, or write the DataFrame partition by partition"
                )
        said = [[each, kind.compile(engine.dialect)] for each, kind in zip(names, types, strict=True)]
        digest = hashlib.sha256(json.dumps([schema, name, said]).encode()).hexdigest()[:10]
        staged = Table(
            f"dualwrite_staged_{name[:_LONGEST_NAME]}_{digest}",
            MetaData(),
            Column(RUN_COLUMN, BigInteger, primary_key=True, autoincrement=False),
            Column(PART, Integer, primary_key=True, autoincrement=False),
            Column(ATTEMPT, BigInteger, primary_key=True, autoincrement=False),
            Column(ROW, BigInteger, primary_key=True, autoincrement=False),
            *(Column(each, kind) for each, kind in zip(names, types, strict=True)),
            schema=schema,
            # What a crash of the server loses is noticed, and the run is aborted (move_rows).
            prefixes=["UNLOGGED"] if engine.dialect.name == "postgresql" else [],
            **_like(connection, schema, name),
        )
        _make(connection, staged)
    return schema, staged.name


def _like(connection: Connection, schema: str | None, name: str) -> dict[str, Any]:
    """Options of MariaDB and MySQL: texts as in the target, and an engine that knows transactions."""
    if connection.dialect.name not in ("mysql", "mariadb"):
        return {}
    found = inspect(connection).get_table_options(name, schema)
    texts = {key: value for key, value in found.items() if key.endswith(("charset", "collate"))}
    return {**texts, f"{connection.dialect.name}_engine": ON_MYSQL["mysql_engine"]}


def _make(connection: Connection, staged: Table) -> None:
    if connection.dialect.has_table(connection, staged.name, schema=staged.schema):
        return
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


def staged_clause(place: tuple[str | None, str], dbtable: str, columns: Sequence[TableColumn]) -> TableClause:
    """The table of staged rows at ``place``: what marks a row, and then ``columns`` of ``dbtable``."""
    schema, name = place
    target = table_clause(dbtable, columns)
    marks: list[ColumnClause[Any]] = [column(each, BigInteger) for each in (RUN_COLUMN, PART, ATTEMPT, ROW)]
    return table(name, *marks, *(column(each.name, each.type) for each in target.columns), schema=schema)


def move_rows(
    connection: Connection,
    run: Run,
    dbtable: str,
    columns: Sequence[TableColumn],
    upsert_keys: Sequence[str],
    attempts: Iterable[Attempt],
) -> int:
    """Put the staged rows of ``attempts`` into ``dbtable``; how many they are.

    Of several rows with the same ``upsert_keys`` the last one counts: of the last partition, and there the last.

    :raises DatabaseBusyError: if rows are missing: PostgreSQL has lost them in a crash. Nothing may be committed.
    """
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
    return number


def _filled(names: Sequence[str], rows: Select[Any], into: Any) -> Any:
    return into.from_select(names, rows)


def _last_of_each(staged: TableClause, rows: Select[Any], keys: Sequence[str]) -> Select[Any]:
    """The last row of each key: one statement of PostgreSQL's cannot replace a row twice. NULLs are no key."""
    latest = (staged.c[PART].desc(), staged.c[ROW].desc())
    rank = func.row_number().over(partition_by=[staged.c[key] for key in keys], order_by=latest)
    ranked = rows.add_columns(rank.label("dualwrite_rank")).subquery()
    is_last = or_(ranked.c.dualwrite_rank == 1, *(ranked.c[key].is_(None) for key in keys))
    return select(*(each for each in ranked.c if each.name != "dualwrite_rank")).where(is_last)
