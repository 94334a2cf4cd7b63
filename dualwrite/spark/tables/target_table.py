"""Reflects the target table in the database, for the checks before anything is written."""

import re
from difflib import get_close_matches
from typing import Any

from sqlalchemy import Connection, inspect
from sqlalchemy import types as sqltypes
from sqlalchemy.exc import NoSuchTableError

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.errors import ConfigurationError
from dualwrite.spark.plan.columns import Family, TableColumn, Target, ValueFidelity

_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')
_BYTES: tuple[Any, ...] = (sqltypes._Binary, sqltypes.LargeBinary)


def parse_table_name(dbtable: str) -> tuple[str | None, str]:
    """Split ``schema.table`` into the schema and the name. Either may be in quotes.

    :returns: the schema, None for the connection's own, and the name.
    :raises ConfigurationError: if ``dbtable`` is not such a name.
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


def checked_target_of(connection: Connection, dbtable: str) -> Target:
    """The table ``dbtable``, if it stores written values unchanged and takes part in transactions.

    :raises ConfigurationError: if the table does not exist, changes values, or cannot be rolled back.
    """
    schema, name = parse_table_name(dbtable)
    database = database_of(connection.dialect)
    database.require_strict(connection)
    database.require_transactional(connection, name, schema)
    return target_of(connection, dbtable)


def target_of(connection: Connection, dbtable: str) -> Target:
    """The table ``dbtable``.

    :raises ConfigurationError: if it does not exist.
    """
    schema, name = parse_table_name(dbtable)
    inspector = inspect(connection)
    try:
        reflected = inspector.get_columns(name, schema)
    except NoSuchTableError:
        reflected = []
    if not reflected:
        table_names = inspector.get_table_names(schema)
        same_but_case = [other for other in table_names if other.lower() == name.lower()]
        close = same_but_case or get_close_matches(name, table_names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else "; create it first"
        raise ConfigurationError(f"option 'dbtable': the database has no table {dbtable!r}{hint}")
    primary = inspector.get_pk_constraint(name, schema)["constrained_columns"]
    unique: list[list[Any]] = [
        primary,
        *(constraint["column_names"] for constraint in inspector.get_unique_constraints(name, schema)),
    ]
    for index in inspector.get_indexes(name, schema):
        options = index.get("dialect_options", {})
        is_partial = any(name.endswith("_where") and value is not None for name, value in options.items())
        if index["unique"] and not is_partial and None not in index["column_names"]:
            unique.append(index["column_names"])
    keys = dict.fromkeys(frozenset(key) for key in unique if key)
    database = database_of(connection.dialect)
    counting = primary if database.fills_integer_keys and len(primary) == 1 else []
    table_columns = tuple(_column(column, database, counts_up=column["name"] in counting) for column in reflected)
    return Target(dbtable, value_fidelity_of(database), table_columns, tuple(keys))


def value_fidelity_of(database: Database) -> ValueFidelity:
    """The kinds of values that ``database`` stores unchanged."""
    return ValueFidelity(database.keeps_time_zones, database.keeps_infinities, database.keeps_decimals)


def _column(column: Any, database: Database, *, counts_up: bool) -> TableColumn:
    """Describe a reflected column.

    :param counts_up: True if the database fills in the column if it is an integer.
    """
    family = family_of(column["type"], database)
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


def family_of(column_type: sqltypes.TypeEngine[Any], database: Database) -> Family:
    """The family of a column of type ``column_type`` in ``database``."""
    if isinstance(column_type, sqltypes.Integer):
        return Family.TINY if getattr(column_type, "display_width", None) == 1 else Family.WHOLE
    if isinstance(column_type, sqltypes.DateTime):
        return Family.ZONED if database.is_instant(column_type) else Family.MOMENT
    for sqlalchemy_type, family in _FAMILIES:
        if isinstance(column_type, sqlalchemy_type):
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
