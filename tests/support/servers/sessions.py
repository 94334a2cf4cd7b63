"""Sessions on a database server, and how the server ends one."""

from typing import Any

from sqlalchemy import Engine, text


def session_of(driver_connection: Any) -> int:
    """The server's number of the session of ``driver_connection``, as the driver knows it."""
    if hasattr(driver_connection, "thread_id"):
        return int(driver_connection.thread_id())
    if hasattr(driver_connection, "get_server_pid"):
        return int(driver_connection.get_server_pid())
    return int(driver_connection.info.backend_pid)


def kill_session(engine: Engine, session: int) -> None:
    """Let the server of ``engine`` end ``session``."""
    is_postgresql = engine.dialect.name == "postgresql"
    statement = "SELECT pg_terminate_backend(:session)" if is_postgresql else "KILL :session"
    with engine.connect() as connection:
        connection.execute(text(statement), {"session": session})
