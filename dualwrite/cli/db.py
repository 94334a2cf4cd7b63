"""``dualwrite db``: make and inspect the tables that this library keeps in the user's database.

Plain functions, for the command line and for programs that upgrade at their own start.
"""

import argparse
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine

from dualwrite.cli.database import database
from dualwrite.coordinator.database import begin_writing
from dualwrite.coordinator.databases.supported import database_of
from dualwrite.coordinator.tables import VERSION_TABLE


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for action, purpose in ((upgrade, "make the tables, or bring them up to date"), (current, "show their version")):
        subparser = actions.add_parser(action.__name__, help=purpose)
        subparser.add_argument("--db", required=True, metavar="URL", help="SQLAlchemy URL of the database")
        subparser.set_defaults(action=action)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked, and print the version of the tables.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    print(arguments.action(arguments.db) or "no tables yet; run: dualwrite db upgrade")
    return 0


def upgrade(url: str, revision: str = "head") -> str | None:
    """Bring the tables in the database at ``url`` up to date; return their version. Doing it again changes nothing.

    One process at a time, and all in one transaction; on MariaDB and MySQL, where DDL is in none, one that died halfway
    goes on from there when it is run again.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=False) as engine:
        return upgrade_engine(engine, revision)


def upgrade_engine(engine: Engine, revision: str = "head") -> str | None:
    """As ``upgrade``, through an engine of the caller's: for one that its URL alone does not make again.

    :raises SQLAlchemyError: if the database refuses.
    """
    with engine.begin() as connection:
        begin_writing(connection)
        database_of(connection.dialect).take_turns(connection)
        config = Config()
        config.set_main_option("script_location", str(migrations_directory()).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        return _version(connection)


def current(url: str) -> str | None:
    """The version of the tables in the database at ``url``; None before the first ``upgrade``.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True) as engine, engine.connect() as connection:
        return _version(connection)


def migrations_directory() -> Path:
    """Where alembic's scripts are: inside the package when it is installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


def _version(connection: Connection) -> str | None:
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()
