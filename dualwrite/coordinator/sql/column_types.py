"""Column types and table options, which differ between databases."""

from typing import Any

from sqlalchemy.types import TypeEngine

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.dialects.supported import SUPPORTED


def _column_type(attribute: str) -> TypeEngine[Any]:
    """The type that Database has as ``attribute``, with a variant for each database whose type differs."""
    default: TypeEngine[Any] = getattr(Database, attribute)
    column_type = default
    for name, database in SUPPORTED.items():
        database_type: TypeEngine[Any] = getattr(database, attribute)
        if database_type is not default:
            column_type = column_type.with_variant(database_type, name)
    return column_type


MOMENT = _column_type("moment_type")
"""A moment with microseconds."""

BYTES = _column_type("bytes_type")
"""A record's key or value."""

NUMBER = _column_type("number_type")
"""A primary key that counts up by itself."""

OPTIONS: dict[str, Any] = {
    f"{name}_{option}": value
    for name, database in SUPPORTED.items()
    for option, value in database.table_options.items()
}
"""Storage with transactions, and texts that compare byte by byte."""
