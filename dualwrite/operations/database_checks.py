"""The doctor's checks of the database: version, durability settings, and whether the state tables can be used."""

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import NamedTuple

from sqlalchemy import Connection, Delete, Engine, Executable, Table, delete, false, insert, literal, select, update
from sqlalchemy.exc import DBAPIError

from dualwrite import schema
from dualwrite.coordinator.sql.column_types import MOMENT
from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import first_line
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.engine.shown_url import command_on
from dualwrite.coordinator.sql.own_tables import ours, schema_of
from dualwrite.coordinator.sql.tables import (
    VERSION_TABLE,
    dualwrite_database,
    kafka_consumer_offset,
    kafka_transaction_outcome,
    kafka_transaction_record,
    kafka_transaction_state,
)
from dualwrite.coordinator.sql.unit_bounds import begin_writing, make_durable
from dualwrite.operations.findings import Finding, failure, ok, warning
from dualwrite.operations.rows import is_refused

CLOCK_SECONDS = 5.0
"""The accepted difference of two clocks. It does not matter for the times that depend on them."""

_READ_ONLY_FILE = "attempt to write a readonly database"
"""SQLite's message."""


def _insert(table: Table) -> Executable:
    columns = [column for column in table.c if column.autoincrement is not True]
    return insert(table).from_select([column.name for column in columns], select(*columns).where(false()))


def _update(table: Table) -> Executable:
    column = next(iter(table.c))
    return update(table).where(false()).values({column.name: column})


def _delete(table: Table) -> Delete:
    return delete(table).where(false())


_VERBS: dict[str, Callable[[Table], Executable]] = {
    "SELECT": lambda table: select(table).where(false()),
    "INSERT": _insert,
    "UPDATE": _update,
    "DELETE": _delete,
}
_NEEDED = (
    (dualwrite_database, ("SELECT", "UPDATE")),
    (kafka_transaction_state, ("SELECT", "INSERT", "UPDATE")),
    (kafka_transaction_outcome, ("SELECT", "INSERT", "UPDATE")),
    (kafka_transaction_record, ("SELECT", "INSERT", "DELETE")),
    (kafka_consumer_offset, ("SELECT", "INSERT", "UPDATE")),
)


def check_server(engine: Engine) -> Iterator[Finding]:
    """Check the server's version, and the settings with which a crash could undo a decision."""
    database = database_of(engine.dialect)
    with engine.connect() as connection:
        make_durable(connection)  # as a unit of work does
        yield ok("database", database.version(connection))
        gaps = database.durability_gaps(connection)
        pooling = database.pooling(connection)
    for gap in gaps:
        yield warning("durability", f"{gap.setting}: {gap.meaning}", gap.advice)
    if not gaps:
        yield ok("durability", "a transaction is on disk when its commit succeeds")
    for gap in pooling:
        yield warning("pooler", f"{gap.setting}: {gap.meaning}", gap.advice)


def check_schema(engine: Engine) -> Iterator[Finding]:
    """Compare the version of the tables with the version that this release needs."""
    with engine.connect() as connection:
        try:
            version = schema.current(connection)
        except DBAPIError as error:
            if not is_refused(engine, error):
                raise
            privilege = f"SELECT on {VERSION_TABLE}"
            advice = f"GRANT {privilege} to the user that the doctor logs in as; an application does not need it"
            yield warning("schema", f"the version is not readable: {first_line(error)}", advice)
            return
    *older, head = schema.versions()
    upgrade = _upgrade(engine)
    if version is None:
        yield failure("schema", "the state tables are missing", upgrade)
    elif version == head:
        yield ok("schema", f"version {version}")
    elif version in older:
        yield failure("schema", f"version {version}, and this release needs {head}", upgrade)
    else:
        yield warning(
            "schema", f"version {version} belongs to a newer release than this ({head})", "upgrade dualwrite here, too"
        )


