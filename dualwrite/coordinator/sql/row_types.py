"""Checks the types of what a state row holds: SQLite stores any value in any column, and a hand may have written it."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, String

from dualwrite.coordinator.sql.tables import kafka_transaction_state as table
from dualwrite.errors import ConfigurationError

_TYPES = {
    column.name: (str, "text") if isinstance(column.type, String) else (int, "number")
    for column in table.columns
    if isinstance(column.type, String | BigInteger)
}
_LAST_TOKEN = 2**63 - 2
"""The next owner's fencing token must still be a 64-bit number."""


def require_types(row: Any) -> None:
    """Check the columns of the state table that ``row`` has.

    :raises ConfigurationError: if a value is of another type than its column, or is no fencing token. The message names
        the row and the column.
    """
    for name, value in row._mapping.items():
        kind, words = _TYPES.get(name, (object, ""))
        if value is not None and not isinstance(value, kind):
            raise _wrong(row, name, value, f"no {words}")
    token = row.fencing_token
    if token is None or not 0 < token <= _LAST_TOKEN:
        raise _wrong(row, table.c.fencing_token.name, token, "no fencing token")


def moment_of(row: Any, name: str) -> datetime:
    """The moment in the column ``name``, which SQLite stores as a text.

    :raises ConfigurationError: if there is none. The message names the row and the column.
    """
    value = row._mapping[name]
    try:
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise _wrong(row, name, value, "no moment") from None


def _wrong(row: Any, column: str, value: Any, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"row {row.transactional_id!r:.300} of {table.name}: {column} is {value!r:.100}, {what}; it was not written by "
        "dualwrite. Correct it, or restore the table"
    )
