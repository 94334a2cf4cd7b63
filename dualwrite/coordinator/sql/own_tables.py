"""Statements on the library's own tables, which always name the tables' schema.

A connection's ``search_path`` belongs to the user: a listener may set it for each tenant, even inside a unit of work.
MariaDB's USE does the same. A lease taken in one schema, and a state stored in the table of the same name in another
schema, would both look valid. So the schema is chosen by the user, or found once, and every later statement names it.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Dialect, Engine

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.tables import kafka_transaction_state
from dualwrite.errors import ConfigurationError

SCHEMA_OPTION = "dualwrite_schema"
"""Execution option of an engine: the schema that the user has chosen for the library's tables."""

_schemas: WeakKeyDictionary[Dialect, str] = WeakKeyDictionary()
"""The schema where the tables were found, by dialect.

An engine, its copies with other options and the library's own engine share their dialect."""


def with_schema(engine: Engine, schema: str | None) -> Engine:
    """A copy of ``engine`` for the library's tables in ``schema``; ``engine`` itself if that is None.

    :raises ConfigurationError: if ``schema`` is not a name, or the database has no schemas.
    """
    if schema is None:
        return engine
    if not isinstance(schema, str) or not schema:
        raise ConfigurationError(f"schema {schema!r}: name the schema that dualwrite's tables are in")
    database = database_of(engine.dialect)
    if not database.has_schemas:
        raise ConfigurationError(f"schema {schema!r}: {database.title} has no schemas; leave it out")
    return engine.execution_options(**{SCHEMA_OPTION: schema})


def chosen_schema(options: Mapping[str, Any]) -> str | None:
    """The schema that the user has chosen by ``schema=``, or by the entry None of ``schema_translate_map``.

    None if the user has chosen none, so that the tables must be found.

    :param options: execution options of an engine or a connection.
    """
    chosen = options.get(SCHEMA_OPTION) or (options.get("schema_translate_map") or {}).get(None)
    return str(chosen) if chosen else None


def schema_of(connection: Connection) -> str | None:
    """The schema of the library's tables, for statements on ``connection``. None if their names need no schema."""
    engine = connection.engine  # not the connection's map, which a listener may set for each tenant
    chosen = connection.get_execution_options().get(SCHEMA_OPTION) or chosen_schema(engine.get_execution_options())
    if chosen is not None:
        return str(chosen)
    schema = _schemas.get(engine.dialect)
    if schema is None:
        schema = database_of(engine.dialect).schema_with(connection, kafka_transaction_state.name)
        if schema is not None:  # else there are no tables yet
            _schemas[engine.dialect] = schema
    return schema


PLAIN: Mapping[str, Any] = {"stream_results": False, "yield_per": None}
"""Execution options in place of those with which a block reads large results by ``tx.connection.execution_options()``:
they stay on the connection, and would give the library's UPDATE a cursor of the server's."""


def ours(connection: Connection) -> Mapping[str, Any]:
    """The ``execution_options`` of a statement on the library's tables.

    They replace the ``schema_translate_map`` of the engine or the connection, which does not apply to the library's
    tables once these are found, and PLAIN's.
    """
    return _options(schema_of(connection))


@lru_cache
def _options(schema: str | None) -> Mapping[str, Any]:
    return {**PLAIN, "schema_translate_map": None if schema is None else {None: schema}}
