"""The supported databases. This is the only list of them."""

from collections.abc import Iterable, Mapping

from sqlalchemy import URL, Dialect

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.dialects.mysql.database import Mysql
from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql
from dualwrite.coordinator.sql.dialects.sqlite import Sqlite
from dualwrite.errors import ConfigurationError

SUPPORTED: Mapping[str, Database] = {
    "sqlite": Sqlite(),
    "postgresql": Postgresql(),
    **dict.fromkeys(("mysql", "mariadb"), Mysql()),  # SQLAlchemy has two names for a MariaDB
}
"""By SQLAlchemy's names of their dialects."""

DATABASES = tuple(dict.fromkeys(SUPPORTED.values()))
"""Each of them once."""

EXAMPLE_URLS = tuple(database.example_url for database in DATABASES)
"""One for each of them, for messages."""


def titles(databases: Iterable[Database]) -> str:
    """The names of ``databases``, for messages."""
    return ", ".join(database.title for database in databases)


def database_called(name: str) -> Database:
    """The Database whose dialect SQLAlchemy calls ``name``.

    :raises ConfigurationError: naming those that are supported, if it is not.
    """
    database = SUPPORTED.get(name)
    if database is None:
        raise ConfigurationError(f"database {name!r} is not supported: use {titles(DATABASES)}")
    return database


def database_at(url: URL) -> Database:
    """The Database of ``url``, whose driver need not be installed.

    :raises ConfigurationError: if it is not supported.
    """
    name = url.get_backend_name()
    if name == "postgres":
        raise ConfigurationError("'postgres://' is not a SQLAlchemy URL: write postgresql+psycopg://…")
    return database_called(name)


def database_of(dialect: Dialect) -> Database:
    """The Database for ``dialect``.

    :raises ConfigurationError: if it is not supported.
    """
    return SUPPORTED.get(dialect.name) or database_called(dialect.name)
