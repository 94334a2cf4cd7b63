"""``dualwrite db``: upgrade, show and downgrade the tables that this library keeps in the user's database.

The functions call ``dualwrite.schema`` for a database that is named by its URL.
"""

import argparse
from collections.abc import Callable
from typing import NoReturn

from dualwrite import schema as versions
from dualwrite.cli.database import add_database, add_schema, database
from dualwrite.errors import InputError
from dualwrite.operations import copies
from dualwrite.schema import upgrade_engine

__all__ = ["configure", "copied", "current", "downgrade", "moved", "run", "upgrade", "upgrade_engine"]

_SHOWN = 5
"""Most transactional ids that a message names."""
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

    action("upgrade", "make the tables, or bring them up to date", lambda given: upgrade(given.db, schema=given.schema))
    action("current", "show the tables' version", lambda given: current(given.db, schema=given.schema))
    moving = action(
        "moved",
        "say that the database that wrote the state table is gone, and that this one has taken its place",
        lambda given: (moved if given.yes else _foresee_move)(given.db, schema=given.schema),
    )
    moving.add_argument("--yes", action="store_true", help="the original is gone: nothing uses it any more")
    copying = action(
        "copied",
        "say that this database is a copy, whose original goes on: leave the original's transactions alone",
        lambda given: copied(given.db, forced=given.yes, schema=given.schema),
    )
    copying.add_argument("--yes", action="store_true", help="even if it calls itself the original")
    back = action(
        "downgrade",
        "take the tables back to an earlier version, for an earlier release",
        lambda given: _taken_back(given.db, given.revision, lose_rows=given.yes, schema=given.schema),
    )
    back.add_argument("revision", metavar="REVISION", help='a version that the tables had before; "base" drops them')
    back.add_argument("--yes", action="store_true", help="drop rows, too, that are needed still")
    sql = action(
        "sql",
        "print the SQL of an upgrade or a downgrade, and connect to nothing",
        lambda given: versions.statements(
            given.dialect, given.revision, since=given.since, schema=given.schema
        ).rstrip(),
    )
    add_schema(sql)
    sql.add_argument("--dialect", required=True, help="sqlite, postgresql, mysql or mariadb")
    sql.add_argument("--since", default=versions.BASE, metavar="REVISION", help="the version of the tables now (base)")
    sql.add_argument("revision", nargs="?", default=versions.HEAD, metavar="REVISION", help="the version wanted (head)")


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
    """As :func:`downgrade`, but return a sentence if it has removed the tables."""
    before = current(url, schema=schema)
    return downgrade(url, revision, lose_rows=lose_rows, schema=schema) or (
        None if before is None else f"removed all tables of dualwrite, which were of version {before}"
    )


def moved(url: str, *, schema: str | None = None) -> str:
    """Make this database the owner of the state rows of a database that is gone; return a description.

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
    """Change nothing: runs in place of :func:`moved` until ``--yes`` confirms that the original is gone.

    :raises InputError: always; the message names the consequences if the original is in use.
    """
    with database(url, must_exist=True, schema=schema) as engine:
        original = copies.original_in_sight(engine)
    seen = f"The original is still there: {original}. " if original else ""
    raise InputError(
        f"nothing was done: db moved needs --yes. {seen}If the original is in use, both databases have the same "
        "transactional ids then, and each aborts in Kafka what the other one has decided: run `dualwrite db copied` "
        "in that case"
    )


def copied(url: str, *, forced: bool = False, schema: str | None = None) -> str:
    """Declare this database a copy beside its original, with an identity of its own; return a description.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True, schema=schema) as engine:
        suffix, deleted, left = copies.copied(engine, forced=forced)
    gone = f"{deleted} state row{'' if deleted == 1 else 's'} of the original's deleted here; " if deleted else ""
    said = f"this is a copy: {gone}its transactional ids are NAME-{suffix}-0, NAME-{suffix}-1, … from now on"
    if left:
        names = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
        said += (
            f"\n{names}: not given back when the copy was made, so something may be open in Kafka, which the original "
            "ends. If the original is gone, restore the copy, and run `dualwrite db moved --yes` instead"
        )
    return said


def current(url: str, *, schema: str | None = None) -> str | None:
    """The version of the tables in the database at ``url``; None before the first ``upgrade``.

    :raises ConfigurationError: if the URL is malformed or the database refuses; the message is one line.
    """
    with database(url, must_exist=True, schema=schema) as engine, engine.connect() as connection:
        return versions.current(connection)
