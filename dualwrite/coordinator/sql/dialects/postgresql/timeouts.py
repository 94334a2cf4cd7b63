"""Timeouts of libpq and of PostgreSQL that are not set."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, text

from dualwrite.coordinator.sql.dialects.interface.server import MissingTimeout, in_url

_SESSION = (
    ("statement_timeout", "60s", "a statement of a unit of work may take for ever"),
    ("lock_timeout", "30s", "a statement waits for ever for a row that another transaction holds"),
    (
        "idle_in_transaction_session_timeout",
        "5min",
        "a client that has vanished keeps its rows locked, and recovery waiting",
    ),
)


def missing_timeouts(connection: Connection) -> Iterator[MissingTimeout]:
    """Of the connection as libpq knows it, and of the session."""
    parameters = _libpq_parameters(connection)
    if parameters is not None:
        if not parameters.get("connect_timeout"):
            yield MissingTimeout(
                "connect_timeout", "a new connection may wait for minutes", in_url("connect_timeout=10")
            )
        if not str(parameters.get("host", "")).startswith("/"):
            yield from _tcp(parameters)
    user = connection.scalar(text("SELECT current_user"))
    for name, value, meaning in _SESSION:
        if connection.scalar(text(f"SHOW {name}")) == "0":
            yield MissingTimeout(name, meaning, f"ALTER ROLE {user} SET {name} = '{value}'")


def _tcp(parameters: Mapping[str, Any]) -> Iterator[MissingTimeout]:
    if not int(parameters.get("tcp_user_timeout") or 0):
        yield MissingTimeout(
            "tcp_user_timeout",
            "a statement that the network drops waits for a quarter of an hour",
            in_url("tcp_user_timeout=30000"),
        )
    if str(parameters.get("keepalives", "1")) == "0":
        yield MissingTimeout("keepalives", "a server that has vanished is waited for, for ever", in_url("keepalives=1"))
    if not int(parameters.get("keepalives_idle") or 0):
        yield MissingTimeout(
            "keepalives_idle",
            "that a server has vanished is found out after two hours",
            in_url("keepalives_idle=30&keepalives_interval=10&keepalives_count=3"),
        )


def _libpq_parameters(connection: Connection) -> Mapping[str, Any] | None:
    """libpq's parameters, from the URL, connect_args or its environment; None for a driver without libpq."""
    information = getattr(connection.connection.driver_connection, "info", None)
    ask = getattr(information, "get_parameters", None)  # psycopg; psycopg2 has the other
    found: Mapping[str, Any] | None = getattr(information, "dsn_parameters", None) if ask is None else ask()
    return found
