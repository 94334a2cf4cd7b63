"""``dualwrite db``: upgrade, show and downgrade this library's tables in the user's database.

The functions call ``dualwrite.schema`` for the database at a URL.
"""

import argparse
from collections.abc import Callable
from typing import NoReturn

from dualwrite import schema as versions
from dualwrite.cli.database import add_database, add_schema, database
from dualwrite.coordinator.sql.dialects.supported import SUPPORTED
from dualwrite.errors import InputError
from dualwrite.operations import copies
from dualwrite.schema import upgrade_engine

__all__ = ["configure", "copied", "current", "downgrade", "moved", "run", "upgrade", "upgrade_engine"]

_SHOWN = 5
"""The most transactional ids that a message names."""
_NO_TABLES = "no tables yet; run: dualwrite db upgrade"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, purpose: str, act: Callable[[argparse.Namespace], str | None]) -> argparse.ArgumentParser:
        subparser = actions.add_parser(name, help=purpose, description=f"{purpose[0].upper()}{purpose[1:]}.")
        subparser.set_defaults(act=act)
        if name != "sql":
            add_database(subparser)
        return subparser

    action(
        "upgrade",
        "create the tables, or upgrade them",
        lambda arguments: upgrade(arguments.db, schema=arguments.schema),
    )
    action("current", "show the tables' version", lambda arguments: current(arguments.db, schema=arguments.schema))
    moving = action(
        "moved",
        "declare that this database replaces the one that wrote the state table, which is gone",
        lambda arguments: (moved if arguments.yes else _foresee_move)(arguments.db, schema=arguments.schema),
    )
    moving.add_argument("--yes", action="store_true", help="confirm that the original is gone and no program uses it")
    copying = action(
        "copied",
        "declare that this database is a copy whose original stays in use: leave the original's transactions alone",
        lambda arguments: copied(arguments.db, forced=arguments.yes, schema=arguments.schema),
    )
    copying.add_argument("--yes", action="store_true", help="also if it has written state rows itself")
    back = action(
        "downgrade",
        "downgrade the tables to an earlier version, for an earlier release",
        lambda arguments: _taken_back(
            arguments.db, arguments.revision, lose_rows=arguments.yes, schema=arguments.schema
        ),
    )
    back.add_argument("revision", metavar="REVISION", help='an earlier version; "base" drops the tables')
    back.add_argument("--yes", action="store_true", help="also drop rows that are still needed")
    sql = action(
        "sql",
        "print the SQL of an upgrade or a downgrade, without a connection",
        lambda arguments: versions.statements(
            arguments.dialect, arguments.revision, since=arguments.since, schema=arguments.schema
        ).rstrip(),
    )
    add_schema(sql)
    sql.add_argument("--dialect", required=True, help=", ".join(SUPPORTED))
    sql.add_argument("--since", default=versions.BASE, metavar="REVISION", help="the tables' present version (base)")
    sql.add_argument(
        "revision", nargs="?", default=versions.HEAD, metavar="REVISION", help="the tables' new version (head)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the action, and print the version of the tables, the SQL, or a description of the change.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    print(arguments.act(arguments) or _NO_TABLES)
    return 0


def upgrade(url: str, revision: str = versions.HEAD, *, schema: str | None = None) -> str | None:
    """Bring the tables in the database at ``url`` up to date, and return their version; see schema.upgrade_engine.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=False, schema=schema) as engine:
        return upgrade_engine(engine, revision)


def downgrade(url: str, revision: str, *, lose_rows: bool = False, schema: str | None = None) -> str | None:
    """Take the tables in the database at ``url`` back to ``revision``; see schema.downgrade_engine.

    :raises ConfigurationError: as schema.downgrade_engine, and if the URL is malformed or the database refuses; the
        message is one line.
    """
    with database(url, must_exist=True, schema=schema) as engine:
        return versions.downgrade_engine(engine, revision, lose_rows=lose_rows)


def _taken_back(url: str, revision: str, *, lose_rows: bool, schema: str | None) -> str | None:
    """As :func:`downgrade`, but if that has removed the tables, return a sentence about it."""
    before = current(url, schema=schema)
    return downgrade(url, revision, lose_rows=lose_rows, schema=schema) or (
        None if before is None else f"removed all tables of dualwrite, which had version {before}"
    )


def moved(url: str, *, schema: str | None = None) -> str:
    """Make this database the owner of another database's state rows, after that database is gone. Return a description.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True, schema=schema) as engine:
        rows = copies.moved(engine)
    if not rows:
        return "nothing to do: there are no state rows"
    return (
        f"{rows} state row{' is' if rows == 1 else 's are'} this database's now; the next start recovers what is open"
    )


def _foresee_move(url: str, *, schema: str | None) -> NoReturn:
    """Change nothing. Runs instead of :func:`moved` unless ``--yes`` confirms that the original is gone.

    :raises InputError: always. The message names the consequences if the original is in use.
    """
    with database(url, must_exist=True, schema=schema) as engine:
        original = copies.original_in_sight(engine)
    warning = f"The original is still there: {original}. " if original else ""
    raise InputError(
        f"nothing was done: db moved needs --yes. {warning}If the original is in use, both databases have the same "
        "transactional ids then, and each aborts transactions in Kafka that the other has decided to commit: run "
        "`dualwrite db copied` in that case"
    )


def copied(url: str, *, forced: bool = False, schema: str | None = None) -> str:
    """Declare this database a copy beside its original, with its own identity. Return a description.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True, schema=schema) as engine:
        suffix, deleted, left_slots = copies.copied(engine, forced=forced)
    deletion = f"{deleted} state row{'' if deleted == 1 else 's'} of the original's deleted here; " if deleted else ""
    message = f"this is a copy: {deletion}its transactional ids are NAME-{suffix}-0, NAME-{suffix}-1, … from now on"
    if left_slots:
        names = ", ".join(left_slots[:_SHOWN]) + (
            f" and {len(left_slots) - _SHOWN} more" if len(left_slots) > _SHOWN else ""
        )
        message += (
            f"\n{names}: not given back when the copy was made, so something may be open in Kafka, which the original "
            "ends. If the original is gone, restore the copy, and run `dualwrite db moved --yes` instead"
        )
    return message


def current(url: str, *, schema: str | None = None) -> str | None:
    """The version of the tables in the database at ``url``; None before the first ``upgrade``.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True, schema=schema) as engine, engine.connect() as connection:
        return versions.current(connection)
