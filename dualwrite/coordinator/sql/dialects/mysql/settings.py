"""Settings of MariaDB and MySQL on which dualwrite's guarantees depend."""

from collections.abc import Mapping

from sqlalchemy import Connection, column, table, text, update

from dualwrite.coordinator.concurrency.step_errors import database_error_of
from dualwrite.coordinator.sql.dialects.interface.server import DurabilityGap
from dualwrite.coordinator.sql.dialects.interface.tables import STATE_TABLE
from dualwrite.errors import ConfigurationError

_SETTINGS = text(
    "SHOW SESSION VARIABLES WHERE Variable_name IN "
    "('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'innodb_snapshot_isolation', 'wsrep_on', "
    "'innodb_rollback_on_timeout', 'binlog_format', 'sql_mode')"
)
_NOT_LOGGED = 1665
"""ER_BINLOG_STMT_MODE_AND_ROW_ENGINE: the binary log cannot take a write at READ COMMITTED as a statement."""
_OF_GALERA = DurabilityGap(
    "wsrep_on = ON",
    "row locks are local to a node, and a node may not have another node's last commits yet",
    "send all connections of an application to the same node of the Galera cluster, as long as that node works",
)


def server_settings(connection: Connection) -> dict[str, str]:
    """The server's settings that concern durability and isolation, by name."""
    return {str(name): str(value) for name, value in connection.execute(_SETTINGS)}


def refusal_of(settings: Mapping[str, str]) -> str | None:
    """The reason why no dual write works with ``settings``; None if one does."""
    if settings.get("innodb_rollback_on_timeout") == "ON":
        return (
            "innodb_rollback_on_timeout = ON: if a row is locked, the server rolls back the whole transaction, which "
            "looks like a commit past the library: turn it off, and restart the server"
        )
    if "EMPTY_STRING_IS_NULL" in settings.get("sql_mode", ""):
        return (
            "sql_mode has EMPTY_STRING_IS_NULL: the library's tables have empty texts that are not NULL: remove it "
            "from the sql_mode of the application's sessions"
        )
    return None


def require_logged(connection: Connection, settings: Mapping[str, str], schema: str | None) -> None:
    """Refuse ``binlog_format = STATEMENT`` if the server refuses a write because of it. This tries a write of no row: a
    server may leave the database, or the session, out of its binary log, which not every role may see.

    :param connection: in a transaction at READ COMMITTED.
    """
    if settings.get("binlog_format") != "STATEMENT":
        return
    state = table(STATE_TABLE, column("transactional_id"), schema=schema)
    no_row = state.c.transactional_id == ""  # no false(): an optimizer that knows the result may not try
    try:
        connection.execute(update(state).where(no_row).values(transactional_id=""))
    except Exception as error:
        refusal = database_error_of(error)
        if refusal is None or getattr(refusal.orig, "args", ())[:1] != (_NOT_LOGGED,):
            raise
        raise ConfigurationError(
            "binlog_format = STATEMENT: the server refuses every write of the library's own transactions, which are at "
            "READ COMMITTED: set it to MIXED or ROW"
        ) from error


def durability_gaps_in(settings: Mapping[str, str]) -> list[DurabilityGap]:
    """Logs that are not flushed at each commit; row locks that other nodes of a cluster do not see."""
    names = ["innodb_flush_log_at_trx_commit"] + ["sync_binlog"] * (settings.get("log_bin") == "ON")
    logs = [
        DurabilityGap(
            f"{name} = {settings[name]}",
            "a COMMIT succeeds before it is on disk, so a crash can undo a decision after Kafka has committed",
            "set it to 1",
        )
        for name in names
        if settings.get(name, "1") != "1"
    ]
    return [*logs, _OF_GALERA] if settings.get("wsrep_on") == "ON" else logs
