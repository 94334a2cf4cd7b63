"""The user's table, as the database has it."""

import warnings

from sqlalchemy import JSON, Engine, MetaData, Table
from sqlalchemy.exc import NoSuchTableError, SAWarning

from dualwrite.errors import InputError


def reflected(name: str, engine: Engine, advice: str = "") -> Table:
    """The table ``name``, which may be ``schema.table``, or a view.

    :param advice: the end of the message, for a table that must exist before a command.
    :raises InputError: if there is no such table.
    """
    schema, _, plain = name.rpartition(".")
    try:
        with warnings.catch_warnings():
            # Such a column has the type NullType. The callers know what they can do with it.
            warnings.filterwarnings("ignore", "Did not recognize type", SAWarning)
            table = Table(plain, MetaData(), schema=schema or None, autoload_with=engine, resolve_fks=False)
    except NoSuchTableError:
        raise InputError(f"the database has no table {name!r}{advice}") from None
    for column in table.columns:
        if isinstance(column.type, JSON):
            column.type.none_as_null = True
    return table
