"""Settings of MariaDB and MySQL on which dualwrite's guarantees depend."""

from collections.abc import Mapping

from sqlalchemy import Connection, text

from dualwrite.coordinator.sql.dialects.interface.server import DurabilityGap

_SETTINGS = text(
    "SHOW SESSION VARIABLES WHERE Variable_name IN "
    "('innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog', 'innodb_snapshot_isolation', 'wsrep_on', "
    "'innodb_rollback_on_timeout')"
)
_OF_GALERA = DurabilityGap(
    "wsrep_on = ON",
    "row locks are local to a node, and a node may not have another node's last commits yet",
    "send all connections of an application to the same node of the Galera cluster, as long as that node works",
)


def server_settings(connection: Connection) -> dict[str, str]:
    """The server's settings that concern durability and isolation, by name."""
    return {str(name): str(value) for name, value in connection.execute(_SETTINGS)}


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
