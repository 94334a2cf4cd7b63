"""The library's tables in the user's database: create, upgrade, downgrade, show.

``dualwrite db`` does the same on the command line. An application with its own alembic environment calls
:func:`upgrade` and :func:`downgrade` in one of its migrations, and passes :func:`include_name` in its ``env.py``.

The versions are alembic revisions (``migrations/versions``) without branches, recorded in the library's own version
table. They do not use alembic's module-level proxies: a process has one set of them, which is in use when an
application's migration calls this module.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any, Protocol, TextIO

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.runtime.migration import MigrationStep, RevisionStep
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, func, inspect, select, table

from dualwrite.coordinator.sql.dialects.supported import database_called, database_of
from dualwrite.coordinator.sql.engine.database_errors import connected
from dualwrite.coordinator.sql.engine.engine_checks import discard
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.identity_rows import keep_up_to_date
from dualwrite.coordinator.sql.own_tables import SCHEMA_OPTION, chosen_schema, ours, with_schema
from dualwrite.coordinator.sql.tables import VERSION_TABLE, dualwrite_database, metadata
from dualwrite.coordinator.sql.tables import kafka_transaction_state as state_table
from dualwrite.coordinator.sql.unit_bounds import begin_writing
from dualwrite.errors import ConfigurationError

BASE, HEAD = "base", "head"
"""The versions without tables, and with all tables of this release."""

LOCK_TIMEOUT = 30.0
"""How long a downgrade waits for units of work in progress, in seconds."""


class Op(Protocol):
    """The part of ``alembic.op``, and of alembic's Operations, that this module needs."""

    def get_context(self) -> MigrationContext:
        """The context of the running migration."""


def upgrade_engine(engine: Engine, revision: str = HEAD, *, schema: str | None = None) -> str | None:
    """Upgrade the tables to ``revision``, and return their version. A second call changes nothing, and neither does a
    release that is older than the tables.

    One process at a time upgrades, in one transaction. On MariaDB and MySQL, where DDL is not transactional, another
    run completes an upgrade that was interrupted.

    :param schema: schema of the tables, which must exist; see DualWrite.
    :raises ConfigurationError: if there is no such version, or a table was dropped by hand; if ``schema`` is None
        and another schema already has the tables; or if the host, the database or the user is wrong.
    :raises DatabaseUnavailableError: if the server cannot be reached now.
    :raises SQLAlchemyError: if the database refuses.
    """
    history = _History()
    history.position(revision)
    with connected(with_schema(engine, schema)) as connection, connection.begin():
        begin_writing(connection)
        with database_of(connection.dialect).changing_tables(connection):
            _upgrade_tables(connection, history, revision)
            version = current(connection)
            if version == history.names[-1]:
                _require_all_tables(connection)
            return version


def _upgrade_tables(connection: Connection, history: "_History", revision: str) -> None:
    if history.position(revision):
        _require_no_other_tables(connection)
    _keep_identity(connection)
    _run(_context(connection, history.up(revision)))


def _require_no_other_tables(connection: Connection) -> None:
    """Refuse to create a second set of tables unless the caller named its schema. Two sets would give the same
    transactional ids to two processes, and each would abort transactions that the other has decided to commit."""
    if chosen_schema(connection.get_execution_options()) is not None or current(connection) is not None:
        return
    other_schemas = database_of(connection.dialect).other_schemas_with(connection, state_table.name)
    if other_schemas:
        here = connection.scalar(select(func.current_schema()))
        raise ConfigurationError(
            f"the schema {other_schemas[0]!r} has dualwrite's tables, and this would make a second set in {here!r}. "
            f"To use the first, name it here and in the application: --schema {other_schemas[0]} (schema=). "
            f"For a second set, with another application name, use --schema {here}"
        )


def _keep_identity(connection: Connection) -> None:
    """Update the database's identity in the rows: the upgrade may change the state table's definition, and with it one
    half of a MariaDB's identity."""
    schema = chosen_schema(connection.get_execution_options())
    inspector = inspect(connection)
    if not {state_table.name, dualwrite_database.name} <= set(inspector.get_table_names(schema)):
        return
    columns = {column["name"] for column in inspector.get_columns(state_table.name, schema)}
    if state_table.c.database_id.name in columns:  # otherwise the upgrade that adds it was interrupted
        keep_up_to_date(connection)


def _require_all_tables(connection: Connection) -> None:
    """Refuse if a table is missing. By its version it exists, so an upgrade would not create it again."""
    schema = chosen_schema(connection.get_execution_options())
    missing = sorted(set(metadata.tables) - set(inspect(connection).get_table_names(schema)))
    if missing:
        raise ConfigurationError(
            f"the table {missing[0]!r} is missing, although {VERSION_TABLE!r} lists its version: restore it from a "
            "backup; or, if the other tables' content may be lost, drop them with `dualwrite db downgrade --db URL "
            "base --yes` and run this again"
        )