def check_transactions(engine: Engine) -> Iterator[Finding]:
    """Check that a transaction can begin: the engine is not in AUTOCOMMIT, and the tables' storage has transactions."""
    with engine.connect() as connection:
        make_durable(connection)
        transaction = connection.begin()
        begin_writing(connection)
        database_of(connection.dialect).require_suitable(connection)
        transaction.rollback()
    yield ok("transactions", "begun and rolled back")


def check_permissions(engine: Engine) -> Iterator[Finding]:
    """Try the library's statements on its tables, without a matching row, in a transaction that is rolled back."""
    refused: dict[str, str] = {}
    missing: dict[str, str] = {}
    read_only: list[str] = []
    with engine.connect() as connection, clear_errors(engine):
        for table, verbs in _NEEDED:
            for verb in verbs:
                refusal = _refusal(connection, _VERBS[verb](table))
                if refusal is None:
                    continue
                if refusal.meaning is ErrorMeaning.NOT_READY:
                    missing[table.name] = refusal.reason
                elif refusal.meaning is ErrorMeaning.READ_ONLY:
                    read_only.append(refusal.reason)
                else:
                    refused[f"{verb} on {table.name}"] = refusal.reason
        with connection.begin():
            refused.update(_unusable_sequences(connection))
    for name, reason in missing.items():
        yield failure("permissions", f"{name}: {reason}", _upgrade(engine))
    if read_only:
        yield failure(
            "permissions",
            f"the database takes no writes: {read_only[0]}",
            "name the primary: units of work, and commands that change something, cannot use a replica or a database "
            "that is read-only",
        )
    for privilege, reason in refused.items():
        yield failure(
            "permissions", f"{privilege}: {reason}", f"GRANT {privilege} to the user that the application logs in as"
        )
    if not refused and not missing and not read_only:
        yield ok("permissions", "the state tables can be read and written")


def check_clock(engine: Engine) -> Iterator[Finding]:
    """Compare this machine's clock with the database's, which leases use."""
    database = database_of(engine.dialect)
    with engine.connect() as connection:
        this_machine = literal(datetime.now(timezone.utc), MOMENT)
        ahead = float(connection.scalar(select(database.seconds_until(this_machine))) or 0)
    if abs(ahead) < CLOCK_SECONDS:
        yield ok("clock", f"this machine's and the database's differ by {abs(ahead):.1f} s")
    else:
        yield warning(
            "clock",
            f"this machine's is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the database's",
            "leases use the database's clock alone, but timestamps of records and logs, and certificates, use this "
            "machine's: synchronise both",
        )


def _upgrade(engine: Engine) -> str:
    return command_on(engine, "db upgrade")


def _unusable_sequences(connection: Connection) -> Iterator[tuple[str, str]]:
    """The missing rights on sequences, each with its consequence. No statement on no row finds them."""
    unusable = database_of(connection.dialect).unusable_sequences
    for table, _ in _NEEDED:
        for sequence in unusable(connection, table.name, schema_of(connection)):
            yield f"USAGE on sequence {sequence}", f"without it no row can be added to {table.name}"


class _Refusal(NamedTuple):
    """A statement that the database refuses."""

    reason: str
    meaning: ErrorMeaning | None


def _refusal(connection: Connection, statement: Executable) -> _Refusal | None:
    """The database's refusal of ``statement``; None if there is none."""
    transaction = connection.begin()
    try:
        connection.execute(statement, execution_options=ours(connection))
    except DBAPIError as error:
        meaning = database_of(connection.dialect).meaning_of(error)
        if meaning is ErrorMeaning.BUSY:
            raise  # not a missing permission
        reason = str(error.orig).strip().partition("\n")[0]
        # SQLite's file cannot be written; a unit of work passes that error as it is, because no other server may help.
        return _Refusal(reason, ErrorMeaning.READ_ONLY if reason.endswith(_READ_ONLY_FILE) else meaning)
    finally:
        transaction.rollback()
    return None
