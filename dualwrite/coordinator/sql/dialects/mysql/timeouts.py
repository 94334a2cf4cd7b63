"""Timeouts of the drivers for MariaDB and MySQL, and of the server, that are not set."""

from collections.abc import Iterator

from sqlalchemy import Connection, text

from dualwrite.coordinator.sql.dialects.interface.server import MissingTimeout, in_url

_DRIVER = (
    ("connect_timeout", 10, "a new connection may wait for minutes"),
    ("read_timeout", 60, "a statement that is not answered waits for ever, and so does a new connection's greeting"),
    ("write_timeout", 60, "a statement that cannot be sent waits for ever"),
)
_SETTINGS = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('idle_write_transaction_timeout', 'idle_transaction_timeout', 'wait_timeout')"
)


def missing_timeouts(connection: Connection) -> Iterator[MissingTimeout]:
    """Of the driver's connection, and of the server."""
    driver = connection.connection.driver_connection
    query = connection.engine.url.query
    for name, value, meaning in _DRIVER:
        attribute = next((spelling for spelling in (name, f"_{name}") if hasattr(driver, spelling)), None)
        if not (query.get(name) if attribute is None else getattr(driver, attribute)):
            yield MissingTimeout(name, meaning, in_url(f"{name}={value}"))
    settings = {str(name): str(value) for name, value in connection.execute(_SETTINGS)}
    if settings.get("idle_write_transaction_timeout") == "0" and settings.get("idle_transaction_timeout") == "0":
        yield MissingTimeout(
            "idle_write_transaction_timeout",
            "a client that has vanished keeps its rows locked, and recovery waiting, for wait_timeout "
            f"({settings.get('wait_timeout', '28800')} s)",
            "SET GLOBAL idle_write_transaction_timeout = 300, and in the server's configuration",
        )
