"""A database's URL, shown in a command that the user can run as printed."""

from collections.abc import Mapping
from shlex import quote

from sqlalchemy import URL, Engine

from dualwrite.coordinator.sql.own_tables import chosen_schema

_BLOCKING: Mapping[str, str] = {
    "aiosqlite": "",
    "asyncpg": "+psycopg",
    "psycopg_async": "+psycopg",
    "aiomysql": "+pymysql",
    "asyncmy": "+pymysql",
}
"""The blocking driver to show in place of each asyncio driver."""


def command_on(engine: Engine, command: str) -> str:
    """The line that runs ``dualwrite command`` on the database of ``engine``, in the schema that the user chose."""
    chosen = chosen_schema(engine.get_execution_options())
    return f"dualwrite {command} {shown_url(engine.url, chosen)}"


def shown_url(url: URL, schema: str | None = None) -> str:
    """``--db`` and ``url``, quoted for a shell, with a blocking driver and without the password."""
    backend, driver = url.get_backend_name(), url.drivername.partition("+")[2]
    blocking = url.set(drivername=f"{backend}{_BLOCKING[driver]}") if driver in _BLOCKING else url
    options = f" --schema {quote(schema)}" if schema else ""
    advice = "" if url.password is None else " (with the password in place of ***)"
    return f"--db {quote(blocking.render_as_string(hide_password=True))}{options}{advice}"
