"""The doctor's checks of the timeouts of the driver and of the server.

``database_timeout`` limits the library's own database requests. These timeouts limit the application's own statements:
without them a frozen server, or a network that drops all packets, holds a unit of work forever.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, text

from dualwrite.operations.findings import Finding, ok, warning

CHECK = "timeouts"


def check_timeouts(engine: Engine) -> Iterator[Finding]:
    """One finding for each timeout that is missing, with the setting to add. SQLite is a file, and needs none."""
    look = _LOOKS.get(engine.dialect.name)
    if look is None:
        return
    with engine.connect() as connection:
        findings = list(look(connection))
    yield from findings or [ok(CHECK, "a database that goes silent holds no unit of work for ever")]


def _postgresql(connection: Connection) -> Iterator[Finding]:
    parameters = _libpq_parameters(connection)
    if parameters is not None:
        if not parameters.get("connect_timeout"):
            yield _missing("connect_timeout", "a new connection may wait for minutes", _in_url("connect_timeout=10"))
        if not str(parameters.get("host", "")).startswith("/"):
            yield from _tcp(parameters)
    user = connection.scalar(text("SELECT current_user"))
    for name, value, meaning in _POSTGRESQL_SESSION:
        if connection.scalar(text(f"SHOW {name}")) == "0":
            yield _missing(name, meaning, f"ALTER ROLE {user} SET {name} = '{value}'")


def _tcp(parameters: Mapping[str, Any]) -> Iterator[Finding]:
    if not int(parameters.get("tcp_user_timeout") or 0):
        yield _missing(
            "tcp_user_timeout",
            "a statement that the network drops waits for a quarter of an hour",
            _in_url("tcp_user_timeout=30000"),
        )
    if str(parameters.get("keepalives", "1")) == "0":
        yield _missing("keepalives", "a server that has vanished is waited for, for ever", _in_url("keepalives=1"))
    if not int(parameters.get("keepalives_idle") or 0):
        yield _missing(
            "keepalives_idle",
            "that a server has vanished is found out after two hours",
            _in_url("keepalives_idle=30&keepalives_interval=10&keepalives_count=3"),
        )


def _libpq_parameters(connection: Connection) -> Mapping[str, Any] | None:
    """libpq's parameters, from the URL, connect_args or its environment; None for a driver without libpq."""
    information = getattr(connection.connection.driver_connection, "info", None)
    ask = getattr(information, "get_parameters", None)  # psycopg; psycopg2 has the other
    found: Mapping[str, Any] | None = getattr(information, "dsn_parameters", None) if ask is None else ask()
    return found


def _mysql(connection: Connection) -> Iterator[Finding]:
    driver = connection.connection.driver_connection
    query = connection.engine.url.query
    for name, value, meaning in _MYSQL_DRIVER:
        attribute = next((each for each in (name, f"_{name}") if hasattr(driver, each)), None)
        if not (query.get(name) if attribute is None else getattr(driver, attribute)):
            yield _missing(name, meaning, _in_url(f"{name}={value}"))
    settings = {str(name): str(value) for name, value in connection.execute(_MYSQL_SETTINGS)}
    if settings.get("idle_write_transaction_timeout") == "0" and settings.get("idle_transaction_timeout") == "0":
        yield _missing(
            "idle_write_transaction_timeout",
            "a client that has vanished keeps its rows locked, and recovery waiting, for wait_timeout "
            f"({settings.get('wait_timeout', '28800')} s)",
            "SET GLOBAL idle_write_transaction_timeout = 300, and in the server's configuration",
        )


def _missing(name: str, meaning: str, advice: str) -> Finding:
    return warning(CHECK, f"{name} is not set: {meaning}", advice)


def _in_url(query: str) -> str:
    return f"add {query} to the query of the database URL, or to connect_args"


_POSTGRESQL_SESSION = (
    ("statement_timeout", "60s", "a statement of a unit of work may take for ever"),
    ("lock_timeout", "30s", "a statement waits for ever for a row that another transaction holds"),
    (
        "idle_in_transaction_session_timeout",
        "5min",
        "a client that has vanished keeps its rows locked, and recovery waiting",
    ),
)
_MYSQL_DRIVER = (
    ("connect_timeout", 10, "a new connection may wait for minutes"),
    ("read_timeout", 60, "a statement that is not answered waits for ever, and so does a new connection's greeting"),
    ("write_timeout", 60, "a statement that cannot be sent waits for ever"),
)
_MYSQL_SETTINGS = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('idle_write_transaction_timeout', 'idle_transaction_timeout', 'wait_timeout')"
)
_LOOKS: Mapping[str, Callable[[Connection], Iterator[Finding]]] = {
    "postgresql": _postgresql,
    "mysql": _mysql,
    "mariadb": _mysql,
}
