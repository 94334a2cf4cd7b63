"""Statements on the library's own tables, which are always named with the schema that the tables are in.

A connection's ``search_path`` is the user's: a listener may set it for each tenant, inside a unit of work, too, and
MariaDB's USE does the same. A lease that was taken in one schema and a state that is stored in another's table of the
same name would both look valid. So the schema is chosen, or found once, and named in every statement from then on.
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
"""Execution option of an engine: the schema that its user has chosen for the library's tables."""

_found: WeakKeyDictionary[Dialect, str] = WeakKeyDictionary()
"""Where the tables were found. An engine, its copies with other options and the library's own share their dialect."""


def with_schema(engine: Engine, schema: str | None) -> Engine:
    """``engine`` for the library's tables in ``schema``; itself if that is None.

    :raises ConfigurationError: if ``schema`` is no name, or the database has no schemas.
    """
    if schema is None:
        return engine
    if not isinstance(schema, str) or not schema:
        raise ConfigurationError(f"schema {schema!r}: name the schema that dualwrite's tables are in")
    if not database_of(engine.dialect).has_schemas:
        raise ConfigurationError(f"schema {schema!r}: SQLite has no schemas; leave it out")
    return engine.execution_options(**{SCHEMA_OPTION: schema})


def chosen_schema(options: Mapping[str, Any]) -> str | None:
    """The schema that the user has chosen: by ``schema=``, or as ``schema_translate_map`` has it for tables that name
    none. None if the tables are to be found.

    :param options: execution options of an engine or a connection.
    """
    chosen = options.get(SCHEMA_OPTION) or (options.get("schema_translate_map") or {}).get(None)
    return str(chosen) if chosen else None


def schema_of(connection: Connection) -> str | None:
    """The schema of the library's tables, for statements on ``connection``; None where they need none."""
    engine = connection.engine  # not the connection's map, which a listener may set for each tenant
    chosen = connection.get_execution_options().get(SCHEMA_OPTION) or chosen_schema(engine.get_execution_options())
    if chosen is not None:
        return str(chosen)
    found = _found.get(engine.dialect)
    if found is None:
        found = database_of(engine.dialect).schema_with(connection, kafka_transaction_state.name)
        if found is not None:  # else there are no tables yet
            _found[engine.dialect] = found
    return found


def ours(connection: Connection) -> Mapping[str, Any]:
    """The ``execution_options`` of a statement on the library's tables. They replace the map of schemas that the engine
    or the connection has: the user's says nothing of these tables once they are found."""
    return _options(schema_of(connection))


@lru_cache
def _options(schema: str | None) -> Mapping[str, Any]:
    return {"schema_translate_map": None if schema is None else {None: schema}}