def downgrade_engine(
    engine: Engine, revision: str, *, lose_rows: bool = False, schema: str | None = None
) -> str | None:
    """Downgrade the tables to ``revision``, and return their version; None for "base". Units of work that begin
    meanwhile wait. Tables of that version or an earlier one stay unchanged.

    :param lose_rows: also drop rows that are still needed: consumers' offsets, positions of loads, unacknowledged
        outcomes and the records to be replayed for them.
    :param schema: schema of the tables; see DualWrite.
    :raises ConfigurationError: if there is no such version, if such rows would be lost, or if a slot was not given
        back. Then a process uses the slot, or left a transaction that only the state table can decide. Also if the
        host, the database or the user is wrong.
    :raises DatabaseUnavailableError: if the server cannot be reached now.
    :raises DatabaseBusyError: if a unit of work did not end within LOCK_TIMEOUT.
    :raises SQLAlchemyError: if the database refuses.
    """
    history = _History()
    history.position(revision)
    with connected(with_schema(engine, schema)) as connection, connection.begin(), clear_errors(engine):
        try:
            begin_writing(connection)
            database = database_of(connection.dialect)
            with database.own_transaction(connection, LOCK_TIMEOUT), database.changing_tables(connection):
                _take_back(connection, history, revision, lose_rows=lose_rows)
                return current(connection)
        except BaseException:
            discard(connection)  # its timeouts were not reset
            raise


def current(connection: Connection) -> str | None:
    """The version of the tables in the database of ``connection``; None if there are none."""
    return _context(connection, _nothing).get_current_revision()


def versions() -> tuple[str, ...]:
    """All versions of this release, the oldest first."""
    return tuple(_History().names)


def upgrade(op: Op, revision: str, *, since: str = BASE, schema: str | None = None) -> None:
    """In an application's migration: upgrade the tables to ``revision``, unless they have that version or a later one.

    :param op: ``alembic.op``.
    :param revision: an explicit version ("0002", not "head"), so that the migration always does the same.
    :param since: the version before this migration. ``alembic upgrade --sql`` prints the statements from there on.
    :param schema: schema of the tables; see DualWrite.
    :raises ConfigurationError: if there is no such version in this release; or if ``schema`` is None and another schema
        already has the tables.
    """
    history = _History()
    theirs = op.get_context()
    history.position(revision)
    if theirs.as_sql:
        _run(_printing(theirs.output_buffer, since, history.up(revision), schema, dialect=theirs.dialect))
        return
    with _connection_of(theirs, schema) as connection:
        _upgrade_tables(connection, history, revision)


def downgrade(op: Op, revision: str, *, since: str, lose_rows: bool = False, schema: str | None = None) -> None:
    """In an application's migration: downgrade the tables to ``revision``, "base" for none; see downgrade_engine.

    :param since: the version before this migration runs, as in :func:`upgrade`; likewise ``schema``.
    :raises ConfigurationError: as downgrade_engine; with ``--sql`` it cannot check the database and refuses nothing.
    """
    history = _History()
    theirs = op.get_context()
    history.position(revision)
    if theirs.as_sql:
        _run(_printing(theirs.output_buffer, since, history.down(revision), schema, dialect=theirs.dialect))
        return
    with _connection_of(theirs, schema) as connection:
        begin_writing(connection)  # SQLite's lock: alembic begins no transaction there before the first change
        _take_back(connection, history, revision, lose_rows=lose_rows)


def statements(dialect: str, revision: str = HEAD, *, since: str = BASE, schema: str | None = None) -> str:
    """The SQL that upgrades or downgrades tables of version ``since`` to ``revision``, for an administrator to run.

    :param dialect: "sqlite", "postgresql", "mysql" or "mariadb".
    :param schema: schema for the tables; see DualWrite.
    :raises ConfigurationError: if there is no such database or version.
    """
    database_called(dialect)
    history = _History()
    is_up = history.position(since) <= history.position(revision)
    printed = StringIO()
    plan = history.up(revision) if is_up else history.down(revision)
    context = _printing(printed, since, plan, schema, dialect_name=dialect)
    with context.begin_transaction():
        _run(context)
    return printed.getvalue()


def include_name(name: str | None, type_: str, parent_names: MutableMapping[Any, str | None]) -> bool:
    """Return False for this library's tables. For ``context.configure(include_name=…)``, directly or called by your own
    function: the tables are not in the application's metadata, so ``alembic revision --autogenerate`` would drop them.
    """
    return not (type_ == "table" and name in (VERSION_TABLE, *metadata.tables))


def migrations_directory() -> Path:
    """The directory of alembic's scripts: inside an installed package, beside the package in a checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "migrations"


_Plan = Callable[[Sequence[str], MigrationContext], Sequence[RevisionStep]]
"""alembic's callback: the steps to run on tables of these versions."""


