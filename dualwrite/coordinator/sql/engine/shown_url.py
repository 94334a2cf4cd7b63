"""A database's URL, shown in a command that the user can run as printed."""

from shlex import quote

from sqlalchemy import URL, Engine

from dualwrite.coordinator.sql.dialects.supported import database_at
from dualwrite.coordinator.sql.dialects.url_text import passwords_in_query, url_text
from dualwrite.coordinator.sql.own_tables import chosen_schema


def command_on(engine: Engine, command: str) -> str:
    """The line that runs ``dualwrite command`` on the database of ``engine``, in the schema that the user chose."""
    chosen = chosen_schema(engine.get_execution_options())
    return f"dualwrite {command} {shown_url(engine.url, chosen)}"


def shown_url(url: URL, schema: str | None = None) -> str:
    """``--db`` and ``url``, quoted for a shell, with a blocking driver and without the password."""
    backend, _, driver = url.drivername.partition("+")
    blocking = database_at(url).blocking_drivers.get(driver, driver)
    shown = url.set(drivername=f"{backend}+{blocking}" if blocking else backend)
    options = f" --schema {quote(schema)}" if schema else ""
    advice = "" if url.password is None else " (with the password in place of ***)"
    left_out = passwords_in_query(url)
    if left_out:
        advice += f" (with {', '.join(left_out)} in its query)"
    return f"--db {quote(url_text(shown))}{options}{advice}"
