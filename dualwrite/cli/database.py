"""The engine of a database that is named on the command line, and its errors as one-line messages."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from dualwrite.coordinator.sql.dialects.mysql import unnamed
from dualwrite.coordinator.sql.dialects.supported import EXAMPLE_URLS, require_supported
from dualwrite.coordinator.sql.engine_checks import is_in_memory
from dualwrite.coordinator.sql.own_tables import with_schema
from dualwrite.coordinator.sql.shown_url import shown_url
from dualwrite.errors import ConfigurationError
from dualwrite.extras import missing_library


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add ``--db`` and ``--schema``: the database, and the schema of the library's tables."""
    parser.add_argument("--db", required=True, metavar="URL", help="SQLAlchemy URL of the database")
    add_schema(parser)


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Add ``--schema``: the schema of the library's tables."""
    parser.add_argument(
        "--schema",
        metavar="NAME",
        help="of dualwrite's tables, if it is not the one that a name without a schema means",
    )


@contextmanager
def database(url: str, *, must_exist: bool, schema: str | None = None) -> Iterator[Engine]:
    """An engine for ``url``, disposed of at the end of the ``with`` block.

    :param must_exist: refuse a SQLite file that does not exist; connecting would create an empty one.
    :param schema: the schema of the library's tables; see DualWrite.
    :raises ConfigurationError: if ``url`` is not a database URL, its file is missing, or it is SQLite in memory. Also
        in place of each SQLAlchemyError that leaves the block. The message contains no password.
    """
    try:
        parsed = make_url(url)
        name = parsed.render_as_string(hide_password=True)
        if is_in_memory(parsed):
            raise ConfigurationError(
                f"{name} is a SQLite database in memory, which ends with the process: use a file, as in "
                "sqlite:///orders.db"
            )
        if parsed.get_backend_name() == "postgres":
            raise ConfigurationError("'postgres://' is not a SQLAlchemy URL: write postgresql+psycopg://…")
        require_supported(parsed.get_backend_name())
        _require_name(parsed, schema)
        if parsed.get_dialect().is_async:
            driver = parsed.get_driver_name()
            raise ConfigurationError(
                f"{driver} is a driver for asyncio: name a blocking one here, as in {_example(parsed)}"
            )
        engine = with_schema(create_engine(parsed), schema)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigurationError(
            f"--db is no database URL that SQLAlchemy knows; examples: {', '.join(EXAMPLE_URLS)}"
        ) from None
    except ModuleNotFoundError as error:
        if missing_library(error):
            raise
        raise ConfigurationError(f"the driver of {parsed.drivername} is not installed: {error.name}") from None
    file = parsed.database if parsed.get_backend_name() == "sqlite" else None
    if file and not file.startswith("file:") and not Path(file).parent.is_dir():
        raise ConfigurationError(f"database {name}: there is no directory {Path(file).parent}")
    if must_exist and file and not file.startswith("file:") and not Path(file).exists():
        raise ConfigurationError(
            f"there is no database file {file}; run: dualwrite db upgrade {shown_url(parsed, schema)}"
        )
    try:
        yield engine
    except SQLAlchemyError as error:
        raise ConfigurationError(f"database {name}: {_first_line(error)}") from error
    finally:
        engine.dispose()


def database_place(url: URL) -> str:
    """The server and the database name of ``url``, or a file's full path; the user and the driver do not matter.

    Two names of one server are two places.
    """
    backend, name = url.get_backend_name(), url.database or ""
    if backend == "sqlite":
        return f"sqlite:{name if name.startswith('file:') else Path(name).resolve()}"
    asked = url.query
    host, port = (given or asked.get(key, "") for key, given in (("host", url.host), ("port", url.port)))
    if backend in ("mysql", "mariadb"):  # two names of one dialect; a socket takes precedence over the host
        backend, host = "mysql", asked.get("unix_socket", "") or host
    return f"{backend}:{host}:{port}:{name}"


def _require_name(url: URL, schema: str | None) -> None:
    """Require that ``url`` or ``schema`` names a database, on servers that have no default database.

    :raises ConfigurationError: if neither does; the message shows the URL to use.
    """
    if url.get_backend_name() in ("mysql", "mariadb") and not url.database and schema is None:
        raise ConfigurationError(unnamed(url))


def _example(url: URL) -> str:
    """An example URL for the same kind of database."""
    backend = url.get_backend_name().replace("mariadb", "mysql")
    return next(example for example in EXAMPLE_URLS if example.startswith(backend))


def _first_line(error: SQLAlchemyError) -> str:
    """The first line of the driver's message, without SQLAlchemy's statement and link."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
