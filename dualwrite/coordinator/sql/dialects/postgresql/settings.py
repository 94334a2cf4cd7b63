"""Settings of PostgreSQL, and poolers in front of it, that weaken dualwrite's guarantees."""

from typing import Any

from sqlalchemy import Connection, text

from dualwrite.coordinator.sql.dialects.interface.server import DurabilityGap

_STATEMENTS_OF_ANOTHER = (
    "a pooler stands in front of PostgreSQL. With transaction pooling a prepared statement belongs to a connection "
    "that other clients use, too: it fails, or is another client's statement of that name"
)
_OR_ELSE = (
    "or see that the pooler does session pooling, or follows prepared statements (PgBouncer 1.21, "
    "max_prepared_statements)"
)


def durability_gaps(connection: Connection) -> list[DurabilityGap]:
    """Settings with which a crash or a failover can undo a decision.

    ``synchronous_commit = off`` is not among them: the statement that stores the decision turns it on.
    """
    gaps = []
    if connection.scalar(text("SHOW fsync")) == "off":
        gaps.append(
            DurabilityGap(
                "fsync = off",
                "a crash of the server's machine can undo a decision, or damage the whole database",
                "turn it on",
            )
        )
    if connection.scalar(text("SHOW full_page_writes")) == "off":
        gaps.append(
            DurabilityGap(
                "full_page_writes = off", "a crash of the server's machine can damage pages of the tables", "turn it on"
            )
        )
    commit = connection.scalar(text("SHOW synchronous_commit"))
    if commit in ("local", "remote_write") and connection.scalar(text("SHOW synchronous_standby_names")):
        loss = "before a standby has it" if commit == "local" else "before a standby has it on its disk"
        gaps.append(
            DurabilityGap(
                f"synchronous_commit = {commit}",
                f"a COMMIT succeeds {loss}, so a failover can undo a decision",
                "set it to on or remote_apply",
            )
        )
    return gaps


_UNUSABLE_SEQUENCES = text(
    "SELECT s.oid::pg_catalog.regclass::text FROM pg_catalog.pg_depend AS d "
    "JOIN pg_catalog.pg_class AS s ON s.oid = d.objid AND s.relkind = 'S' "
    "JOIN pg_catalog.pg_class AS t ON t.oid = d.refobjid "
    "JOIN pg_catalog.pg_namespace AS n ON n.oid = t.relnamespace "
    "WHERE d.deptype = 'a' AND t.relname = :name AND n.nspname = :schema "
    "AND NOT pg_catalog.has_sequence_privilege(s.oid, 'USAGE, UPDATE')"
)
"""The sequences of serial columns, for whose default a right on the table does not suffice."""


def unusable_sequences(connection: Connection, table: str, schema: str | None) -> list[str]:
    """The sequences behind the columns of ``table`` that this role may not use."""
    return list(connection.scalars(_UNUSABLE_SEQUENCES, {"name": table, "schema": schema}))


def pooling(connection: Connection) -> list[DurabilityGap]:
    """Detect a driver that prepares statements behind a pooler.

    There is a pooler if the server process that answers is not the one that was reported when the connection began.
    """
    setting = _prepares(connection)
    if setting is None:
        return []
    name, advice, backend_id = setting
    if backend_id == connection.scalar(text("SELECT pg_backend_pid()")):
        return []
    return [DurabilityGap(name, _STATEMENTS_OF_ANOTHER, f"{advice}, {_OR_ELSE}")]


def _prepares(connection: Connection) -> tuple[str, str, int] | None:
    """The driver's setting that lets it prepare statements under names that other clients use, too; the advice; and
    the server process that was reported to the driver. None if it prepares no statements, or cannot be asked."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.driver == "psycopg" and driver.prepare_threshold is not None:
        advice = 'create_engine(…, connect_args={"prepare_threshold": None})'
        return f"prepare_threshold = {driver.prepare_threshold}", advice, driver.info.backend_pid
    if connection.dialect.driver == "asyncpg":
        name = getattr(connection.connection.dbapi_connection, "_prepared_statement_name_func", lambda: None)
        if name() is None:
            return (
                "prepared_statement_name_func is not set",
                "set it and both cache sizes as SQLAlchemy's page on asyncpg says for PgBouncer",
                driver.get_server_pid(),
            )
    return None
