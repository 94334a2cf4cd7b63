"""The target table in the database, for the checks before anything is written."""

import re
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import NoSuchTableError

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.columns import Family, TableColumn, Target

_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')
_BYTES: tuple[Any, ...] = (sqltypes._Binary, sqltypes.LargeBinary)


def table_place(dbtable: str) -> tuple[str | None, str]:
    """The schema, None for the connection's own, and the name in ``schema.table``. Either may be in quotes.

    :raises ConfigurationError: if that is not such a name.
    """
    parts, end = [], -1
    for match in _PART.finditer(dbtable):
        if match.start() != end + 1:
            break
        parts.append((match[1] or "").replace('""', '"') or (match[2] or "").replace("``", "`") or match[3])
        end = match.end()
        if dbtable[end : end + 1] != ".":
            break
    if end != len(dbtable) or len(parts) > 2:
        raise ConfigurationError(f"option 'dbtable' {dbtable!r}: use table or schema.table; quote names with dots")
    return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def sound_target_of(connection: Connection, dbtable: str) -> Target:
    """The table ``dbtable``, if it stores exactly the values that are written, and can be rolled back.

    :raises ConfigurationError: if there is no such table, or it does not.
    """
    schema, name = table_place(dbtable)
    database = database_of(connection.dialect)
    database.require_strict(connection)
    database.require_transactional(connection, name, schema)
    return target_of(connection, dbtable)


def target_of(connection: Connection, dbtable: str) -> Target:
    """The table ``dbtable``.

    :raises ConfigurationError: if there is none.
    """
    schema, name = table_place(dbtable)
    inspector = inspect(connection)
    try:
        columns = inspector.get_columns(name, schema)
    except NoSuchTableError:
        columns = []
    if not columns:
        there = inspector.get_table_names(schema)
        same = [other for other in there if other.lower() == name.lower()]
        close = same or get_close_matches(name, there, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; create it first"
        raise ConfigurationError(f"option 'dbtable': the database has no table {dbtable!r}{hint}")
    primary = inspector.get_pk_constraint(name, schema)["constrained_columns"]
    unique: list[list[Any]] = [
        primary,
        *(one["column_names"] for one in inspector.get_unique_constraints(name, schema)),
    ]
    for index in inspector.get_indexes(name, schema):
        is_partial = index.get("dialect_options", {}).get("postgresql_where") is not None
        if index["unique"] and not is_partial and None not in index["column_names"]:
            unique.append(index["column_names"])
    keys = dict.fromkeys(frozenset(key) for key in unique if key)
    dialect = connection.dialect.name
    counts = dialect == "sqlite" and len(primary) == 1
    made = tuple(_column(column, counts_up=counts and column["name"] == primary[0]) for column in columns)
    return Target(dbtable, "mysql" if dialect == "mariadb" else dialect, made, tuple(keys))


def _column(column: Any, *, counts_up: bool) -> TableColumn:
    """:param counts_up: True for an integer primary key of SQLite, which SQLite fills in."""
    family = family_of(column["type"])
    identity = column.get("identity")
    filled = column.get("autoincrement") is True or (counts_up and family is Family.WHOLE)
    is_computed = bool(column.get("computed")) or bool(identity and identity.get("always"))
    return TableColumn(
        column["name"],
        family,
        str(column["type"]),
        nullable=bool(column["nullable"]),
        has_value=column.get("default") is not None or identity is not None or filled or is_computed,
        is_computed=is_computed,
    )


def family_of(kind: sqltypes.TypeEngine[Any]) -> Family:
    """The family of a column of type ``kind``."""
    if isinstance(kind, sqltypes.Integer):
        return Family.TINY if getattr(kind, "display_width", None) == 1 else Family.WHOLE
    if isinstance(kind, sqltypes.DateTime):
        return Family.ZONED if kind.timezone or isinstance(kind, mysql.TIMESTAMP) else Family.MOMENT
    for known, family in _FAMILIES:
        if isinstance(kind, known):
            return family
    return Family.OTHER


_FAMILIES: tuple[tuple[Any, Family], ...] = (
    (sqltypes.Boolean, Family.BOOLEAN),
    (sqltypes.Float, Family.FLOATING),  # before Numeric: in SQLAlchemy 2.0 a Float is a Numeric
    (sqltypes.Numeric, Family.EXACT),
    (sqltypes.Date, Family.DATE),
    (sqltypes.JSON, Family.JSON),
    (_BYTES, Family.BYTES),
    (sqltypes.String, Family.TEXT),
)
