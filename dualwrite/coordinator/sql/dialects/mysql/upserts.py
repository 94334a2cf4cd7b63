"""Upserts of MariaDB and MySQL."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Insert, TableClause, literal_column
from sqlalchemy.dialects import mysql


def upsert(into: TableClause, keys: Sequence[str], fill: Callable[[Any], Any]) -> Insert:
    """An insert of which a row replaces the one with the same ``keys``; see DatabaseBulkLoad.upsert."""
    other_names = [column.name for column in into.columns if column.name not in keys]
    replacing: mysql.Insert = fill(mysql.insert(into))
    changed = other_names or list(keys)[:1]  # if there is no other column, a key column is set to its own value
    return replacing.on_duplicate_key_update({name: _inserted(replacing, name) for name in changed})


def _inserted(replacing: mysql.Insert, name: str) -> ColumnElement[Any]:
    """The value that a row would have had in the column ``name``. SQLAlchemy turns a % in the name into four."""
    if "%" not in name:
        return replacing.inserted[name]
    quoted = name.replace("`", "``")
    return literal_column(f"VALUES(`{quoted}`)")
