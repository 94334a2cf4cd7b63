"""``dualwrite db``: make, show and take back the tables that this library keeps in the user's database.

Plain functions over ``dualwrite.schema``, for a database that is named by its URL.
"""

import argparse
from collections.abc import Callable

from dualwrite import schema
from dualwrite.cli.database import database
from dualwrite.schema import upgrade_engine

__all__ = ["configure", "current", "downgrade", "run", "upgrade", "upgrade_engine"]

_NO_TABLES = "no tables yet; run: dualwrite db upgrade"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, purpose: str, act: Callable[[argparse.Namespace], str | None]) -> argparse.ArgumentParser:
        subparser = actions.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        subparser.set_defaults(act=act)
        if name != "sql":
            subparser.add_argument("--db", required=True, metavar="URL", help="SQLAlchemy URL of the database")
        return subparser

    action("upgrade", "make the tables, or bring them up to date", lambda given: upgrade(given.db))
    action("current", "show the tables' version", lambda given: current(given.db))
    back = action(
        "downgrade",
        "take the tables back to an earlier version, for an earlier release",
        lambda given: downgrade(given.db, given.revision, lose_rows=given.yes),
    )
    back.add_argument("revision", metavar="REVISION", help='a version that the tables had before; "base" drops them')
    back.add_argument("--yes", action="store_true", help="drop rows, too, that are needed still")
    sql = action(
        "sql",
        "print the SQL of an upgrade or a downgrade, and connect to nothing",
        lambda given: schema.statements(given.dialect, given.revision, since=given.since).rstrip(),
    )
    sql.add_argument("--dialect", required=True, help="sqlite, postgresql, mysql or mariadb")
    sql.add_argument("--since", default=schema.BASE, metavar="REVISION", help="the version of the tables now (base)")
    sql.add_argument("revision", nargs="?", default=schema.HEAD, metavar="REVISION", help="the version wanted (head)")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked, and print the version of the tables, or the SQL.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    print(arguments.act(arguments) or _NO_TABLES)
    return 0


def upgrade(url: str, revision: str = schema.HEAD) -> str | None:
    """Bring the tables in the database at ``url`` up to date; return their version. See schema.upgrade_engine.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=False) as engine:
        return upgrade_engine(engine, revision)


def downgrade(url: str, revision: str, *, lose_rows: bool = False) -> str | None:
    """Take the tables in the database at ``url`` back to ``revision``. See schema.downgrade_engine.

    :raises ConfigurationError: as there, and if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True) as engine:
        return schema.downgrade_engine(engine, revision, lose_rows=lose_rows)


def current(url: str) -> str | None:
    """The version of the tables in the database at ``url``; None before the first ``upgrade``.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True) as engine, engine.connect() as connection:
        return schema.current(connection)
