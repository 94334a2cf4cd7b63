"""Operations that the migrations share. Add to them, but never change one: a migration must always do the same.

Each migration gets Alembic's Operations (``op``). Beside ``upgrade`` and ``downgrade`` it has ``losses``: the rows that
its downgrade would drop although they may still be needed. An upgrade only adds (docs/decisions/0017).
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic.operations import Operations

from dualwrite.coordinator.sql.column_types import BYTES, MOMENT, NUMBER, OPTIONS
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.own_tables import SCHEMA_OPTION, chosen_schema

__all__ = ["BYTES", "MOMENT", "NUMBER"]


def create_table(op: Operations, name: str, *columns: sa.Column[Any]) -> None:
    """Create a table, unless it exists.

    Where DDL is not transactional, the tables that an interrupted upgrade created are still there.
    """
    context = op.get_context()
    if not database_of(context.dialect).has_transactional_ddl and not context.as_sql:
        inspector, schema = sa.inspect(op.get_bind()), _schema(op)
        column_names = [column.name for column in columns]
        if inspector.has_table(name, schema) and column_names == [
            column["name"] for column in inspector.get_columns(name, schema)
        ]:
            return
    op.create_table(name, *columns, schema=_schema(op), **OPTIONS)


def drop_table(op: Operations, name: str) -> None:
    """Drop a table if it exists; see :func:`create_table` for the reason."""
    if op.get_context().as_sql or has_table(op.get_bind(), name):
        op.drop_table(name, schema=_schema(op))


def add_column(op: Operations, table: str, column: sa.Column[Any]) -> None:
    """Add a nullable column, unless it exists; see :func:`create_table` for the reason."""
    if op.get_context().as_sql or not _has_column(op, table, column.name):
        op.add_column(table, column, schema=_schema(op))


def drop_column(op: Operations, table: str, name: str) -> None:
    """Drop a column if it exists; see :func:`create_table` for the reason."""
    if op.get_context().as_sql or _has_column(op, table, name):
        op.drop_column(table, name, schema=_schema(op))


def _schema(op: Operations) -> str | None:
    """The schema that was chosen for the tables; None if their names need no schema."""
    schema: str | None = op.get_context().opts.get(SCHEMA_OPTION)
    return schema


def _has_column(op: Operations, table: str, name: str) -> bool:
    connection = op.get_bind()
    columns = sa.inspect(connection).get_columns(table, _schema(op)) if has_table(connection, table) else []
    return any(column["name"] == name for column in columns)


def has_table(connection: sa.Connection, name: str) -> bool:
    """True if the table ``name`` exists. Lists all tables: under LOCK TABLES no other table can be inspected."""
    return name in sa.inspect(connection).get_table_names(chosen_schema(connection.get_execution_options()))


def rows_of(connection: sa.Connection, name: str, description: str, where: str = "1 = 1") -> Iterator[str]:
    """Yield ``description`` with the number of rows in the table ``name`` that match ``where``, if there are any."""
    schema = chosen_schema(connection.get_execution_options())
    if has_table(connection, name):
        number = connection.scalar(
            sa.select(sa.func.count()).select_from(sa.table(name, schema=schema)).where(sa.text(where))
        )
        if number:
            yield f"{description} ({number})"
