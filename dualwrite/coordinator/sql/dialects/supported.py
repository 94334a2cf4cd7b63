"""The supported databases. This is the only list of them."""

from collections.abc import Mapping

from sqlalchemy import Dialect

from dualwrite.coordinator.sql.dialects.base import Database
from dualwrite.coordinator.sql.dialects.mysql import Mysql
from dualwrite.coordinator.sql.dialects.postgresql import Postgresql
from dualwrite.coordinator.sql.dialects.sqlite import Sqlite
from dualwrite.errors import ConfigurationError

_MYSQL = Mysql()
_SUPPORTED: Mapping[str, Database] = {
    "sqlite": Sqlite(),
    "postgresql": Postgresql(),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}
"""By SQLAlchemy's names. A MariaDB answers to both of the last."""

EXAMPLE_URLS = ("sqlite:///orders.db", "postgresql+psycopg://user@host/name", "mysql+pymysql://user@host/name")
"""One for each of them, for messages."""


def require_supported(name: str) -> None:
    """Pass if the database that SQLAlchemy calls ``name`` is supported.

    :raises ConfigurationError: naming those that are, if it is not.
    """
    if name not in _SUPPORTED:
        raise ConfigurationError(f"database {name!r} is not supported: use SQLite, PostgreSQL, MariaDB or MySQL")


def database_of(dialect: Dialect) -> Database:
    """The Database for ``dialect``.

    :raises ConfigurationError: if it is not supported.
    """
    require_supported(dialect.name)
    return _SUPPORTED[dialect.name]