class _History:
    """All versions of this release, in order."""

    def __init__(self) -> None:
        directory = ScriptDirectory(migrations_directory())
        self._map = directory.revision_map
        self._scripts: list[Script] = [*directory.walk_revisions()][::-1]
        self.names = [script.revision for script in self._scripts]

    def position(self, revision: str) -> int:
        """The number of steps from "base" to ``revision``.

        :raises ConfigurationError: if there is no such version.
        """
        known = [BASE, *self.names]
        if revision == HEAD:
            return len(self.names)
        if revision not in known:
            raise ConfigurationError(f"there is no version {revision!r} of the tables: use {', '.join(known)} or head")
        return known.index(revision)

    def up(self, revision: str) -> _Plan:
        """The steps from the tables' version up to ``revision``."""

        def plan(heads: Sequence[str], _: MigrationContext) -> Sequence[RevisionStep]:
            now = self._position_of(heads)
            scripts = [] if now is None else self._scripts[now : self.position(revision)]
            return [MigrationStep.upgrade_from_script(self._map, script) for script in scripts]

        return plan

    def down(self, revision: str) -> _Plan:
        """The steps from the tables' version down to ``revision``."""

        def plan(heads: Sequence[str], _: MigrationContext) -> Sequence[RevisionStep]:
            return [MigrationStep.downgrade_from_script(self._map, script) for script in self.undone(heads, revision)]

        return plan

    def undone(self, heads: Sequence[str], revision: str) -> Sequence[Script]:
        """The scripts that a downgrade to ``revision`` undoes, the newest first.

        :raises ConfigurationError: if the tables are of a later release.
        """
        now = self._position_of(heads)
        if now is None:
            raise ConfigurationError(
                f"the tables have version {heads[0]}, and this release of dualwrite knows versions up to "
                f"{self.names[-1]}: downgrade them with the release that upgraded them"
            )
        return self._scripts[self.position(revision) : now][::-1]

    def _position_of(self, heads: Sequence[str]) -> int | None:
        """Like ``position``; None for a version of a later release."""
        version = heads[0] if heads else BASE
        return None if version.isdigit() and version > self.names[-1] else self.position(version)


def _context(connection: Connection, plan: _Plan) -> MigrationContext:
    schema = chosen_schema(connection.get_execution_options())
    return MigrationContext.configure(connection, opts={**_options(schema), "fn": plan})


def _options(schema: str | None) -> dict[str, Any]:
    return {"version_table": VERSION_TABLE, "version_table_schema": schema, SCHEMA_OPTION: schema}


def _printing(output: TextIO, since: str, plan: _Plan, schema: str | None, **dialect: Any) -> MigrationContext:
    options = {**_options(schema), "fn": plan, "as_sql": True, "starting_rev": since}
    return MigrationContext.configure(**dialect, opts={**options, "output_buffer": output})


def _nothing(*_: object) -> Sequence[RevisionStep]:
    return ()


def _run(context: MigrationContext) -> None:
    context.run_migrations(op=Operations(context))


@contextmanager
def _connection_of(theirs: MigrationContext, schema: str | None) -> Iterator[Connection]:
    """The connection of an application's migration, while no other connection changes the library's tables."""
    connection = theirs.connection
    assert connection is not None
    if schema is not None:
        connection.execution_options(**{SCHEMA_OPTION: schema})
    with database_of(connection.dialect).changing_tables(connection):
        yield connection


def _take_back(connection: Connection, history: _History, revision: str, *, lose_rows: bool) -> None:
    """Downgrade, with the tables locked. Refuse if needed rows would be lost and ``lose_rows`` is False."""
    schema = chosen_schema(connection.get_execution_options())
    tables = inspect(connection).get_table_names(schema)
    present = [name for name in (VERSION_TABLE, *metadata.tables) if name in tables]
    quote = connection.dialect.identifier_preparer.format_table
    full_names = [quote(table(name, schema=schema)) for name in present]
    with database_of(connection.dialect).locked_tables(connection, full_names):
        context = _context(connection, history.down(revision))
        undone = history.undone(context.get_current_heads(), revision)
        if undone and state_table.name in present:
            require_all_given_back(connection)
        lost = [words for script in undone for words in script.module.losses(connection)]
        if lost and not lose_rows:
            raise ConfigurationError(
                f"a downgrade to {revision} would drop {', '.join(lost)}: use up or acknowledge them first, "
                "or allow the loss (--yes, lose_rows=True)"
            )
        _run(context)


def require_all_given_back(connection: Connection) -> None:
    """Require that all slots were given back: then no transaction is open in Kafka that needs the decision of a row."""
    slots = connection.scalars(
        select(state_table.c.transactional_id)
        .where(state_table.c.owner != "")
        .order_by(state_table.c.transactional_id),
        execution_options=ours(connection),
    ).all()
    if slots:
        others_text = f" and {len(slots) - 1} more" if len(slots) > 1 else ""
        raise ConfigurationError(
            f"slot {slots[0]}{others_text} was not given back: stop the programs that use this database, and run "
            "`dualwrite recover` to end the transactions of dead ones"
        )
