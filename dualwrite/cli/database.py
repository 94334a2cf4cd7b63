"""The engine of a database on the command line, and its errors as one-line messages.

SQLAlchemy is imported at the first use, so that a mistake in the arguments is reported at once.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualwrite.errors import ConfigurationError
from dualwrite.extras import missing_library

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

CONNECT_SECONDS = 10.0
"""The longest time of an attempt to connect if the URL has no timeout for it. Drivers would wait for minutes, or for
ever, for a server that accepts the connection and then stays silent."""


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add ``--db`` and ``--schema``: the database, and the schema of the library's tables."""
    add_url(parser)
    add_schema(parser)


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add ``--db``: the database."""
    parser.add_argument("--db", required=True, metavar="URL", help="SQLAlchemy URL of the database")


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Add ``--schema``: the schema of the library's tables."""
    parser.add_argument(
        "--schema",
        metavar="NAME",
        help="the schema of dualwrite's tables, if it is not the default schema",
    )


@contextmanager
def database(url: str, *, must_exist: bool, schema: str | None = None) -> "Iterator[Engine]":
    """An engine for ``url``, disposed of at the end of the ``with`` block.

    :param must_exist: refuse a SQLite file that does not exist; connecting would create an empty one.
    :param schema: the schema of the library's tables; see DualWrite.
    :raises ConfigurationError: if ``url`` is not a database URL, its file is missing, or it is SQLite in memory. Also
        instead of each SQLAlchemyError in the block. The message contains no password.
    :raises DatabaseUnavailableError: in the block, by an attempt to connect that takes too long.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from dualwrite.coordinator.sql.dialects.url_text import url_text
    from dualwrite.coordinator.sql.engine.database_errors import first_line

    engine = _engine(url, schema)
    name = url_text(engine.url)
    _require_file(engine.url, must_exist, schema)
    try:
        yield engine
    except SQLAlchemyError as error:
        raise ConfigurationError(f"database {name}: {first_line(error)}") from error
    finally:
        engine.dispose()


def _engine(url: str, schema: str | None) -> "Engine":
    from sqlalchemy import create_engine
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    from dualwrite.coordinator.sql.dialects.supported import EXAMPLE_URLS, database_at
    from dualwrite.coordinator.sql.dialects.url_text import url_text
    from dualwrite.coordinator.sql.engine.connecting import bound_connections
    from dualwrite.coordinator.sql.own_tables import with_schema

    try:
        parsed = make_url(url)
        supported = database_at(parsed)
        if supported.is_in_memory(parsed):
            raise ConfigurationError(
                f"{url_text(parsed)} is a {supported.title} database in memory, which ends "
                f"with the process: use a file, as in {supported.example_url}"
            )
        if schema is None:
            supported.require_named(parsed)
        if parsed.get_dialect().is_async:
            driver = parsed.get_driver_name()
            raise ConfigurationError(
                f"{driver} is a driver for asyncio: use a blocking driver here, such as {supported.example_url}"
            )
        engine = create_engine(parsed)
        _name_wrong_options(engine)
        bound_connections(engine, supported.connect_limit(parsed, CONNECT_SECONDS))
        return with_schema(engine, schema)
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigurationError(
            f"--db is not a database URL of SQLAlchemy; examples: {', '.join(EXAMPLE_URLS)}"
        ) from None
    except ModuleNotFoundError as error:
        if missing_library(error):
            raise
        raise ConfigurationError(f"the driver of {parsed.drivername} is not installed: {error.name}") from None


def _name_wrong_options(engine: "Engine") -> None:
    """Let ``engine`` raise a ConfigurationError where its driver refuses an option of the URL. PyMySQL, for example,
    raises TypeError for an unknown one, and FileNotFoundError for a missing ``ssl_ca``."""
    from sqlalchemy import event

    from dualwrite.coordinator.sql.dialects.url_text import url_text

    def connect(dialect: Any, _: object, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        try:
            return dialect.connect(*args, **options)
        except dialect.loaded_dbapi.Error:
            raise  # of the database: SQLAlchemy knows it
        except (TypeError, ValueError, AttributeError, OSError) as error:
            name = url_text(engine.url)
            raise ConfigurationError(f"database {name}: no connection with these options: {error}") from error

    event.listen(engine, "do_connect", connect)


def _require_file(url: "URL", must_exist: bool, schema: str | None) -> None:
    """Refuse a database file that cannot be opened, or that is missing and has to exist."""
    from dualwrite.coordinator.sql.dialects.supported import database_at
    from dualwrite.coordinator.sql.dialects.url_text import url_text
    from dualwrite.coordinator.sql.engine.shown_url import shown_url

    directory = database_at(url).missing_directory(url)
    if directory is not None:
        raise ConfigurationError(f"database {url_text(url)}: there is no directory {directory}")
    file = database_at(url).file_of(url)
    if must_exist and file is not None and not Path(file).exists():
        raise ConfigurationError(
            f"there is no database file {file}; run: dualwrite db upgrade {shown_url(url, schema)}"
        )
